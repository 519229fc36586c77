"""What a store is and what it holds, counted by reading it: what `agent-pipeline discover` says."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.forgotten import BlockList
from agent_pipeline.sources import Location, Reader, find, open_source
from agent_pipeline.sources.base import TraceSource, add_note


class PartitionReport(msgspec.Struct, kw_only=True):
    """One agent: how many sessions, how many of them the lake was told to forget (they are not read any more); how the source judges the
    others, how many have a score, failed, or branch off another."""

    partition: str
    sessions: int = 0
    forgotten: int = 0
    judgments: dict[str, int] = {}
    unjudged: int = 0
    scored: int = 0
    failed: int = 0
    side_chains: int = 0
    damaged: int = 0


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


def discover(locations: Iterable[Location], known: Sequence[Reader], blocked: BlockList) -> Discovery:
    """Look at each place; a folder of different things is walked, and each store in it is listed. What cannot be opened is reported with
    its error."""
    discovery = Discovery()
    for location in locations:
        try:
            discovery.stores += _stores_at(location, known, discovery.unknown, blocked)
        except StoreError as error:
            discovery.stores.append(StoreReport(path=str(location), errors=[str(error)]))
    return discovery


def _stores_at(location: Location, known: Sequence[Reader], unknown: list[str], blocked: BlockList) -> Iterator[StoreReport]:
    path = Path(location.where)
    if location.is_url or location.reader or not path.is_dir():
        yield _report(str(location), open_source(location, known), blocked)
        return
    contents = find(path, known)
    if not (contents.stores or contents.errors):
        open_source(location, known)  # says in its sentence what would be one
    unknown += map(str, contents.unknown)
    for where, error in contents.errors:
        yield StoreReport(path=str(where), errors=[str(error)])
    for where, reader in contents.stores:
        yield _report(str(where), reader(where), blocked)


def _report(path: str, source: TraceSource, blocked: BlockList) -> StoreReport:
    report = StoreReport(path=path, source=source.name)
    try:
        keys = source.partitions()
    except StoreError as error:
        keys = []
        report.errors.append(str(error))
    for key in keys:
        part = PartitionReport(partition=str(key))
        judgments: Counter[str] = Counter()
        try:
            for session in source.sessions(key):
                part.sessions += 1
                if blocked.has(session.session_id, key):
                    part.forgotten += 1
                    continue
                judgments.update([session.judgment] if session.judgment is not None else [])
                part.unjudged += session.judgment is None
                part.scored += session.score is not None
                part.failed += session.error is not None
                part.side_chains += session.parent_session_id is not None
                part.damaged += bool(session.damage)
        except StoreError as error:
            add_note(report.errors, str(error))
        part.judgments = dict(sorted(judgments.items()))
        report.partitions.append(part)
    report.projects = len({key.project for key in keys})
    report.agents = len(keys)
    report.sessions = sum(part.sessions for part in report.partitions)
    report.notes = list(dict.fromkeys(source.notes))
    return report
