"""Pages: a cited item as it stands now, for the page that a citation links to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kshift_knowledge.errors import NotFound
from kshift_knowledge.postgres.catalog import SEEN_BY_KEY, key_values
from kshift_knowledge.postgres.database import Conn
from kshift_knowledge.records import ApiKey

Quote = tuple[str, int]  # words of a receipt, and where they stood in the item's text

WINDOW_CHARS = 100_000  # of text on either side of the cited chunk; a page stays below 1 MB

_ITEM = f"""
SELECT i.knowledge_database_item_id, p.served_generation_id, t.revision,
       coalesce(char_length(t.text), 0), a.slug, p.slug, d.slug, i.name, i.path, i.kind,
       i.origin, i.source_url, i.labels, i.state, coalesce(x.chunk_count, 0), x.indexed_at,
       i.gone_at
  FROM knowledge_database_items i
  JOIN knowledge_databases d ON d.knowledge_database_id = i.knowledge_database_id
  JOIN projects p ON p.project_id = i.project_id
  JOIN accounts a ON a.account_id = i.account_id
  LEFT JOIN indexed_items x
    ON x.knowledge_database_item_id = i.knowledge_database_item_id
   AND x.generation_id = p.served_generation_id
  LEFT JOIN item_texts t ON t.knowledge_database_item_id = i.knowledge_database_item_id
 WHERE i.project_file_id = %(file)s AND i.project_id = %(wanted_project)s AND {SEEN_BY_KEY}
"""  # noqa: S608 (constants only)

_CHUNK = """
SELECT chunk_index, heading_path, char_start, char_end, content, revision
  FROM chunks
 WHERE generation_id = %s AND knowledge_database_item_id = %s AND chunk_index = %s
"""

# Where each quote stands: at its old place, else the first place that says it, else 0.
_FIND = """
SELECT CASE WHEN substr(t.text, q.place + 1, char_length(q.words)) = q.words THEN q.place + 1
            ELSE position(q.words IN t.text) END
  FROM item_texts t, unnest(%s::text[], %s::int[]) WITH ORDINALITY AS q(words, place, number)
 WHERE t.knowledge_database_item_id = %s AND t.revision = %s
 ORDER BY q.number
"""

_WINDOW = """
SELECT substr(text, %s, %s) FROM item_texts
 WHERE knowledge_database_item_id = %s AND revision = %s
"""


@dataclass(frozen=True, slots=True)
class CitedItem:
    """What is known of an item. chunk_count and indexed_at are of what is served now."""

    account: str
    project: str
    knowledge_database: str
    name: str
    file: str
    kind: str
    origin: str
    source_url: str | None
    labels: tuple[str, ...]
    state: str
    chunk_count: int
    indexed_at: datetime | None
    gone_at: datetime | None


@dataclass(frozen=True, slots=True)
class CitedText:
    """
    An item's text with one chunk set apart: before + cited + after, with nothing altered.

    cited is empty when no chunk is asked for, or it is not served any more (chunk_index None).
    quoted: the ranges of cited that a receipt quotes; empty means all of it.
    chars_before and chars_after were left out at the ends of a long text.
    """

    chunk_index: int | None
    heading_path: tuple[str, ...]
    before: str
    cited: str
    after: str
    chars_before: int = 0
    chars_after: int = 0
    quoted: tuple[tuple[int, int], ...] = ()

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """cited, cut where the quoting begins and ends; the flag says what is quoted."""
        if not self.quoted:
            return [(self.cited, True)]
        parts, place = [], 0
        for start, end in self.quoted:
            parts += [(self.cited[place:start], False), (self.cited[start:end], True)]
            place = end
        return [*((text, flag) for text, flag in parts if text), (self.cited[place:], False)]


@dataclass(frozen=True, slots=True)
class CitationPage:
    """text is None when nothing of the item is served: gone, failed at once, or not text."""

    item: CitedItem
    text: CitedText | None


def find_page(
    conn: Conn,
    key: ApiKey,
    project_id: int,
    project_file_id: int,
    chunk_index: int | None,
    quotes: Sequence[Quote] = (),
) -> CitationPage:
    """
    Return the item of a project file, and its text around one chunk.

    quotes: what a receipt cites of it; where all of that still stands in the item it is set apart
    instead, whatever the chunks are by now.

    Raises NotFound, the same for what does not exist and for what *key* may not see.
    """
    row = conn.execute(
        _ITEM, {**key_values(key), "file": project_file_id, "wanted_project": project_id}
    ).fetchone()
    if row is None:
        raise NotFound("This key sees no such file.")
    item_id, generation_id, revision, length = row[:4]
    item = CitedItem(*(*row[4:12], tuple(row[12]), *row[13:]))
    if revision is None:
        return CitationPage(item, None)
    spans = _spans(conn, item_id, revision, quotes)
    chunk = None
    if chunk_index is not None and not spans:
        chunk = conn.execute(_CHUNK, (generation_id, item_id, chunk_index)).fetchone()
    if spans:
        start, end = spans[0][0], spans[-1][1]
    elif chunk is None:
        start, end = 0, 0
    elif chunk[5] != revision:
        # Another generation read the file since: the ranges are of a text that is not kept.
        return CitationPage(item, CitedText(chunk[0], tuple(chunk[1]), "", chunk[4], ""))
    else:
        start, end = chunk[2:4]
    first, last = max(start - WINDOW_CHARS, 0), min(end + WINDOW_CHARS, length)
    found = conn.execute(_WINDOW, (first + 1, last - first, item_id, revision)).fetchone()
    window = found[0] if found else ""
    return CitationPage(
        item,
        CitedText(
            chunk_index=chunk[0] if chunk else None,
            heading_path=tuple(chunk[1]) if chunk else (),
            before=window[: start - first],
            cited=window[start - first : end - first],
            after=window[end - first :],
            chars_before=first,
            chars_after=length - last,
            quoted=tuple((span[0] - start, span[1] - start) for span in spans),
        ),
    )


def _spans(
    conn: Conn, item_id: int, revision: int, quotes: Sequence[Quote]
) -> list[tuple[int, int]]:
    """Where the quotes stand, in order and without overlap; empty unless all of them do."""
    if not quotes:
        return []
    words, places = zip(*quotes, strict=True)
    rows = conn.execute(_FIND, (list(words), list(places), item_id, revision)).fetchall()
    if not rows or not all(row[0] for row in rows):
        return []
    found = sorted(
        (row[0] - 1, row[0] - 1 + len(quote[0])) for row, quote in zip(rows, quotes, strict=True)
    )
    spans = [found[0]]
    for start, end in found[1:]:
        if start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans
