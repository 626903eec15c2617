"""The forward pass of a small BERT in numpy; knows arrays, neither texts nor files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

LAYERS, HEADS, WIDTH, INNER_WIDTH = 6, 12, 384, 1536  # config.json of all-MiniLM-L6-v2
MAX_POSITIONS = 512
_HEAD_WIDTH = WIDTH // HEADS
_EPSILON = 1e-12
_ROWS = 64  # Rows worked on at a time beside the products, so that they stay in the cache.
_LONG = 128  # From this length on a head's scores fill the cache by themselves.
# gelu(x) = x/2 (1 + tanh(x (a + b x^2 + c x^4))), fitted to the exact one: at most 2.6e-5 off,
# where the usual constants (0.79788, 0.03568, 0) are 4.7e-4 off. Beyond |x| = 7 it is x or 0.
_GELU = (0.797507885, 0.0370056462, -0.000351517284)
_GELU_END = 49.0


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Floats
    bias: Floats

    def apply(self, rows: Floats) -> None:
        rows -= rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows) / WIDTH
        rows *= (1 / np.sqrt(variance + _EPSILON))[:, None]
        rows *= self.weight
        rows += self.bias


@dataclass(frozen=True, slots=True)
class _Dense:
    weight: Floats  # (out, in), as stored
    bias: Floats

    def multiply(self, rows: Floats, out: Floats) -> None:
        """Write the product without the bias, which the caller adds while it is in the cache."""
        np.matmul(rows, self.weight.T, out=out)


@dataclass(frozen=True, slots=True)
class _Layer:
    query_key_value: _Dense  # The three in one; queries already divided by sqrt(head width).
    attention: _Dense
    attention_norm: _Norm
    inner: _Dense
    outer: _Dense
    outer_norm: _Norm


class MiniLM:
    """
    all-MiniLM-L6-v2 up to its last hidden layer.

    Windows are laid end to end, without padding: the dense layers see one long matrix, attention
    sees each window alone.
    """

    def __init__(self, weights: Mapping[str, Floats]) -> None:
        """weights: the tensors under their names in the published file."""
        self._words = weights["embeddings.word_embeddings.weight"]
        kinds = weights["embeddings.token_type_embeddings.weight"]
        self._positions = weights["embeddings.position_embeddings.weight"] + kinds[0]
        self._norm = _norm(weights, "embeddings.LayerNorm")
        self._layers = [_layer(weights, f"encoder.layer.{index}") for index in range(LAYERS)]

    def sums(self, windows: Sequence[Ids]) -> Floats:
        """
        Return each window's hidden states summed over its tokens, shape (windows, 384).

        windows: word-piece ids with [CLS] and [SEP], 1 to 512 each. About 17 kB of working
        memory per token.
        """
        lengths = [len(window) for window in windows]
        ends = np.cumsum(lengths).tolist()
        spans = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        states = self._words[np.concatenate(windows)]
        for span, length in zip(spans, lengths, strict=True):
            states[span] += self._positions[:length]
        for rows in _blocks(len(states)):
            self._norm.apply(states[rows])
        work = _Workspace.of(len(states))
        for layer in self._layers:
            _attend(states, spans, layer, work)
            _transform(states, layer, work)
        starts = [span.start for span in spans]
        return np.add.reduceat(states, starts, axis=0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _Workspace:
    query_key_value: Floats
    context: Floats
    product: Floats
    inner: Floats

    @classmethod
    def of(cls, tokens: int) -> _Workspace:
        return cls(
            *(
                np.empty((tokens, width), dtype=np.float32)
                for width in (3 * WIDTH, WIDTH, WIDTH, INNER_WIDTH)
            )
        )


def _attend(states: Floats, spans: Sequence[slice], layer: _Layer, work: _Workspace) -> None:
    layer.query_key_value.multiply(states, work.query_key_value)
    for rows in _blocks(len(states)):
        work.query_key_value[rows] += layer.query_key_value.bias
    for span in spans:
        parts = work.query_key_value[span].reshape(-1, 3, HEADS, _HEAD_WIDTH)
        queries, keys, values = np.ascontiguousarray(parts.transpose(1, 2, 0, 3))
        context = work.context[span].reshape(-1, HEADS, _HEAD_WIDTH).transpose(1, 0, 2)
        if len(parts) < _LONG:
            _mix(queries, keys, values, context)
        else:
            for head in range(HEADS):
                _mix(queries[head], keys[head], values[head], context[head])
    layer.attention.multiply(work.context, work.product)
    for rows in _blocks(len(states)):
        _add_and_norm(states[rows], work.product[rows], layer.attention.bias, layer.attention_norm)


def _mix(queries: Floats, keys: Floats, values: Floats, out: Floats) -> None:
    """
    Write softmax(queries keys^T) values.

    The usual subtraction of each row's maximum costs as much as the exponential and is needed
    only where a score passes 88, so it is done only when the sums say so.
    """
    scores = queries @ keys.swapaxes(-1, -2)
    with np.errstate(over="ignore"):
        np.exp(scores, out=scores)
        sums = scores @ _ONES[: scores.shape[-1]]
    if not 1e-30 < sums.min() <= sums.max() < 1e30:
        np.matmul(queries, keys.swapaxes(-1, -2), out=scores)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores @ _ONES[: scores.shape[-1]]
    np.divide(scores @ values, sums[..., None], out=out)


def _transform(states: Floats, layer: _Layer, work: _Workspace) -> None:
    layer.inner.multiply(states, work.inner)
    for rows in _blocks(len(states)):
        work.inner[rows] += layer.inner.bias
        apply_gelu(work.inner[rows])
    layer.outer.multiply(work.inner, work.product)
    for rows in _blocks(len(states)):
        _add_and_norm(states[rows], work.product[rows], layer.outer.bias, layer.outer_norm)


def _add_and_norm(states: Floats, product: Floats, bias: Floats, norm: _Norm) -> None:
    product += bias
    states += product
    norm.apply(states)


def apply_gelu(values: Floats) -> None:
    """Replace *values* by their gelu, x Phi(x), within 2.6e-5."""
    first, second, third = _GELU
    slope = np.square(values)
    np.minimum(slope, _GELU_END, out=slope)
    product = slope * third
    product += second
    product *= slope
    product += first
    product *= values
    np.tanh(product, out=product)
    product += 1
    product *= 0.5
    values *= product


def _blocks(rows: int) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, rows, _ROWS)]


def _layer(weights: Mapping[str, Floats], name: str) -> _Layer:
    parts = [_dense(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    scale = np.float32(1 / math.sqrt(_HEAD_WIDTH))
    parts[0] = _Dense(parts[0].weight * scale, parts[0].bias * scale)
    return _Layer(
        query_key_value=_Dense(
            np.concatenate([part.weight for part in parts]),
            np.concatenate([part.bias for part in parts]),
        ),
        attention=_dense(weights, f"{name}.attention.output.dense"),
        attention_norm=_norm(weights, f"{name}.attention.output.LayerNorm"),
        inner=_dense(weights, f"{name}.intermediate.dense"),
        outer=_dense(weights, f"{name}.output.dense"),
        outer_norm=_norm(weights, f"{name}.output.LayerNorm"),
    )


def _dense(weights: Mapping[str, Floats], name: str) -> _Dense:
    return _Dense(weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Mapping[str, Floats], name: str) -> _Norm:
    return _Norm(weights[f"{name}.weight"], weights[f"{name}.bias"])


_ONES = np.ones(MAX_POSITIONS, dtype=np.float32)
