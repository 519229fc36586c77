"""The review of one lake: which session comes next, what annotators decided, and the guidelines.

Drawing the page belongs to `app`, and the label file to `judging.annotations`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, cast

import msgspec

from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.sections import AgentSettings
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.judging.annotations import (
    Annotation,
    Annotations,
    AnnotatorAgreement,
    append_annotation,
    compare_annotators,
    find_review_file,
    make_time,
    read_annotations,
)
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.rows import JudgedRow
from agent_pipeline.keys import PartitionKey
from agent_pipeline.reports.rendering import ServedLinks
from agent_pipeline.reports.session_pages import (
    SessionPage,
    describe_opinions,
    make_session_page,
    read_row,
)
from agent_pipeline.selection.label_proposals import choose_sessions
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.storage.lake import Lake

TABLE = "judged_sessions"
GUIDELINES = "guidelines.md"
"""Name of the file with the guidelines in the folder of labels."""


class ReviewOptions(msgspec.Struct, frozen=True):
    """The options of a review.

    Attributes:
        annotator: The name of the annotator, if the page does not name another.
        sample: The number of sessions.
        seed: The seed of the sample.
        first: The group of sessions that comes first. An empty text means a proposal
            (`selection.label_proposals`).
        guidelines: The file with the guidelines, or None for the file in the folder of labels.
    """

    annotator: str = "reviewer"
    sample: int = 50
    seed: int = 0
    first: str = ""
    guidelines: Path | None = None


DEFAULT_REVIEW = ReviewOptions()


class QueuedSession(msgspec.Struct, frozen=True):
    """A session of a review.

    Attributes:
        session_id: The session.
        why: The reason why the session was chosen.
        probability: The probability with which the session was drawn, or an empty text.
    """

    session_id: str
    why: str
    probability: str


class QueueEntry(msgspec.Struct, frozen=True):
    """A session in the overview of a review.

    Attributes:
        link: The address of the session in the review.
        mark: What the annotator decided, or an empty text.
        is_shown: Whether the page shows this session.
        position: The position of the session, from 1.
    """

    link: str
    mark: str
    is_shown: bool
    position: int


class MachineOpinion(msgspec.Struct, frozen=True):
    """What the judges other than people decided about a session.

    Attributes:
        verdict: The verdict of the last run, or an empty text.
        opinions: A sentence per judge.
        why: The reason why the session was chosen.
    """

    verdict: str
    opinions: Sequence[str]
    why: str


class ReviewPage(msgspec.Struct, frozen=True):
    """The page of a review.

    Attributes:
        annotator: The annotator.
        entries: The sessions of the review, in order.
        counts: The number of sessions by what the annotator decided.
        session: The shown session, or None if the annotator has decided about every session.
        position: The position of the shown session, from 1.
        mark: What the annotator decided about the shown session.
        note: The annotator's note about the shown session.
        machine: The opinion of the machine. None means that the annotator has not judged yet.
        last: The session that was judged before, with the opinion of the machine.
        last_mark: What the annotator decided about that session.
        following: The address of the next session.
        previous: The address of the session before.
        guidelines: The text of the guidelines.
        agreements: The agreement of every two annotators.
        labels: The file with the labels.
        advice: What to do so that the next run uses the labels, or an empty text.
    """

    annotator: str
    entries: Sequence[QueueEntry]
    counts: Mapping[str, int]
    session: SessionPage | None
    position: int
    mark: str
    note: str
    machine: MachineOpinion | None
    last: MachineOpinion | None
    last_mark: str
    following: str
    previous: str
    guidelines: str
    agreements: Sequence[AnnotatorAgreement]
    labels: str
    advice: str


class ReviewDesk:
    """The review of the sessions of every agent of one lake."""

    def __init__(self, settings: Settings, lake: Lake, options: ReviewOptions) -> None:
        self._settings, self._lake, self._options = settings, lake, options
        self._queues: dict[PartitionKey, tuple[str, list[QueuedSession]]] = {}
        self._lock = Lock()

    def make_page(
        self, key: PartitionKey, annotator: str, session_id: str = "", last: str = ""
    ) -> ReviewPage:
        """Return the page of a review.

        Args:
            key: The agent.
            annotator: The annotator. An empty text means the annotator of the options.
            session_id: The session to show. The default is the first session about which the
                annotator has not decided.
            last: The session that the annotator judged before.

        Raises:
            DataError: The lake has no judged sessions of the agent.
            SettingsError: The labels or the guidelines cannot be read.
        """
        annotator = annotator or self._options.annotator
        queue = self._read_queue(key)
        annotations = self._read_annotations(key)
        marks = {name: entry.mark for name, entry in annotations.get(annotator, {}).items()}
        shown = self._find_shown(queue, marks, session_id)
        links = ServedLinks(key)

        def link(index: int) -> str:
            name = "" if annotator == self._options.annotator else annotator
            return links.page("review", id=queue[index].session_id, annotator=name)

        annotation = None
        page = machine = None
        if shown is not None:
            entry = queue[shown]
            annotation = annotations.get(annotator, {}).get(entry.session_id)
            row = self._read_row(key, entry.session_id)
            is_judged = annotation is not None and annotation.mark not in ("", "skip")
            page = make_session_page(row if is_judged else _hide_opinions(row))
            machine = _describe_machine(row, entry) if is_judged else None
        return ReviewPage(
            annotator=annotator,
            entries=[
                QueueEntry(link(index), marks.get(entry.session_id, ""), index == shown, index + 1)
                for index, entry in enumerate(queue)
            ],
            counts=Counter(marks.get(entry.session_id) or "left" for entry in queue),
            session=page,
            position=0 if shown is None else shown + 1,
            mark=annotation.mark if annotation else "",
            note=annotation.reason if annotation else "",
            machine=machine,
            last=self._describe_last(key, queue, marks, last),
            last_mark=marks.get(last, ""),
            following=link(shown + 1) if shown is not None and shown + 1 < len(queue) else "",
            previous=link(shown - 1) if shown else "",
            guidelines=self._read_guidelines(key),
            agreements=compare_annotators(annotations),
            labels=str(self._find_file(key)),
            advice=self._advise(key),
        )

    def record(
        self, key: PartitionKey, annotator: str, session_id: str, mark: str, note: str
    ) -> None:
        """Write what an annotator decided.

        Args:
            key: The agent.
            annotator: The annotator. An empty text means the annotator of the options.
            session_id: The session.
            mark: The decision. An empty text changes only the note.
            note: The note.

        Raises:
            DataError: The session is not in the review.
            SettingsError: The decision is unknown, or the label file cannot be written.
        """
        if mark not in ("acceptable", "unacceptable", "unsure", "skip", ""):
            raise SettingsError(f"{mark!r} is not a judgment: press a, u, s or ?.")
        queued = {entry.session_id: entry for entry in self._read_queue(key)}
        if session_id not in queued:
            raise DataError(
                f"The session {session_id!r} is not in this review: load the page again."
            )
        entry = queued[session_id]
        annotator = annotator or self._options.annotator
        if not mark:
            # The label keeps its judgment, and its reason becomes the new note.
            earlier = self._read_annotations(key).get(annotator, {}).get(session_id)
            mark = earlier.mark if earlier else ""
        append_annotation(
            self._find_file(key),
            Annotation(
                session_id=session_id,
                project=key.project,
                agent=key.agent,
                judgment="" if mark == "skip" else mark,
                reason=note,
                annotator=annotator,
                when=make_time(),
                skipped=mark == "skip",
                why=entry.why,
                probability=entry.probability,
            ),
        )

    def find_next(self, key: PartitionKey, annotator: str, session_id: str) -> str:
        """Return the address of the session after a judged session.

        It is the next session about which the annotator has not decided, or the page with the
        results.
        """
        annotator = annotator or self._options.annotator
        queue = self._read_queue(key)
        decided = {
            name
            for name, entry in self._read_annotations(key).get(annotator, {}).items()
            if entry.mark
        }
        ids = [entry.session_id for entry in queue]
        position = ids.index(session_id) if session_id in ids else -1
        ordered = [*ids[position + 1 :], *ids[: position + 1]]
        following = next((name for name in ordered if name not in decided), "")
        name = "" if annotator == self._options.annotator else annotator
        return ServedLinks(key).page("review", id=following, last=session_id, annotator=name)

    def _read_queue(self, key: PartitionKey) -> list[QueuedSession]:
        """Return the sessions of a review, which are chosen once per version of the table."""
        if not self._lake.has(TABLE, key):
            raise DataError(
                f"The lake {self._lake.root} has no judged sessions of {key}: run "
                f"`agent-pipeline materialize {key} --select +judged_sessions` first."
            )
        state = self._lake.table(TABLE, key).stat()
        version = f"{state.st_mtime}:{state.st_size}"
        with self._lock:
            if key not in self._queues or self._queues[key][0] != version:
                with self._lake.open(TABLE, key) as table:
                    rows = cast("Any", to_rows(read_batches(table)))
                    sample = choose_sessions(
                        rows,
                        self._options.sample,
                        resolve(self._settings, JudgingOptions, key).options.policy,
                        self._options.seed,
                        self._options.first,
                    )
                self._queues[key] = (version, [_queue(row) for row in sample.rows])
            return self._queues[key][1]

    def _read_row(self, key: PartitionKey, session_id: str) -> JudgedRow:
        row = read_row(self._lake, TABLE, key, session_id)
        if row is None:
            raise DataError(
                f"The session {session_id!r} is no longer in {TABLE}: load the page again."
            )
        return cast("JudgedRow", row)

    def _find_shown(
        self, queue: Sequence[QueuedSession], marks: Mapping[str, str], session_id: str
    ) -> int | None:
        for index, entry in enumerate(queue):
            if entry.session_id == session_id if session_id else not marks.get(entry.session_id):
                return index
        return None

    def _describe_last(
        self,
        key: PartitionKey,
        queue: Sequence[QueuedSession],
        marks: Mapping[str, str],
        last: str,
    ) -> MachineOpinion | None:
        """Return the opinion about the session that was judged before, if it was judged."""
        entry = next((entry for entry in queue if entry.session_id == last), None)
        if entry is None or marks.get(last, "") in ("", "skip"):
            return None
        return _describe_machine(self._read_row(key, last), entry)

    def _find_labels(self, key: PartitionKey) -> Path:
        return self._settings.labels_path(key) or self._settings.default_labels_path

    def _find_file(self, key: PartitionKey) -> Path:
        return find_review_file(self._find_labels(key))

    def _read_annotations(self, key: PartitionKey) -> Annotations:
        agent = self._settings.agents.get(str(key), AgentSettings())
        return read_annotations(self._find_labels(key), key, is_own_file=bool(agent.labels))

    def _read_guidelines(self, key: PartitionKey) -> str:
        path = self._options.guidelines
        if path is None:
            path = self._find_file(key).parent / GUIDELINES
            if not path.exists():
                return ""
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"The guidelines {path} cannot be read ({error}): choose a text file in UTF-8."
            ) from error

    def _advise(self, key: PartitionKey) -> str:
        if self._settings.labels_path(key):
            return ""
        return (
            f'Set `labels = "{self._settings.default_labels_path.name}"` in pipeline.toml, so that '
            "the next run uses these labels."
        )


def _queue(row: Mapping[str, Any]) -> QueuedSession:
    return QueuedSession(row["session_id"], row["why"], str(row.get("probability") or ""))


def _hide_opinions(row: JudgedRow) -> JudgedRow:
    """Return a row without the opinions of judges and measures.

    The facts of the record stay, such as a tool error.
    """
    turns = [{**turn, "failed_measures": [], "addresses_judge": False} for turn in row["turns"]]
    hidden: dict[str, object] = {
        "turns": turns,
        "opinions": {},
        "verdict": None,
        "verdict_by": None,
        "verdict_name": None,
        "verdict_reasons": None,
        "score": None,
    }
    return cast("JudgedRow", {**row, **hidden})


def _describe_machine(row: JudgedRow, entry: QueuedSession) -> MachineOpinion:
    """Return the opinions of all judges except the labels of people."""
    opinions = {name: opinion for name, opinion in row["opinions"].items() if name != "label"}
    verdict = row["verdict"] if row["verdict_by"] != "label" else None
    return MachineOpinion(
        verdict=verdict or "", opinions=describe_opinions({"opinions": opinions}), why=entry.why
    )
