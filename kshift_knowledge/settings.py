"""Every setting, its default and its help text; the only place that reads the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kshift_knowledge.budgets import Budget, parse_budgets
from kshift_knowledge.errors import Refused, SettingsError
from kshift_knowledge.prices import DEFAULT_PRICES, parse_prices

# Named here too, since reading settings must not load an embedder.
OPENAI_MODEL, OPENAI_DIMENSIONS = "text-embedding-3-small", 1536
LOCAL_MODEL, LOCAL_DIMENSIONS = "all-MiniLM-L6-v2", 384
MAX_VECTOR_DIMENSIONS = 4000  # pgvector: 2,000 as vector and 4,000 as halfvec can be indexed

EmbedderName = Literal["openai", "local"]
Port = Annotated[int, Field(ge=1, le=65535)]


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _parsed_by(parse: Callable[[str], Any]) -> BeforeValidator:
    """Read a variable's text by *parse*; values that code gives pass as they are."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Prices = Annotated[Mapping[str, float], NoDecode, _parsed_by(parse_prices)]
Budgets = Annotated[Mapping[str, Budget], NoDecode, _parsed_by(parse_budgets)]


class Settings(BaseSettings):
    """Settings from the environment and `.env`; an empty variable counts as unset."""

    model_config = SettingsConfigDict(
        env_prefix="KSHIFT_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
    )

    home: AbsolutePath = Field(
        default=Path(".kshift"),
        validate_default=True,
        description="State: embedded database, Dagster's home, credentials, the vocabulary.",
    )
    knowledge_dir: AbsolutePath | None = Field(
        default=None,
        description="The knowledge tree, `<account>/<project>/<database>/...`. "
        "A home remembers its first one and refuses another.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="An administrator's URL of an existing PostgreSQL with pgvector, used by "
        "`kshift migrate` only. Unset: the embedded server.",
    )
    writer_url: SecretStr | None = Field(
        default=None, description="The pipeline's own login instead of the generated one."
    )
    reader_url: SecretStr | None = Field(
        default=None, description="The API's own login instead of the generated one."
    )
    dagster_url: SecretStr | None = Field(
        default=None, description="Dagster's own database instead of the generated one."
    )
    embedder: EmbedderName | None = Field(
        default=None,
        description="`openai` or `local`. Default: `openai` when `OPENAI_API_KEY` is set, else "
        "`local`; recorded with the first generation.",
    )
    openai_api_key: SecretStr | None = Field(
        default=None,
        validation_alias="OPENAI_API_KEY",
        description="Key of the OpenAI-compatible server.",
    )
    openai_base_url: str | None = Field(
        default=None,
        validation_alias="OPENAI_BASE_URL",
        description="Any OpenAI-compatible server, with its `/v1`.",
    )
    embedding_model: str | None = Field(
        default=None,
        description=f"Default: the embedder's own, `{OPENAI_MODEL}` or `{LOCAL_MODEL}`.",
    )
    embedding_dimensions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_VECTOR_DIMENSIONS,
        description=f"Default: the model's own, {OPENAI_DIMENSIONS} or {LOCAL_DIMENSIONS}. "
        "1-2,000 are stored as vector, 2,001-4,000 as halfvec.",
    )
    chunk_tokens: int = Field(
        default=512, ge=64, le=8000, description="Most tokens in a chunk, without its prefix."
    )
    chunk_overlap_tokens: int = Field(
        default=64, ge=0, description="Tokens that two windows of an oversized section share."
    )
    passage_tokens: int = Field(
        default=64,
        ge=0,
        le=8000,
        description="Aim for the small passages that are searched inside chunks; 0 turns them off.",
    )
    top_k: int = Field(default=6, ge=1, le=50, description="Chunks in an answer.")
    max_chars: int = Field(
        default=1500, ge=1, le=100_000, description="Characters of an answer's context."
    )
    reuse_days: int = Field(
        default=30, ge=0, description="How long vectors of vanished text stay reusable."
    )
    prices: Prices = Field(
        default=DEFAULT_PRICES,
        description="Dollars per million tokens by model, `model=dollars, ...`; OpenAI's list "
        "prices are known and the local model costs nothing.",
    )
    token_budget: Budgets = Field(
        default={},
        description="Tokens that an account may have embedded in a day or a month, "
        "`account=tokens/day, *=tokens/month`; `*` is every other account. Unset: no limit.",
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="The embedder's rate, for the minutes of `kshift plan`. Default: 1,000,000 "
        "for `openai`, 100,000 for `local`.",
    )
    alert_command: str | None = Field(
        default=None,
        description="Run for each failed Dagster run, with a JSON document on stdin: codes and "
        "counts, no text of customers.",
    )
    receipt_days: int = Field(default=90, ge=1, description="How long receipts are kept.")
    receipt_query: Literal["text", "hash"] = Field(
        default="text",
        description="What receipts keep of a question: its `text` and vector, or its SHA-256 "
        "`hash` alone. A prompt that was handed on is kept either way.",
    )
    api_port: Port = Field(default=8080, description="Port of the API.")
    dagster_port: Port = Field(default=3000, description="Port of the Dagster page, loopback only.")
    mcp_port: Port = Field(default=8081, description="Port of `kshift mcp --http`, loopback only.")
    api_url: str | None = Field(
        default=None,
        description="Where `kshift mcp` finds the API. Default: this machine, at "
        "`KSHIFT_API_PORT`.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="The key of one automation, which `kshift mcp` asks with."
    )
    store: Literal["pgvector"] = Field(default="pgvector", description="Where vectors live.")

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        problems = []
        if self.chunk_overlap_tokens > self.chunk_tokens // 2:
            problems.append(
                f"KSHIFT_CHUNK_OVERLAP_TOKENS is {self.chunk_overlap_tokens} but must be at most "
                f"half of KSHIFT_CHUNK_TOKENS, {self.chunk_tokens}."
            )
        if self.embedder == "openai" and not (self.openai_api_key or self.openai_base_url):
            problems.append(
                "KSHIFT_EMBEDDER is openai but neither OPENAI_API_KEY nor OPENAI_BASE_URL is set."
            )
        if self.embedder == "local" and self.embedding_model not in (None, LOCAL_MODEL):
            problems.append(
                f"KSHIFT_EMBEDDING_MODEL is {self.embedding_model!r} but the local embedder only "
                f"has {LOCAL_MODEL!r}."
            )
        if self.embedder == "local" and self.embedding_dimensions not in (None, LOCAL_DIMENSIONS):
            problems.append(
                f"KSHIFT_EMBEDDING_DIMENSIONS is {self.embedding_dimensions} but the local model "
                f"has {LOCAL_DIMENSIONS}."
            )
        if problems:
            raise ValueError(" ".join(problems))
        return self

    @property
    def chosen_embedder(self) -> EmbedderName:
        """The embedder of a new home: as set, else openai when there is a key."""
        return self.embedder or ("openai" if self.openai_api_key else "local")


def load_settings(*, env_file: str | None = ".env", **overrides: Any) -> Settings:
    """
    Read the environment and *env_file* (None reads no file); *overrides* win.

    Raises SettingsError with every problem at once.
    """
    try:
        return Settings(_env_file=env_file, **overrides)  # type: ignore[call-arg]
    except ValidationError as exc:
        lines = [_problem_line(error) for error in exc.errors(include_input=False)]
        raise SettingsError(
            "Wrong settings:\n" + "\n".join(f"  {line}" for line in lines),
            hint="Correct them in the environment or .env; docs/settings.md lists all.",
        ) from None


def _problem_line(error: Any) -> str:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = str(error["loc"][0])
    variable = name if name.startswith("OPENAI_") else f"KSHIFT_{name.upper()}"
    return f"{variable}: {error['msg'].removeprefix('Value error, ')}."


def knowledge_dir_of(settings: Settings, *, remember: bool = True) -> Path:
    """
    The knowledge directory of this home: as set, else the one it remembers.

    remember: write down the first one that is set.
    Raises SettingsError when there is none and Refused when another one is set than the home was
    filled from (it would look like a mass deletion).
    """
    memory = settings.home / "knowledge_dir.json"
    remembered: Path | None = None
    if memory.exists():
        remembered = Path(json.loads(memory.read_text("utf-8"))["knowledge_dir"])
    wanted = settings.knowledge_dir
    if wanted is None and remembered is None:
        raise SettingsError(
            "There is no knowledge directory.",
            hint="Set KSHIFT_KNOWLEDGE_DIR, for a first look to examples/knowledge.",
        )
    if remembered is None:
        assert wanted is not None
        if not remember or not wanted.is_dir():  # a mistyped path must not stick
            return wanted
        settings.home.mkdir(parents=True, exist_ok=True)
        draft = memory.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"knowledge_dir": str(wanted)}), "utf-8")
        draft.replace(memory)
        return wanted
    if wanted is not None and wanted.resolve() != remembered.resolve():
        raise Refused(
            f"This home was filled from {remembered}, but KSHIFT_KNOWLEDGE_DIR is {wanted}.",
            hint="Use another KSHIFT_HOME for another tree, or, if the tree has moved, correct "
            f"{memory}.",
        )
    return remembered
