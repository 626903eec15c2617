"""Gives the served API's tenants automations, the way the asset loads them."""

from __future__ import annotations

import itertools
from typing import Any

from served_api import ServedApi

from kshift_knowledge.canvas import parse_canvas
from kshift_knowledge.postgres import canvases
from kshift_knowledge.postgres.generations import require_default_generation

_SIGNATURES = map(str, itertools.count())

TIP_PROMPT = "Write a tip about theft."
PREFERENCE = "Prefer brand voice and audience objections"
# Vector is the one ranked mode that does not depend on the words of these few texts.
CANVAS = f"""
automations:
- {{slug: tip, preset: tip, prompt: {TIP_PROMPT}, knowledge: [notes, blog], retrieval: vector}}
- {{slug: pinned, prompt: Write., knowledge: [notes], pins: [Brand Styles, No], retrieval: vector}}
- {{slug: free, preset: tip, prompt: Greet.}}
- {{slug: legacy, prompt: Write., knowledge: [notes], retrieval: concat}}
- {{slug: empty, prompt: Write., knowledge: [blog], retrieval: vector}}
"""
FOREIGN_CANVAS = "automations: [{slug: tip, prompt: Write., knowledge: [plans]}]"


def load(api: ServedApi, account: str, project: str, text: str) -> dict[str, int]:
    """Make a project's automations those of *text*; returns the ids by slug."""
    with api.writer.transaction() as conn:
        generation = require_default_generation(conn)
        canvases.load(
            conn, account, project, generation.generation_id, next(_SIGNATURES), parse_canvas(text)
        )
        rows: list[Any] = conn.execute(
            "SELECT u.slug, u.automation_id FROM automations u"
            "  JOIN projects p USING (project_id) JOIN accounts a ON a.account_id = u.account_id"
            " WHERE a.slug = %s AND p.slug = %s",
            (account, project),
        ).fetchall()
    return dict(rows)
