"""Preconditions: functions that must pass before an agent may call a tool.

A precondition is written and named as a measure is (`measures`). It receives the conversation up to
one call, so `context.calls[-1]` is the call, which has no result yet. A call that breaks a
precondition is not trained on, episodes count it, and the gateway does not let it through.

The preconditions that are part of this package belong to `builtin_preconditions`.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.builtin_preconditions import PRECONDITIONS
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.measures import ConfiguredMeasure, parse_measure
from agent_pipeline.sessions.session import Message, Tool, hash_json

ENTRY_POINTS = "agent_pipeline.preconditions"


@dataclass(frozen=True)
class BrokenPrecondition:
    """A call that breaks a precondition.

    Attributes:
        tool: The called tool.
        precondition: The precondition as the settings name it.
        reason: A short reason.
    """

    tool: str
    precondition: str
    reason: str

    @property
    def name(self) -> str:
        """Return the tool and the precondition: `refund: looked_up('find_orders', 'order')`."""
        return f"{self.tool}: {self.precondition}"

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


@dataclass(frozen=True)
class Preconditions:
    """The preconditions of an agent's tools.

    Attributes:
        by_tool: The preconditions by the name of the tool.
    """

    by_tool: Mapping[str, Sequence[ConfiguredMeasure]]

    @classmethod
    def parse(
        cls, texts_by_tool: Mapping[str, Sequence[str]], folder: Path | None = None
    ) -> "Preconditions":
        """Return the preconditions that the settings list by tool.

        Args:
            texts_by_tool: The preconditions as the settings name them, by tool.
            folder: The folder of the user's modules. None means the folder of this process's
                settings file.

        Raises:
            SettingsError: A text is not a precondition, or its function cannot be loaded.
        """
        by_tool = {}
        for tool, texts in texts_by_tool.items():
            try:
                by_tool[tool] = [
                    parse_measure(text, PRECONDITIONS, "precondition", ENTRY_POINTS, folder)
                    for text in texts
                ]
            except SettingsError as error:
                raise SettingsError(f"preconditions.{tool}: {error}") from error
        return cls(by_tool)

    def __bool__(self) -> bool:
        return any(self.by_tool.values())

    def hash_source(self) -> str:
        """Return the hash of the source code of the preconditions' modules."""
        modules = {
            inspect.getmodule(precondition.function)
            for preconditions in self.by_tool.values()
            for precondition in preconditions
        }
        return hash_json(sorted(inspect.getsource(module) for module in modules if module))

    def find_broken(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), start: int = 0
    ) -> Iterator[BrokenPrecondition]:
        """Yield the broken preconditions of the calls in a conversation, in order.

        A precondition that has no result for a call, or that raises an exception, counts as broken.

        Args:
            messages: The conversation.
            tools: The agent's tools.
            start: The index of the first message whose calls are checked.
        """
        for tool, context in list_call_contexts(messages, tools, start):
            for precondition in self.by_tool.get(tool, ()):
                result = precondition.take(context)
                if not result.passed:
                    yield BrokenPrecondition(tool, precondition.name, result.reason)


def list_call_contexts(
    messages: Sequence[Message], tools: Sequence[Tool] = (), start: int = 0
) -> Iterator[tuple[str, EvaluationContext]]:
    """Yield the tool and the conversation up to each call, in order.

    The call is the last call of the conversation. The arguments are those of
    `Preconditions.find_broken`.
    """
    for index in range(start, len(messages)):
        calls = messages[index].get("tool_calls") or ()
        for call_index, call in enumerate(calls):
            turn: Message = {**messages[index], "tool_calls": list(calls[: call_index + 1])}
            context = EvaluationContext([*messages[:index], turn], list(tools))
            yield call["function"]["name"], context


NO_PRECONDITIONS = Preconditions({})
