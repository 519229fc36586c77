"""Labels: people's judgments of sessions, in CSV or JSONL files.

A row has `session_id`, `judgment` and `reason`. The optional column `probability` says that a
review drew the session at random (`judge_checks`). The optional columns `project` and `agent` name
the session's agent. If they are missing, the row applies to the only agent that has a session with
this id. If several agents have such a session, the row is ignored. Other columns are ignored, so a
filled review file is also a label file. An empty judgment changes nothing. If a session was judged
more than once, the last judgment counts; the files of a folder are read in the order of their
names.

The optional column `annotator` names the person who judged. If this person is `unsure` later, only
the label of this person is withdrawn.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.csv_cells import from_cell
from agent_pipeline.keys import PartitionKey, may_mean
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Message, Session, hash_json
from agent_pipeline.sources.base import file_signature

Verdict = Literal["acceptable", "unacceptable"]
VERDICTS: dict[str | None, Verdict] = {"acceptable": "acceptable", "unacceptable": "unacceptable"}

UNSURE = "unsure"
"""A judgment that withdraws the annotator's earlier label."""

LABEL_SUFFIXES = (".csv", ".jsonl")

LabelRow = dict[str, Any]
"""A row of a label file. Its keys are the column names in lower case, without surrounding spaces.
"""

_ENCODINGS_BY_MARK = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MAX_NAMES_SHOWN = 5

# Excel limits a cell to 32,767 characters, but other programs do not. The csv module's own limit is
# 131,072.
_MAX_FIELD_CHARACTERS = (1 << 31) - 1


class Label(NamedTuple):
    """A person's judgment of a session, with a reason."""

    judgment: Verdict
    reason: str = ""


_LABELS_WITHOUT_REASON = {verdict: Label(verdict) for verdict in VERDICTS.values()}
"""Shared `Label` objects for labels without a reason, because most labels have no reason."""


@dataclass
class Labels:
    """People's labels for the sessions of one agent.

    Attributes:
        where: Path of the label file or folder.
        by_id: The labels by session id.
        notes: Sentences about rows that could not be used.
        drawn_below: The largest `probability` of the labels: all sessions with a lower random
            number were proposed to people. 0 if no label was drawn at random.
        partial_keys: The project and agent of labels that do not name both, by session id. One or
            both of the values are empty.
    """

    where: str = ""
    by_id: dict[str, Label] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    drawn_below: float = 0.0
    partial_keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    _by_annotator: dict[str, dict[str, Label]] = field(default_factory=dict, repr=False)
    """The last label of each annotator, for sessions that a row with an annotator names. Labels
    without an annotator have an empty name. The label that counts is the last.
    """

    def add(self, session_id: str, label: Label, annotator: str = "") -> None:
        """Add a label, which counts from now on."""
        if annotator or session_id in self._by_annotator:
            labels = self._list_annotators(session_id)
            labels.pop(annotator, None)
            labels[annotator] = label
        self.by_id[session_id] = label

    def withdraw(self, session_id: str, annotator: str) -> None:
        """Remove an annotator's label. The last label of another person counts again, if any."""
        labels = self._list_annotators(session_id)
        labels.pop(annotator, None)
        if labels:
            self.by_id[session_id] = list(labels.values())[-1]
        else:
            self.by_id.pop(session_id, None)
            self.partial_keys.pop(session_id, None)

    def _list_annotators(self, session_id: str) -> dict[str, Label]:
        if session_id not in self._by_annotator:
            label = self.by_id.get(session_id)
            self._by_annotator[session_id] = {} if label is None else {"": label}
        return self._by_annotator[session_id]

    def leave_out_shared(self, shared: Mapping[str, PartitionKey]) -> None:
        """Remove labels that may belong to a session of another agent, and add a note.

        Args:
            shared: Another agent with a session of the same id, by session id.
        """
        if not shared:
            return
        for session_id in shared:
            del self.by_id[session_id]
        agents = _list_first(sorted({str(key) for key in shared.values()}))
        self.notes.append(
            f"{self.where}: {len(shared)} labels were left out ({_list_first(sorted(shared))}), "
            f"because {agents} has sessions with the same ids. Add the project and the agent to "
            "these labels."
        )

    def add_to_version(self, store_version: str, session_ids: Iterable[str]) -> str:
        """Return the data version of a store's sessions, combined with the version of their labels.

        If no label names any of the sessions, the result is the store's version.
        """
        used = {
            session_id: self.by_id[session_id]
            for session_id in session_ids
            if session_id in self.by_id
        }
        return hash_json([store_version, used]) if used else store_version

    def redact(self, redactor: Redactor) -> None:
        """Replace private data in the reasons of the labels, in place.

        Raises:
            RedactionError: The detectors cannot be used, as in `Redactor.redact`.
        """
        with_reason = [session_id for session_id, label in self.by_id.items() if label.reason]
        messages: list[Message] = [
            {"role": "user", "content": self.by_id[session_id].reason} for session_id in with_reason
        ]
        # The redactor works on sessions, so the reasons become the messages of a session.
        carrier = Session(session_id="", project="", agent="", source="labels", messages=messages)
        redactor.redact(carrier)
        for session_id, message in zip(with_reason, carrier.messages, strict=True):
            self.by_id[session_id] = self.by_id[session_id]._replace(reason=message["content"])

    def describe_unknown(self, session_ids: Iterable[str]) -> str:
        """Return a sentence about the labels whose session the agent does not have.

        The sentence is empty if there are no such labels.
        """
        unknown = sorted(session_ids)
        if not unknown:
            return ""
        return (
            f"{self.where}: {len(unknown)} labels are for sessions that this agent does not have "
            f"({_list_first(unknown)})."
        )


def find_label_files(path: Path) -> list[Path]:
    """Return the label files at a path.

    The path is a file, or a folder whose files are returned in the order of their names.

    Raises:
        SettingsError: The path does not exist, or is a file of another kind.
    """
    try:
        if path.is_dir():
            return sorted(
                file
                for file in path.iterdir()
                if file.suffix.lower() in LABEL_SUFFIXES and not file.name.startswith(".")
            )
        if path.is_file() and path.suffix.lower() in LABEL_SUFFIXES:
            return [path]
    except OSError as error:
        raise _make_unreadable_error(path, error) from error
    problem = "is neither a .csv nor a .jsonl file" if path.exists() else "does not exist"
    raise SettingsError(
        f"The labels file {path} {problem}: set `labels` to a CSV or JSONL file, or to a folder "
        "of such files.",
        setting="labels",
        path=path,
    )


def compute_labels_signature(path: Path) -> str:
    """Return a text that changes whenever the labels in a file or folder may have changed.

    The text is cheap to compute.
    """
    return file_signature(*find_label_files(path))


def read_labels(path: Path, key: PartitionKey, is_own_file: bool = False) -> Labels:
    """Return the labels of an agent.

    Args:
        path: A label file or a folder of them.
        key: The agent.
        is_own_file: Whether the files belong to this agent, so that rows without project and agent
            are about this agent.

    Raises:
        SettingsError: A file is missing, cannot be read or decoded, or lacks the columns
            `session_id` and `judgment`.
    """
    labels = Labels(str(path))
    unknown_words: Counter[str] = Counter()
    unusable_count = 0
    for file in find_label_files(path):
        for row in _read_rows(file):
            session_id = _to_text(row.get("session_id")) if row is not None else ""
            if row is None or not session_id:
                unusable_count += 1
                continue
            project, agent = _to_text(row.get("project")), _to_text(row.get("agent"))
            word = _to_text(row.get("judgment"))
            if not word or not is_about(project, agent, key):
                continue
            annotator = _to_text(row.get("annotator"))
            if word.casefold() == UNSURE:
                labels.withdraw(session_id, annotator)
                continue
            judgment = VERDICTS.get(word.casefold())
            if judgment is None:
                unknown_words[word[:40]] += 1
                continue
            labels.drawn_below = max(labels.drawn_below, _read_probability(row))
            reason = _to_text(row.get("reason"))
            label = Label(judgment, reason) if reason else _LABELS_WITHOUT_REASON[judgment]
            labels.add(session_id, label, annotator)
            labels.partial_keys.pop(session_id, None)
            if not is_own_file and not (project and agent):
                labels.partial_keys[session_id] = (project, agent)
    if unusable_count:
        labels.notes.append(
            f"{path}: {unusable_count} rows are not JSON or have no session_id, and were left out."
        )
    if unknown_words:
        labels.notes.append(
            f"{path}: {unknown_words.total()} judgments are neither acceptable nor unacceptable "
            f"({_list_first(sorted(unknown_words))}) and were left out."
        )
    return labels


def read_label_rows(path: Path) -> Iterator[LabelRow | None]:
    """Yield the rows of a label file, or of all label files of a folder.

    `None` is yielded for a line that is not a JSON object.

    Raises:
        SettingsError: As in `read_labels`.
    """
    for file in find_label_files(path):
        yield from _read_rows(file)


def _read_rows(file: Path) -> Iterator[LabelRow | None]:
    """Yield the rows of a label file, in CSV or JSONL format.

    `None` is yielded for a line that is not a JSON object.
    """
    names: set[str] = set()
    is_jsonl = file.suffix.lower() == ".jsonl"
    try:
        with file.open("rb") as raw:
            encoding = _ENCODINGS_BY_MARK.get(raw.read(2), "utf-8-sig")
        with file.open(encoding=encoding, newline="\n" if is_jsonl else "") as text:
            rows = _read_json_rows(text, names) if is_jsonl else _read_csv_rows(file, text, names)
            for row in rows:
                if row is None:
                    yield None
                else:
                    yield {
                        _fold_name(name): value for name, value in row.items() if name is not None
                    }
    except (OSError, UnicodeDecodeError) as error:
        raise _make_unreadable_error(file, error) from error
    missing = sorted({"session_id", "judgment"} - {_fold_name(name) for name in names})
    if missing:
        raise SettingsError(
            f"The labels file {file} has no {' and no '.join(missing)}: the columns must be "
            "called session_id, judgment and reason.",
            setting="labels",
            path=file,
        )


def _fold_name(name: object) -> str:
    return str(name).strip().casefold()


def _read_csv_rows(file: Path, text: Iterable[str], names: set[str]) -> Iterator[LabelRow | None]:
    """Yield the rows of a CSV file, and add the file's column names to `names`."""
    csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    lines = dropwhile(str.isspace, text)
    head = next(lines, "").lstrip()
    # In many languages, spreadsheets separate columns by a semicolon, because the comma is the
    # decimal sign.
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(chain([head], lines), delimiter=delimiter, strict=True)
    try:
        names.update(reader.fieldnames or ())
        for row in reader:
            if any(isinstance(cell, str) and cell.strip() for cell in row.values()):
                yield {
                    name: from_cell(cell) if isinstance(cell, str) else cell
                    for name, cell in row.items()
                }
    except csv.Error as error:
        raise SettingsError(
            f"The labels file {file} is not valid CSV from line {reader.reader.line_num} on "
            f"({error}): correct the quotes in that line.",
            setting="labels",
            path=file,
        ) from error


def _read_json_rows(text: Iterable[str], names: set[str]) -> Iterator[LabelRow | None]:
    """Yield the rows of a JSONL file, and add all keys of the rows to `names`."""
    for line in text:
        if line.strip():
            row = parse_object(line)
            names.update(row or ())
            yield row


def _read_probability(row: LabelRow) -> float:
    """Return the probability with which a review drew a session, or 0 if there is none."""
    try:
        # Some spreadsheets write a comma as the decimal sign.
        probability = float(_to_text(row.get("probability")).replace(",", ".") or 0)
    except ValueError:
        return 0.0
    return probability if 0 < probability <= 1 else 0.0


def is_about(project: str, agent: str, key: PartitionKey) -> bool:
    """Return whether a label that states this project and agent may be meant for a given agent.

    People write `Support` for `support`. If the lake has an agent of each spelling, and both agents
    have the session, the label is left out.

    Args:
        project: The label's project. An empty text matches any project.
        agent: The label's agent. An empty text matches any agent.
        key: The agent.
    """
    return all(
        not name or may_mean(name, part) for name, part in zip((project, agent), key, strict=True)
    )


def _to_text(value: object) -> str:
    """Convert the value of a cell into text that can be encoded as UTF-8."""
    return "" if value is None else str(value).strip().encode("utf-8", "replace").decode("utf-8")


def _list_first(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MAX_NAMES_SHOWN])
    return shown + (", …" if len(names) > _MAX_NAMES_SHOWN else "")


def _make_unreadable_error(path: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"The labels file {path} cannot be read ({error}): check the permissions, and save the "
        "file as UTF-8.",
        setting="labels",
        path=path,
    )
