"""Front matter: what is taken from it, and that broken, hostile or odd YAML is only text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshift_knowledge.front_matter import (
    MAX_FRONT_MATTER_CHARS,
    MAX_LABELS,
    MAX_NAME_CHARS,
    FrontMatter,
    item_meta,
    name_of,
    parse_front_matter,
)
from kshift_knowledge.records import ItemMeta

NOT_A_MAPPING = ("Front matter is not a YAML mapping: read as text.",)
NOT_CLOSED = ("It starts with --- but no front matter ends soon: text.",)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def test_all_fields_are_read() -> None:
    text = (
        "---\n"
        "name: Brand Styles\n"
        "origin: scraped\n"
        "source_url: https://acme.example/brand?a=1#voice\n"
        "labels: [brand, voice]\n"
        "kind: text\n"
        "---\n"
        "# Voice\n"
    )

    front_matter = parse_front_matter(text)

    assert front_matter == FrontMatter(
        name="Brand Styles",
        origin="scraped",
        source_url="https://acme.example/brand?a=1#voice",
        labels=("brand", "voice"),
        kind="text",
        end=text.index("# Voice"),
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("---\nname: A\n---\n", "A"),
        ("---\nname: A\n---", "A"),
        ("---\nname: A\n...\nbody ...\n", "A"),
        ("---  \nname: A\n--- \nbody", "A"),
        ("---\nname: A --- B\n---\nbody", "A --- B"),
        ("---\n\n\nname: A\nother: x\n\n---\n---\n", "A"),
        ("---\nname: A\n---\n\nbody\n\n---\nname: B\n---\n", "A"),
        ("---\n# a comment\nname: 'A' # another\n---\n", "A"),
    ],
)
def test_front_matter_ends_at_the_first_closing_line(text: str, name: str) -> None:
    assert parse_front_matter(text).name == name


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("", ()),
        ("# Heading\n\n---\nname: A\n---\n", ()),
        ("\n---\nname: A\n---\n", ()),
        (" ---\nname: A\n---\n", ()),
        ("----\nname: A\n----\n", ()),
        ("--- yaml ---\nname: A\n--- yaml ---\n", ()),
        ('+++\nname = "A"\n+++\n', ()),
        ('{\n  "name": "A"\n}\n', ()),
        ("= yaml =\nname: A\n= yaml =\n", ()),
        ("---\nname: A\n\n# Heading\n", NOT_CLOSED),
        ("---\nname: A\n ---\n", NOT_CLOSED),
        ("---\nbad yaml: [\n---\nbody", NOT_A_MAPPING),
        ("---\n\nA page that starts with a rule.\n\n---\n\nbody", NOT_A_MAPPING),
        ("---\n- a\n- b\n---\n", NOT_A_MAPPING),
        ("---\n--- name: A\n---\n", NOT_A_MAPPING),
        ('---\nname: "\x07"\n---\n', NOT_A_MAPPING),
        ('---\nname: "\\uD800"\n---\n', NOT_A_MAPPING),
        ("---\nname: *nowhere\nother: [\n---\n", NOT_A_MAPPING),
    ],
)
def test_anything_else_is_text(text: str, warnings: tuple[str, ...]) -> None:
    assert parse_front_matter(text) == FrontMatter(warnings=warnings)


@pytest.mark.parametrize("text", ["---\n---\nbody", "---\n\n# only a comment\n---\nbody"])
def test_empty_front_matter_says_nothing(text: str) -> None:
    assert parse_front_matter(text) == FrontMatter(end=text.index("body"))


@pytest.mark.parametrize(
    "written", ["yes", "NO", "1.10", "012345", "0o17", "2026-02-30", "1e3", ".inf", "12:30:45"]
)
def test_scalars_stay_as_written(written: str) -> None:
    text = f"---\nname: {written}\nlabels: [{written}]\n---\n"

    front_matter = parse_front_matter(text)

    assert (front_matter.name, front_matter.labels) == (written, (written,))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("  spaced   out  ", "spaced out"),
        ("|\n  two\n  lines\n", "two lines"),
        (">\n  folded\n  text\n", "folded text"),
        ('"tab\\tline\\nNUL\\0end"', "tab line NUL end"),
        ('"\\u2028\\u0085\\u00a0x\\e[31m"', "x [31m"),
        ("'null'", "null"),
        ("!!str 5", "5"),
        ("&anchor Voice", "Voice"),
        ("نام\u200cها", "نام\u200cها"),
        ("x" * 1000, "x" * MAX_NAME_CHARS),
    ],
)
def test_name_is_one_clean_line(written: str, name: str) -> None:
    assert parse_front_matter(f"---\nname: {written}\n---\n").name == name


@pytest.mark.parametrize("absent", ["", "~", "null", "NULL"])
def test_null_counts_as_absent(absent: str) -> None:
    fields = "".join(f"{key}: {absent}\n" for key in ("name", "origin", "labels", "kind"))

    assert parse_front_matter(f"---\n{fields}---\n") == FrontMatter(end=len(fields) + 8)


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("name: [a]", "name is not a line of text"),
        ("name: {a: b}", "name is not a line of text"),
        ("name: ' '", "name is not a line of text"),
        ('name: "\\u200b"', "name is not a line of text"),
        ("name: !!python/object/apply:os.system ['id']", "name is not a line of text"),
        ("name: !<tag:yaml.org,2002:js/function> x", "name is not a line of text"),
        ("a: &x Voice\nname: *x", "name is not a line of text"),
        ("origin: stolen", "origin is not uploaded or scraped"),
        ("source_url: [https://a.example]", "source_url is not a line of at most 2,048 characters"),
        (f"source_url: {'x' * 3000}", "source_url is not a line of at most 2,048 characters"),
        (f"kind: {'x' * 33}", "kind is not a word of at most 32 characters"),
    ],
)
def test_unusable_values_are_ignored_with_a_warning(line: str, warning: str) -> None:
    text = f"---\n{line}\n---\n"

    front_matter = parse_front_matter(text)

    expected = f"Front matter: {warning} and is ignored."
    assert front_matter == FrontMatter(warnings=(expected,), end=len(text))


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("[b, a, b]", ("b", "a")),
        ("\n  - two words\n  - 2", ("two words", "2")),
        ("a, b", ("a, b",)),
        ("[a, '', ~, ' a ']", ("a",)),
        ("[]", ()),
    ],
)
def test_labels_are_a_list_without_repeats(written: str, labels: tuple[str, ...]) -> None:
    front_matter = parse_front_matter(f"---\nlabels: {written}\n---\n")

    assert (front_matter.labels, front_matter.warnings) == (labels, ())


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("{a: b}", ()),
        ("[a, [b, [c]], {d: e}, !tag f, g]", ("a", "g")),
        (f"[a, {'x' * 201}]", ("a",)),
        (str([f"l{n}" for n in range(MAX_LABELS + 1)]), tuple(f"l{n}" for n in range(MAX_LABELS))),
    ],
)
def test_labels_of_the_wrong_shape_are_ignored_one_by_one(
    written: str, labels: tuple[str, ...]
) -> None:
    front_matter = parse_front_matter(f"---\nlabels: {written}\n---\n")

    assert front_matter.labels == labels
    assert front_matter.warnings == (
        "Front matter: some labels are ignored; a list of at most 100 strings of 200 characters "
        "is read.",
    )


def test_of_a_key_given_twice_the_last_counts() -> None:
    front_matter = parse_front_matter("---\nname: A\nother: 1\nother: 2\nname: B\n---\n")

    assert front_matter.name == "B"
    assert front_matter.warnings == (
        "Front matter: name is given more than once; the last one counts.",
    )


def test_unknown_keys_never_matter() -> None:
    text = (
        "---\n"
        "account_id: 999\nproject: other\ndatabase: ../secret\npath: /etc/passwd\n"
        "? [complex, key]\n: value\n"
        "match: !!js/regexp /pattern/gim\n"
        "<<: {name: Merged, kind: image}\n"
        "nested: {name: Inner, labels: [x]}\n"
        "Name: Other\n"
        "name: Voice\n"
        "---\n"
    )

    assert parse_front_matter(text) == FrontMatter(name="Voice", end=len(text))


def test_alias_bomb_is_read_like_any_mapping() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for below, above in zip("abcdefghij", "bcdefghijk", strict=True):
        lines.append(f"{above}: &{above} [{', '.join([f'*{below}'] * 10)}]")
    text = "\n".join(["---", *lines, "labels: *k", "name: Bomb", "---", ""])

    front_matter = parse_front_matter(text)

    assert (front_matter.name, front_matter.labels) == ("Bomb", ())


@pytest.mark.parametrize("opener", ["[", "{", "- ", "? ", "&a ", "a: [", "!t "])
def test_deep_nesting_is_bounded(opener: str) -> None:
    text = f"---\nother: x\nname: Deep\ndeep: {opener * (60_000 // len(opener))}\n---\n"

    assert parse_front_matter(text) == FrontMatter(warnings=NOT_A_MAPPING)


def test_closed_deep_nesting_in_an_unknown_key_is_stepped_over() -> None:
    text = f"---\ndeep: {'[' * 900}{']' * 900}\nname: Deep\n---\n"

    assert parse_front_matter(text).name == "Deep"


def test_front_matter_above_its_limit_is_text() -> None:
    line = f"other: {'x' * 90}\n"
    many = line * (MAX_FRONT_MATTER_CHARS // len(line))

    assert parse_front_matter(f"---\nname: A\n{many[:-200]}\n---\n").name == "A"
    assert parse_front_matter(f"---\nname: A\n{many}{line}---\n") == FrontMatter(
        warnings=NOT_CLOSED
    )


@given(st.text(max_size=200))
def test_no_text_between_the_lines_raises_or_leaves_what_a_database_refuses(inside: str) -> None:
    front_matter = parse_front_matter(f"---\n{inside}\n---\n")

    assert _is_storable(front_matter)


@given(st.dictionaries(st.sampled_from(["name", "origin", "source_url", "labels", "kind"]), values))
def test_no_value_of_a_known_key_raises_or_leaves_what_a_database_refuses(
    fields: dict[str, object],
) -> None:
    lines = "".join(f"{key}: {_as_yaml(value)}\n" for key, value in fields.items())

    assert _is_storable(parse_front_matter(f"---\n{lines}---\n"))


def test_meta_without_front_matter_comes_from_the_path() -> None:
    assert item_meta("sub/app-profile.md", FrontMatter()) == ItemMeta(
        name="App Profile",
        title=None,
        kind="text",
        origin="uploaded",
        source_url=None,
        labels=(),
    )


def test_meta_prefers_front_matter() -> None:
    front_matter = FrontMatter(
        name="Profile", origin="scraped", source_url="javascript:x", labels=("a",), kind="image"
    )

    assert item_meta("app-profile.md", front_matter) == ItemMeta(
        name="Profile",
        title="Profile",
        kind="image",
        origin="scraped",
        source_url="javascript:x",
        labels=("a",),
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("app-profile.md", "App Profile"),
        ("brand_styles.v2.md", "Brand Styles.v2"),
        ("sub.folder/persona.md", "Persona"),
        ("README", "README"),
        ("README.md", "README"),
        ("iOS-guide.md", "iOS Guide"),
        ("2023-11-26-google podcasts migration.md", "2023 11 26 Google Podcasts Migration"),
        ("don't--stop__2nd.md", "Don't Stop 2nd"),
        ("App Profile [v2], (final).md", "App Profile [V2], (Final)"),
        ("new\nline\tand\x07bell.md", "New Line And Bell"),
        ("über-uns.md", "Über Uns"),
        ("cafe\u0301.md", "Caf\u00e9"),
        ("顧客ペルソナ🎯.md", "顧客ペルソナ🎯"),
        ("مشتری.md", "مشتری"),
        ("---.md", "---.md"),
        ("1. long title", "1. Long Title"),
        ("a" * 248 + ".md", "A" + "a" * 247),
    ],
)
def test_name_of_a_file_is_its_title_cased_stem(path: str, name: str) -> None:
    assert name_of(path) == name


def _as_yaml(value: object) -> str:
    """JSON is YAML; Python's own repr of strings is not quite, which tries broken YAML too."""
    return repr(value).replace("None", "null")


def _is_storable(front_matter: FrontMatter) -> bool:
    values = [front_matter.name, front_matter.origin, front_matter.source_url, front_matter.kind]
    lines = [value for value in values if value is not None] + list(front_matter.labels)
    return all(
        line.encode() and line == line.strip() and not set("\0\n\r") & set(line) for line in lines
    )
