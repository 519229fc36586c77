"""Sessions of a project's agent: their list, their histories, and data sets of those that pass."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from agent_pipeline.compat.examples import (
    counted,
    measure_of,
    why_filtered,
    without_system,
    words_only,
)
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.formats import FORMS, NO_ANSWER, convert_rows
from agent_pipeline.datasets.preferences import find_unfit_reason
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import ArgumentError, DataError, NoSessionsError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.reading import read_sessions
from agent_pipeline.judging import ConfiguredMeasure, EvaluationContext
from agent_pipeline.judging.labels import VERDICTS
from agent_pipeline.judging.verdict_leaks import LEAK_PATTERNS, compile_leak_patterns, remove_leaks
from agent_pipeline.keys import PartitionKey, make_key
from agent_pipeline.sessions.damage import make_repair_policy
from agent_pipeline.sessions.session import RecordedItem, Session, drop_error_marks
from agent_pipeline.sessions.tables import make_session_row, to_table
from agent_pipeline.sources import Location, TraceSource, open_sources, parse_location, readers
from agent_pipeline.sources.formats.fields import verdict as verdict_of

if TYPE_CHECKING:
    from datasets import Dataset

Store = str | Path | Location | TraceSource | Sequence[str | Path | Location]
"""A store, several, or a reader that is open already."""

Measure = str | Callable[[EvaluationContext], Any]
"""The name of a registered measure, as in a configuration (`at_most_steps(12)`), or a function of
an evaluation context.
"""


FORMATS = ("conversational", "prompt_completion", "prompt_completion_messages")


class StoredSession(NamedTuple):
    """A session as its store lists it; `message_count` is the number of its items."""

    id: str
    archived: bool
    message_count: int


def list_sessions(
    project_slug: str, agent_slug: str, *, store: Store | None = None
) -> list[StoredSession]:
    """Every session of a project's agent, archived and empty ones too, in the order of their ids.

    `store`: where to look, instead of the stores of the settings. Raises PartitionError,
    StoreError, SettingsError.
    """
    source, key = _open(store), make_key(project_slug, agent_slug)
    sessions = [
        StoredSession(session.session_id, session.archived, len(items))
        for session, items in source.histories(key)
    ]
    _warn(source)
    return sessions


def load_history(
    session_id: str, project_slug: str, agent_slug: str, *, store: Store | None = None
) -> list[RecordedItem]:
    """A session's items, in order, with whatever is private in them.

    Raises DataError where there is no such session, and what `list_sessions` raises.
    """
    key = make_key(project_slug, agent_slug)
    for session, items in _open(store).histories(key):
        if session.session_id == session_id:
            return items
    raise DataError(
        f"{key} has no session {session_id!r}: list_sessions({key.project!r}, {key.agent!r}) gives "
        f"those that it has."
    )


def export_traces_for_sft(
    project_slug: str,
    agent_slug: str,
    *,
    judgment: str | None = None,
    measure: Measure | None = None,
    measure_passed: bool = True,
    filter_fn: Callable[[list[RecordedItem]], bool] | None = None,
    format: str = "conversational",
    include_system: bool = True,
    max_sessions: int | None = None,
    include_tool_calls: bool = True,
    repair: Mapping[str, str] | None = None,
    store: Store | None = None,
    counts: Counter[str] | None = None,
) -> "Dataset":
    """The sessions that pass as a Hugging Face `Dataset`, in the order of their ids, repaired and
    redacted as the settings say.

    `judgment`: keep those that are judged so. `measure`: keep those whose result is
    `measure_passed`. `filter_fn` looks at the history as the store holds it, before anything is
    repaired or redacted. `max_sessions`: the first so many that passed. Without
    `include_tool_calls` only what was said is left. `repair`: what to do about a kind of damage,
    where the default will not do.

    `format`: `conversational` (columns `messages`, `tools`), `prompt_completion` (texts) or
    `prompt_completion_messages` (TRL's conversational one); see `formats`. Each row has
    `session_id`, `content_sha256`, and the `task_key` to which its split belongs
    (`splits.SplitSizes`).

    `counts` gets `sessions` = `rows` + the reasons: `forgotten` (`agent-pipeline forget`, in the
    settings' lake), `archived`, `empty`, `not_<judgment>`, `unjudged`, `filtered`, `filter_raised:
    <what>`, `broken:<kind>`, `infrastructure_error`, `attack_succeeded`, `verdict_leak`,
    `measure_failed`, `measure_passed`, `measure_not_taken: <why>`, `max_sessions`,
    `no_assistant_message`, `no_answer`.

    Raises:
        NoSessionsError: (a ValueError) no session is left; says how many each filter took.
        ArgumentError: (a ValueError) a judgment, measure or format that there is not.
        PartitionError, StoreError, SettingsError, RedactionError: from where the sessions are read.
    """
    from datasets import Dataset

    if format not in FORMATS:
        raise ArgumentError(
            f"The format {format!r} does not exist: choose one of {', '.join(FORMATS)}."
        )
    if judgment is not None and judgment not in VERDICTS:
        raise ArgumentError(
            f"There is no judgment {judgment!r}: ask for 'acceptable' or 'unacceptable'."
        )
    counts = Counter() if counts is None else counts
    source, key, settings = _open(store), make_key(project_slug, agent_slug), load_settings()
    configured, leaks = (
        None if measure is None else measure_of(measure),
        compile_leak_patterns(LEAK_PATTERNS),
    )
    options = settings.reading(key)
    if repair:
        options = replace(options, repair=make_repair_policy(repair))
    blocked, reasons, passing = (
        BlockList.read(settings.open_lake()),
        dict[str, str | None](),
        list[Session](),
    )

    def stored(key: PartitionKey) -> Iterator[Session]:
        for session, items in source.histories(key):
            counts["sessions"] += 1
            if blocked.has(session.session_id, key):
                counts["forgotten"] += 1
                continue
            reasons[session.session_id] = _why_passed_over(session, items, judgment, filter_fn)
            yield session

    for session in read_sessions(
        cast("TraceSource", SimpleNamespace(sessions=stored, notes=source.notes)), key, options
    ):
        reason = (
            reasons[session.session_id]
            or _unfit(session, leaks)
            or _why_unmeasured(session, configured, measure_passed)
        )
        if reason is None and max_sessions is not None and len(passing) >= max_sessions:
            reason = "max_sessions"
        if reason:
            counts[reason] += 1
            continue
        session.messages = drop_error_marks(session.messages)
        if not include_system:
            session.messages = without_system(session.messages)
        if not include_tool_calls:
            session.messages, session.tools = words_only(session.messages), []
        passing.append(session)
    _warn(source)
    row_counts: Counter[str] = Counter()
    rows = list(
        convert_rows(
            make_sft_rows(map(make_session_row, passing), SplitSizes(), row_counts),
            format,
            row_counts,
        )
    )
    counts.update(
        rows=len(rows),
        no_answer=row_counts[NO_ANSWER],
        no_assistant_message=row_counts["no_assistant_message"],
    )
    for name in [name for name, number in counts.items() if not number]:
        del counts[name]
    if not rows:
        raise NoSessionsError(
            f"None of {counts['sessions']} sessions of {key} can be trained on "
            f"({counted(counts, 'sessions') or 'there are none'}): "
            "loosen what took most of them."
        )
    columns = [
        column
        for column in FORMS[format].make_schema(SFT)
        if column.name not in ("row_id", "split")
    ]
    return Dataset(to_table(rows, pa.schema(columns)))


def _why_passed_over(
    session: Session,
    items: list[RecordedItem],
    judgment: str | None,
    filter_fn: Callable[[list[RecordedItem]], bool] | None,
) -> str | None:
    """Why a session is left out, by what its store holds."""
    if session.archived:
        return "archived"
    if not items or not session.messages:
        return "empty"
    verdict = VERDICTS.get(session.judgment) or verdict_of(session.score)[1]
    if judgment is not None and verdict != judgment:
        return "unjudged" if verdict is None else f"not_{judgment}"
    return why_filtered(items, filter_fn)


def _unfit(session: Session, leaks: list[re.Pattern[str]]) -> str | None:
    """Why a session that is repaired and redacted is not an example; what tells its verdict is
    taken out of the others.
    """
    if session.broken is not None:
        return f"broken:{session.broken}"
    cleaned = remove_leaks(session.messages, leaks)
    session.messages, leak = cleaned.messages, cleaned.remaining_leak
    return find_unfit_reason(session) or (None if leak is None else "verdict_leak")


def _why_unmeasured(
    session: Session, measure: ConfiguredMeasure | None, passed: bool
) -> str | None:
    """Why a session is left out by a measure."""
    if measure is None:
        return None
    result = measure.take(EvaluationContext.from_session(session))
    if result.passed is None:
        return f"measure_not_taken: {result.reason}"
    return None if result.passed is passed else "measure_failed" if passed else "measure_passed"


def _open(store: Store | None) -> TraceSource:
    """A reader of the store, or of those that the settings name. Raises StoreError,
    SettingsError.
    """
    settings = load_settings()
    if store is None:
        return settings.open_store()
    if isinstance(store, str | Path | Location):
        store = [store]
    if isinstance(store, Sequence):
        locations = [
            location if isinstance(location, Location) else parse_location(str(location))
            for location in store
        ]
        return open_sources(locations, readers(settings.sources))
    return store


def _warn(source: TraceSource) -> None:
    """Say what a reader met that a person should know (a store without a verdict file, say)."""
    for note in source.notes:
        warnings.warn(note, stacklevel=3)
