"""Partition keys: readable, reversible, legal in Dagster, and honest about names that fail."""

from __future__ import annotations

import os
import re

import pytest
from dagster import DagsterInstance
from dagster._core.definitions.partitions.utils.base import INVALID_PARTITION_SUBSTRINGS
from hypothesis import assume, given
from hypothesis import strategies as st

from kshift_knowledge.errors import ItemError
from kshift_knowledge.item_keys import (
    MAX_KEY_BYTES,
    ItemKey,
    is_slug,
    partition_key,
    split_partition_key,
    stand_in_key,
)

PLACE = ("acme", "shop", "brand")

slugs = st.from_regex(r"[A-Za-z0-9]{1,8}([-_.][A-Za-z0-9]{1,8}){0,2}", fullmatch=True)
# Whatever a file may be called, weighted towards what keys must not hold.
name_characters = st.sampled_from(list(".%,[]\"'#?\\ \n\t\a\x7f\x85~&+é語🎯")) | st.characters(
    exclude_characters="/\0", exclude_categories=["Cs"]
)
names = st.text(name_characters, min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
places = st.builds(ItemKey, slugs, slugs, slugs, paths)
byte_names = st.binary(min_size=1, max_size=40).filter(
    lambda name: not set(b"/\0") & set(name) and name not in {b".", b".."}
)


@pytest.mark.parametrize(
    ("path", "encoded"),
    [
        ("app-profile.md", "app-profile.md"),
        ("2023/google podcasts.md", "2023/google%20podcasts.md"),
        ("App Profile [v2], (final).md", "App%20Profile%20%5Bv2%5D%2C%20(final).md"),
        ("Persona#2#0.md", "Persona%232%230.md"),
        ("100%.md", "100%25.md"),
        ("%2e%2e%2fsecret.md", "%252e%252e%252fsecret.md"),
        ("trailing-dots...md", "trailing-dots%2E%2E%2Emd"),
        ("two..dots.md", "two..dots.md"),
        (".../a.md", "%2E%2E%2E/a.md"),
        ("new\nline.md", "new%0Aline.md"),
        ("next\x85line.md", "next%C2%85line.md"),
        ("back\\slash?.md", "back%5Cslash%3F.md"),
        ('"it\'s".md', "%22it%27s%22.md"),
        ("顧客ペルソナ🎯.md", "顧客ペルソナ🎯.md"),
        ("a&b+c;d.md", "a&b+c;d.md"),
    ],
)
def test_key_is_readable_and_encodes_what_breaks_tools(path: str, encoded: str) -> None:
    key = partition_key(*PLACE, path)

    assert key == f"acme/shop/brand/{encoded}"
    assert split_partition_key(key) == ItemKey(*PLACE, path)


@given(places)
def test_key_leads_back_to_its_place(place: ItemKey) -> None:
    assert split_partition_key(partition_key(*place)) == place


@given(places, places)
def test_different_places_have_different_keys(one: ItemKey, other: ItemKey) -> None:
    assume(one != other)

    assert partition_key(*one) != partition_key(*other)


def test_names_that_cleaning_would_merge_stay_apart() -> None:
    names = ["a b.md", "a_b.md", "a%20b.md", "a%2520b.md", "A b.md", "é.md", "e\u0301.md"]

    keys = {partition_key(*PLACE, name) for name in names}

    assert len(keys) == len(names)


@given(places)
def test_key_holds_nothing_that_dagster_or_its_selections_refuse(place: ItemKey) -> None:
    key = partition_key(*place)

    assert not [part for part in INVALID_PARTITION_SUBSTRINGS if part in key]
    assert not re.search(r"[\x00-\x20\x7f-\x9f%,\[\]\"'#?\\]", re.sub(r"%[0-9A-F]{2}", "", key))


def test_dagster_stores_the_keys_of_nasty_names() -> None:
    names = ["trailing-dots...md", "new\nline.md", "tab\tname.md", "bell\a.md", "a, [b].md"]
    keys = [partition_key(*PLACE, name) for name in names]

    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("knowledge_items", keys)

        assert sorted(instance.get_dynamic_partitions("knowledge_items")) == sorted(keys)


def test_key_of_a_thousand_bytes_is_made_and_a_longer_one_fails() -> None:
    room = MAX_KEY_BYTES - len("acme/shop/brand/")
    longest = "é" * (room // 2)

    assert len(partition_key(*PLACE, longest).encode()) == MAX_KEY_BYTES
    with pytest.raises(ItemError) as failure:
        partition_key(*PLACE, longest + "a")
    assert failure.value.code == "name_too_long"
    assert failure.value.hint == "Shorten the file's name or the names of its folders."
    assert len(failure.value.message) < MAX_KEY_BYTES + 100


def test_name_that_is_not_utf8_fails_with_its_bytes_shown() -> None:
    with pytest.raises(ItemError) as failure:
        partition_key(*PLACE, os.fsdecode(b"caf\xe9.md"))

    assert failure.value.code == "name_not_utf8"
    assert failure.value.message == "The name of acme/shop/brand/./caf%E9.md is not UTF-8."


@given(byte_names, byte_names)
def test_stand_in_keys_are_storable_and_differ_for_different_files(
    one: bytes, other: bytes
) -> None:
    assume(one != other)
    keys = [stand_in_key(*PLACE, os.fsdecode(name)) for name in (one, other)]

    assert keys[0] != keys[1]
    assert not [part for key in keys for part in INVALID_PARTITION_SUBSTRINGS if part in key]
    assert [key.encode().decode() for key in keys] == keys


@given(places)
def test_stand_in_key_is_never_the_key_of_a_readable_item(place: ItemKey) -> None:
    with pytest.raises(ItemError, match="is no partition key"):
        split_partition_key(stand_in_key(*place))


def test_stand_in_keys_of_long_names_fit_and_differ_in_their_tail() -> None:
    keys = [stand_in_key(*PLACE, "語" * 900 + tail) for tail in ("a", "b")]

    assert keys[0] != keys[1]
    assert all(len(key.encode()) <= MAX_KEY_BYTES for key in keys)


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "acme",
        "acme/shop/brand",
        "acme/shop/brand/",
        "acme/shop/brand/../secret.md",
        "acme/shop/brand/%2e%2e/secret.md",
        "acme/shop/brand/%2E%2E/secret.md",
        "acme/shop/brand/a%2Fb.md",
        "acme/shop/brand//etc/passwd",
        "acme/shop/brand/a%00.md",
        "acme/shop/brand/a%0a.md",
        "acme/shop/brand/a b.md",
        "acme/shop/brand/a%",
        "acme/shop/brand/caf%E9.md",
        "acme/shop/brand/\ud800.md",
        "../shop/brand/a.md",
        "/acme/shop/brand/a.md",
        "ac me/shop/brand/a.md",
        "ac%20me/shop/brand/a.md",
    ],
)
def test_typed_key_that_kshift_would_not_write_is_refused(typed: str) -> None:
    with pytest.raises(ItemError) as failure:
        split_partition_key(typed)

    assert failure.value.code == "bad_partition_key"


@pytest.mark.parametrize(
    "place",
    [
        ("ac/me", "shop", "brand", "a.md"),
        ("", "shop", "brand", "a.md"),
        ("acme", "..", "brand", "a.md"),
        ("acme", "shop", "brand", ""),
        ("acme", "shop", "brand", "/etc/passwd"),
        ("acme", "shop", "brand", "a/../../b.md"),
        ("acme", "shop", "brand", "a\0.md"),
    ],
)
def test_place_outside_a_database_has_no_key(place: tuple[str, str, str, str]) -> None:
    with pytest.raises(ItemError) as failure:
        partition_key(*place)

    assert failure.value.code == "bad_partition_key"


@pytest.mark.parametrize(
    "name", ["18f", "content-guide", "App", "brand_styles", "v1.2", "a--b", "x", "a" * 100]
)
def test_folder_names_in_use_are_slugs(name: str) -> None:
    assert is_slug(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".git", "-rf", "a-", "_drafts", "a b", "a/b", "a..b", "lost+found", "顧客"],
)
def test_other_folder_names_are_no_slugs(name: str) -> None:
    assert not is_slug(name)


def test_slug_has_no_line_end_and_at_most_a_hundred_characters() -> None:
    assert not is_slug("brand\n")
    assert not is_slug("a" * 101)
