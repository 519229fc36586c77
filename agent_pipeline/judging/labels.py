"""What people say of sessions in files of their own: CSV or JSONL with `session_id`, `judgment`, `reason`.

`project` and `agent` are optional columns that say whose session it is; a row without them is about the only agent that has a session of
that id, and is left out where several have. Other columns are passed over, so a filled review file is a label file. An empty judgment says
nothing, and takes back nothing; of several judgments of one session the last counts (the files of a folder in the order of their names).
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.cells import from_cell
from agent_pipeline.keys import PartitionKey, may_mean
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Message, Session, hash_json
from agent_pipeline.sources.base import file_signature

Verdict = Literal["acceptable", "unacceptable"]
VERDICTS: dict[str | None, Verdict] = {"acceptable": "acceptable", "unacceptable": "unacceptable"}

SUFFIXES = (".csv", ".jsonl")
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SHOWN = 5
# Excel stops at 32,767 characters a cell; other programs do not, and the csv module's own limit is 131,072.
_LONGEST_FIELD = (1 << 31) - 1


class Label(NamedTuple):
    """A person's judgment of one session."""

    judgment: Verdict
    reason: str = ""


_WITHOUT_REASON = {verdict: Label(verdict) for verdict in VERDICTS.values()}


@dataclass
class Labels:
    """The labels of one agent by session id; `notes` says in sentences what could not be used. `whose` has the project and the agent, one
    of them or both empty, of the labels that do not say fully whose session they name."""

    where: str = ""
    by_id: dict[str, Label] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    whose: dict[str, tuple[str, str]] = field(default_factory=dict)

    def leave_out_shared(self, shared: Mapping[str, PartitionKey]) -> None:
        """Leave out the labels of which nobody can tell whose session they name, since another agent has one of that id; note how many."""
        for session_id in shared:
            del self.by_id[session_id]
        if shared:
            agents = _first(sorted(set(map(str, shared.values()))))
            self.notes.append(
                f"{self.where}: {len(shared)} labels do not say whose session they name ({_first(sorted(shared))}) and were left out: "
                f"{agents} has sessions of these ids too. Give their project and agent."
            )

    def version_with(self, store_version: str, session_ids: Iterable[str]) -> str:
        """The data version of a store's sessions and of the labels that name them; without such labels, that of the store."""
        used = {
            session_id: self.by_id[session_id]
            for session_id in session_ids
            if session_id in self.by_id
        }
        return hash_json([store_version, used]) if used else store_version

    def redact(self, redactor: Redactor) -> None:
        """Replace what is private in the reasons, in place; raises what `Redactor.redact` raises."""
        said = [session_id for session_id, label in self.by_id.items() if label.reason]
        texts: list[Message] = [
            {"role": "user", "content": self.by_id[session_id].reason} for session_id in said
        ]
        carrier = Session(session_id="", project="", agent="", source="labels", messages=texts)
        redactor.redact(carrier)
        for session_id, message in zip(said, carrier.messages, strict=True):
            self.by_id[session_id] = self.by_id[session_id]._replace(reason=message["content"])

    def unknown(self, session_ids: Iterable[str]) -> str:
        """A sentence on the labels that name none of the sessions, by their ids; empty where there are none."""
        unknown = sorted(session_ids)
        return (
            f"{self.where}: {len(unknown)} labels name no session of this agent ({_first(unknown)})."
            if unknown
            else ""
        )


def label_files(path: Path) -> list[Path]:
    """The label files at a path: itself, or the CSV and JSONL files of a folder by name.

    Raises:
        SettingsError: there is nothing at the path, or a file of another kind.
    """
    try:
        if path.is_dir():
            return sorted(
                each
                for each in path.iterdir()
                if each.suffix.lower() in SUFFIXES and not each.name.startswith(".")
            )
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            return [path]
    except OSError as error:
        raise _unreadable(path, error) from error
    what = "is neither a .csv nor a .jsonl file" if path.exists() else "does not exist"
    raise SettingsError(
        f"The labels {path} {what}: let the setting labels name a CSV or JSONL file, or a folder of them."
    )


def labels_signature(path: Path) -> str:
    """A cheap text that changes whenever the labels may have changed."""
    return file_signature(*label_files(path))


def read_labels(path: Path, key: PartitionKey, own: bool = False) -> Labels:
    """The labels of an agent; in files of its `own` a row is about it unless it names another.

    Raises:
        SettingsError: a file is missing, cannot be read or decoded, or has no columns `session_id` and `judgment`.
    """
    labels = Labels(str(path))
    unknown: Counter[str] = Counter()
    broken = 0
    for file in label_files(path):
        for row in _rows(file):
            if row is None or not (session_id := _text(row.get("session_id"))):
                broken += 1
            elif is_about(_text(row.get("project")), _text(row.get("agent")), key) and (
                word := _text(row.get("judgment"))
            ):
                if judgment := VERDICTS.get(word.casefold()):
                    reason = _text(row.get("reason"))
                    labels.by_id[session_id] = (
                        Label(judgment, reason) if reason else _WITHOUT_REASON[judgment]
                    )
                    labels.whose.pop(session_id, None)
                    if not own and not all(
                        whose := (_text(row.get("project")), _text(row.get("agent")))
                    ):
                        labels.whose[session_id] = whose
                else:
                    unknown[word[:40]] += 1
    if broken:
        labels.notes.append(
            f"{path}: {broken} rows are no label (not JSON, or without a session_id) and were left out."
        )
    if unknown:
        labels.notes.append(
            f"{path}: {unknown.total()} judgments are neither acceptable nor unacceptable ({_first(sorted(unknown))}) and were left out."
        )
    return labels


def _rows(file: Path) -> Iterator[dict[str, Any] | None]:
    """The rows of a file by folded column name; `None` for a line that is not a JSON object."""
    names: set[str] = set()
    lines = file.suffix.lower() == ".jsonl"
    try:
        with file.open("rb") as raw:
            encoding = _BOMS.get(raw.read(2), "utf-8-sig")
        with file.open(encoding=encoding, newline="\n" if lines else "") as text:
            for row in _json_rows(text, names) if lines else _csv_rows(file, text, names):
                yield row and {
                    str(name).strip().casefold(): value
                    for name, value in row.items()
                    if name is not None
                }
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from error
    if missing := sorted({"session_id", "judgment"} - {name.strip().casefold() for name in names}):
        raise SettingsError(
            f"The labels {file} have no {' and no '.join(missing)}: name the columns session_id, judgment, reason."
        )


def _csv_rows(file: Path, text: Iterable[str], names: set[str]) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file; `names` is given its columns."""
    csv.field_size_limit(_LONGEST_FIELD)
    lines = dropwhile(str.isspace, text)
    head = next(lines, "").lstrip()
    # Spreadsheets of many languages write a semicolon where the comma is the decimal sign.
    reader = csv.DictReader(
        chain([head], lines), delimiter=max(",;\t", key=head.count), strict=True
    )
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
            f"The labels {file} are no CSV from line {reader.reader.line_num} on ({error}): correct the quotes there."
        ) from error


def _json_rows(text: Iterable[str], names: set[str]) -> Iterator[dict[str, Any] | None]:
    """The rows of JSON lines; `names` is given all their keys."""
    for line in filter(str.strip, text):
        value = parse_object(line)
        names.update(value or ())
        yield value


def is_about(project: str, agent: str, key: PartitionKey) -> bool:
    """Whether a label of this project and agent may be about an agent; what is empty may be any.

    People write `Support` for `support`. If the lake has an agent of each name, and both have the session, the label is left out.
    """
    return all(
        not name or may_mean(name, part) for name, part in zip((project, agent), key, strict=True)
    )


def _text(value: Any) -> str:
    """A cell as text that can be written as UTF-8."""
    return "" if value is None else str(value).strip().encode("utf-8", "replace").decode("utf-8")


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


def _unreadable(path: Path, error: Exception) -> SettingsError:
    return SettingsError(
        f"The labels {path} cannot be read ({error}): check the permissions, and save the file as UTF-8."
    )
