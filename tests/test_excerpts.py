"""The packer of passages: never over budget, verbatim, in rank order, honest about what it cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranked_chunks import chunk_of

from kshift_knowledge.citations import format_for_prompt
from kshift_knowledge.excerpts import Choice, Excerpt, Packed, pack
from kshift_knowledge.passages import cut_passages
from kshift_knowledge.records import Chunk, Dropped, StoredChunk

SENTENCES = [
    "The riders fear theft more than rain.",
    "They say so in every second interview, e.g. in spring.",
    "Nine euros.",
]
TABLE = "| Plan | Price |\n| --- | --- |\n| Glide | 9 |\n| Roll | 15 |\n| Carry | 24 |"


def passages_of(chunk: StoredChunk, tokens: int = 8) -> list[Excerpt]:
    """The passages of a stored chunk, in the order of its text."""
    text = " " * chunk.char_start + chunk.content
    cut = Chunk(0, chunk.content, "", chunk.char_start, chunk.char_end, (), 1)
    return [
        Excerpt(chunk.chunk_id, passage.char_start, passage.char_end, passage.table_head)
        for passage in cut_passages(text, [cut], tokens)[0]
    ]


def choice_of(*chunks: StoredChunk, tokens: int = 8) -> Choice:
    return Choice(chunks, [passage for chunk in chunks for passage in passages_of(chunk, tokens)])


def note(content: str, name: str = "A", chunk_id: int = 1) -> StoredChunk:
    return chunk_of(content, name=name, chunk_id=chunk_id, char_start=10 * chunk_id)


@st.composite
def choices(draw: st.DrawFn, first_id: int = 1) -> Choice:
    """Chunks of prose, of unbroken text, of tables and forged headers; passages in any order."""
    pieces = st.one_of(
        st.sampled_from([f"{sentence} " for sentence in SENTENCES]),
        st.sampled_from(
            ["東京の利用者は盗難を恐れる。", f"\n\n{TABLE}\n\n", "\n[Audience#2]\n", "\n\n"]
        ),
        st.text("ab. \n[#1]\\", min_size=1, max_size=20),
    )
    contents = draw(st.lists(st.lists(pieces, min_size=1, max_size=8).map("".join), max_size=6))
    chunks = {
        first_id + number: note(content, f"Item {number}", first_id + number)
        for number, content in enumerate(contents)
        if content.strip()
    }
    passages = [passage for chunk in chunks.values() for passage in passages_of(chunk)]
    return Choice.ranked(chunks.values(), draw(st.permutations(passages)))


budgets = st.one_of(st.integers(1, 300), st.integers(1, 3000))


def shown(packed: Packed) -> dict[int, set[int]]:
    """The offsets that are packed of each chunk, blanks apart."""
    return {
        hit.chunk.chunk_id: {
            at
            for start, end in hit.excerpts
            for at in range(start, end)
            if not hit.chunk.content[at - hit.chunk.char_start].isspace()
        }
        for hit in packed.hits
    }


# What holds for every packing


@settings(max_examples=200, deadline=None)
@given(choices(), choices(first_id=100), budgets)
def test_every_packing_keeps_the_contract(ranked: Choice, pinned: Choice, max_chars: int) -> None:
    packed = pack(ranked, max_chars, pinned=pinned)

    assert len(format_for_prompt(packed.hits)) <= max_chars
    assert [hit.rank for hit in packed.hits] == list(range(1, len(packed.hits) + 1))
    for hit in packed.hits:
        slices = [
            hit.chunk.content[start - hit.chunk.char_start : end - hit.chunk.char_start]
            for start, end in hit.excerpts
        ]
        assert all(slices)
        assert hit.content == "\n…\n".join(slices)
        assert list(hit.excerpts) == sorted(hit.excerpts)
        assert hit.is_truncated == (hit.content != hit.chunk.content)
    pins, hits = (
        [hit for hit in packed.hits if hit.is_pinned is is_pin] for is_pin in (True, False)
    )
    assert [*pins, *hits] == list(packed.hits)
    assert [hit.chunk for hit in hits] == list(ranked.chunks[: len(hits)])
    packed_ids = {hit.chunk.chunk_id for hit in packed.hits}
    assert packed.dropped == tuple(
        Dropped(chunk.item_name, chunk.chunk_index, "budget")
        for chunk in (*pinned.chunks, *ranked.chunks)
        if chunk.chunk_id not in packed_ids
    )
    are_whole = len(pins) == len(pinned.chunks) and not any(hit.is_truncated for hit in pins)
    assert are_whole or len(format_for_prompt(pins)) <= max_chars // 2


@settings(max_examples=200, deadline=None)
@given(choices(), budgets, st.integers(0, 200))
def test_a_larger_budget_packs_everything_that_a_smaller_one_does(
    ranked: Choice, max_chars: int, more: int
) -> None:
    small, large = shown(pack(ranked, max_chars)), shown(pack(ranked, max_chars + more))

    assert all(offsets <= large[chunk_id] for chunk_id, offsets in small.items())


@settings(max_examples=200, deadline=None)
@given(choices(), budgets)
def test_nothing_is_cut_inside_a_word(ranked: Choice, max_chars: int) -> None:
    for hit in pack(ranked, max_chars).hits:
        for start, end in hit.excerpts:
            content, first = hit.chunk.content, hit.chunk.char_start
            assert start == first or not is_inside_word(content, start - first)
            assert end - first == len(content) or not is_inside_word(content, end - first)


def is_inside_word(text: str, at: int) -> bool:
    """Tell whether two ASCII letters meet at *at*."""
    around = text[at - 1 : at + 1]
    return around.isascii() and around.isalpha()


@given(choices())
def test_what_fits_whole_is_packed_whole(ranked: Choice) -> None:
    packed = pack(ranked, 100_000)

    assert [hit.content for hit in packed.hits] == [chunk.content for chunk in ranked.chunks]
    assert packed.dropped == ()


# How ranked chunks share a budget


def test_the_best_passages_of_all_chunks_come_before_the_rest_of_any() -> None:
    first, second = note(" ".join(SENTENCES), "A", 1), note(" ".join(SENTENCES), "B", 2)
    (_, a2, _), (b1, *_) = passages_of(first), passages_of(second)
    ranked = Choice([first, second], [a2, b1, *passages_of(first), *passages_of(second)])

    packed = pack(ranked, 120)

    assert format_for_prompt(packed.hits) == f"[A#0]\n{SENTENCES[1]}\n\n[B#0]\n{SENTENCES[0]}"
    assert [hit.excerpts for hit in packed.hits] == [
        ((a2.char_start, a2.char_end),),
        ((b1.char_start, b1.char_end),),
    ]


def test_passages_of_a_chunk_are_joined_by_a_line_unless_they_adjoin() -> None:
    chunk = note(" ".join([*SENTENCES, "One more sentence that nobody needs to read here."]))
    first, second, third, _ = passages_of(chunk)

    apart = pack(Choice([chunk], [third, first]), 100).hits[0]
    joined = pack(Choice([chunk], [third, first, second]), 120).hits[0]

    assert apart.content == f"{SENTENCES[0]}\n…\n{SENTENCES[2]}"
    assert joined.content == " ".join(SENTENCES)
    assert apart.is_truncated
    assert joined.is_truncated


def test_the_first_passage_that_does_not_fit_is_cut_behind_a_sentence() -> None:
    first, second = note(SENTENCES[2], "A", 1), note(" ".join(SENTENCES), "B", 2)
    ranked = choice_of(first, second, tokens=64)

    packed = pack(ranked, 80)

    assert [hit.content for hit in packed.hits] == [SENTENCES[2], SENTENCES[0]]
    assert packed.dropped == ()


def test_what_comes_behind_it_is_dropped_even_where_it_would_fit() -> None:
    chunks = [note(SENTENCES[1], "A", 1), note("Tiny.", "B", 2)]

    assert pack(choice_of(*chunks), 50) == Packed(
        (), (Dropped("A", 0, "budget"), Dropped("B", 0, "budget"))
    )


def test_a_first_sentence_longer_than_the_budget_is_cut_between_words() -> None:
    chunk = note("The riders fear theft more than rain " * 6 + "always.")

    (hit,) = pack(choice_of(chunk, tokens=64), 120).hits

    assert 80 <= len(hit.content) <= 120
    assert chunk.content.startswith(f"{hit.content} ")


def test_text_without_blanks_is_cut_where_it_must_be() -> None:
    (hit,) = pack(choice_of(note("東" * 200), tokens=256), 100).hits

    assert hit.content == "東" * (100 - len("[A#0]\n"))


def test_rows_of_a_table_bring_its_head() -> None:
    chunk = note(f"Prices are per month.\n\n{TABLE}")
    row = next(
        p for p in passages_of(chunk, 4) if p.char_start == chunk.char_end - len("| Carry | 24 |")
    )

    (hit,) = pack(Choice([chunk], [row, *passages_of(chunk, 4)]), 40).hits

    assert hit.content == "| Plan | Price |\n…\n| Carry | 24 |"


@pytest.mark.parametrize(("spare", "hits"), [(0, 1), (-1, 0)])
def test_an_escaped_header_counts_in_the_budget(spare: int, hits: int) -> None:
    ranked = choice_of(note("[Audience#2]"))

    assert len(pack(ranked, len("[A#0]\n\\[Audience#2]") + spare).hits) == hits


def test_nothing_to_pack_is_an_empty_context() -> None:
    assert pack(Choice(), 1500) == Packed((), ())


def test_ranked_chunks_stand_where_their_first_passages_do() -> None:
    first, second, third = (note(" ".join(SENTENCES), "A", number) for number in (1, 2, 3))
    passages = [*passages_of(third), *passages_of(first), *passages_of(second)]

    ranked = Choice.ranked([first, third], passages)

    assert ranked == Choice([third, first], passages[: len(passages) * 2 // 3])


# Pins


def test_pins_that_fit_whole_may_fill_the_budget() -> None:
    pin = note("p" * 90, "Pin", 9)

    packed = pack(choice_of(note(SENTENCES[0])), 100, pinned=choice_of(pin))

    assert [(hit.content, hit.is_pinned) for hit in packed.hits] == [("p" * 90, True)]
    assert packed.dropped == (Dropped("A", 0, "budget"),)


def test_pins_that_do_not_fit_show_their_best_passages_in_half_of_the_budget() -> None:
    pins = [note(" ".join(SENTENCES * 3), f"Pin {number}", number) for number in (8, 9)]
    best = [passages_of(pins[1])[1], passages_of(pins[0])[0], *passages_of(pins[0])]

    packed = pack(choice_of(note(SENTENCES[0])), 290, pinned=Choice(pins, best))

    assert [hit.content for hit in packed.hits] == [SENTENCES[0], SENTENCES[1], SENTENCES[0]]
    assert [hit.is_pinned for hit in packed.hits] == [True, True, False]


def test_what_pins_leave_of_their_half_goes_to_ranked_chunks() -> None:
    pin, ranked = note("東" * 300, "Pin", 9), note(" ".join(SENTENCES))

    packed = pack(choice_of(ranked), 150, pinned=choice_of(pin, tokens=1000))

    assert packed.dropped == (Dropped("Pin", 0, "budget"),)
    assert packed.hits[0].content == ranked.content
