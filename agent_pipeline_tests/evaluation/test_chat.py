"""A chat of a person with a model."""

from collections.abc import Sequence
from typing import Any

from agent_pipeline.evaluation.chat import Chat
from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply
from agent_pipeline.sessions.session import Message, Tool

SYSTEM: Message = {"role": "system", "content": "You are the support agent."}
TOOL: Tool = {"type": "function", "function": {"name": "find", "parameters": {}}}


def call(name: str, arguments: str) -> Message:
    function = {"name": name, "arguments": arguments}
    calls: Any = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def player_of(replies: Sequence[EpisodeReply], seen: list[Conversation]) -> Any:
    answers = iter(replies)

    def play(conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        seen.extend(conversations)
        return [next(answers)]

    return play


def run_chat(*replies: EpisodeReply, max_turns: int = 5) -> tuple[list[tuple[str, str]], Chat]:
    seen: list[Conversation] = []
    chat = Chat(
        player_of(replies, seen),
        [SYSTEM],
        [TOOL],
        lambda name, given: f"{name}: {given}",
        max_turns,
    )
    events = [(event.kind, event.text) for event in chat.say("Where is it?")]
    assert all(conversation.tools == [TOOL] for conversation in seen)
    assert seen[0].messages == [SYSTEM, {"role": "user", "content": "Where is it?"}]
    return events, chat


def test_calls_are_answered_until_the_model_answers() -> None:
    events, chat = run_chat(
        EpisodeReply(call("find", '{"id": 7}')),
        EpisodeReply({"role": "assistant", "content": "On its way."}),
    )
    assert events == [
        ("call", '{"id": 7}'),
        ("result", "find: {'id': 7}"),
        ("answer", "On its way."),
    ]
    assert [message["role"] for message in chat.messages] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]
    assert chat.messages[3]["tool_call_id"] == "c1"


def test_a_model_that_never_answers_is_stopped() -> None:
    events, _ = run_chat(*[EpisodeReply(call("find", "{}"))] * 2, max_turns=2)
    assert [kind for kind, _ in events] == ["call", "result"] * 2 + ["stopped"]


def test_reasons_for_no_message() -> None:
    refused, cut, long = (
        run_chat(reply)[0]
        for reply in (
            EpisodeReply(None, refused="The server is away."),
            EpisodeReply(None, finish_reason="length"),
            EpisodeReply(None),
        )
    )
    assert refused == [("stopped", "The server is away.")]
    assert [kind for kind, _ in (*cut, *long)] == ["stopped"] * 2 and cut != long


def test_an_answer_that_the_limit_cut_says_so() -> None:
    events, _ = run_chat(
        EpisodeReply({"role": "assistant", "content": "On its"}, finish_reason="length")
    )
    assert [kind for kind, _ in events] == ["answer", "stopped"]
