"""Chunks are exact, complete, bounded and stable, whatever the text, and follow its structure."""

from __future__ import annotations

import hashlib
import re
import time
from bisect import bisect_right
from itertools import accumulate, pairwise

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from strategies_text import any_texts, blocks, documents, examples, headings, paragraphs, sentences

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.errors import ItemError, SettingsError
from kshift_knowledge.records import Chunk
from kshift_knowledge.tokens import ApproximateCounter, token_counter

SIZES = [(512, 64), (384, 48), (768, 96), (64, 32), (64, 0)]

chunker = Chunker()
tight = Chunker(64, 16)  # cuts even short texts in many places


def count(text: str) -> int:
    """Count as the outside world does, with plain tiktoken."""
    token_counter()
    return len(tiktoken.get_encoding("cl100k_base").encode(text, disallowed_special=()))


def texts_of(chunks: list[Chunk]) -> list[str]:
    return [chunk.content for chunk in chunks]


def is_heading(line: str) -> bool:
    return re.match("#{1,6} ", line) is not None and line != "# not a heading"


def shared(before: Chunk, after: Chunk) -> int:
    return max(0, before.char_end - after.char_start)


# What holds for every text


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "/".join(map(str, sizes)))
@examples(60)
@given(text=any_texts)
def test_every_chunk_is_exact_bounded_and_a_slice_of_the_text(
    sizes: tuple[int, int], text: str
) -> None:
    chunks = Chunker(*sizes).cut(text)

    for index, chunk in enumerate(chunks):
        assert chunk.index == index
        assert chunk.content == text[chunk.char_start : chunk.char_end]
        assert chunk.content_hash == hashlib.sha256(chunk.content.encode()).hexdigest()
        assert chunk.token_count == count(chunk.content) <= sizes[0]
        assert chunk.content == chunk.content.rstrip() != ""


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "/".join(map(str, sizes)))
@examples(60)
@given(text=any_texts)
def test_every_visible_character_is_in_a_chunk_and_every_chunk_adds_some(
    sizes: tuple[int, int], text: str
) -> None:
    chunks = Chunker(*sizes).cut(text)

    ends = [0, *(chunk.char_end for chunk in chunks)]
    starts = [*(chunk.char_start for chunk in chunks), len(text)]
    gaps = [text[end:start] for end, start in zip(ends, starts, strict=True) if end < start]
    assert not "".join(gaps).strip()
    for number, chunk in enumerate(chunks):
        own = text[max(ends[number], chunk.char_start) : min(starts[number + 1], chunk.char_end)]
        assert own.strip()
    assert all(a.char_start < b.char_start for a, b in pairwise(chunks))
    assert all(a.char_end < b.char_end for a, b in pairwise(chunks))


@examples(60)
@given(any_texts)
def test_cutting_the_same_text_again_gives_the_same_chunks(text: str) -> None:
    assert Chunker(64, 16).cut(text) == tight.cut(text)


@examples(60)
@given(any_texts)
def test_neighbours_share_no_more_than_the_overlap(text: str) -> None:
    for before, after in pairwise(tight.cut(text)):
        assert count(text[after.char_start : before.char_end]) <= 16


@examples(60)
@given(any_texts)
def test_the_approximate_counter_keeps_the_same_promises(text: str) -> None:
    counter = ApproximateCounter()

    chunks = Chunker(64, 16, counter=counter).cut(text)

    assert [chunk.token_count for chunk in chunks] == [counter.count(c) for c in texts_of(chunks)]
    assert all(chunk.token_count <= 64 for chunk in chunks)
    assert "".join("".join(texts_of(chunks)).split()) or not text.strip()


@pytest.mark.parametrize("text", ["", "\n", " \t\n\u00a0\u3000\r\n", "\x0b\x0c\x85\u2028\x1c"])
def test_a_text_that_shows_nothing_has_no_chunks(text: str) -> None:
    assert chunker.cut(text) == []


def test_a_lone_surrogate_fails_the_item_with_a_reason() -> None:
    with pytest.raises(ItemError, match="lone surrogate at character 4"):
        chunker.cut("text\ud800")


# Structure


@st.composite
def sectioned_documents(draw: st.DrawFn) -> list[str]:
    """Return a preamble and three to six top sections, each with a body of its own."""
    body = st.lists(st.one_of(blocks, headings(3, 6)), max_size=5)
    parts = [f"# Title\n\n{draw(paragraphs)}"]
    for number in range(draw(st.integers(3, 6))):
        parts.append("\n\n".join([f"## Section {number}", draw(paragraphs), *draw(body)]))
    return parts


def chunks_by_section(sections: list[str]) -> list[list[str]]:
    """Cut the sections as one text; return the contents of the chunks that begin in each."""
    ends = list(accumulate(len(section) + 2 for section in sections))
    found: list[list[str]] = [[] for _ in sections]
    for chunk in tight.cut("\n\n".join(sections)):
        found[bisect_right(ends, chunk.char_start)].append(chunk.content)
    return found


@examples(100)
@given(sectioned_documents(), st.integers(1, 6), paragraphs, st.booleans())
def test_an_edit_changes_only_chunks_of_its_own_top_section(
    sections: list[str], number: int, new: str, at_the_end: bool
) -> None:
    number = min(number, len(sections) - 1)
    edited = list(sections)
    title, _, body = sections[number].partition("\n\n")
    edited[number] = "\n\n".join([title, body, new] if at_the_end else [title, new, body])

    before, after = chunks_by_section(sections), chunks_by_section(edited)

    assert before[:number] == after[:number]
    assert before[number + 1 :] == after[number + 1 :]


@examples(40)
@given(sections=sectioned_documents(), new=paragraphs)
def test_a_section_inserted_at_the_top_adds_only_its_own_chunks(
    sections: list[str], new: str
) -> None:
    before = texts_of(chunker.cut("\n\n".join(sections)))

    after = texts_of(chunker.cut("\n\n".join([sections[0], f"## New\n\n{new}", *sections[1:]])))

    assert [content for content in after if content not in before] == [f"## New\n\n{new}"]


@examples(60)
@given(documents)
def test_a_heading_never_stands_alone_nor_at_the_end_of_a_chunk_before_its_body(text: str) -> None:
    chunks = chunker.cut(text)

    has_body = any(not is_heading(line) for line in text.split("\n") if line)
    for chunk in chunks:
        lines = [line for line in chunk.content.split("\n") if line]
        assert not has_body or not all(map(is_heading, lines))
        if is_heading(lines[-1]):  # it has no body at all
            assert text[chunk.char_end :].lstrip()[:1] in ("", "#")


def test_a_file_of_headings_only_is_one_chunk() -> None:
    assert texts_of(chunker.cut("# One\n\n## Two\n\n## Three\n")) == ["# One\n\n## Two\n\n## Three"]


def test_a_section_without_body_joins_the_next_one_and_the_last_one_the_one_before() -> None:
    text = "## Empty\n\n## Full\n\nText.\n\n## Other\n\nMore.\n\n### Left over\n\n## End\n"

    assert texts_of(chunker.cut(text)) == [
        "## Empty\n\n## Full\n\nText.",
        "## Other\n\nMore.\n\n### Left over\n\n## End",
    ]


def test_small_sections_below_the_parting_level_share_a_chunk() -> None:
    text = "# T\n\nIntro.\n\n## A\n\n### A1\n\none\n\n### A2\n\ntwo\n\n## B\n\nthree\n"

    assert texts_of(chunker.cut(text)) == [
        "# T\n\nIntro.",
        "## A\n\n### A1\n\none\n\n### A2\n\ntwo",
        "## B\n\nthree",
    ]


def test_without_a_repeated_level_all_that_fits_is_one_chunk() -> None:
    text = "Before.\n\n# One\n\na\n\n## Two\n\nb\n\n### Three\n\nc"

    assert texts_of(chunker.cut(text)) == [text]


def test_a_higher_heading_behind_parting_ones_parts_too() -> None:
    text = "## A\n\na\n\n## B\n\nb\n\n# Appendix\n\nc\n"

    assert texts_of(chunker.cut(text)) == ["## A\n\na", "## B\n\nb", "# Appendix\n\nc"]


def test_front_matter_is_text_of_the_first_chunk() -> None:
    text = (
        "---\nname: Audience\n# no heading\n---\n\n# Audience\n\nIntro.\n\n## A\n\na\n\n## B\n\nb"
    )

    first = chunker.cut(text)[0]

    assert first.content.startswith("---\nname: Audience")
    assert first.content.endswith("# Audience\n\nIntro.")
    assert first.heading_path == ()


def test_the_heading_path_goes_down_to_level_six_and_back() -> None:
    text = "".join(f"{'#' * level} L{level}\n\n{'word ' * 60}\n\n" for level in range(1, 7))
    text += f"### Again\n\n{'word ' * 60}\n"

    paths = [chunk.heading_path for chunk in tight.cut(text)]

    assert list(dict.fromkeys(paths)) == [
        ("L1",),
        ("L1", "L2"),
        ("L1", "L2", "L3"),
        ("L1", "L2", "L3", "L4"),
        ("L1", "L2", "L3", "L4", "L5"),
        ("L1", "L2", "L3", "L4", "L5", "L6"),
        ("L1", "L2", "Again"),
    ]


# The sliding window


def test_one_token_too_many_gives_a_second_chunk_of_the_overlap_and_one() -> None:
    assert [c.token_count for c in chunker.cut("word " * 512)] == [512]
    assert [c.token_count for c in chunker.cut("word " * 513)] == [512, 65]


def test_only_windows_of_one_section_overlap() -> None:
    long_section = " ".join(f"Sentence number {n} says little." for n in range(300))
    text = f"## A\n\nShort.\n\n## B\n\n{long_section}\n\n## C\n\nShort."

    chunks = chunker.cut(text)

    windows = [chunk for chunk in chunks if "Sentence" in chunk.content]
    assert len(windows) > 3
    assert all(shared(a, b) > 0 for a, b in pairwise(windows))
    assert shared(chunks[0], windows[0]) == shared(windows[-1], chunks[-1]) == 0


@examples(40)
@given(st.lists(sentences, min_size=120, max_size=200))
def test_windows_of_prose_begin_and_end_with_sentences(lines: list[str]) -> None:
    for content in texts_of(chunker.cut(" ".join(lines))):
        assert content[0].isupper()
        assert content[-1] == "."


@examples(40)
@given(st.lists(paragraphs, min_size=12, max_size=30))
def test_windows_end_between_paragraphs_where_that_leaves_them_half_full(parts: list[str]) -> None:
    text = "\n\n".join(parts)

    chunks = chunker.cut(text)

    for chunk in chunks[:-1]:
        assert text[chunk.char_end : chunk.char_end + 2] == "\n\n"
        assert chunk.token_count > 256


def test_every_row_of_a_table_is_whole_in_a_chunk_wherever_the_table_begins() -> None:
    rows = [f"| item {n} | costs {n * 7} credits | sold in region {n % 9} |" for n in range(400)]
    table = "\n".join(["| name | price | region |", "| --- | --- | --- |", *rows])

    for offset in range(520):
        contents = texts_of(chunker.cut("word " * offset + "\n\n" + table))
        whole = {line for content in contents for line in content.split("\n")}
        assert whole.issuperset(rows), offset


def test_rows_too_large_for_the_overlap_stay_whole() -> None:
    rows = [f"| {n} | {'word ' * 300}|" for n in range(6)]
    text = "\n".join(["| n | text |", "|---|---|", *rows])

    contents = texts_of(chunker.cut(text))

    assert {line for content in contents for line in content.split("\n")}.issuperset(rows)


def test_a_fence_that_fits_is_never_torn() -> None:
    code = "```python\n" + "\n".join(f"value_{n} = call({n})  # step" for n in range(30)) + "\n```"
    assert count(code) < 400

    for words in range(0, 520, 13):
        for fence in (
            code,
            code.replace("\n", "\n  ").replace("```python", "- text\n\n  ```python"),
        ):
            text = f"## A\n\n{'word ' * words}\n\n{fence}\n\n{'More to say. ' * 90}"
            inner = fence[fence.index("```") :]
            assert any(inner in content for content in texts_of(chunker.cut(text))), words


def test_a_fence_too_large_for_a_chunk_is_cut_between_lines() -> None:
    lines = [f"value_{n} = call({n}, {n + 1})" for n in range(200)]
    text = "```\n" + "\n".join(lines) + "\n```"

    contents = texts_of(chunker.cut(text))

    assert len(contents) > 2
    assert all(set(content.split("\n")) <= {"```", *lines} for content in contents)


def test_a_heading_before_a_full_window_keeps_some_body() -> None:
    text = f"## A\n\n{'word ' * 700}end\n\n### End\n"

    last = chunker.cut(text)[-1]

    assert last.content.endswith("word end\n\n### End")


# Characters


@pytest.mark.parametrize(
    "sign",
    [
        "👨‍👩‍👧‍👦",
        "🇯🇵",
        "👍🏽",
        "e\u0301\u0323",
        "ก็",
        "한",
        "語",
        "\u0928\u093f",
        "🏴\U000e0067\U000e0062\U000e007f",
    ],
)
def test_what_a_reader_sees_as_one_sign_is_never_cut(sign: str) -> None:
    chunks = chunker.cut(sign * 1500)

    assert len(chunks) > 1
    assert {content.replace(sign, "") for content in texts_of(chunks)} == {""}


def test_a_storm_of_combining_marks_is_cut_like_any_other_text() -> None:
    text = "e" + "\u0301" * 5000

    chunks = chunker.cut(text)

    assert all(chunk.token_count <= 512 for chunk in chunks)
    assert chunks[-1].char_end == len(text)
    assert "\ufffd" not in "".join(texts_of(chunks))


@examples(40)
@given(documents)
def test_crlf_is_never_cut(text: str) -> None:
    for content in texts_of(tight.cut(text.replace("\n", "\r\n"))):
        assert content[0] != "\n"
        assert "\r" not in content.replace("\r\n", "")


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_sections_are_found_at_every_line_end(line_end: str) -> None:
    text = "# T\n\nIntro.\n\nA\n---\n\none\ntwo\n\nB\n---\n\n- three\n"

    chunks = chunker.cut(text.replace("\n", line_end))

    contents = [content.replace(line_end, "\n") for content in texts_of(chunks)]
    assert contents == texts_of(chunker.cut(text))
    assert [chunk.heading_path for chunk in chunks] == [("T",), ("T", "A"), ("T", "B")]


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0b", "\x0c"])
def test_signs_that_only_python_takes_for_line_ends_shift_nothing(sign: str) -> None:
    text = f"# Title\n\none{sign}# two\n\n## A\n\na{sign}\n\n## B\n\nb"

    chunks = chunker.cut(text)

    assert [chunk.heading_path for chunk in chunks] == [("Title",), ("Title", "A"), ("Title", "B")]
    assert all(chunk.content == text[chunk.char_start : chunk.char_end] for chunk in chunks)


def test_a_replacement_character_appears_only_where_the_source_has_it() -> None:
    assert texts_of(chunker.cut("broken \ufffd here")) == ["broken \ufffd here"]
    assert "\ufffd" not in "".join(texts_of(chunker.cut("🦩🦚" * 3000)))


# Size and time


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text",
    [
        "a" * 400_000,
        "^" * 1_000_000,
        "QUJDRA+/" * 27_000,
        "no sentence end and only blanks " * 32_000,
        "Short. " * 150_000,
        "語" * 300_000,
        "\n".join("  " * level + "- item" for level in range(400)),
        ">" * 600 + " deep\n" * 600,
        "x" + " " * 1_000_000 + "x",
        "x" + "\n" * 1_000_000 + "x",
        "# " + "title " * 20_000,
        "\n".join(f"## {n}\n" for n in range(20_000)),
        "| a | " * 50_000,
        " " * 200_000 + "x " * 2_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_text_is_slow_or_deep(text: str) -> None:
    chunks = chunker.cut(text)

    assert chunks[-1].char_end == len(text.rstrip())
    assert all(count(chunk.content) <= 512 for chunk in chunks[:: max(1, len(chunks) // 50)])


def test_time_grows_with_the_text_and_not_faster() -> None:
    def seconds(times: int) -> float:
        text = "One line that never ends, with words and some marks. " * times
        begin = time.process_time()
        chunker.cut(text)
        return time.process_time() - begin

    seconds(1000)

    assert min(seconds(16_000) for _ in range(3)) < 16 * min(seconds(2_000) for _ in range(3))


# Sizes


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((63, 8), "chunk_tokens is 63"),
        ((8001, 64), "chunk_tokens is 8001"),
        ((512, 257), "overlap_tokens is 257"),
        ((512, -1), "overlap_tokens is -1"),
        ((0, 1), "chunk_tokens is 0.*overlap_tokens is 1"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_all_at_once(
    sizes: tuple[int, int], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        Chunker(*sizes)
