"""One update of a CocoIndex app: the flow of its text embedding example, embedding by OpenAI."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated

import asyncpg
import cocoindex as coco
import numpy as np
from cocoindex.connectors import localfs, postgres
from cocoindex.ops.text import RecursiveSplitter
from cocoindex.resources.chunk import Chunk
from cocoindex.resources.file import FileLike, PatternFilePathMatcher
from cocoindex.resources.id import IdGenerator
from cocoindex.resources.schema import VectorSchema
from numpy.typing import NDArray
from openai import AsyncOpenAI

CHUNK_BYTES, OVERLAP_BYTES = 2560, 256  # about 512 and 64 tokens of prose; it counts bytes
DATABASE = coco.ContextKey[asyncpg.Pool]("database")

client = AsyncOpenAI()
splitter = RecursiveSplitter()


@coco.lifespan
async def lifespan(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = Path(sys.argv[2], "state")
    async with await postgres.create_pool(os.environ["PEER_DATABASE_URL"]) as pool:
        builder.provide(DATABASE, pool)
        yield


@dataclass
class Row:
    id: int
    file: str
    start: int
    end: int
    content: str
    embedding: Annotated[NDArray[np.float32], VectorSchema(np.dtype(np.float32), 1536)]


@coco.fn.as_async(batching=True, max_batch_size=64)
async def embed_batch(texts: list[str]) -> list[NDArray[np.float32]]:
    answer = await client.embeddings.create(model="text-embedding-3-small", input=texts)
    return [np.asarray(entry.embedding, np.float32) for entry in answer.data]


@coco.fn(memo=True)
async def embed(text: str) -> NDArray[np.float32]:
    return await embed_batch(text)


@coco.fn
async def process_chunk(
    chunk: Chunk, file: PurePath, ids: IdGenerator, table: postgres.TableTarget[Row]
) -> None:
    table.declare_row(
        row=Row(
            id=await ids.next_id(chunk.text),
            file=str(file),
            start=chunk.start.char_offset,
            end=chunk.end.char_offset,
            content=chunk.text,
            embedding=await embed(chunk.text),
        )
    )


@coco.fn(memo=True)
async def process_file(file: FileLike, table: postgres.TableTarget[Row]) -> None:
    chunks = splitter.split(
        await file.read_text(), CHUNK_BYTES, chunk_overlap=OVERLAP_BYTES, language="markdown"
    )
    await coco.map(process_chunk, chunks, file.file_path.path, IdGenerator(), table)


@coco.fn
async def index(tree: Path) -> None:
    schema = await postgres.TableSchema.from_class(Row, primary_key=["id"])
    table = await postgres.mount_table_target(DATABASE, "chunks", schema)
    matcher = PatternFilePathMatcher(included_patterns=["**/*.md"])
    files = localfs.walk_dir(tree, recursive=True, path_matcher=matcher)
    await coco.mount_each(process_file, files.items(), table)


app = coco.App(coco.AppConfig(name="peer"), index, tree=Path(sys.argv[1]))

if __name__ == "__main__":
    began = time.perf_counter()
    app.update_blocking()
    print(json.dumps({"seconds": time.perf_counter() - began}))
