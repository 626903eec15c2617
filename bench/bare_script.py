"""The floor for indexing: read, encode, embed 16 x 64 in flight, binary COPY; nothing else."""

from __future__ import annotations

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import local
from urllib.parse import urlsplit

import numpy as np
import psycopg
import tiktoken
from pgvector.psycopg import register_vector

BATCH, IN_FLIGHT, DIMENSIONS = 64, 16, 1536


def main(tree: Path, texts_file: Path, embedding_url: str, database_url: str) -> None:
    """
    Print the seconds as JSON, those of reading arguments and texts apart.

    texts_file: the very texts that kshift embeds, as a JSON list, so that both pay for the same.
    """
    texts: list[str] = json.loads(texts_file.read_text("utf-8"))
    encoding = tiktoken.get_encoding("cl100k_base")
    address = urlsplit(embedding_url)
    mine = local()

    def embed(batch: list[str]) -> list[np.ndarray]:
        if not hasattr(mine, "connection"):
            mine.connection = HTTPConnection(address.hostname or "", address.port)
        body = {"model": "text-embedding-3-small", "input": batch, "encoding_format": "base64"}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer x"}
        mine.connection.request("POST", f"{address.path}/embeddings", json.dumps(body), headers)
        answer = json.loads(mine.connection.getresponse().read())
        return [
            np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in answer["data"]
        ]

    with psycopg.connect(database_url, autocommit=True) as conn:
        register_vector(conn)
        conn.execute("DROP TABLE IF EXISTS bare")
        conn.execute(f"CREATE TABLE bare (id int, content text, embedding vector({DIMENSIONS}))")
        began = time.perf_counter()
        for path in sorted(tree.rglob("*.md")):
            encoding.encode_ordinary(path.read_text("utf-8"))
        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        with ThreadPoolExecutor(IN_FLIGHT) as pool, conn.transaction():
            statement = "COPY bare FROM STDIN (FORMAT BINARY)"
            number = 0
            with conn.cursor().copy(statement) as copy:
                copy.set_types(["int4", "text", "vector"])
                for batch, vectors in zip(batches, pool.map(embed, batches), strict=True):
                    for text, vector in zip(batch, vectors, strict=True):
                        copy.write_row((number, text, vector))
                        number += 1
        seconds = time.perf_counter() - began
        conn.execute("DROP TABLE bare")
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
