"""A chat of a person with a model, whose tool calls a world or the person answers.

Printing and reading the lines of a terminal belong to `cli.chat`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply, Player
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool

ToolRunner = Callable[[str, Any], str]
"""A function that answers a call: it gets the tool's name and the arguments, and returns the result.
"""


@dataclass(frozen=True)
class ChatEvent:
    """Something that happens after a person's message.

    Attributes:
        kind: `answer` (a text of the model), `call`, `result` (of a call), or `stopped` (the model
            gave no answer).
        text: The answer, the arguments, the result, or the reason.
        tool: The name of the tool.
    """

    kind: Literal["answer", "call", "result", "stopped"]
    text: str
    tool: str = ""


class Chat:
    """A conversation of a person with a model.

    Args:
        player: The model.
        opening: The messages with which every chat begins, such as the agent's system prompt.
        tools: The agent's tools.
        run_tool: The function that answers calls.
        max_turns: The number of the model's messages after which an answer is stopped.

    Attributes:
        messages: The conversation so far.
        tools: The agent's tools.
    """

    def __init__(
        self,
        player: Player,
        opening: Sequence[Message],
        tools: Sequence[Tool],
        run_tool: ToolRunner,
        max_turns: int,
    ) -> None:
        self._player, self._run_tool, self._max_turns = player, run_tool, max_turns
        self.messages: list[Message] = list(opening)
        self.tools = list(tools)

    def say(self, text: str) -> Iterator[ChatEvent]:
        """Send a person's message, and yield what the model does until it has answered."""
        self.messages.append({"role": "user", "content": text})
        for _ in range(self._max_turns):
            (reply,) = self._player([Conversation(list(self.messages), self.tools)])
            if reply.message is None:
                yield ChatEvent("stopped", _describe_failure(reply))
                return
            self.messages.append(reply.message)
            content, calls = reply.message.get("content"), reply.message.get("tool_calls") or []
            if content or not calls:
                yield ChatEvent("answer", content or "")
            if not calls:
                if reply.finish_reason == "length":
                    yield ChatEvent(
                        "stopped",
                        ("The answer was cut off, because it reached the limit of tokens."),
                    )
                return
            for call in calls:
                yield from self._answer_call(call)
        yield ChatEvent(
            "stopped",
            f"The model wrote {self._max_turns} messages without an answer, which is the limit "
            "(the setting episodes.max_turns).",
        )

    def _answer_call(self, call: Mapping[str, Any]) -> Iterator[ChatEvent]:
        """Let the tool answer a call, and add the result to the conversation."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        yield ChatEvent("call", arguments, name)
        result = self._run_tool(name, decode_arguments(arguments))
        self.messages.append(
            {
                "role": "tool",
                "tool_call_id": call.get("id", ""),
                "name": name,
                "content": result,
            }
        )
        yield ChatEvent("result", result, name)


def _describe_failure(reply: EpisodeReply) -> str:
    """Return a sentence that says why the model gave no message."""
    if reply.refused:
        return reply.refused
    if reply.finish_reason == "length":
        return (
            "The model began a tool call, but the message reached the limit of tokens before the "
            "call ended."
        )
    return "The conversation is too long for the model: start over."
