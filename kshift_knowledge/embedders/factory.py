"""Builds the embedder that settings or a generation name; reads no environment."""

from __future__ import annotations

from kshift_knowledge.embedders.batches import MAX_INPUT_TOKENS
from kshift_knowledge.embedders.limiter import Limiter
from kshift_knowledge.embedders.local_model import LOCAL_DIMENSIONS, LOCAL_MODEL, LocalEmbedder
from kshift_knowledge.embedders.openai_models import (
    MODEL_DIMENSIONS,
    OPENAI_URL,
    SHORTENABLE,
    Deadlines,
)
from kshift_knowledge.embedders.protocol import Embedder
from kshift_knowledge.embedders.retries import INDEXING, Patience, PatientEmbedder
from kshift_knowledge.errors import SettingsError

_REQUEST_S = 60.0  # 2,048 texts take OpenAI some seconds.
DEFAULT_MODELS = {"openai": "text-embedding-3-small", "local": LOCAL_MODEL}
_NATURAL_DIMENSIONS = {**MODEL_DIMENSIONS, LOCAL_MODEL: LOCAL_DIMENSIONS}


def embedder_for(
    name: str,
    *,
    model: str | None = None,
    dimensions: int | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    answered_model: str | None = None,
    max_input_tokens: int = MAX_INPUT_TOKENS,
    patience: Patience = INDEXING,
    deadlines: Deadlines | None = None,
    limiter: Limiter | None = None,
    threads: int | None = None,
) -> Embedder:
    """
    Return the embedder *name*, "openai" or "local", which opens nothing before its first text.

    model and dimensions: None is the embedder's own. patience and limiter: how the openai one
    insists; share one limiter between embedders of one provider. deadlines: of one request, None
    is 60 s or all of the patience. threads: of the local one.

    Raises SettingsError when the values do not go together, and BadKey.
    """
    model = model or default_model(name)
    dimensions = dimensions or default_dimensions(model)
    _check(name, model, dimensions, api_key, base_url)
    if name == "local":
        return LocalEmbedder(threads=threads)
    # The client takes half a second to load, which every command would pay for.
    from kshift_knowledge.embedders.openai_api import OpenAIEmbedder  # noqa: PLC0415

    plain = OpenAIEmbedder(
        model=model,
        dimensions=dimensions,
        api_key=api_key,
        base_url=base_url,
        answered_model=answered_model,
        max_input_tokens=max_input_tokens,
        deadlines=deadlines or Deadlines(total_s=min(_REQUEST_S, patience.total_s)),
    )
    return PatientEmbedder(plain, patience=patience, limiter=limiter)


def default_model(name: str) -> str:
    """Return the model of embedder *name* when none is set. Raises SettingsError."""
    if name not in DEFAULT_MODELS:
        raise SettingsError(
            f"There is no embedder {name!r}.", hint="Set KSHIFT_EMBEDDER to openai or local."
        )
    return DEFAULT_MODELS[name]


def default_dimensions(model: str) -> int:
    """Return the width of *model* when none is set. Raises SettingsError for an unknown model."""
    if model not in _NATURAL_DIMENSIONS:
        raise SettingsError(
            f"The width of {model}'s vectors is not known.",
            hint="Set KSHIFT_EMBEDDING_DIMENSIONS to it.",
        )
    return _NATURAL_DIMENSIONS[model]


def _check(
    name: str, model: str, dimensions: int, api_key: str | None, base_url: str | None
) -> None:
    natural = _NATURAL_DIMENSIONS.get(model, dimensions)
    if name == "local" and model != LOCAL_MODEL:
        raise SettingsError(
            f"The local embedder has only {LOCAL_MODEL}, not {model}.",
            hint="Unset KSHIFT_EMBEDDING_MODEL, or set KSHIFT_EMBEDDER to openai.",
        )
    if dimensions > natural or (dimensions < natural and model not in SHORTENABLE):
        raise SettingsError(
            f"{model} makes vectors of {natural} numbers, not of {dimensions}.",
            hint=f"Set KSHIFT_EMBEDDING_DIMENSIONS to {natural}, or unset it.",
        )
    if name == "openai" and not api_key and (base_url or OPENAI_URL) == OPENAI_URL:
        raise SettingsError(
            "The openai embedder needs a key.",
            hint="Set OPENAI_API_KEY, or OPENAI_BASE_URL to a server without keys, or "
            "KSHIFT_EMBEDDER to local.",
        )
