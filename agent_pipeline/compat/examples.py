"""Conversations from outside the lake, repaired and redacted like the sessions of the lake.

The functions that all names of `compat` share are here too: filters, measures, and counts in error
messages. Files of training data belong to `samples`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

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

LONGEST_REASON = 200
"""Maximum length, in characters, of an exception that is kept as the reason for leaving out a
value.
"""


@dataclass(frozen=True)
class Example:
    """A session that can be used as a training example.

    Attributes:
        session: The session, repaired and redacted.
        messages: Its messages, up to the last turn of the agent that is trained on.
    """

    session: Session
    messages: list[Message]

    @property
    def lineage(self) -> dict[str, str]:
        """Return the columns that identify the session from which a row was made."""
        return {
            "session_id": self.session.session_id,
            "content_sha256": self.session.hash_content(),
            "task_key": self.session.task_key,
        }


class ExampleMaker:
    """A maker of examples from sessions, with the same defaults as the lake.

    Raises:
        SettingsError: An option of the redaction has a value that is not allowed.
        RedactionError: The detectors of private data cannot be used.
    """

    def __init__(self, redaction: RedactionOptions | None = None) -> None:
        self._redactor = Redactor(redaction or RedactionOptions())

    def make(self, session: Session) -> Example | str:
        """Repair and redact a session in place.

        Returns:
            The example, or the reason why the session cannot be an example: `infrastructure_error`,
            `attack_succeeded`, `broken:<kind>` or `no_assistant_message`.

        Raises:
            RedactionError: A detector failed.
        """
        return self.make_together([session])[0]

    def make_together(self, sessions: Sequence[Session]) -> list[Example | str]:
        """Repair and redact the sessions of one task in place.

        A value that is private in one session is replaced in all sessions. For example, a password
        is recognized in the call of one session, but not in the prompt of another session. Equal
        prompts stay equal.

        Returns:
            One result per session, as `make` returns it.
        """
        for session in sessions:
            repair_session(session, DEFAULT_REPAIR_POLICY)
            session.task_key = session.task_key or find_task_key(session, None, "")
        if len(sessions) > 1:
            self._redact_as_one(sessions)
        for session in sessions:
            self._redactor.redact(session)
        return [_make_example(session) for session in sessions]

    def _redact_as_one(self, sessions: Sequence[Session]) -> None:
        joined = Session(session_id=sessions[0].session_id, project="", agent="", source="")
        for session in sessions:
            joined.messages += session.messages
            joined.tools += session.tools
        self._redactor.redact(joined)
        messages, tools = iter(joined.messages), iter(joined.tools)
        for session in sessions:
            session.messages = list(islice(messages, len(session.messages)))
            session.tools = list(islice(tools, len(session.tools)))


def _make_example(session: Session) -> Example | str:
    reason = find_unfit_reason(session)
    if reason is None and session.broken:
        reason = f"broken:{session.broken}"
    if reason is not None:
        return reason
    session.messages = drop_error_marks(session.messages)
    messages = cut_after_last_trained_turn(session.messages)
    return Example(session, messages) if messages else "no_assistant_message"


def make_session(chat: Chat, tools: object, source: str, **fields: Any) -> Session:
    """Convert a chat into a session that is not repaired yet.

    Args:
        chat: The chat.
        tools: Schemas of tools in any notation. Other values count as damage.
        source: The name of the source.
        **fields: Further fields of the session.
    """
    schemas, invalid_count = function_tools(tools)
    chat.damage["invalid_tools"] += invalid_count
    return Session(
        source=source,
        messages=chat.messages,
        tools=schemas,
        tools_origin="source" if schemas else "none",
        damage=dict(+chat.damage),
        skipped=dict(chat.skipped),
        **fields,
    )


def keep_texts(messages: list[Message]) -> list[Message]:
    """Return the text messages of a chat, without calls, tool results and empty messages."""
    return [
        Message(role=message["role"], content=message["content"])
        for message in messages
        if message["role"] != "tool" and message["content"].strip()
    ]


def drop_system_messages(messages: list[Message]) -> list[Message]:
    """Return the messages of a chat without its system messages."""
    return [message for message in messages if message["role"] != "system"]


def find_filter_reason(value: object, predicate: Callable[[Any], bool] | None) -> str | None:
    """Return the reason why a user's predicate leaves out a value, or None if it does not.

    If the predicate raises an exception, the value is left out.
    """
    try:
        return None if predicate is None or predicate(value) else "filtered"
    except Exception as error:  # a predicate may raise anything
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        return f"filter_raised: {type(error).__name__}: {reason}"


def resolve_measure(measure: object) -> ConfiguredMeasure:
    """Return a measure, given by a name as in a configuration or by a function of a context.

    Raises:
        SettingsError: No measure has this name.
        ArgumentError: The value is neither a name nor a function.
    """
    if isinstance(measure, str):
        return parse_measure(measure)
    if not callable(measure):
        raise ArgumentError(
            f"The measure has the type {type(measure).__name__}: give the name of a registered "
            "measure, or a function that takes a context."
        )
    return ConfiguredMeasure(getattr(measure, "__name__", type(measure).__name__), measure)


def get_value(record: object, *names: str) -> object:
    """Return the first value that a record has under one of the given names, or None.

    The names are keys of a mapping or attributes of an object. Methods and empty texts are skipped.
    """
    for name in names:
        value = record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
        if value is not None and value != "" and not callable(value):
            return value
    return None


def get_text(record: object, *names: str) -> str | None:
    """Return the first value that a record has under one of the given names as text, or None."""
    value = get_value(record, *names)
    return None if value is None else str(value)


def format_counts(counts: Mapping[str, int], *without: str) -> str:
    """Return counts as text for an error, largest count first, such as `unjudged 3, filtered 1`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered if count and name not in without)
