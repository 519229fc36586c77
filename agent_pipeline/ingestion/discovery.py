"""Discovery: a report on what each store contains, made by reading the store.

`agent-pipeline discover` shows the reports. Reading sessions into a table belongs to `ingestion`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.task_patterns import propose_pattern
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Role, Session
from agent_pipeline.sources import Location, Reader, find, open_source
from agent_pipeline.sources.base import TraceSource, add_note

_MAX_REQUEST_CHARACTERS = 2000
"""Maximum number of characters of a session's user messages that discovery compares with other
sessions.
"""

_JUDGMENTS = ("acceptable", "unacceptable", "unsure")


class PartitionReport(msgspec.Struct, kw_only=True):
    """A report on one agent's sessions in a store.

    Attributes:
        partition: The partition.
        sessions: Number of sessions.
        forgotten: Number of forgotten sessions, which no other count includes.
        judgments: Number of sessions by the judgment in the store.
        unjudged: Number of sessions without a judgment in the store.
        scored: Number of sessions with a score.
        failed: Number of sessions that failed because of the infrastructure.
        side_chains: Number of sessions that another session started.
        damaged: Number of sessions with damage.
        damage: Number of sessions by kind of damage. A session may have several kinds.
        without_user: Number of sessions without text of a user.
        without_answer: Number of sessions without text or calls of an agent.
        task_pattern: Proposed `task_pattern`, if the session ids look like trials of tasks.
    """

    partition: str
    sessions: int = 0
    forgotten: int = 0
    judgments: dict[str, int] = {}
    unjudged: int = 0
    scored: int = 0
    failed: int = 0
    side_chains: int = 0
    damaged: int = 0
    damage: dict[str, int] = {}
    without_user: int = 0
    without_answer: int = 0
    task_pattern: str = ""


class StoreReport(msgspec.Struct, kw_only=True):
    """A report on what one store contains.

    Attributes:
        path: Path or URL of the store.
        source: Name of the reader; null if no reader could open the store.
        projects: Number of projects.
        agents: Number of agents.
        sessions: Number of sessions.
        partitions: One report per agent.
        notes: Sentences about records that were left out, and about settings to change.
        errors: Sentences about files and records that could not be read.
    """

    path: str
    source: str | None = None
    projects: int = 0
    agents: int = 0
    sessions: int = 0
    partitions: list[PartitionReport] = []
    notes: list[str] = []
    errors: list[str] = []


class Discovery(msgspec.Struct, kw_only=True):
    """All stores that were found, and the files that no reader recognizes.

    Attributes:
        stores: One report per store.
        unknown: Paths of files that no reader recognizes.
    """

    stores: list[StoreReport] = []
    unknown: list[str] = []

    @property
    def readable(self) -> bool:
        """True if every store could be read completely."""
        return not any(store.errors for store in self.stores)


def discover(
    locations: Iterable[Location],
    known: Sequence[Reader],
    blocked: BlockList,
    has_tasks: Callable[[PartitionKey], bool] | None = None,
) -> Discovery:
    """Return a report on every store at the given locations.

    A folder of different kinds of files is searched for stores. A store that cannot be opened is
    reported with its error.

    Args:
        locations: Stores, or folders of stores.
        known: The readers to try.
        blocked: The forgotten sessions.
        has_tasks: Returns whether the settings define the tasks of an agent. If they do, no
            `task_pattern` is proposed.
    """
    discovery = Discovery()
    for location in locations:
        try:
            for store in _open_stores(location, known, discovery):
                discovery.stores.append(_report_store(store, blocked, has_tasks))
        except StoreError as error:
            discovery.stores.append(StoreReport(path=str(location), errors=[str(error)]))
    return discovery


class _OpenStore(msgspec.Struct, frozen=True):
    """A session store, together with the reader that opened it."""

    path: str
    source: TraceSource


def _open_stores(
    location: Location, known: Sequence[Reader], discovery: Discovery
) -> Iterator[_OpenStore]:
    """Yield every store that is found at a location.

    Args:
        location: A store, or a folder of stores.
        known: The readers to try.
        discovery: Receives the files that no reader recognizes, and the stores with errors.

    Raises:
        StoreError: There is no store at the location.
    """
    path = Path(location.where)
    if location.is_url or location.reader or not path.is_dir():
        yield _OpenStore(str(location), open_source(location, known))
        return
    contents = find(path, known)
    if not contents.stores and not contents.errors:
        open_source(location, known)  # raises an error that explains why there is no store
    discovery.unknown += [str(file) for file in contents.unknown]
    for store_path, error in contents.errors:
        discovery.stores.append(StoreReport(path=str(store_path), errors=[str(error)]))
    for store_path, reader in contents.stores:
        yield _OpenStore(str(store_path), reader(store_path))


def _report_store(
    store: _OpenStore, blocked: BlockList, has_tasks: Callable[[PartitionKey], bool] | None
) -> StoreReport:
    """Read a store and return a report on its content.

    Args:
        store: The store.
        blocked: The forgotten sessions.
        has_tasks: Returns whether the settings define the tasks of an agent.
    """
    source = store.source
    report = StoreReport(path=store.path, source=source.name)
    keys: list[PartitionKey] = []
    try:
        keys = source.partitions()
    except StoreError as error:
        report.errors.append(str(error))
    for key in keys:
        partition = PartitionReport(partition=str(key))
        requests: dict[str, str] = {}
        try:
            for session in source.sessions(key):
                partition.sessions += 1
                if blocked.has(session.session_id, key):
                    partition.forgotten += 1
                    continue
                _count_session(partition, session)
                if session.task_id is None:
                    requests[session.session_id] = _read_request(session)
        except StoreError as error:
            add_note(report.errors, str(error))
        partition.judgments = dict(sorted(partition.judgments.items()))
        partition.damage = dict(sorted(partition.damage.items()))
        _note_missing_speakers(report, partition)
        if not (has_tasks and has_tasks(key)):
            _propose_tasks(report, partition, requests)
        report.partitions.append(partition)
    report.projects = len({key.project for key in keys})
    report.agents = len(keys)
    report.sessions = sum(partition.sessions for partition in report.partitions)
    report.notes = list(dict.fromkeys([*source.notes, *report.notes]))
    return report


def _count_session(partition: PartitionReport, session: Session) -> None:
    """Add one session to the counts of a partition, unless the session was forgotten."""
    if session.judgment is None:
        partition.unjudged += 1
    else:
        judgment = _generalize_judgment(session.judgment)
        partition.judgments[judgment] = partition.judgments.get(judgment, 0) + 1
    partition.scored += session.score is not None
    partition.failed += session.error is not None
    partition.side_chains += session.parent_session_id is not None
    partition.damaged += bool(session.damage)
    for kind, count in session.damage.items():
        if count:
            partition.damage[kind] = partition.damage.get(kind, 0) + 1
    partition.without_user += not _speaks(session, "user")
    partition.without_answer += not _speaks(session, "assistant")


def _generalize_judgment(judgment: str) -> str:
    """Return a judgment unchanged if the pipeline knows it. Otherwise, return `otherwise`.

    Any other judgment may be a private text of a person.
    """
    return judgment if judgment in _JUDGMENTS else "otherwise"


def _speaks(session: Session, role: Role) -> bool:
    """Return whether any message with a given role has text or calls."""
    for message in session.messages:
        if message["role"] == role:
            has_words = bool((message["content"] or "").strip())
            if has_words or message.get("tool_calls"):
                return True
    return False


def _read_request(session: Session) -> str:
    """Return the beginning of the text of a session's user messages.

    Trials of the same task usually have similar beginnings.
    """
    texts = [message["content"] for message in session.messages if message["role"] == "user"]
    return " ".join(texts)[:_MAX_REQUEST_CHARACTERS]


def _propose_tasks(
    report: StoreReport, partition: PartitionReport, requests: dict[str, str]
) -> None:
    """Propose a `task_pattern` if the session ids look like the ids of trials.

    Args:
        report: Receives a note with the lines for the settings.
        partition: Receives the pattern.
        requests: The requests of the sessions without a task, by session id.
    """
    proposal = propose_pattern(requests)
    if proposal is None:
        return
    partition.task_pattern = proposal.pattern
    tasks = len(set(proposal.tasks.values()))
    add_note(
        report.notes,
        f"{proposal.trials} sessions of {partition.partition} look like trials of {tasks} tasks. "
        f"If they are trials, put this into pipeline.toml:\n{proposal.lines(partition.partition)}",
    )


def _note_missing_speakers(report: StoreReport, partition: PartitionReport) -> None:
    """Add a note if at least half of a partition's sessions lack user or agent messages."""
    sessions = partition.sessions - partition.forgotten
    if not sessions:
        return
    _note_missing_speaker(
        report, partition.partition, sessions, partition.without_user, _MISSING_USER
    )
    _note_missing_speaker(
        report, partition.partition, sessions, partition.without_answer, _MISSING_AGENT
    )


class _MissingSpeaker(msgspec.Struct, frozen=True):
    """The pieces of text for a note about sessions that lack user messages or agent messages."""

    fact: str
    consequence: str


_MISSING_USER = _MissingSpeaker(
    "there is no text of a user",
    "no session has a request; check that the export contains the users' messages",
)
_MISSING_AGENT = _MissingSpeaker(
    "no agent answers",
    "no session can be used for training; check that the export contains the agent's messages",
)


def _note_missing_speaker(
    report: StoreReport, partition: str, sessions: int, missing: int, words: _MissingSpeaker
) -> None:
    """Add a note that many or all sessions lack the messages of one speaker.

    Args:
        report: Receives the note.
        partition: The partition.
        sessions: Number of sessions that were not forgotten.
        missing: Number of these sessions in which the speaker is missing.
        words: The text fragments of the note.
    """
    if missing == sessions:
        add_note(
            report.notes,
            f"{partition} contains no conversation: in all of its {sessions} sessions "
            f"{words.fact}, so {words.consequence}.",
        )
    elif 2 * missing >= sessions:
        add_note(report.notes, f"In {missing} of {sessions} sessions of {partition} {words.fact}.")
