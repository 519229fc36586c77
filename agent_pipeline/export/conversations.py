"""Conversations between a client and llama.cpp's server: the messages that the client sends, and
the prompt that the server makes of them from the second turn on.

The model's answers are judged in `served_answers` and `parity`, not here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.prefix_tree import shared_prefix_length
from agent_pipeline.errors import ExportError
from agent_pipeline.evaluation.players import message_of
from agent_pipeline.export.llama import LlamaCpp
from agent_pipeline.export.report import Played
from agent_pipeline.json_types import JsonObject
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.rendering import with_plain_ids
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, drop_keys

if TYPE_CHECKING:
    pass

LEAST_TURNS = 3
"""Minimum number of assistant turns in a conversation that shows twice how the server renders its
own answers.
"""

BLANKS = " \n\r\t"
"""The characters that our template removes after the words before a call."""

LONGEST = 4
"""Maximum number of turns that are played of one conversation."""


def as_clients_send(messages: Sequence[Message], shown: str | None = None) -> list[Message]:
    """Return recorded messages as a client sends them to llama.cpp's server.

    The server returns the words before a call together with the line end before the call, and
    clients send this text back.

    Args:
        messages: The recorded messages.
        shown: The rendered conversation. If no line end follows the words there (gpt-oss ends them
            with a token), the words are returned without a line end.
    """
    sent = []
    for message in with_plain_ids([drop_keys(message, THOUGHT) for message in messages]):
        words = (message.get("content") or "").rstrip(BLANKS)
        if message.get("tool_calls") and words and (shown is None or f"{words}\n" in shown):
            message = {**message, "content": words + "\n"}
        sent.append(message)
    return sent


def turns_of(messages: Sequence[Message]) -> int:
    """Return the number of assistant turns in a conversation."""
    return sum(message["role"] == "assistant" for message in messages)


def play(
    llama: LlamaCpp,
    renderer: ChatRenderer,
    conversations: Sequence[DatasetRow],
    most: int,
    max_new_tokens: int,
) -> Played:
    """Play conversations of several turns at the server's OpenAI-compatible interface, as a client
    does.

    The model's answer is sent back as the server returned it, followed by the recorded results and
    the user's next words. At each turn, the server's prompt is compared with the prompt of a
    training row that contains the same answers.

    Args:
        llama: The server.
        renderer: The model's tokenizer with its chat template.
        conversations: Held-out conversations. The conversations with the most turns are played.
        most: The maximum number of conversations to play.
        max_new_tokens: The maximum number of tokens in an answer.
    """
    played = Played()
    longest = sorted(conversations, key=lambda conversation: -turns_of(conversation["messages"]))
    for conversation in [row for row in longest if turns_of(row["messages"]) > 1][:most]:
        tools: list[Tool] = conversation.get("tools") or []
        _Conversation(llama, renderer, tools, max_new_tokens, played).play(conversation["messages"])
        played.conversations += 1
    return played


@dataclass
class _Conversation:
    """A conversation that is being played between a client and a server.

    Attributes:
        llama: The server.
        renderer: The model's tokenizer with its chat template.
        tools: The tool schemas.
        max_new_tokens: The maximum number of tokens in an answer.
        played: The counts of all conversations.
        sent: The messages as the client has them.
        trained: The messages as a training row has them.
        turns: The number of answers so far.
    """

    llama: LlamaCpp
    renderer: ChatRenderer
    tools: list[Tool]
    max_new_tokens: int
    played: Played
    sent: list[Message] = field(default_factory=list)
    trained: list[Message] = field(default_factory=list)
    turns: int = 0

    def play(self, messages: Sequence[Message]) -> None:
        """Play until the conversation ends, `LONGEST` turns were played, or the model and the
        recorded agent act differently.
        """
        unanswered: list[str] = []
        for message in messages:
            if message["role"] == "assistant":
                is_second = bool(self.sent) and self.sent[-1]["role"] == "assistant"
                if self.turns == LONGEST or is_second or not self._answer():
                    return
                unanswered = [call["id"] for call in self.sent[-1].get("tool_calls") or ()]
                continue
            if message["role"] == "tool":
                results = (
                    [_result(unanswered.pop(0), message.get("content") or "")] if unanswered else []
                )
            else:
                results = [
                    *(_result(call_id, "") for call_id in unanswered),
                    drop_keys(message, THOUGHT),
                ]
                unanswered = []
            self.sent += results
            self.trained += results

    def _answer(self) -> bool:
        """Add the model's next answer, and return whether the conversation continues."""
        try:
            answer = self._ask()
        except ExportError:
            # A call that the token limit cut off cannot be parsed, or the context is too short for
            # this turn.
            self.played.parted += 1
            return False
        if answer is None:
            return False
        self.turns += 1
        self.sent.append(answer[0])
        self.trained.append(answer[1])
        return True

    def _ask(self) -> tuple[Message, Message] | None:
        """Return the model's next answer in two forms, or None if the conversation ends here.

        The first form is the answer as the client receives it. The second form is the answer as a
        training row has it.
        """
        prompt = self.renderer.prompt_ids(self.trained, self.tools)
        served = self.llama.tokenize(self.llama.render(self.sent, self.tools), add_special=True)
        if self.turns:
            self.played.turns += 1
            self.played.equal += served == prompt
        if served != prompt:
            # A difference in the first prompt is reported by `check_template`.
            if self.turns and not self.played.difference:
                self.played.difference = _difference(self.renderer, prompt, served, self.turns + 1)
            return None
        answer, text = self.llama.chat_and_text(self.sent, self.tools, self.max_new_tokens)
        own_message = message_of(text, self.tools)
        calls = answer.get("tool_calls") or []
        same_words = (answer.get("content") or "").strip() == (
            own_message.get("content") or ""
        ).strip()
        if not same_words or len(calls) != len(own_message.get("tool_calls") or ()):
            self.played.parted += 1
            return None
        fields: JsonObject = {**answer}
        kept = cast(
            Message,
            {
                key: fields[key]
                for key in ("role", "content", "tool_calls")
                if fields.get(key) is not None
            },
        )
        # A training row has the words before a call without the line end before the call.
        words = answer.get("content") or ""
        return kept, ({**kept, "content": words.rstrip(BLANKS)} if calls else kept)


def _result(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _difference(renderer: ChatRenderer, prompt: list[int], served: list[int], turn: int) -> str:
    shared_length = shared_prefix_length([prompt, served])
    here, there = (
        renderer.tokenizer.decode(tokens[max(shared_length - 3, 0) : shared_length + 8])
        for tokens in (prompt, served)
    )
    return f"turn {turn} is shown as {there!r} by the server, and as {here!r} in training"
