"""One run of a LlamaIndex IngestionPipeline into its PGVectorStore, upserting by document."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from llama_index.core import Document
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.vector_stores.postgres import PGVectorStore


def main(tree: Path, state: Path) -> None:
    url = os.environ["PEER_DATABASE_URL"]
    began = time.perf_counter()
    seen = state / "documents.json"
    documents = SimpleDocumentStore.from_persist_path(str(seen)) if seen.exists() else None
    pipeline = IngestionPipeline(
        transformations=[
            SentenceSplitter(chunk_size=512, chunk_overlap=64),
            OpenAIEmbedding(model="text-embedding-3-small", api_base=os.environ["OPENAI_BASE_URL"]),
        ],
        docstore=documents or SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
        vector_store=PGVectorStore.from_params(
            connection_string=url.replace("postgresql://", "postgresql+psycopg2://", 1),
            async_connection_string=url.replace("postgresql://", "postgresql+asyncpg://", 1),
            table_name="peer",
            embed_dim=1536,
        ),
        disable_cache=True,  # it only helps where the very same set of documents comes again
    )
    pipeline.run(
        documents=[
            Document(text=path.read_text("utf-8"), id_=str(path.relative_to(tree)))
            for path in sorted(tree.rglob("*.md"))
        ]
    )
    pipeline.docstore.persist(str(seen))
    print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
