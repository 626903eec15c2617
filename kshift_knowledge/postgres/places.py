"""Places: the accounts, projects, databases and files that items lie in, found new or moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kshift_knowledge.indexing.records import Rename
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.tree import TreeEntry, kind_of

_REGISTER_FOLDERS = """
WITH wanted AS (
    SELECT * FROM unnest(%(accounts)s::text[], %(projects)s::text[], %(databases)s::text[])
        AS w(account, project, database)
), new_accounts AS (
    INSERT INTO accounts (slug) SELECT DISTINCT account FROM wanted
    ON CONFLICT (slug) DO NOTHING RETURNING account_id, slug
), all_accounts AS (
    SELECT account_id, slug FROM new_accounts UNION SELECT account_id, slug FROM accounts
), new_projects AS (
    INSERT INTO projects (account_id, slug, served_generation_id)
    SELECT DISTINCT a.account_id, w.project, %(generation)s::int
      FROM wanted w JOIN all_accounts a ON a.slug = w.account
    ON CONFLICT (account_id, slug) DO NOTHING RETURNING project_id, account_id, slug
), all_projects AS (
    SELECT project_id, account_id, slug FROM new_projects
    UNION SELECT project_id, account_id, slug FROM projects
)
INSERT INTO knowledge_databases (account_id, project_id, slug)
SELECT DISTINCT p.account_id, p.project_id, w.database
  FROM wanted w
  JOIN all_accounts a ON a.slug = w.account
  JOIN all_projects p ON p.account_id = a.account_id AND p.slug = w.project
ON CONFLICT (project_id, slug) DO NOTHING
"""

_WANTED_ITEMS = """
WITH wanted AS (
    SELECT d.account_id, d.project_id, d.knowledge_database_id, w.path, w.partition_key, w.kind,
           d.slug || '/' || w.path AS file_path
      FROM unnest(%(accounts)s::text[], %(projects)s::text[], %(databases)s::text[],
                  %(paths)s::text[], %(keys)s::text[], %(kinds)s::text[])
           AS w(account, project, database, path, partition_key, kind)
      JOIN accounts a ON a.slug = w.account
      JOIN projects p ON p.account_id = a.account_id AND p.slug = w.project
      JOIN knowledge_databases d ON d.project_id = p.project_id AND d.slug = w.database
)
"""

# Two statements, so that items find their files by the index: joined in one, the planner takes
# each list for one row and compares every item with every file.
_REGISTER_FILES = f"""
{_WANTED_ITEMS}
INSERT INTO project_files (account_id, project_id, path)
SELECT account_id, project_id, file_path FROM wanted
ON CONFLICT (project_id, path) DO NOTHING
"""  # noqa: S608 (constants only)

_REGISTER_ITEMS = f"""
{_WANTED_ITEMS}
INSERT INTO knowledge_database_items
    (account_id, project_id, knowledge_database_id, project_file_id, path, partition_key,
     name, kind)
SELECT w.account_id, w.project_id, w.knowledge_database_id, f.project_file_id, w.path,
       w.partition_key, w.path, w.kind
  FROM wanted w JOIN project_files f ON f.project_id = w.project_id AND f.path = w.file_path
ON CONFLICT (knowledge_database_id, path) DO NOTHING
"""  # noqa: S608 (constants only)

_RENAME = (
    # A new place may be that of an item that went before; its ids end here.
    """
    DELETE FROM project_files WHERE project_file_id IN
        (SELECT i.project_file_id FROM knowledge_database_items i
           JOIN unnest(%(databases)s::bigint[], %(paths)s::text[]) AS w(database, path)
             ON i.knowledge_database_id = w.database AND i.path = w.path
          WHERE i.state = 'gone')
    """,
    """
    UPDATE knowledge_database_items i SET path = w.path, partition_key = w.partition_key
      FROM unnest(%(items)s::bigint[], %(paths)s::text[], %(keys)s::text[])
           AS w(item, path, partition_key)
     WHERE i.knowledge_database_item_id = w.item
    """,
    """
    UPDATE project_files f SET path = w.path
      FROM unnest(%(items)s::bigint[], %(files)s::text[]) AS w(item, path)
      JOIN knowledge_database_items i ON i.knowledge_database_item_id = w.item
     WHERE f.project_file_id = i.project_file_id
    """,
)


def register(conn: Conn, entries: Sequence[TreeEntry], generation_id: int) -> None:
    """Create the accounts, projects, databases, files and items that are new."""
    register_databases(
        conn, {(entry.account, entry.project, entry.database) for entry in entries}, generation_id
    )
    values = {
        "accounts": [entry.account for entry in entries],
        "projects": [entry.project for entry in entries],
        "databases": [entry.database for entry in entries],
        "paths": [entry.path for entry in entries],
        "keys": [entry.partition_key for entry in entries],
        "kinds": [kind_of(entry.path) for entry in entries],
    }
    conn.execute(_REGISTER_FILES, values)
    conn.execute(_REGISTER_ITEMS, values)


def register_databases(
    conn: Conn, places: Iterable[tuple[str, str, str]], generation_id: int
) -> None:
    """Create accounts, projects and knowledge databases; empty folders count too."""
    ordered = sorted(places)
    conn.execute(
        _REGISTER_FOLDERS,
        {
            "accounts": [place[0] for place in ordered],
            "projects": [place[1] for place in ordered],
            "databases": [place[2] for place in ordered],
            "generation": generation_id,
        },
    )


def rename(conn: Conn, renames: Sequence[Rename]) -> None:
    """Move items to their new paths; ids, revisions and served rows stay."""
    values = {
        "items": [rename.item.item_id for rename in renames],
        "databases": [rename.item.knowledge_database_id for rename in renames],
        "paths": [rename.entry.path for rename in renames],
        "keys": [rename.entry.partition_key for rename in renames],
        "files": [f"{rename.entry.database}/{rename.entry.path}" for rename in renames],
    }
    for statement in _RENAME:
        conn.execute(statement, values)
