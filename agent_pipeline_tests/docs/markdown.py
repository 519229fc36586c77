"""Markdown for generated pages: tables and paragraphs."""

import textwrap
from collections.abc import Iterable, Sequence

GENERATED = "<!-- Made from the code by `make docs`: change the code, and run `make docs`. -->"


def make_cell(text: str) -> str:
    """Return a text as one line of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, or an empty text if there are no rows."""
    lines = [f"| {' | '.join(map(make_cell, row))} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines])


def wrap(text: str) -> str:
    """Return a text with lines of at most 100 characters. Its paragraphs stay."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(
        textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)
        for paragraph in paragraphs
    )


def join_parts(parts: Iterable[str]) -> str:
    """Return a page of parts, with an empty line between them. Empty parts are left out."""
    return "\n\n".join(part for part in parts if part) + "\n"
