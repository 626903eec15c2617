"""One index() of LangChain into PGVector, with incremental cleanup, as its documentation has it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from langchain_classic.indexes import SQLRecordManager
from langchain_core.documents import Document
from langchain_core.indexing import index
from langchain_openai import OpenAIEmbeddings
from langchain_postgres import PGVector
from langchain_text_splitters import RecursiveCharacterTextSplitter


def main(tree: Path) -> None:
    url = os.environ["PEER_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    # It sends tokens instead of texts where it is to check their number.
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    splitter = RecursiveCharacterTextSplitter.from_tiktoken_encoder(
        "cl100k_base", chunk_size=512, chunk_overlap=64
    )
    began = time.perf_counter()
    store = PGVector(embeddings, connection=url, embedding_length=1536, collection_name="peer")
    records = SQLRecordManager("peer", db_url=url)
    records.create_schema()
    documents = [
        Document(path.read_text("utf-8"), metadata={"source": str(path.relative_to(tree))})
        for path in sorted(tree.rglob("*.md"))
    ]
    index(
        splitter.split_documents(documents),
        records,
        store,
        cleanup="incremental",
        source_id_key="source",
        key_encoder="sha256",
    )
    print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
