"""Judgments that people make one by one in a review, and the agreement of the annotators.

A judgment is appended to a label file (`labels`) as one line of JSON. The line has the columns of a
label, and `annotator`, `when`, and the columns by which a proposal of sessions is recognized.
Several processes may append to one file at the same time.

The choice of the sessions belongs to `review`, and the effect of labels to `labels`.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
from filelock import FileLock

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.agreement import VerdictPairs, compute_kappa
from agent_pipeline.judging.labels import LabelRow, Verdict, is_about, read_label_rows
from agent_pipeline.keys import PartitionKey

REVIEW_FILE = "review.jsonl"
"""Name of the file in a folder of labels to which reviews append."""

Mark = Literal["acceptable", "unacceptable", "unsure", "skip", ""]
"""What an annotator decided. `unsure` withdraws the annotator's label, `skip` leaves the session
for later, and an empty mark only changes the note.
"""

DRAWS = 20_000
_PRIOR = 0.5


class Annotation(msgspec.Struct, frozen=True):
    """One line of a review: what an annotator decided about a session.

    Attributes:
        session_id: The session.
        project: The project of the agent.
        agent: The agent.
        judgment: The judgment. It is empty for a skipped session, because an empty judgment
            changes nothing in a label file.
        reason: The annotator's note.
        annotator: The annotator's name.
        when: The time (ISO 8601, UTC).
        skipped: Whether the annotator skipped the session.
        why: The reason why the session was proposed.
        probability: The probability with which the session was drawn, as its proposal states it.
    """

    session_id: str
    project: str
    agent: str
    judgment: str
    reason: str
    annotator: str
    when: str
    skipped: bool = False
    why: str = ""
    probability: str = ""

    @property
    def mark(self) -> Mark:
        """Return what the annotator decided."""
        if self.skipped:
            return "skip"
        return next((mark for mark in get_args(Mark) if mark == self.judgment), "")


Annotations = Mapping[str, Mapping[str, Annotation]]
"""The last decision on each session, by annotator and session id."""


class AnnotatorAgreement(msgspec.Struct, frozen=True):
    """The agreement of two annotators on the sessions that both judged.

    Attributes:
        first: An annotator.
        second: Another annotator.
        sessions: The number of sessions that both judged.
        agreed: The number of sessions with the same judgment.
        kappa: Cohen's kappa, or None if all judgments are equal, because kappa is then undefined.
        low: The lower end of the 95 % interval of kappa.
        high: The upper end of the interval.
    """

    first: str
    second: str
    sessions: int
    agreed: int
    kappa: float | None
    low: float | None
    high: float | None


def find_review_file(labels: Path) -> Path:
    """Return the file to which a review appends, given the file or folder of labels.

    Raises:
        SettingsError: The labels are a CSV file.
    """
    if labels.suffix.lower() == ".jsonl":
        return labels
    if labels.suffix.lower() == ".csv":
        raise SettingsError(
            f"The setting `labels` names the CSV file {labels}, to which a review cannot append: "
            "move the file into a folder, and set `labels` to the folder.",
            setting="labels",
            path=labels,
        )
    return labels / REVIEW_FILE


def append_annotation(path: Path, annotation: Annotation) -> None:
    """Append a line to a label file, and wait until the disk has it.

    A killed process leaves a whole line or no line. If a power failure has cut off the last line,
    the next judgment still begins on a new line.

    Args:
        path: The file. It is made if it is missing.
        annotation: The line.

    Raises:
        SettingsError: The file cannot be written.
    """
    line = msgspec.json.encode(annotation) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(path.with_name(f".{path.name}.lock")),
            path.open("ab+", buffering=0) as file,
        ):
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            if file.write(line) != len(line):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
    except OSError as error:
        raise SettingsError(
            f"The label file {path} cannot be written ({error.strerror}): correct the permissions, "
            "or set `labels` to another folder. The judgment is not saved.",
            setting="labels",
            path=path,
        ) from error


def make_time() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_annotations(path: Path, key: PartitionKey, is_own_file: bool = False) -> Annotations:
    """Return what annotators decided about an agent's sessions.

    Labels without an annotator are left out. A line without a decision changes only the note.

    Args:
        path: The file or folder of labels. It may be missing.
        key: The agent.
        is_own_file: Whether the files belong to this agent.

    Raises:
        SettingsError: A label file cannot be read.
    """
    annotations: dict[str, dict[str, Annotation]] = {}
    if not path.exists():
        return annotations
    for annotation in _parse_rows(read_label_rows(path), key, is_own_file):
        by_session = annotations.setdefault(annotation.annotator, {})
        earlier = by_session.pop(annotation.session_id, None)
        if earlier is not None and not annotation.mark:
            annotation = msgspec.structs.replace(earlier, reason=annotation.reason)
        by_session[annotation.session_id] = annotation
    return annotations


def _parse_rows(
    rows: Iterator[LabelRow | None], key: PartitionKey, is_own_file: bool
) -> Iterator[Annotation]:
    for row in rows:
        if row is None or not row.get("annotator") or not row.get("session_id"):
            continue
        texts = {name: str(row.get(name) or "").strip() for name in Annotation.__struct_fields__}
        if not is_about(texts["project"], texts["agent"], key):
            continue
        if not is_own_file and not (texts["project"] and texts["agent"]):
            continue
        texts["judgment"] = texts["judgment"].casefold()
        texts.pop("skipped")
        yield Annotation(**texts, skipped=row.get("skipped") in (True, "true", "True"))


def compare_annotators(annotations: Annotations) -> list[AnnotatorAgreement]:
    """Return the agreement of every two annotators who judged the same sessions."""
    agreements = []
    for first, second in combinations(sorted(annotations), 2):
        pairs: VerdictPairs = Counter()
        for session_id, annotation in annotations[first].items():
            other = annotations[second].get(session_id)
            if other is None:
                continue
            marks = annotation.mark, other.mark
            if (marks[0] == "acceptable" or marks[0] == "unacceptable") and (
                marks[1] == "acceptable" or marks[1] == "unacceptable"
            ):
                pairs[marks[0], marks[1]] += 1
        if pairs:
            agreements.append(_measure_agreement(first, second, pairs))
    return agreements


def _measure_agreement(first: str, second: str, pairs: VerdictPairs) -> AnnotatorAgreement:
    kappa = compute_kappa(pairs)
    low = high = None
    if kappa is not None:
        interval = estimate_kappa_interval(pairs)
        low, high = min(kappa, interval[0]), max(kappa, interval[1])
    return AnnotatorAgreement(
        first=first,
        second=second,
        sessions=pairs.total(),
        agreed=pairs["acceptable", "acceptable"] + pairs["unacceptable", "unacceptable"],
        kappa=kappa,
        low=low,
        high=high,
    )


def estimate_kappa_interval(pairs: VerdictPairs) -> tuple[float, float]:
    """Return the 95 % interval of Cohen's kappa.

    The interval is the central interval of the posterior distribution with Jeffreys' prior. Unlike
    the normal interval, it has a width if two annotators agreed on every session.
    """
    verdicts: tuple[Verdict, ...] = ("acceptable", "unacceptable")
    counts = [pairs[first, second] + _PRIOR for first in verdicts for second in verdicts]
    draws = np.random.default_rng(0).dirichlet(counts, DRAWS)
    agreed = draws[:, 0] + draws[:, 3]
    first_good, second_good = draws[:, 0] + draws[:, 1], draws[:, 0] + draws[:, 2]
    by_chance = first_good * second_good + (1 - first_good) * (1 - second_good)
    low, high = np.quantile((agreed - by_chance) / (1 - by_chance), [0.025, 0.975])
    return float(low), float(high)
