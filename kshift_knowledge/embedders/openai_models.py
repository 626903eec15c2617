"""What is known of OpenAI's models without asking; it loads no client."""

from __future__ import annotations

from dataclasses import dataclass

OPENAI_URL = "https://api.openai.com/v1"
# https://platform.openai.com/docs/guides/embeddings; only the third generation can be shortened.
MODEL_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
SHORTENABLE = ("text-embedding-3-small", "text-embedding-3-large")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long one request may take: to connect, between two reads, and altogether."""

    connect_s: float = 5.0
    read_s: float = 30.0
    total_s: float = 60.0
