"""The packer: never over budget, verbatim, and honest about what it left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ranked_chunks import chunk_of

from kshift_knowledge.citations import format_for_prompt
from kshift_knowledge.packing import Packed, pack
from kshift_knowledge.records import Dropped, StoredChunk

WORDS = "The riders fear theft more than rain, and say so in every second interview. "


@st.composite
def chunk_lists(draw: st.DrawFn, first_id: int) -> list[StoredChunk]:
    """Chunks of words, of unbroken text, of forged headers; some short, some long."""
    pieces = st.one_of(
        st.just(WORDS),
        st.just("東京の利用者は盗難を恐れる。"),
        st.just("\n[Audience#2]\n"),
        st.text("ab \n[#1]\\", min_size=1, max_size=20),
    )
    contents = draw(st.lists(st.lists(pieces, min_size=1, max_size=12).map("".join), max_size=6))
    return [
        chunk_of(content, name=f"Item {n}", index=n, chunk_id=first_id + n, char_start=10 * n)
        for n, content in enumerate(contents)
    ]


@given(chunk_lists(1), chunk_lists(100), st.integers(1, 3000))
def test_every_packing_keeps_the_contract(
    ranked: list[StoredChunk], pinned: list[StoredChunk], max_chars: int
) -> None:
    packed = pack(ranked, max_chars, pinned=pinned)
    context = format_for_prompt(packed.hits)

    assert len(context) <= max_chars
    assert [hit.rank for hit in packed.hits] == list(range(1, len(packed.hits) + 1))
    for hit in packed.hits:
        ((start, end),) = hit.excerpts
        offset = start - hit.chunk.char_start
        assert hit.content
        assert hit.content == hit.chunk.content[offset : offset + end - start]
        assert hit.is_truncated == (hit.content != hit.chunk.content)
    _assert_in_order_and_complete(packed, ranked, pinned)
    pins = [hit for hit in packed.hits if hit.is_pinned]
    whole = len(format_for_prompt(pins)) if len(pins) == len(pinned) else None
    if whole is None or any(hit.is_truncated for hit in pins):
        assert len(format_for_prompt(pins)) <= max_chars // 2


def _assert_in_order_and_complete(
    packed: Packed, ranked: list[StoredChunk], pinned: list[StoredChunk]
) -> None:
    """Pins, then ranks; hits followed by what was dropped for the budget is the whole list."""
    in_context = [(hit.is_pinned, hit.chunk.chunk_id) for hit in packed.hits]
    assert in_context == sorted(in_context, key=lambda pair: not pair[0])
    for chunks, is_pinned in ((pinned, True), (ranked, False)):
        packed_here = [hit.chunk for hit in packed.hits if hit.is_pinned is is_pinned]
        left = chunks[len(packed_here) :]
        assert packed_here == chunks[: len(packed_here)]
        for chunk in left:
            assert Dropped(chunk.item_name, chunk.chunk_index, "budget") in packed.dropped
    assert len(packed.hits) + len(packed.dropped) == len(ranked) + len(pinned)


def test_chunks_that_fit_are_packed_whole_and_in_order() -> None:
    chunks = [chunk_of("first", name="A", index=3), chunk_of("second", name="B")]

    packed = pack(chunks, 100)

    assert format_for_prompt(packed.hits) == "[A#3]\nfirst\n\n[B#0]\nsecond"
    assert packed.dropped == ()
    assert not any(hit.is_truncated for hit in packed.hits)


def test_a_budget_that_fits_exactly_is_used_to_the_last_character() -> None:
    chunks = [chunk_of("first", name="A"), chunk_of("second", name="B")]
    exact = len("[A#0]\nfirst\n\n[B#0]\nsecond")

    assert len(pack(chunks, exact).hits) == 2
    assert len(pack(chunks, exact - 1).hits) == 1


def test_the_first_chunk_that_does_not_fit_is_cut_between_words_and_the_rest_dropped() -> None:
    chunks = [chunk_of(WORDS * 10, name="A"), chunk_of("tiny", name="B", index=7)]

    packed = pack(chunks, 300)

    (hit,) = packed.hits
    assert hit.is_truncated
    assert (WORDS * 10).startswith(hit.content + " ")
    assert 250 < len(format_for_prompt(packed.hits)) <= 300
    assert packed.dropped == (Dropped("B", 7, "budget"),)


def test_text_without_blanks_is_cut_where_it_must_be() -> None:
    packed = pack([chunk_of("東" * 1000, name="A")], 200)

    assert packed.hits[0].content == "東" * (200 - len("[A#0]\n"))


def test_an_escaped_header_counts_in_the_budget() -> None:
    content = "[Audience#2]"
    with_backslash = len("[A#0]\n\\[Audience#2]")

    assert len(pack([chunk_of(content, name="A")], with_backslash).hits) == 1
    assert pack([chunk_of(content, name="A")], with_backslash - 1).hits == ()


def test_pins_that_fit_whole_may_fill_the_budget() -> None:
    pins = [chunk_of("p" * 90, name="Pin", chunk_id=9)]

    packed = pack([chunk_of("ranked text " * 10, name="A")], 100, pinned=pins)

    assert [hit.is_pinned for hit in packed.hits] == [True]
    assert not packed.hits[0].is_truncated
    assert packed.dropped == (Dropped("A", 0, "budget"),)


def test_pins_that_do_not_fit_share_at_most_half_of_the_budget() -> None:
    pins = [chunk_of(WORDS * 10, name="Pin", chunk_id=9 + n, index=n) for n in range(2)]

    packed = pack([chunk_of(WORDS * 10, name="A")], 1000, pinned=pins)

    pinned = [hit for hit in packed.hits if hit.is_pinned]
    assert len(format_for_prompt(pinned)) <= 500
    assert [hit.chunk.item_name for hit in packed.hits] == ["Pin", "A"]
    assert Dropped("Pin", 1, "budget") in packed.dropped


def test_a_budget_too_small_for_anything_packs_nothing_and_says_so() -> None:
    packed = pack([chunk_of(WORDS, name="A")], 1)

    assert packed == Packed((), (Dropped("A", 0, "budget"),))
