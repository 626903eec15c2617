"""The catalog: names resolve, keys see their part, and a request only ever narrows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from seeding import add_databases, add_item, only, served_generation, version_of

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres import catalog
from kshift_knowledge.postgres.database import Database
from kshift_knowledge.postgres.vector_store import PgVectorStore
from kshift_knowledge.records import ApiKey, Scope


@dataclass
class Tenants:
    site: Scope
    app: Scope
    foreign: Scope


@pytest.fixture
def tenants(writer: Database) -> Tenants:
    return Tenants(
        add_databases(writer, "acme", "site", "notes", "blog"),
        add_databases(writer, "acme", "app", "notes"),
        add_databases(writer, "globex", "site", "notes"),
    )


def _key(scope: Scope, **narrowing: object) -> ApiKey:
    values: dict[str, object] = {
        "project_id": None,
        "knowledge_database_ids": None,
        "automation_id": None,
        **narrowing,
    }
    return ApiKey("k", scope.account_id, expires_at=None, **values)  # type: ignore[arg-type]


def _seen(reader: Database, key: ApiKey) -> list[int]:
    with reader.transaction() as conn:
        return [one.knowledge_database_id for one in catalog.visible_databases(conn, key)]


def _narrow(reader: Database, key: ApiKey, project_id: int, *ids: int) -> Scope:
    with reader.transaction() as conn:
        return catalog.narrow(conn, key, project_id, ids)


def test_a_key_of_an_account_sees_all_its_databases_with_counts(
    writer: Database, reader: Database, tenants: Tenants
) -> None:
    notes = only(tenants.site, tenants.site.knowledge_database_ids[0])
    place, gone = add_item(writer, notes, "a.md"), add_item(writer, notes, "gone.md")
    store = PgVectorStore(writer)
    store.replace_items(notes, served_generation(writer), [version_of(place, ["one", "two"])])
    with writer.transaction() as conn:
        conn.execute(
            "UPDATE knowledge_database_items SET state = 'gone', waiting_since = NULL"
            " WHERE knowledge_database_item_id = %s",
            (gone.item_id,),
        )

    with reader.transaction() as conn:
        app, blog, found = catalog.visible_databases(conn, _key(tenants.site))

    assert (app.project, app.knowledge_database, app.items) == ("app", "notes", 0)
    assert (blog.chunks, blog.last_indexed_at) == (0, None)
    assert found == catalog.KnowledgeDatabase(
        account_id=tenants.site.account_id,
        account="acme",
        project_id=tenants.site.project_id,
        project="site",
        knowledge_database_id=notes.knowledge_database_ids[0],
        knowledge_database="notes",
        items=1,
        chunks=2,
        last_indexed_at=found.last_indexed_at,
    )
    assert found.last_indexed_at is not None


def test_a_narrow_key_sees_its_project_or_its_databases_and_an_empty_one_nothing(
    reader: Database, tenants: Tenants
) -> None:
    notes, blog = tenants.site.knowledge_database_ids
    project = tenants.site.project_id

    assert set(_seen(reader, _key(tenants.site, project_id=project))) == {notes, blog}
    assert _seen(
        reader, _key(tenants.site, project_id=project, knowledge_database_ids=(blog,))
    ) == [blog]
    assert _seen(reader, _key(tenants.site, project_id=project, knowledge_database_ids=())) == []


def test_a_key_made_for_an_automation_sees_the_databases_of_its_edges(
    writer: Database, reader: Database, tenants: Tenants
) -> None:
    notes, blog = tenants.site.knowledge_database_ids
    project = tenants.site.project_id
    with writer.transaction() as conn:
        linked, unlinked = (
            _automation_id(
                conn.execute(
                    "INSERT INTO automations (account_id, project_id, slug, name, preset, prompt)"
                    " VALUES (%s, %s, %s, 'n', 'tip', 'p') RETURNING automation_id",
                    (tenants.site.account_id, project, slug),
                ).fetchone()
            )
            for slug in ("linked", "unlinked")
        )
        conn.execute(
            "INSERT INTO knowledge_edges VALUES (%s, %s, %s, %s)",
            (linked, blog, tenants.site.account_id, project),
        )
    with_edge = _key(tenants.site, project_id=project, automation_id=linked)
    without = _key(tenants.site, project_id=project, automation_id=unlinked)

    assert _seen(reader, with_edge) == [blog]
    assert _seen(reader, without) == []
    assert _narrow(reader, with_edge, project, blog).knowledge_database_ids == (blog,)
    with pytest.raises(NotFound):
        _narrow(reader, with_edge, project, notes)
    with reader.transaction() as conn:
        assert catalog.find_automation(conn, project, "linked") == linked


def _automation_id(row: tuple[int] | None) -> int:
    assert row is not None
    return row[0]


def test_a_request_narrows_to_what_it_names_without_repeats(
    reader: Database, tenants: Tenants
) -> None:
    notes, blog = tenants.site.knowledge_database_ids

    scope = _narrow(reader, _key(tenants.site), tenants.site.project_id, blog, notes, blog)

    assert scope == Scope(tenants.site.account_id, tenants.site.project_id, (blog, notes))


def test_naming_no_database_is_a_scope_that_sees_nothing(
    reader: Database, tenants: Tenants
) -> None:
    scope = _narrow(reader, _key(tenants.site), tenants.site.project_id)

    assert scope.knowledge_database_ids == ()


def test_whatever_lies_outside_the_key_is_not_found_and_fails_the_whole_request(
    reader: Database, tenants: Tenants
) -> None:
    site, app, foreign = tenants.site, tenants.app, tenants.foreign
    notes, blog = site.knowledge_database_ids
    key = _key(site)
    of_project = _key(site, project_id=site.project_id)
    of_notes = _key(site, project_id=site.project_id, knowledge_database_ids=(notes,))
    outside = [
        (key, site.project_id, (*foreign.knowledge_database_ids,)),
        (key, site.project_id, (notes, *foreign.knowledge_database_ids)),
        (key, site.project_id, (notes, *app.knowledge_database_ids)),
        (key, site.project_id, (notes, 2**63 - 1)),
        (key, foreign.project_id, ()),
        (key, foreign.project_id, foreign.knowledge_database_ids),
        (key, 2**63 - 1, ()),
        (of_project, app.project_id, ()),
        (of_project, app.project_id, app.knowledge_database_ids),
        (of_notes, site.project_id, (blog,)),
        (of_notes, site.project_id, (notes, blog)),
    ]

    messages = set()
    for narrow_key, project_id, ids in outside:
        with pytest.raises(NotFound) as caught:
            _narrow(reader, narrow_key, project_id, *ids)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_slugs_and_ids_resolve_to_the_same_scope(reader: Database, tenants: Tenants) -> None:
    site = tenants.site

    with reader.transaction() as conn:
        by_slug = catalog.resolve(conn, "acme", "site", ["notes", "blog", "notes"])
        ids = [str(number) for number in site.knowledge_database_ids]
        by_id = catalog.resolve(conn, str(site.account_id), str(site.project_id), ids)

    assert by_slug == by_id == site


def test_a_slug_of_digits_wins_over_an_id(writer: Database, tenants: Tenants) -> None:
    taken = str(tenants.site.account_id)
    numbered = add_databases(writer, taken, "p", "d")

    with writer.transaction() as conn:
        assert catalog.find_account(conn, taken) == numbered.account_id


@pytest.mark.parametrize(
    ("account", "project", "databases", "named"),
    [
        ("nobody", "site", ["notes"], "account 'nobody'"),
        ("acme", "nothing", ["notes"], "project 'nothing'"),
        ("acme", "site", ["notes", "none"], "knowledge database 'none'"),
        ("acme", "site", ["9" * 30], "knowledge database"),
        ("acme", "app", ["blog"], "knowledge database 'blog'"),
        ("ACME", "site", ["notes"], "account 'ACME'"),
        ("acme", "١", ["notes"], "project"),
    ],
)
def test_the_first_name_that_does_not_exist_is_named(
    reader: Database,
    tenants: Tenants,
    account: str,
    project: str,
    databases: list[str],
    named: str,
) -> None:
    with reader.transaction() as conn, pytest.raises(NotFound, match=named):
        catalog.resolve(conn, account, project, databases)
