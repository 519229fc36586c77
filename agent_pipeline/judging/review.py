"""A sample of judged sessions for people to judge: a CSV or JSONL file to fill in, or a page with buttons that makes one.

What comes back is a label file (see `labels`): put where the setting `labels` points, it joins the next run.
"""

import csv
import hashlib
import heapq
import io
import json
from collections import Counter
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.judging.cells import as_cell
from agent_pipeline.judging.turns import readable_facts
from agent_pipeline.sessions.session import is_trained
from agent_pipeline.sessions.transcript import format_transcript, shorten_text

FIRST = ("unjudged", "disagreement")
COLUMNS = (
    "session_id",
    "project",
    "agent",
    "judgment",
    "reason",
    "why",
    "verdict",
    "opinions",
    "conversation",
)
"""`judgment` and `reason` are for the person; the others say which session it is, why it was chosen, and what has been said of it."""

_LONGEST_CELL = 30_000
"""Characters of a conversation in a CSV cell: spreadsheets cut a cell off at 32,767."""

_PEOPLE, _OTHERS = ("label", "judgment"), ("score", "metrics", "measures", "llm")


def sample(
    rows: Iterable[dict[str, Any]], count: int, seed: int = 0, first: str = "unjudged"
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Choose rows of `judged_sessions` to be reviewed, and count all by why they would be.

    In order: sessions without a verdict and those of which people and another judge disagree (either first), the other ones, those that
    a person labelled already; within each by a hash of seed and id. Archived and empty sessions and failures of the infrastructure leave
    nothing to judge. Memory holds the chosen rows.

    Raises:
        SettingsError: `first` is neither.
        DataError: the rows are an older version's.
    """
    if first not in FIRST:
        raise SettingsError(f"A review cannot begin with {first!r}: choose {' or '.join(FIRST)}.")
    order = [first, *(each for each in FIRST if each != first), "judged", "labelled"]
    counts: Counter[str] = Counter()

    def candidates() -> Iterable[tuple[int, str, dict[str, Any]]]:
        for row in rows:
            if "turns" not in row:
                raise DataError(
                    "These judged_sessions are an older version's: materialize judged_sessions again."
                )
            why = _why(row)
            counts[why] += 1
            if why in order:
                digest = hashlib.sha256(f"{seed}:{row['session_id']}".encode()).hexdigest()
                yield order.index(why), digest, row

    chosen = heapq.nsmallest(count, candidates(), key=lambda each: each[:2])
    return [_review_row(row, order[place]) for place, _, row in chosen], counts


def write_review(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the sample in the form that the file's ending names.

    Raises:
        SettingsError: the ending is none of .csv, .jsonl and .html, or the file is there already (somebody may have filled it in).
    """
    forms = {".csv": _csv, ".jsonl": _jsonl, ".html": _html}
    if path.suffix.lower() not in forms:
        raise SettingsError(
            f"A review cannot be written to {path}: let its name end in {', '.join(forms)}."
        )
    text = forms[path.suffix.lower()](rows)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError as error:
        raise SettingsError(
            f"{path} is there already and may hold judgments: choose another name, or move it away."
        ) from error


def _why(row: dict[str, Any]) -> str:
    if (
        row["archived"]
        or row["error"] is not None
        or not any(message["role"] != "system" for message in row["messages"])
    ):
        return "nothing to judge"
    opinions = {
        name: opinion["verdict"] for name, opinion in row["opinions"].items() if opinion["verdict"]
    }
    people = next((opinions[name] for name in _PEOPLE if name in opinions), None)
    if people and any(opinions[name] != people for name in _OTHERS if name in opinions):
        return "disagreement"
    if row["verdict"] is None or row.get("verdict_by") == "unverified":
        return "unjudged"
    return "labelled" if "label" in opinions else "judged"


def _review_row(row: dict[str, Any], why: str) -> dict[str, Any]:
    opinions = "; ".join(
        f"{name}: {opinion['verdict'] or 'no opinion'}"
        + (f" ({opinion['reason']})" if opinion["reason"] else "")
        for name, opinion in row["opinions"].items()
    )
    parts = _parts(row)
    conversation = "\n\n".join(text for text, _ in parts)
    added = {
        "judgment": "",
        "reason": "",
        "why": why,
        "opinions": opinions,
        "conversation": conversation,
    }
    return {name: added.get(name, row.get(name)) for name in COLUMNS} | {"parts": parts}


def _parts(row: dict[str, Any]) -> list[tuple[str, bool]]:
    """The conversation for a reader, a text a message; after each turn of which there are facts a text with them, which is marked."""
    turns, parts = iter(row["turns"]), list[tuple[str, bool]]()
    for message in row["messages"]:
        parts.append((format_transcript([message]), False))
        facts = readable_facts(next(turns)) if message["role"] == "assistant" else []
        facts += [] if is_trained(message) else ["not trained, by its source"]
        if facts:
            parts.append((f"FACTS: {', '.join(facts)}", True))
    return parts


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        shown = row | {
            "conversation": shorten_text(
                row["conversation"], _LONGEST_CELL, "a .jsonl or .html review"
            )
        }
        writer.writerow(
            {
                name: as_cell(value) if isinstance(value, str) else value
                for name, value in shown.items()
            }
        )
    return (
        "\ufeff" + text.getvalue()
    )  # spreadsheets take a file without the mark for an older encoding


def _jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(
        json.dumps({name: row[name] for name in COLUMNS}, ensure_ascii=False) + "\n" for row in rows
    )


def _html(rows: list[dict[str, Any]]) -> str:
    page = files("agent_pipeline.judging").joinpath("review.html").read_text(encoding="utf-8")
    # Inside a script element only "<" could end it.
    return page.replace("null/*ROWS*/", json.dumps(rows).replace("<", "\\u003c"))
