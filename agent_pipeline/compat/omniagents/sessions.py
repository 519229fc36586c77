"""The sessions of an agent: lists of sessions, their items, and datasets of filtered sessions.

Filters and formats of omniagents are here. How sessions are read, repaired and redacted belongs to
`ingestion`.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from agent_pipeline.compat.examples import (
    drop_system_messages,
    find_filter_reason,
    format_counts,
    keep_texts,
    resolve_measure,
)
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.formats import FORMS, NO_ANSWER, convert_rows
from agent_pipeline.datasets.preferences import find_unfit_reason
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import ArgumentError, DataError, NoSessionsError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.reading import prepare_sessions
from agent_pipeline.judging import ConfiguredMeasure, EvaluationContext
from agent_pipeline.judging.labels import VERDICTS
from agent_pipeline.judging.verdict_leaks import LEAK_PATTERNS, compile_leak_patterns, remove_leaks
from agent_pipeline.keys import PartitionKey, make_key
from agent_pipeline.sessions.damage import make_repair_policy
from agent_pipeline.sessions.session import RecordedItem, Session, drop_error_marks
from agent_pipeline.sessions.tables import make_session_row, to_table
from agent_pipeline.sources import Location, TraceSource, open_sources, parse_location, readers
from agent_pipeline.sources.formats.fields import verdict as read_verdict

if TYPE_CHECKING:
    from datasets import Dataset

Store = str | Path | Location | TraceSource | Sequence[str | Path | Location]
"""A store, several stores, or an open reader."""

Measure = str | Callable[[EvaluationContext], Any]
"""The name of a registered measure, such as `at_most_steps(12)`, or a function of a context."""

Predicate = Callable[[list[RecordedItem]], bool]
"""A function that takes the items of a session and returns whether the session passes."""

FORMATS = ("conversational", "prompt_completion", "prompt_completion_messages")


class StoredSession(NamedTuple):
    """A session as its store lists it. `message_count` is the number of the session's items."""

    id: str
    archived: bool
    message_count: int


def list_sessions(
    project_slug: str, agent_slug: str, *, store: Store | None = None
) -> list[StoredSession]:
    """Return all sessions of an agent, including archived and empty sessions, sorted by id.

    Args:
        project_slug: The project.
        agent_slug: The agent.
        store: Where the sessions are; by default the stores of the settings.

    Raises:
        PartitionError: No store has the agent.
        StoreError: A store cannot be read.
        SettingsError: The settings are invalid.
    """
    source, key = _open_store(store), make_key(project_slug, agent_slug)
    sessions = [
        StoredSession(session.session_id, session.archived, len(items))
        for session, items in source.histories(key)
    ]
    _warn_of_notes(source)
    return sessions


def load_history(
    session_id: str, project_slug: str, agent_slug: str, *, store: Store | None = None
) -> list[RecordedItem]:
    """Return the items of a session in order. Private data in the items is not redacted.

    Args:
        session_id: The session.
        project_slug: The project.
        agent_slug: The agent.
        store: Where the session is; by default the stores of the settings.

    Raises:
        DataError: The agent has no such session.
        PipelineError: The store cannot be read; see `list_sessions`.
    """
    key = make_key(project_slug, agent_slug)
    for session, items in _open_store(store).histories(key):
        if session.session_id == session_id:
            return items
    raise DataError(
        f"{key} has no session {session_id!r}: choose a session from "
        f"list_sessions({key.project!r}, {key.agent!r}).",
        partition=key,
    )


def export_traces_for_sft(
    project_slug: str,
    agent_slug: str,
    *,
    judgment: str | None = None,
    measure: Measure | None = None,
    measure_passed: bool = True,
    filter_fn: Predicate | None = None,
    format: str = "conversational",
    include_system: bool = True,
    max_sessions: int | None = None,
    include_tool_calls: bool = True,
    repair: Mapping[str, str] | None = None,
    store: Store | None = None,
    counts: Counter[str] | None = None,
) -> "Dataset":
    """Return the sessions that pass the filters as a Hugging Face dataset, sorted by id.

    The sessions are repaired and redacted as the settings say. Each row has `session_id`,
    `content_sha256` and `task_key`. The lake splits rows by `task_key` (`datasets.splits`).

    Args:
        project_slug: The project.
        agent_slug: The agent.
        judgment: Keep the sessions with this verdict, `acceptable` or `unacceptable`.
        measure: Keep the sessions that pass a measure, or fail it; see `measure_passed`.
        measure_passed: Whether the measure must pass.
        filter_fn: Keep the sessions whose items pass. The items are neither repaired nor redacted.
        format: `conversational` (columns `messages` and `tools`), `prompt_completion` (texts), or
            `prompt_completion_messages` (chats); see `datasets.formats`.
        include_system: Whether system messages are kept.
        max_sessions: Keep only the first sessions that pass.
        include_tool_calls: Whether tool calls and results are kept.
        repair: The actions for kinds of damage that override the default actions.
        store: Where the sessions are; by default the stores of the settings.
        counts: Receives `sessions`, which is `rows` + the reasons why sessions were left out:
            `forgotten`, `archived`, `empty`, `not_<judgment>`, `unjudged`, `filtered`,
            `filter_raised: <error>`, `broken:<kind>`, `infrastructure_error`, `attack_succeeded`,
            `verdict_leak`, `measure_failed`, `measure_passed`, `measure_not_taken: <reason>`,
            `max_sessions`, `no_assistant_message` and `no_answer`.

    Raises:
        NoSessionsError: No session is left. The message has the counts. It is a ValueError.
        ArgumentError: A judgment, measure or format does not exist. It is a ValueError.
        RedactionError: The search for private data is not possible.
        PipelineError: The store cannot be read; see `list_sessions`.
    """
    from datasets import Dataset

    if format not in FORMATS:
        raise ArgumentError(
            f"The format {format!r} does not exist: choose one of {', '.join(FORMATS)}."
        )
    if judgment is not None and judgment not in VERDICTS:
        raise ArgumentError(
            f"The judgment {judgment!r} does not exist: choose 'acceptable' or 'unacceptable'."
        )
    filters = _Filters(
        judgment,
        filter_fn,
        None if measure is None else resolve_measure(measure),
        measure_passed,
        compile_leak_patterns(LEAK_PATTERNS),
    )
    counts = Counter() if counts is None else counts
    source, key = _open_store(store), make_key(project_slug, agent_slug)
    passing: list[Session] = []
    for session, reason in _read_filtered(source, key, filters, repair):
        counts["sessions"] += 1
        if reason is None and max_sessions is not None and len(passing) >= max_sessions:
            reason = "max_sessions"
        if reason is not None:
            counts[reason] += 1
            continue
        session.messages = drop_error_marks(session.messages)
        if not include_system:
            session.messages = drop_system_messages(session.messages)
        if not include_tool_calls:
            session.messages, session.tools = keep_texts(session.messages), []
        passing.append(session)
    _warn_of_notes(source)
    row_counts: Counter[str] = Counter()
    sft_rows = make_sft_rows(map(make_session_row, passing), SplitSizes(), row_counts)
    rows = list(convert_rows(sft_rows, format, row_counts))
    results = {
        "rows": len(rows),
        "no_answer": row_counts[NO_ANSWER],
        "no_assistant_message": row_counts["no_assistant_message"],
    }
    counts.update({name: count for name, count in results.items() if count})
    if not rows:
        raise NoSessionsError(
            f"None of {counts['sessions']} sessions of {key} can be used for training "
            f"({format_counts(counts, 'sessions') or 'there are none'}): change the filter that "
            "leaves out most of the sessions.",
            partition=key,
        )
    columns = [
        column
        for column in FORMS[format].make_schema(SFT)
        if column.name not in ("row_id", "split")
    ]
    return Dataset(to_table(rows, pa.schema(columns)))


@dataclass(frozen=True)
class _Filters:
    """The filters of an export, in the order in which they are applied."""

    judgment: str | None
    predicate: Predicate | None
    measure: ConfiguredMeasure | None
    must_pass: bool
    leak_patterns: list[re.Pattern[str]]

    def check_stored(self, session: Session, items: list[RecordedItem]) -> str | None:
        """Return the reason why a session is left out, based on the content of its store."""
        if session.archived:
            return "archived"
        if not items or not session.messages:
            return "empty"
        verdict = VERDICTS.get(session.judgment) or read_verdict(session.score)[1]
        if self.judgment is not None and verdict != self.judgment:
            return "unjudged" if verdict is None else f"not_{self.judgment}"
        return find_filter_reason(items, self.predicate)

    def check_prepared(self, session: Session) -> str | None:
        """Return the reason why a repaired and redacted session is left out.

        Texts that give the verdict away are removed from the session.
        """
        if session.broken is not None:
            return f"broken:{session.broken}"
        cleaned = remove_leaks(session.messages, self.leak_patterns)
        session.messages = cleaned.messages
        unfit_reason = find_unfit_reason(session)
        if unfit_reason is not None:
            return unfit_reason
        if cleaned.remaining_leak is not None:
            return "verdict_leak"
        if self.measure is None:
            return None
        result = self.measure.take(EvaluationContext.from_session(session))
        if result.passed is None:
            return f"measure_not_taken: {result.reason}"
        if result.passed is self.must_pass:
            return None
        return "measure_passed" if result.passed else "measure_failed"


def _read_filtered(
    source: TraceSource, key: PartitionKey, filters: _Filters, repair: Mapping[str, str] | None
) -> Iterator[tuple[Session, str | None]]:
    """Yield every session of an agent with the reason for leaving it out, or None."""
    settings = load_settings()
    options = settings.reading(key)
    if repair:
        options = replace(options, repair=make_repair_policy(repair))
    blocked = BlockList.read(settings.open_lake())
    reasons: dict[str, str | None] = {}
    forgotten: list[Session] = []

    def list_stored() -> Iterator[Session]:
        for session, items in source.histories(key):
            if blocked.has(session.session_id, key):
                forgotten.append(session)
                continue
            reasons[session.session_id] = filters.check_stored(session, items)
            yield session

    for session in prepare_sessions(list_stored(), key, options, source.notes):
        yield session, reasons[session.session_id] or filters.check_prepared(session)
    for session in forgotten:
        yield session, "forgotten"


def _open_store(store: Store | None) -> TraceSource:
    """Return a reader of the given stores, or of the stores that the settings name.

    Raises:
        StoreError: A store cannot be read.
        SettingsError: The settings are invalid.
    """
    settings = load_settings()
    if store is None:
        return settings.open_store()
    if isinstance(store, str | Path | Location):
        store = [store]
    if not isinstance(store, Sequence):
        return store
    locations = [
        location if isinstance(location, Location) else parse_location(str(location))
        for location in store
    ]
    return open_sources(locations, readers(settings.sources))


def _warn_of_notes(source: TraceSource) -> None:
    """Warn the user about notes on a store, such as a missing file of verdicts."""
    for note in source.notes:
        warnings.warn(note, stacklevel=3)
