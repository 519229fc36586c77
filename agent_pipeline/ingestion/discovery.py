"""What a store is and what it holds, counted by reading it: what `agent-pipeline discover` says."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.task_patterns import propose_pattern
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import Location, Reader, find, open_source
from agent_pipeline.sources.base import TraceSource, add_note

_LONGEST_REQUEST = 2000
"""Characters of a session's users that are compared with those of others."""


class PartitionReport(msgspec.Struct, kw_only=True):
    """One agent: how many sessions, how many of them the lake was told to forget (they are not read any more); how the source judges the
    others, how many have a score, failed, or branch off another. `damage` counts sessions by kind of damage; a session may have several
    kinds. `without_user` and `without_answer` count sessions in which no user, or no agent, says anything. `task_pattern` is proposed for
    sessions that the source puts to no task and whose ids look like those of trials."""

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
    """One store. `errors` are what of it could not be read, `notes` what was left out of what could."""

    path: str
    source: str | None = None
    projects: int = 0
    agents: int = 0
    sessions: int = 0
    partitions: list[PartitionReport] = []
    notes: list[str] = []
    errors: list[str] = []


class Discovery(msgspec.Struct, kw_only=True):
    """Every store that was found, and the files that no reader knows."""

    stores: list[StoreReport] = []
    unknown: list[str] = []

    @property
    def readable(self) -> bool:
        """Whether everything that is a store could be read."""
        return not any(store.errors for store in self.stores)


def discover(
    locations: Iterable[Location],
    known: Sequence[Reader],
    blocked: BlockList,
    has_tasks: Callable[[PartitionKey], bool] | None = None,
) -> Discovery:
    """Look at each place; a folder of different things is walked, and each store in it is listed. What cannot be opened is reported with
    its error. `has_tasks` tells whether the settings name the tasks of an agent, so that none need be proposed."""
    discovery = Discovery()
    for location in locations:
        try:
            discovery.stores += _stores_at(
                location,
                known,
                discovery.unknown,
                partial(_report, blocked=blocked, has_tasks=has_tasks),
            )
        except StoreError as error:
            discovery.stores.append(StoreReport(path=str(location), errors=[str(error)]))
    return discovery


def _stores_at(
    location: Location,
    known: Sequence[Reader],
    unknown: list[str],
    report: Callable[[str, TraceSource], StoreReport],
) -> Iterator[StoreReport]:
    path = Path(location.where)
    if location.is_url or location.reader or not path.is_dir():
        yield report(str(location), open_source(location, known))
        return
    contents = find(path, known)
    if not (contents.stores or contents.errors):
        open_source(location, known)  # says in its sentence what would be one
    unknown += map(str, contents.unknown)
    for where, error in contents.errors:
        yield StoreReport(path=str(where), errors=[str(error)])
    for where, reader in contents.stores:
        yield report(str(where), reader(where))


def _report(
    path: str,
    source: TraceSource,
    blocked: BlockList,
    has_tasks: Callable[[PartitionKey], bool] | None = None,
) -> StoreReport:
    report = StoreReport(path=path, source=source.name)
    try:
        keys = source.partitions()
    except StoreError as error:
        keys = []
        report.errors.append(str(error))
    for key in keys:
        part = PartitionReport(partition=str(key))
        judgments, damage, requests = Counter[str](), Counter[str](), dict[str, str]()
        try:
            for session in source.sessions(key):
                part.sessions += 1
                if blocked.has(session.session_id, key):
                    part.forgotten += 1
                    continue
                judgments.update(
                    [_known_judgment(session.judgment)] if session.judgment is not None else []
                )
                part.unjudged += session.judgment is None
                part.scored += session.score is not None
                part.failed += session.error is not None
                part.side_chains += session.parent_session_id is not None
                part.damaged += bool(session.damage)
                damage.update(kind for kind, count in session.damage.items() if count)
                part.without_user += not _speaks(session, "user")
                part.without_answer += not _speaks(session, "assistant")
                if session.task_id is None:
                    requests[session.session_id] = _request(session)
        except StoreError as error:
            add_note(report.errors, str(error))
        part.judgments, part.damage = dict(sorted(judgments.items())), dict(sorted(damage.items()))
        _note_conversations(report, part)
        if not (has_tasks and has_tasks(key)) and (proposal := propose_pattern(requests)):
            part.task_pattern = proposal.pattern
            sentence = f"{proposal.trials} sessions of {key} look like trials of {len(set(proposal.tasks.values()))} tasks"
            add_note(
                report.notes,
                f"{sentence}. If they are, put this into pipeline.toml:\n{proposal.lines(str(key))}",
            )
        report.partitions.append(part)
    report.projects = len({key.project for key in keys})
    report.agents = len(keys)
    report.sessions = sum(part.sessions for part in report.partitions)
    report.notes = list(dict.fromkeys([*source.notes, *report.notes]))
    return report


def _known_judgment(judgment: str) -> str:
    """Return a judgment that the pipeline understands, or a word for any other: its text may be a person's, and private."""
    return judgment if judgment in ("acceptable", "unacceptable", "unsure") else "otherwise"


def _speaks(session: Session, role: str) -> bool:
    """Tell whether a message of this role says or calls anything."""
    return any(
        message["role"] == role
        and ((message["content"] or "").strip() or message.get("tool_calls"))
        for message in session.messages
    )


def _request(session: Session) -> str:
    """The beginning of what the users of a session say, by which trials of one task are recognised."""
    return " ".join(
        message["content"] for message in session.messages if message["role"] == "user"
    )[:_LONGEST_REQUEST]


def _note_conversations(report: StoreReport, part: PartitionReport) -> None:
    """Note a partition in which nothing is a conversation: nothing of it can be trained."""
    sessions = part.sessions - part.forgotten
    if not sessions:
        return
    for count, who, remedy in (
        (
            part.without_user,
            "no user says anything",
            "no session of it has a request; check that the export holds the users' messages",
        ),
        (
            part.without_answer,
            "no agent answers",
            "no session of it can be trained; check that the export holds the agent's messages",
        ),
    ):
        if count == sessions:
            add_note(
                report.notes,
                f"{part.partition} holds no conversation: in all of its {sessions} sessions {who}, so {remedy}.",
            )
        elif 2 * count >= sessions:
            add_note(report.notes, f"In {count} of {sessions} sessions of {part.partition} {who}.")
