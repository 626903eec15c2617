"""Which generation the settings ask for, and whether that is the one being served."""

from __future__ import annotations

from kshift_knowledge.chunker import PIPELINE_VERSION
from kshift_knowledge.embedded_text import TEXT_FORMAT
from kshift_knowledge.embedders.factory import default_dimensions, default_model
from kshift_knowledge.errors import Refused
from kshift_knowledge.records import Generation
from kshift_knowledge.settings import Settings
from kshift_knowledge.tokens import token_counter

_UNBORN = 0  # the database gives the id

# Setting and generation field, where a value that was set must be the one that is served.
_FIXED = (
    ("embedder", "embedder"),
    ("embedding_model", "model"),
    ("embedding_dimensions", "dimensions"),
    ("chunk_tokens", "chunk_tokens"),
    ("chunk_overlap_tokens", "overlap_tokens"),
    ("passage_tokens", "passage_tokens"),
)


def wanted_generation(settings: Settings) -> Generation:
    """
    The generation of a new home.

    Raises SettingsError when the model's width is not known.
    """
    embedder = settings.chosen_embedder
    model = settings.embedding_model or default_model(embedder)
    return Generation(
        generation_id=_UNBORN,
        embedder=embedder,
        model=model,
        dimensions=settings.embedding_dimensions or default_dimensions(model),
        chunk_tokens=settings.chunk_tokens,
        overlap_tokens=settings.chunk_overlap_tokens,
        passage_tokens=settings.passage_tokens,
        token_counter=token_counter().name,
        text_format=TEXT_FORMAT,
        pipeline_version=PIPELINE_VERSION,
    )


def check_served(settings: Settings, served: Generation) -> None:
    """
    Raise Refused when a setting that was given differs from what is served.

    A setting that was left out follows the index: a key that appears later changes nothing.
    """
    differing = []
    for setting, field in _FIXED:
        wanted = getattr(settings, setting)
        if setting in settings.model_fields_set and wanted not in (None, getattr(served, field)):
            differing.append(
                f"KSHIFT_{setting.upper()} is {wanted} but it is {getattr(served, field)}"
            )
    if served.token_counter != token_counter().name:
        differing.append(
            f"tokens are counted by {token_counter().name} but it was cut by {served.token_counter}"
        )
    if (served.text_format, served.pipeline_version) != (TEXT_FORMAT, PIPELINE_VERSION):
        differing.append("this version of kshift cuts text differently")
    if differing:
        raise Refused(
            f"The index was built otherwise: {'; '.join(differing)}. Nothing was written.",
            hint="Take the setting back, or build a new index in another KSHIFT_HOME.",
            code="generation_differs",
        )
