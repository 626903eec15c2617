"""From automations.yaml to tables: what is loaded, what stays, and what goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workshop import Workshop, open_workshop

from kshift_knowledge.canvas_files import MAX_CANVAS_BYTES, NOT_A_FILE, find_canvases
from kshift_knowledge.indexing.canvases import LoadReport, load_canvases, stale_canvases
from kshift_knowledge.postgres import canvases
from kshift_knowledge.postgres.database import Database

SITE = ("acme", "site")
TIP = "{slug: tip, prompt: Write a tip., preset: tip, knowledge: [notes], pins: [Note]}"
AD = "{slug: ad, prompt: Write an ad., knowledge: [notes, blog]}"


@pytest.fixture
def workshop(tmp_path: Path, writer: Database) -> Iterator[Workshop]:
    with open_workshop(tmp_path / "tree", writer) as workshop:
        workshop.write("note.md", "# Note\n\nText.\n")
        workshop.write("post.md", "# Post\n\nText.\n", database="acme/site/blog")
        workshop.index()
        yield workshop


def _write(workshop: Workshop, text: str | bytes, project: str = "acme/site") -> Path:
    target = workshop.root / project / "automations.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode() if isinstance(text, str) else text)
    return target


def _load(workshop: Workshop, **options: Any) -> LoadReport:
    options.setdefault("wait", lambda seconds: None)
    generation_id = workshop.generation.generation_id
    return load_canvases(workshop.database, workshop.root, generation_id, **options)


def _stale(workshop: Workshop) -> list[tuple[str, str]]:
    return stale_canvases(workshop.database, workshop.root)


def _automations(workshop: Workshop) -> dict[str, list[str]]:
    """The databases of every living automation."""
    return dict(
        workshop.query(
            "SELECT u.slug, array_agg(d.slug ORDER BY d.slug) FILTER (WHERE d.slug IS NOT NULL)"
            "  FROM automations u LEFT JOIN knowledge_edges e USING (automation_id)"
            "  LEFT JOIN knowledge_databases d USING (knowledge_database_id)"
            " WHERE u.gone_at IS NULL GROUP BY u.automation_id"
        )
    )


def _problems(workshop: Workshop) -> list[tuple[str, str | None, str]]:
    with workshop.database.transaction() as conn:
        return [(one.project, one.automation, one.code) for one in canvases.problems(conn)]


def test_a_canvas_becomes_automations_and_edges(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}, {AD}, {{slug: free, prompt: Greet.}}]")

    report = _load(workshop)

    assert (report.loaded, report.automations, report.edges) == ((SITE,), 3, 3)
    assert _automations(workshop) == {"tip": ["notes"], "ad": ["blog", "notes"], "free": None}
    assert workshop.query(
        "SELECT prompt, preference, pins FROM automations WHERE slug = 'tip'"
    ) == [("Write a tip.", "Prefer brand voice and audience objections", ["Note"])]
    assert _problems(workshop) == []


def test_a_canvas_is_stale_until_it_is_loaded_and_again_when_it_changes(workshop: Workshop) -> None:
    stale = [_stale(workshop)]
    for text in (f"automations: [{TIP}]", f"automations: [{AD}]", f"automations: [{TIP}]"):
        _write(workshop, text)
        stale.append(_stale(workshop))
        _load(workshop)
        stale.append(_stale(workshop))

    assert stale == [[], *([[SITE], []] * 3)]
    assert _automations(workshop) == {"tip": ["notes"]}


def test_nothing_stale_reads_and_waits_for_nothing(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}]")
    _load(workshop)
    waits: list[float] = []

    report = _load(workshop, wait=waits.append)

    assert (report.loaded, report.automations, waits) == ((), 1, [])
    assert _load(workshop, is_full=True, wait=waits.append).loaded == (SITE,)
    assert waits == [1.0]


def test_an_automation_that_returns_has_its_id_and_its_edges_again(workshop: Workshop) -> None:
    def ids() -> list[Any]:
        return workshop.query("SELECT slug, automation_id FROM automations ORDER BY 1")

    _write(workshop, f"automations: [{TIP}, {AD}]")
    _load(workshop)
    before = ids()
    _write(workshop, f"automations: [{AD}]")
    _load(workshop)
    gone = workshop.query(
        "SELECT gone_at IS NOT NULL, prompt, preference, pins, knowledge FROM automations"
        " WHERE slug = 'tip'"
    )
    without = _automations(workshop)
    _write(workshop, f"automations: [{TIP}, {AD}]")
    _load(workshop)

    assert gone == [(True, "", None, [], [])]
    assert without == {"ad": ["blog", "notes"]}
    assert ids() == before
    assert _automations(workshop) == {"tip": ["notes"], "ad": ["blog", "notes"]}


def test_with_the_file_its_automations_go(workshop: Workshop) -> None:
    file = _write(workshop, f"automations: [{TIP}]")
    _load(workshop)
    file.unlink()

    assert _stale(workshop) == [SITE]
    assert _load(workshop).removed == (SITE,)
    assert _automations(workshop) == {}
    assert _stale(workshop) == []


@pytest.mark.parametrize(
    "broken", [b"automations: [", b"\xff\xfe\x00", b"automations: {}", b"a\0b"]
)
def test_a_file_that_cannot_be_read_changes_nothing_and_says_so(
    workshop: Workshop, broken: bytes
) -> None:
    _write(workshop, f"automations: [{TIP}]")
    _load(workshop)
    _write(workshop, broken)

    report = _load(workshop)

    assert report.refused == (SITE,)
    assert _automations(workshop) == {"tip": ["notes"]}
    ((project, automation, code),) = _problems(workshop)
    assert (project, automation) == ("acme/site", None)
    assert code.startswith("automations_")
    assert _stale(workshop) == [], "the same bytes are not read again and again"

    _write(workshop, f"automations: [{AD}]")
    _load(workshop)
    assert (_automations(workshop), _problems(workshop)) == ({"ad": ["blog", "notes"]}, [])


def test_one_broken_project_stops_no_other(workshop: Workshop) -> None:
    workshop.write("note.md", "# Note\n", database="globex/shop/notes")
    workshop.index()
    _write(workshop, "nonsense: [")
    _write(workshop, f"automations: [{TIP}]", "globex/shop")

    report = _load(workshop)

    assert (report.refused, report.loaded) == ((SITE,), (("globex", "shop"),))
    assert list(_automations(workshop)) == ["tip"]


def test_an_entry_that_breaks_stays_what_it_was_and_the_others_move_on(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}, {AD}]")
    _load(workshop)
    _write(workshop, "automations: [{slug: tip, prompt: ''}, {slug: new, prompt: p}]")
    _load(workshop)

    assert _automations(workshop) == {"tip": ["notes"], "new": None}
    assert _problems(workshop) == [("acme/site", "tip", "automation_invalid")]


def test_nothing_is_removed_while_an_entry_has_no_slug(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}, {AD}]")
    _load(workshop)
    _write(workshop, f"automations: [{TIP}, {{slug: 'a d', prompt: Write an ad.}}]")
    _load(workshop)

    assert set(_automations(workshop)) == {"tip", "ad"}


def test_a_database_that_is_not_there_is_named_and_linked_once_it_comes(
    workshop: Workshop,
) -> None:
    _write(workshop, "automations: [{slug: tip, prompt: p, knowledge: [notes, later]}]")
    _load(workshop)
    problems = _problems(workshop)
    before = _automations(workshop)
    workshop.write("a.md", "# A\n", database="acme/site/later")
    workshop.index()

    assert problems == [("acme/site", "tip", "automation_unknown_database")]
    assert before == {"tip": ["notes"]}
    assert _stale(workshop) == [SITE]
    _load(workshop)
    assert (_automations(workshop), _problems(workshop)) == ({"tip": ["later", "notes"]}, [])
    assert _stale(workshop) == []


def test_another_projects_database_is_as_unknown_as_one_that_is_nowhere(
    workshop: Workshop,
) -> None:
    workshop.write("a.md", "# A\n", database="acme/other/secret")
    workshop.write("a.md", "# A\n", database="globex/shop/plans")
    workshop.index()
    _write(workshop, "automations: [{slug: tip, prompt: p, knowledge: [secret, plans, no]}]")
    _load(workshop)

    assert _automations(workshop) == {"tip": None}
    assert _problems(workshop) == [("acme/site", "tip", "automation_unknown_database")] * 3


def test_a_pin_that_matches_no_item_of_its_databases_is_named(workshop: Workshop) -> None:
    _write(
        workshop, "automations: [{slug: a, prompt: p, knowledge: [notes], pins: [Note, Post, X]}]"
    )
    _load(workshop)
    first = _problems(workshop)
    workshop.path("note.md").unlink()
    workshop.index(accept_deletes=True)

    assert first == [("acme/site", "a", "automation_unknown_pin")] * 2
    assert len(_problems(workshop)) == 3


def test_a_pin_is_not_judged_while_items_wait_for_their_names(workshop: Workshop) -> None:
    _write(workshop, "automations: [{slug: a, prompt: p, knowledge: [notes], pins: [Soon]}]")
    _load(workshop)
    before = _problems(workshop)
    workshop.write("x.md", "---\nname: Soon\n---\n# X\n")
    workshop.look()
    waiting = _problems(workshop)
    workshop.index(is_queued=lambda batch: False)

    assert len(before) == 1
    assert (waiting, _problems(workshop)) == ([], [])


def test_a_project_may_have_a_canvas_before_it_has_knowledge(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}]", "newco/app")

    assert _load(workshop).loaded == (("newco", "app"),)
    assert _stale(workshop) == []
    assert _automations(workshop) == {"tip": None}


def test_a_file_that_moves_meanwhile_waits_for_the_next_time(workshop: Workshop) -> None:
    def rewrite(seconds: float) -> None:
        _write(workshop, f"automations: [{TIP}, {AD}]")

    _write(workshop, f"automations: [{TIP}]")
    report = _load(workshop, wait=rewrite)

    assert (report.unsettled, report.loaded) == ((SITE,), ())
    assert _automations(workshop) == {}
    assert _load(workshop).loaded == (SITE,)


def test_a_file_that_is_gone_for_a_moment_removes_nothing(workshop: Workshop) -> None:
    file = _write(workshop, f"automations: [{TIP}]")
    _load(workshop)
    text = file.read_bytes()
    file.unlink()

    report = _load(workshop, wait=lambda seconds: file.write_bytes(text))

    assert (report.unsettled, report.removed) == ((SITE,), ())
    assert _automations(workshop) == {"tip": ["notes"]}


def test_a_tree_that_is_not_there_removes_nothing(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}]")
    _load(workshop)
    workshop.root.rename(workshop.root.with_name("away"))

    assert _stale(workshop) == []
    report = _load(workshop, is_full=True)
    assert (report.removed, report.automations) == ((), 1)


def test_links_folders_and_giants_are_never_read(workshop: Workshop, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text(f"automations: [{TIP}]")
    target = workshop.root / "acme" / "site" / "automations.yaml"
    target.symlink_to(secret)
    seen = find_canvases(workshop.root).signatures
    linked = _load(workshop)
    target.unlink()
    target.mkdir()
    folder = _load(workshop)
    target.rmdir()
    os.mkfifo(target)
    pipe = _load(workshop, is_full=True)
    target.unlink()
    _write(workshop, b"#" * (MAX_CANVAS_BYTES + 1))
    giant = _load(workshop)

    assert seen == {SITE: NOT_A_FILE}
    assert linked.refused == pipe.refused == giant.refused == (SITE,)
    assert folder.refused == (), "it is no file either, and that is said already"
    assert _automations(workshop) == {}
    assert _problems(workshop) == [("acme/site", None, "automations_unreadable")]


def test_an_account_that_is_a_link_is_no_account(workshop: Workshop, tmp_path: Path) -> None:
    away = tmp_path / "outside" / "site"
    away.mkdir(parents=True)
    (away / "automations.yaml").write_text(f"automations: [{TIP}]")
    (workshop.root / "linked").symlink_to(tmp_path / "outside")

    assert find_canvases(workshop.root).signatures == {}


def test_receipts_outlive_their_automation(workshop: Workshop) -> None:
    _write(workshop, f"automations: [{TIP}]")
    _load(workshop)
    ((automation_id, account_id, project_id),) = workshop.query(
        "SELECT automation_id, account_id, project_id FROM automations"
    )
    with workshop.database.transaction() as conn:
        conn.execute(
            "INSERT INTO receipts (receipt_id, account_id, project_id, knowledge_database_ids,"
            " automation_id, mode, query_hash, request, hits, dropped, context, usage, timings_ms)"
            " VALUES (gen_random_uuid(), %s, %s, '{}', %s, 'vector', '', '{}', '[]', '[]', '',"
            " '{}', '{}')",
            (account_id, project_id, automation_id),
        )
    _write(workshop, "")
    _load(workshop)

    assert workshop.query("SELECT automation_id FROM receipts") == [(automation_id,)]
