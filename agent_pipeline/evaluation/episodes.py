"""A model plays tasks in a world to their end: it calls tools that really run, and answers a user, until there is nothing left to say.

Episodes go on side by side, a turn at a time, so that a player can answer many conversations in one batch.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_pipeline.evaluation.worlds import World, run_tool, tool_schemas
from agent_pipeline.models.families import parse_reply
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool

End = Literal[
    "answered", "silent", "unread call", "too many turns", "too long", "cut off", "refused"
]
"""`unread call`: what was meant as a call arrived as text that nobody can run, so it is neither a call nor an answer. `refused`: the
endpoint refused the conversation."""
UNSEEN: tuple[End, ...] = ("cut off", "refused")
"""Ends before which the model may have meant to do harm."""


@dataclass(frozen=True)
class Conversation:
    """What a player is shown: the messages so far, and the tools. `number` and `trial` say which episode it is."""

    messages: list[Message]
    tools: list[Tool]
    number: int = 0
    trial: int = 0


@dataclass(frozen=True)
class Reply:
    """An assistant's message in the OpenAI form (None: there is none that can be read), and the tokens that it cost.

    `finish_reason` is `length` for a message that the limit cut off, or whatever the endpoint says. Without a message, anything else means
    that the conversation is too long for the model, or was `refused`, in the endpoint's words.
    """

    message: Message | None
    prompt_tokens: int = 0
    new_tokens: int = 0
    finish_reason: str | None = None
    refused: str = ""


Player = Callable[[Sequence[Conversation]], list[Reply]]
"""A model: conversations that wait for the assistant → its replies, in order."""


@dataclass(frozen=True)
class Episode:
    """How a task went. `reward` is the world's, at the end; `must_act`, `kind` and `wrong_changes` are None where the world does not say;
    `tokens` are those that the model wrote, `unended` the answers that the limit cut."""

    task_key: str
    seed: int | None
    trial: int
    done: bool
    reward: float
    must_act: bool | None
    kind: str | None
    wrong_changes: list[str] | None
    complaint: str
    end: End
    turns: int
    calls: int
    prompt_tokens: int
    tokens: int
    unended: int
    messages: list[Message] = field(repr=False)
    tools: list[Tool] = field(repr=False)


def play(
    world: Callable[[], World],
    rows: Sequence[Mapping[str, Any]],
    player: Player,
    max_turns: int = 12,
    trials: int = 1,
    at_once: int = 128,
    progress: Progress = silent,
    text: str = "episodes played",
) -> list[Episode]:
    """The episodes of all tasks, `trials` each, in the order of the rows.

    A row is what the world's `reset` is given: `task_key`, and `messages` and `tools` of a recorded session where there is one. `max_turns`
    are the assistant's messages after which an episode is given up. `at_once` episodes go on side by side.
    """
    places = [(row, number, trial) for number, row in enumerate(rows) for trial in range(trials)]
    episodes: list[Episode] = []
    for start in range(0, len(places), at_once):
        group = [_Running(world(), *place) for place in places[start : start + at_once]]
        while waiting := [episode for episode in group if not episode.end]:
            for episode, reply in zip(
                waiting, player([each.conversation() for each in waiting]), strict=True
            ):
                episode.take(reply, max_turns)
            progress(start + sum(bool(episode.end) for episode in group), len(places), text)
        episodes += [episode.outcome() for episode in group]
    return episodes


def play_side_by_side(
    world: Callable[[], World],
    rows: Sequence[Mapping[str, Any]],
    players: Sequence[Player],
    max_turns: int = 12,
    trials: int = 1,
    progress: Progress = silent,
    text: str = "episodes played",
) -> list[Episode]:
    """The same by several players of one model at once, as suits servers of one slot: each plays an episode to its end before the next.

    Which player plays a task depends on the tasks alone, never on which one is ready first, so that the same tasks are played the same.
    Players answer in threads; the worlds are all in the caller's.
    """
    places = [
        [
            (row, at, trial)
            for at, row in enumerate(rows)
            if at % len(players) == mine
            for trial in range(trials)
        ]
        for mine in range(len(players))
    ]
    waiting, episodes = [iter(each) for each in places], dict[tuple[int, int], Episode]()
    with ThreadPoolExecutor(len(players)) as threads:
        asked: dict[Future[list[Reply]], tuple[int, tuple[int, int], _Running]] = {}

        def ask(mine: int, place: tuple[int, int], episode: _Running) -> None:
            asked[threads.submit(players[mine], [episode.conversation()])] = mine, place, episode

        def begin(mine: int) -> None:
            if place := next(waiting[mine], None):
                ask(mine, place[1:], _Running(world(), *place))

        for mine in range(len(players)):
            begin(mine)
        while asked:
            for replied in wait(asked, return_when=FIRST_COMPLETED).done:
                mine, place, episode = asked.pop(replied)
                episode.take(replied.result()[0], max_turns)
                if not episode.end:
                    ask(mine, place, episode)
                    continue
                episodes[place] = episode.outcome()
                progress(len(episodes), len(rows) * trials, text)
                begin(mine)
    return [episodes[at, trial] for at in range(len(rows)) for trial in range(trials)]


PLAYED = "played-"
"""How the ids of the sessions begin that `agent-pipeline play` wrote: what a model played is not what the agent recorded."""


def fresh_task_id(task_key: str, seed: int | None) -> str:
    """What the task of a played session is called: tasks of two seeds are two tasks."""
    return task_key if seed is None else f"{task_key}-seed{seed}"


def played_task(task_id: str) -> re.Match[str] | None:
    """The task and the seed (groups 1 and 2) of the task id of a session in which a fresh task was played."""
    return re.fullmatch(r"(.+)-seed(\d+)", task_id)


def _arguments(world: World, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `reset` is given: of a session in which a fresh task was played, that task and its seed again."""
    played = played_task(str(row.get("task_key", "")))
    return (
        {**row, "task_key": played[1], "seed": int(played[2])}
        if played and hasattr(world, "fresh_tasks")
        else row
    )


class _Running:
    """An episode that goes on: the world, and the conversation so far."""

    def __init__(self, world: World, row: Mapping[str, Any], number: int, trial: int) -> None:
        self._world, self._row, self._number, self._trial = world, row, number, trial
        opening = world.reset(**_arguments(world, row))
        recorded = list(row.get("messages") or ())
        system = getattr(world, "system", None)
        self._messages: list[Message] = (
            [{"role": "system", "content": system}]
            if system
            else opening_messages(recorded, "system")
        )
        self._messages += (
            [{"role": "user", "content": opening}]
            if opening
            else opening_messages(recorded, "user")
        )
        self._tools = list(getattr(world, "tools", None) or row.get("tools") or tool_schemas(world))
        self._counts: Counter[str] = Counter()
        self.end: End | None = None
        self._refused = ""

    def conversation(self) -> Conversation:
        return Conversation(list(self._messages), self._tools, self._number, self._trial)

    def take(self, reply: Reply, max_turns: int) -> None:
        """Go on with what the model said: run its calls, or let the user answer."""
        self._counts.update(prompt_tokens=reply.prompt_tokens, tokens=reply.new_tokens)
        cut = reply.finish_reason == "length"
        if reply.message is None or (cut and self._calls_in(reply.message)):
            self.end = "refused" if reply.refused else "cut off" if cut else "too long"
            self._refused = reply.refused
            return
        self._messages.append(reply.message)
        self._counts["turns"] += 1
        calls = reply.message.get("tool_calls") or []
        for call in calls:
            function = call["function"]
            result = run_tool(
                self._world, function["name"], decode_arguments(function["arguments"])
            )
            self._messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call.get("id", ""),
                    "name": function["name"],
                    "content": result,
                }
            )
        self._counts["calls"] += len(calls)
        if not calls:
            self._counts["unended"] += cut
            self._answer(reply.message.get("content") or "")
        if not self.end and self._counts["turns"] >= max_turns:
            self.end = "too many turns"

    def _calls_in(self, message: Message) -> bool:
        """Whether a message calls a tool, or was meant to."""
        return (
            bool(message.get("tool_calls"))
            or parse_reply(message.get("content") or "", self._tools).is_call
        )

    def _answer(self, answer: str) -> None:
        if parse_reply(answer, self._tools).is_call:
            self.end = "unread call"
            return
        user = getattr(self._world, "user", None)
        words = user.reply(answer) if user is not None else None
        if words is not None:
            self._messages.append({"role": "user", "content": words})
        else:
            self.end = "answered" if answer.strip() else "silent"

    def outcome(self) -> Episode:
        changes, reward = (
            getattr(self._world, "wrong_changes", None),
            float(self._world.get_reward()),
        )
        return Episode(
            task_key=str(self._row.get("task_key", self._number)),
            seed=self._row.get("seed"),
            trial=self._trial,
            done=reward >= 1 and self.end == "answered",
            reward=reward,
            must_act=getattr(self._world, "must_act", None),
            kind=getattr(self._world, "kind", None),
            wrong_changes=None if changes is None else list(changes),
            complaint=self._refused or getattr(self._world, "complaint", None) or "",
            end=self.end or "answered",
            turns=self._counts["turns"],
            calls=self._counts["calls"],
            prompt_tokens=self._counts["prompt_tokens"],
            tokens=self._counts["tokens"],
            unended=self._counts["unended"],
            messages=self._messages,
            tools=self._tools,
        )


def opening_messages(messages: Sequence[Message], role: Literal["system", "user"]) -> list[Message]:
    """The system messages at a conversation's start, or its first user message."""
    first = next(
        (index for index, message in enumerate(messages) if message["role"] != "system"),
        len(messages),
    )
    return (
        list(messages[:first])
        if role == "system"
        else [message for message in messages if message["role"] == "user"][:1]
    )
