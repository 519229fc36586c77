"""Conversations from outside the lake (a run's results, trajectories, samples) as sessions,
repaired and redacted as the lake's are.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from agent_pipeline.datasets.preferences import find_unfit_reason
from agent_pipeline.datasets.sft import cut_after_last_trained_turn
from agent_pipeline.errors import ArgumentError
from agent_pipeline.ingestion.reading import find_task_key
from agent_pipeline.judging import ConfiguredMeasure, parse_measure
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.damage import DEFAULT_REPAIR_POLICY
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Message, Session, drop_error_marks
from agent_pipeline.sources.formats.fields import function_tools


class Example(NamedTuple):
    """A session that can be an example, and its messages up to the agent's last trained one."""

    session: Session
    messages: list[Message]

    @property
    def lineage(self) -> dict[str, Any]:
        """The columns that lead back to the session."""
        session = self.session
        return {
            "session_id": session.session_id,
            "content_sha256": session.hash_content(),
            "task_key": session.task_key,
        }


class Intake:
    """Repairs and redacts sessions, in place, by the defaults of the lake's first stage.

    Raises:
        SettingsError, RedactionError: as `Redactor`.
    """

    def __init__(self, redaction: RedactionOptions | None) -> None:
        self._redactor = Redactor(redaction or RedactionOptions())

    def take(self, session: Session) -> Example | str:
        """The session as an example, or why it can be none: `infrastructure_error`,
        `attack_succeeded`, `broken:<kind>`, `no_assistant_message`.

        Raises:
            RedactionError: a detector raised.
        """
        return self.take_together([session])[0]

    def take_together(self, sessions: Sequence[Session]) -> list[Example | str]:
        """The same for runs of one task: what is private in one of them is replaced in all, so that
        equal prompts stay equal.

        (A password that one run sends is recognized by its place in the call; in the other run's
        prompt nothing gives it away.)
        """
        for session in sessions:
            repair_session(session, DEFAULT_REPAIR_POLICY)
            session.task_key = session.task_key or find_task_key(session, None, "")
        if len(sessions) > 1:
            self._redact_as_one(sessions)
        for session in sessions:
            self._redactor.redact(session)
        return [_example(session) for session in sessions]

    def _redact_as_one(self, sessions: Sequence[Session]) -> None:
        whole = Session(session_id=sessions[0].session_id, project="", agent="", source="")
        for session in sessions:
            whole.messages += session.messages
            whole.tools += session.tools
        self._redactor.redact(whole)
        messages, tools = iter(whole.messages), iter(whole.tools)
        for session in sessions:
            session.messages = list(islice(messages, len(session.messages)))
            session.tools = list(islice(tools, len(session.tools)))


def _example(session: Session) -> Example | str:
    if reason := find_unfit_reason(session) or (
        f"broken:{session.broken}" if session.broken else None
    ):
        return reason
    session.messages = drop_error_marks(session.messages)
    messages = cut_after_last_trained_turn(session.messages)
    return Example(session, messages) if messages else "no_assistant_message"


def session_of_chat(chat: Chat, tools: Any, source: str, **fields: Any) -> Session:
    """A chat as a session before any repair; `tools` are schemas in any spelling. Schemas that are
    none count as damage.
    """
    schemas, invalid = function_tools(tools)
    chat.damage["invalid_tools"] += invalid
    return Session(
        source=source,
        messages=chat.messages,
        tools=schemas,
        tools_origin="source" if schemas else "none",
        damage=dict(+chat.damage),
        skipped=dict(chat.skipped),
        **fields,
    )


def words_only(messages: list[Message]) -> list[Message]:
    """The words of a chat, without its calls and results; messages without words are left out."""
    words = [
        Message(role=message["role"], content=message["content"])
        for message in messages
        if message["role"] != "tool"
    ]
    return [message for message in words if message["content"].strip()]


def without_system(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] != "system"]


def why_filtered(value: object, predicate: Callable[[Any], bool] | None) -> str | None:
    """Why a user's predicate leaves a value out; `None` where it does not. What it raises costs
    that value alone.
    """
    try:
        return None if predicate is None or predicate(value) else "filtered"
    except Exception as error:  # a predicate may raise anything
        return f"filter_raised: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def measure_of(measure: object) -> ConfiguredMeasure:
    """A registered measure by its name, as in a configuration, or a function of an evaluation
    context. Raises SettingsError, ArgumentError.
    """
    if isinstance(measure, str):
        return parse_measure(measure)
    if not callable(measure):
        raise ArgumentError(
            f"The measure is a {type(measure).__name__}: give a registered measure's name, or a "
            f"function of a context."
        )
    return ConfiguredMeasure(getattr(measure, "__name__", type(measure).__name__), measure)


def value_of(record: object, *names: str) -> object:
    """The first value that a record has under one of these keys or attributes; methods and empty
    texts are none.
    """
    values = (
        record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
        for name in names
    )
    return next(
        (value for value in values if value is not None and value != "" and not callable(value)),
        None,
    )


def counted(counts: Mapping[str, int], *without: str) -> str:
    """Counts as a person reads them in an error: `unjudged 3, filtered 1`, the most frequent
    first.
    """
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered if count and name not in without)
