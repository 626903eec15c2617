"""Passages cover a chunk, end where people pause, and know what stands above them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_text import any_texts, documents

from kshift_knowledge.chunker import Chunker
from kshift_knowledge.lexical import lexemes
from kshift_knowledge.passages import Passage, cut_passages, passage_lexemes, passage_text
from kshift_knowledge.records import Chunk
from kshift_knowledge.tokens import ApproximateCounter
from kshift_knowledge.units import find_units, sentence_ends

COUNTER = ApproximateCounter()
TOKENS = 64

chunker = Chunker(counter=COUNTER)
tight = Chunker(64, 32, counter=COUNTER)  # overlaps wherever a section is long


def whole(text: str) -> Chunk:
    return Chunk(0, text, "", 0, len(text), (), 1)


def passages_of(text: str, tokens: int = TOKENS) -> list[Passage]:
    """The passages of a text that is one chunk."""
    ((*passages,),) = cut_passages(text, [whole(text)], tokens)
    return passages


def cut(text: str, tokens: int = TOKENS) -> list[str]:
    return [text[passage.char_start : passage.char_end] for passage in passages_of(text, tokens)]


def visible_offsets(text: str, start: int, end: int) -> list[int]:
    return [at for at in range(start, end) if not text[at].isspace()]


# What holds for every text


@pytest.mark.parametrize("tokens", [8, 64])
@settings(max_examples=80, deadline=None)
@given(text=any_texts)
def test_every_visible_character_of_a_chunk_lies_in_exactly_one_passage(
    tokens: int, text: str
) -> None:
    chunks = tight.cut(text)

    for chunk, passages in zip(chunks, cut_passages(text, chunks, tokens), strict=True):
        covered = [
            at
            for passage in passages
            for at in visible_offsets(text, passage.char_start, passage.char_end)
        ]
        assert covered == visible_offsets(text, chunk.char_start, chunk.char_end)
        for passage in passages:
            content = text[passage.char_start : passage.char_end]
            assert content == content.rstrip()
            assert chunk.char_start <= passage.char_start < passage.char_end <= chunk.char_end


@settings(max_examples=80, deadline=None)
@given(text=st.one_of(documents, any_texts))
def test_chunks_that_overlap_have_the_same_passages_where_they_do(text: str) -> None:
    chunks = tight.cut(text)
    cuts = cut_passages(text, chunks, 16)

    for (before, first), (after, second) in pairwise(zip(chunks, cuts, strict=True)):
        shared = [
            [passage for passage in passages if is_inside(passage, after, before)]
            for passages in (first, second)
        ]
        assert shared[0] == shared[1]
        for passage in (*first, *second):
            is_apart = passage.char_end <= after.char_start or passage.char_start >= before.char_end
            assert is_apart or is_inside(passage, after, before)


def is_inside(passage: Passage, after: Chunk, before: Chunk) -> bool:
    """Tell whether the passage lies in what two neighbouring chunks share."""
    return after.char_start <= passage.char_start and passage.char_end <= before.char_end


@given(text=any_texts)
def test_every_visible_character_lies_in_exactly_one_unit(text: str) -> None:
    covered = [
        at for unit in find_units(text) for at in visible_offsets(text, unit.start, unit.end)
    ]

    assert covered == visible_offsets(text, 0, len(text))


SIGNS = ["👨‍👩‍👧‍👦", "🇯🇵", "👍🏽", "e\u0301\u0323", "ก็", "東", "。", "。\u0301", "한", "x", "! "]


@given(st.lists(st.sampled_from(SIGNS), min_size=1, max_size=60).map("".join))
def test_no_sign_is_torn(text: str) -> None:
    borders = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}

    for passage in passages_of(text, 4):
        assert {passage.char_start, passage.char_end} <= borders


@given(documents)
def test_a_passage_is_long_only_where_one_of_its_units_is(text: str) -> None:
    chunks = chunker.cut(text)
    starts = {unit.start for unit in find_units(text)}

    for passages in cut_passages(text, chunks, 16):
        for passage in passages:
            size = len(text[passage.char_start : passage.char_end].encode())
            pieces = [at for at in starts if passage.char_start <= at < passage.char_end]
            has_heading = text[passage.char_start] == "#"
            assert size <= 64 or len(pieces) <= 1 or has_heading


# Where passages end


def test_sentences_fill_a_passage_up_to_its_size() -> None:
    text = "One short sentence here. Another one follows it. A third does not fit."

    assert cut(text, 12) == [
        "One short sentence here. Another one follows it.",
        "A third does not fit.",
    ]


def test_a_full_stop_inside_a_sentence_does_not_part_it() -> None:
    assert cut("Bring tools, e.g. a pump. Then go.", 4)[0] == "Bring tools, e.g. a pump."


@pytest.mark.parametrize("tokens", range(4, 17))
def test_a_long_sentence_is_parted_between_words(tokens: int) -> None:
    words = "pedal " * 60

    passages = cut(words.strip(), tokens)

    assert len(passages) > 4
    assert all(set(passage.split()) == {"pedal"} for passage in passages)


@pytest.mark.parametrize("sign", ["東", "x"])
def test_a_long_run_without_blanks_is_parted_too(sign: str) -> None:
    passages = cut(sign * 400, 16)

    assert len(passages) > 2
    assert "".join(passages) == sign * 400


def test_a_heading_begins_a_passage_and_stays_with_its_text() -> None:
    text = "Before.\n\n# Top\n\n## Prices\n\nNine euros.\n\n## Terms\n\nThree months."

    assert [(text[p.char_start : p.char_end], p.heading_path) for p in passages_of(text)] == [
        ("Before.", ()),
        ("# Top\n\n## Prices\n\nNine euros.", ("Top", "Prices")),
        ("## Terms\n\nThree months.", ("Top", "Terms")),
    ]


def test_list_entries_stay_whole() -> None:
    text = "- first entry that goes\n  on here\n- second entry\n  - nested entry"

    assert cut(text, 6) == [
        "- first entry that goes\n  on here",
        "- second entry",
        "- nested entry",
    ]


def test_rows_below_the_head_of_a_table_know_it() -> None:
    text = "| Plan | Price |\n| --- | --- |\n| Glide | 9 |\n| Roll | 15 |"

    first, second, third = passages_of(text, 4)

    assert text[first.char_start : first.char_end] == "| Plan | Price |\n| --- | --- |"
    assert (first.table_head, second.table_head) == (None, (0, 16))
    assert third.table_head == second.table_head


def test_lines_of_code_and_front_matter_are_not_parted() -> None:
    text = "---\nname: A. Name. Here\nlabels: [a, b]\n---\n```\nx = 1. + 2.\ny = 3. + 4.\n```"

    assert "\n".join(cut(text, 4)) == text


def test_sentence_ends_name_lines_and_sentences_alike() -> None:
    text = "One. Two.\n\n| a | b |\n  three  "

    assert [text[:end] for end in sentence_ends(text)] == [
        "One.",
        "One. Two.",
        "One. Two.\n\n| a | b |",
        "One. Two.\n\n| a | b |\n  three",
    ]


# What is searched of a passage


def test_the_embedded_text_says_where_a_passage_stands() -> None:
    text = "# Plans\n\n| Plan | Price |\n| --- | --- |\n| Glide | 9 |\n| Roll | 15 |"
    last = passages_of(text, 4)[-1]

    assert passage_text(last, text, whole(text), "Price List", COUNTER) == (
        "Price List\nPlans\n\n| Plan | Price |\n| Roll | 15 |"
    )


def test_words_are_counted_with_the_item_name_and_headings_in_front() -> None:
    text = "# Plans\n\nFirst sentence here. Nine euros a month."
    last = passages_of(text, 4)[-1]

    found, before = passage_lexemes(last, text, "Price List")

    assert np.array_equal(found, lexemes("Price List Plans Nine euros a month."))
    assert before == len(lexemes("Price List Plans"))
