"""What was loaded of each project's canvas: automations, edges, mistakes. The writer's alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb

from kshift_knowledge.canvas import Automation, Canvas, CanvasProblem
from kshift_knowledge.postgres.database import Conn

_REGISTER = """
WITH account AS (
    INSERT INTO accounts (slug) VALUES (%(account)s)
    ON CONFLICT (slug) DO UPDATE SET slug = excluded.slug RETURNING account_id
)
INSERT INTO projects (account_id, slug, served_generation_id)
SELECT account_id, %(project)s, %(generation)s FROM account
ON CONFLICT (account_id, slug) DO UPDATE SET slug = excluded.slug
RETURNING account_id, project_id
"""

_LOADED = """
SELECT a.slug, p.slug, c.signature, EXISTS (
        SELECT FROM automations u
          JOIN knowledge_databases d ON d.project_id = u.project_id AND u.knowledge ? d.slug
         WHERE u.project_id = c.project_id AND NOT EXISTS (
               SELECT FROM knowledge_edges e
                WHERE e.automation_id = u.automation_id
                  AND e.knowledge_database_id = d.knowledge_database_id))
  FROM canvases c
  JOIN projects p ON p.project_id = c.project_id
  JOIN accounts a ON a.account_id = c.account_id
"""

_NOTE = """
INSERT INTO canvases (project_id, account_id, signature, problems)
VALUES (%(project)s, %(account)s, %(signature)s, %(problems)s)
ON CONFLICT (project_id) DO UPDATE SET
    signature = excluded.signature, problems = excluded.problems, loaded_at = now()
"""

_PUT = """
INSERT INTO automations AS u (account_id, project_id, slug, name, preset, prompt, preference, pins,
                              retrieval, knowledge)
SELECT %(account)s, %(project)s, w.*
  FROM unnest(%(slugs)s::text[], %(names)s::text[], %(presets)s::text[], %(prompts)s::text[],
              %(preferences)s::text[], %(pins)s::jsonb[], %(retrievals)s::text[],
              %(knowledge)s::jsonb[]) AS w
ON CONFLICT (project_id, slug) DO UPDATE SET
    name = excluded.name, preset = excluded.preset, prompt = excluded.prompt,
    preference = excluded.preference, pins = excluded.pins, retrieval = excluded.retrieval,
    knowledge = excluded.knowledge, gone_at = NULL,
    updated_at = CASE WHEN (u.name, u.preset, u.prompt, u.preference, u.pins, u.retrieval,
                            u.knowledge, u.gone_at)
                        IS DISTINCT FROM
                           (excluded.name, excluded.preset, excluded.prompt, excluded.preference,
                            excluded.pins, excluded.retrieval, excluded.knowledge, NULL)
                      THEN now() ELSE u.updated_at END
"""

_REMOVE = """
UPDATE automations
   SET gone_at = now(), updated_at = now(), prompt = '', preference = NULL, pins = '[]',
       knowledge = '[]'
 WHERE project_id = %s AND gone_at IS NULL AND slug <> ALL(%s)
"""

_UNLINK = """
DELETE FROM knowledge_edges e
 USING automations u, knowledge_databases d
 WHERE e.project_id = %s AND u.automation_id = e.automation_id
   AND d.knowledge_database_id = e.knowledge_database_id AND NOT u.knowledge ? d.slug
"""

_LINK = """
INSERT INTO knowledge_edges (automation_id, knowledge_database_id, account_id, project_id)
SELECT u.automation_id, d.knowledge_database_id, u.account_id, u.project_id
  FROM automations u
  JOIN knowledge_databases d ON d.project_id = u.project_id AND u.knowledge ? d.slug
 WHERE u.project_id = %s
ON CONFLICT DO NOTHING
"""

_COUNTS = """
SELECT count(DISTINCT u.automation_id), count(e.knowledge_database_id)
  FROM automations u LEFT JOIN knowledge_edges e USING (automation_id)
 WHERE u.gone_at IS NULL
"""

# What only the tables can tell: names in a good canvas that lead nowhere now.
_UNKNOWN = """
SELECT a.slug || '/' || p.slug, u.slug, 'database', k.slug
  FROM automations u
  JOIN projects p USING (project_id) JOIN accounts a ON a.account_id = u.account_id,
       jsonb_array_elements_text(u.knowledge) AS k(slug)
 WHERE u.gone_at IS NULL AND NOT EXISTS (
       SELECT FROM knowledge_databases d WHERE d.project_id = u.project_id AND d.slug = k.slug)
UNION ALL
SELECT a.slug || '/' || p.slug, u.slug, 'pin', pin.name
  FROM automations u
  JOIN projects p USING (project_id) JOIN accounts a ON a.account_id = u.account_id,
       jsonb_array_elements_text(u.pins) AS pin(name)
 WHERE u.gone_at IS NULL AND NOT EXISTS (
       SELECT FROM knowledge_edges e
         JOIN knowledge_database_items i ON i.knowledge_database_id = e.knowledge_database_id
        WHERE e.automation_id = u.automation_id
          -- a new item has its front matter's name once it is read
          AND (i.state <> 'gone' AND i.name = pin.name OR i.state = 'waiting'))
 ORDER BY 1, 2, 3, 4
"""

_PROBLEMS = """
SELECT a.slug || '/' || p.slug, c.problems
  FROM canvases c
  JOIN projects p USING (project_id) JOIN accounts a ON a.account_id = c.account_id
 WHERE c.problems <> '[]' ORDER BY 1
"""


_HARMLESS = {"automation_unknown_database", "automation_unknown_pin", "automation_unknown_field"}


@dataclass(frozen=True, slots=True)
class LoadedCanvas:
    """A project's canvas as it was loaded. lacks_edges: a database it names exists by now."""

    signature: str
    lacks_edges: bool


@dataclass(frozen=True, slots=True)
class AutomationProblem:
    """A mistake in a canvas as `kshift status` and `kshift index` show it."""

    project: str  # <account>/<project>
    automation: str | None
    code: str
    message: str
    hint: str

    @property
    def leaves_out(self) -> bool:
        """Whether something that the file says is not loaded; else all is, and a name is wrong."""
        return self.code not in _HARMLESS

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def loaded(conn: Conn) -> dict[tuple[str, str], LoadedCanvas]:
    """By account and project: every canvas that was loaded and is there still."""
    return {(row[0], row[1]): LoadedCanvas(*row[2:]) for row in conn.execute(_LOADED)}


def load(
    conn: Conn, account: str, project: str, generation_id: int, signature: str, canvas: Canvas
) -> None:
    """
    Make a project's automations and edges those of *canvas*, and note the file's signature.

    What the canvas names no more is gone, apart from what it keeps; receipts stay.
    """
    account_id, project_id = _register(conn, account, project, generation_id)
    _put(conn, account_id, project_id, canvas.automations)
    if canvas.is_complete:
        named = [automation.slug for automation in canvas.automations]
        conn.execute(_REMOVE, (project_id, [*named, *canvas.kept]))
    conn.execute(_UNLINK, (project_id,))
    conn.execute(_LINK, (project_id,))
    _note(conn, account_id, project_id, signature, canvas.problems)


def refuse(
    conn: Conn,
    account: str,
    project: str,
    generation_id: int,
    signature: str,
    problem: CanvasProblem,
) -> None:
    """Note that this state of the file cannot be used; what was loaded before stays."""
    account_id, project_id = _register(conn, account, project, generation_id)
    conn.execute(_LINK, (project_id,))
    _note(conn, account_id, project_id, signature, [problem])


def remove(conn: Conn, account: str, project: str) -> None:
    """Let a project's automations be gone with their file."""
    row = conn.execute(
        "DELETE FROM canvases c USING projects p, accounts a"
        " WHERE p.project_id = c.project_id AND a.account_id = c.account_id"
        "   AND a.slug = %s AND p.slug = %s RETURNING c.project_id",
        (account, project),
    ).fetchone()
    if row is not None:
        conn.execute(_REMOVE, (row[0], []))
        conn.execute(_UNLINK, (row[0],))


def counts(conn: Conn) -> tuple[int, int]:
    """How many automations and edges there are."""
    row = conn.execute(_COUNTS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def problems(conn: Conn) -> list[AutomationProblem]:
    """Every mistake that stands now, of files, entries and names, by project."""
    found = [
        AutomationProblem(project, **one)
        for project, listed in conn.execute(_PROBLEMS)
        for one in listed
    ]
    found += [_unknown(*row) for row in conn.execute(_UNKNOWN)]
    return sorted(found, key=lambda one: (one.project, one.automation or "", one.code))


def _unknown(project: str, automation: str, kind: str, name: str) -> AutomationProblem:
    if kind == "database":
        return AutomationProblem(
            project,
            automation,
            "automation_unknown_database",
            f"The automation {automation} is linked to {name!r}, which is no knowledge database "
            f"of {project}.",
            "Correct the name; its other edges work.",
        )
    return AutomationProblem(
        project,
        automation,
        "automation_unknown_pin",
        f"The automation {automation} pins {name!r}, which no item of its databases is called.",
        "Correct the name, or link the database that has the item.",
    )


def _register(conn: Conn, account: str, project: str, generation_id: int) -> tuple[int, int]:
    row = conn.execute(
        _REGISTER, {"account": account, "project": project, "generation": generation_id}
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def _put(conn: Conn, account_id: int, project_id: int, automations: Sequence[Automation]) -> None:
    conn.execute(
        _PUT,
        {
            "account": account_id,
            "project": project_id,
            "slugs": [one.slug for one in automations],
            "names": [one.name for one in automations],
            "presets": [one.preset for one in automations],
            "prompts": [one.prompt for one in automations],
            "preferences": [one.preference for one in automations],
            "pins": [Jsonb(list(one.pins)) for one in automations],
            "retrievals": [one.retrieval for one in automations],
            "knowledge": [Jsonb(list(one.knowledge)) for one in automations],
        },
    )


def _note(
    conn: Conn,
    account_id: int,
    project_id: int,
    signature: str,
    found: Sequence[CanvasProblem],
) -> None:
    conn.execute(
        _NOTE,
        {
            "project": project_id,
            "account": account_id,
            "signature": signature,
            "problems": Jsonb([asdict(problem) for problem in found]),
        },
    )
