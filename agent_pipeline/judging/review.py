"""A sample of judged sessions for people to review, as CSV, JSONL or an HTML page.

The filled file is a label file (`labels`): the setting `labels` names it for the next run.
"""

import csv
import hashlib
import heapq
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.judging.csv_cells import to_cell
from agent_pipeline.judging.rows import JudgedRow
from agent_pipeline.judging.turn_facts import describe_facts
from agent_pipeline.sessions.session import is_trained
from agent_pipeline.sessions.transcript import format_transcript, shorten_text

FIRST_GROUPS = ("unjudged", "disagreement")
"""Groups of sessions that a review may show first, instead of a proposal."""

REVIEW_COLUMNS = (
    "session_id",
    "project",
    "agent",
    "judgment",
    "reason",
    "why",
    "probability",
    "verdict",
    "opinions",
    "conversation",
)
"""Columns of a review file.

A person fills in `judgment` and `reason`. The other columns identify the session, explain why it
was chosen, and show the decisions of the judges. `probability` is empty unless the session was
drawn at random (`judge_checks`). The label file must keep it.
"""

ReviewRow = dict[str, Any]
"""A row of a review with `REVIEW_COLUMNS` and `parts`: the conversation as pairs of a text and a
flag.
"""

_MAX_CELL_CHARACTERS = 30_000
"""Maximum number of characters of a conversation in a CSV cell. Spreadsheets truncate a cell at
32,767 characters.
"""

_PEOPLE = ("label", "judgment")
_OTHER_JUDGES = ("score", "metrics", "measures", "llm")


class ReviewSample(NamedTuple):
    """A sample of sessions that people are asked to review.

    Attributes:
        rows: The chosen sessions, in the order of the review.
        counts: The number of all sessions by group.
    """

    rows: list[ReviewRow]
    counts: Counter[str]


def sample_sessions(
    rows: Iterable[JudgedRow], count: int, seed: int = 0, first: str = "unjudged"
) -> ReviewSample:
    """Choose rows of `judged_sessions` for a review.

    Sessions without a verdict, and sessions on which people and another judge disagree, come first.
    Then come the other judged sessions, and last the sessions that a person has labeled. Within a
    group, a hash of the seed and the session id defines the order. Archived sessions, empty
    sessions and infrastructure failures are left out. Memory holds only the chosen rows.

    Args:
        rows: The judged sessions.
        count: Number of sessions to choose.
        seed: The seed of the choice.
        first: The group that comes first, one of `FIRST_GROUPS`.

    Raises:
        SettingsError: `first` is not one of `FIRST_GROUPS`.
        DataError: The rows were written by an older version.
    """
    if first not in FIRST_GROUPS:
        raise SettingsError(
            f"A review cannot begin with {first!r}: choose {' or '.join(FIRST_GROUPS)}."
        )
    groups = [first, *(group for group in FIRST_GROUPS if group != first), "judged", "labelled"]
    counts: Counter[str] = Counter()

    def rank_rows() -> Iterator[tuple[int, str, JudgedRow]]:
        for row in rows:
            check_version(row)
            group = find_group(row)
            counts[group] += 1
            if group in groups:
                digest = hashlib.sha256(f"{seed}:{row['session_id']}".encode()).hexdigest()
                yield groups.index(group), digest, row

    chosen = heapq.nsmallest(count, rank_rows(), key=lambda ranked: ranked[:2])
    review_rows = [make_review_row(row, groups[group_index]) for group_index, _, row in chosen]
    return ReviewSample(review_rows, counts)


def write_review(path: Path, rows: list[ReviewRow]) -> None:
    """Write a sample in the format that the file's suffix names.

    Raises:
        SettingsError: The suffix is not .csv, .jsonl or .html, or the file exists already and may
            contain judgments.
    """
    writers = {".csv": _write_csv, ".jsonl": _write_jsonl, ".html": _write_html}
    suffix = path.suffix.lower()
    if suffix not in writers:
        raise SettingsError(
            f"A review cannot be written to {path}: use a file name that ends in "
            f"{', '.join(writers)}."
        )
    text = writers[suffix](rows)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError as error:
        raise SettingsError(
            f"{path} already exists and may contain judgments: choose another name, or move the "
            "file away."
        ) from error


def find_group(row: JudgedRow) -> str:
    """Return the group in which a review shows a session."""
    has_conversation = any(message["role"] != "system" for message in row["messages"])
    if row["archived"] or row["error"] is not None or not has_conversation:
        return "nothing to judge"
    verdicts = {
        judge: opinion["verdict"]
        for judge, opinion in row["opinions"].items()
        if opinion["verdict"]
    }
    for person in _PEOPLE:
        if person in verdicts:
            others = [verdicts[judge] for judge in _OTHER_JUDGES if judge in verdicts]
            if any(verdict != verdicts[person] for verdict in others):
                return "disagreement"
            break
    if row["verdict"] is None or row.get("verdict_by") == "unverified":
        return "unjudged"
    return "labelled" if "label" in verdicts else "judged"


def check_version(row: JudgedRow) -> None:
    """Check that a current version wrote a row.

    Raises:
        DataError: An older version wrote the row.
    """
    if "turns" not in row:
        raise DataError(
            "An older version of agent-pipeline made this `judged_sessions`: materialize "
            "`judged_sessions` again."
        )


def make_review_row(row: JudgedRow, group: str, probability: float | None = None) -> ReviewRow:
    """Return the row of a review.

    Args:
        row: The judged session.
        group: The reason why the session was chosen.
        probability: The probability of the choice, if the session was drawn at random.
    """
    parts = _split_conversation(row)
    opinions = [
        f"{judge}: {opinion['verdict'] or 'no opinion'}"
        + (f" ({opinion['reason']})" if opinion["reason"] else "")
        for judge, opinion in row["opinions"].items()
    ]
    new_columns = {
        "judgment": "",
        "reason": "",
        "why": group,
        "probability": "" if probability is None else repr(probability),
        "opinions": "; ".join(opinions),
        "conversation": "\n\n".join(text for text, _ in parts),
    }
    review_row: ReviewRow = {
        name: new_columns[name] if name in new_columns else row.get(name) for name in REVIEW_COLUMNS
    }
    return review_row | {"parts": parts}


def _split_conversation(row: JudgedRow) -> list[tuple[str, bool]]:
    """Return the conversation as a list of texts that a person can read.

    Each text comes with a flag: whether it lists facts. There is one text per message. If there are
    facts about a turn, a text with the facts follows.
    """
    turns = iter(row["turns"])
    parts: list[tuple[str, bool]] = []
    for message in row["messages"]:
        parts.append((format_transcript([message]), False))
        facts = describe_facts(next(turns)) if message["role"] == "assistant" else []
        if not is_trained(message):
            facts.append("not used for training, because its source says so")
        if facts:
            parts.append((f"FACTS: {', '.join(facts)}", True))
    return parts


def _write_csv(rows: list[ReviewRow]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, REVIEW_COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        conversation = shorten_text(
            row["conversation"], _MAX_CELL_CHARACTERS, "a .jsonl or .html review"
        )
        shown = row | {"conversation": conversation}
        writer.writerow(
            {
                name: to_cell(value) if isinstance(value, str) else value
                for name, value in shown.items()
            }
        )
    # Without the byte order mark, spreadsheets read a file in an older encoding.
    return "\ufeff" + text.getvalue()


def _write_jsonl(rows: list[ReviewRow]) -> str:
    lines = []
    for row in rows:
        columns = {name: row[name] for name in REVIEW_COLUMNS}
        lines.append(json.dumps(columns, ensure_ascii=False) + "\n")
    return "".join(lines)


def _write_html(rows: list[ReviewRow]) -> str:
    page = files("agent_pipeline.judging").joinpath("review.html").read_text(encoding="utf-8")
    # Inside a script element, only "<" could end the script.
    return page.replace("null/*ROWS*/", json.dumps(rows).replace("<", "\\u003c"))
