"""Tells where HTML blocks in Markdown begin and end: CommonMark 0.31, section 4.6."""

from __future__ import annotations

import re

# Kinds 1 to 5 end at a mark of their own, kinds 6 and 7 at a blank line.
_WITH_END = tuple(
    (re.compile(begin, re.IGNORECASE), re.compile(end, re.IGNORECASE))
    for begin, end in (
        (r"<(?:pre|script|style|textarea)(?:[ \t>]|$)", r"</(?:pre|script|style|textarea)>"),
        (r"<!--", r"-->"),
        (r"<\?", r"\?>"),
        (r"<![a-z]", r">"),
        (r"<!\[CDATA\[", r"\]\]>"),
    )
)
_SECTION_TAG = re.compile(
    r"</?(?:address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd"
    r"|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]"
    r"|head|header|hr|html|iframe|legend|li|link|main|menu|menuitem|nav|noframes|ol|optgroup"
    r"|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|track|ul)"
    r"(?:[ \t]|/?>|$)",
    re.IGNORECASE,
)
_TAG_ALONE = re.compile(
    r"<(?:/[a-z][a-z0-9-]*+|[a-z][a-z0-9-]*+"
    r"(?:[ \t]++[a-z_:][\w.:-]*+(?:[ \t]*+=[ \t]*+(?:[^ \t\"'=<>`]++|'[^']*+'|\"[^\"]*+\"))?+)*+"
    r"[ \t]*+/?)[ \t]*+>[ \t]*+$",
    re.IGNORECASE,
)
_BLANK_LINE = re.compile(r"^\s*$")


def html_block_end(line: str, in_paragraph: bool) -> re.Pattern[str] | None:
    """
    Return what to search in this and the next lines for the block's end.

    None when *line*, indented by at most three blanks, opens no HTML block; a tag alone on its
    line opens one only outside a paragraph.
    """
    line = line.lstrip(" ")
    for begin, end in _WITH_END:
        if begin.match(line):
            return end
    if _SECTION_TAG.match(line) or (not in_paragraph and _TAG_ALONE.match(line)):
        return _BLANK_LINE
    return None
