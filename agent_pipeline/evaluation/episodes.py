"""Episodes: a model plays tasks in a world from start to end.

The model calls tools that really run, and answers a user until the user has nothing left to say.
Many episodes are played at the same time, one turn after the other, so that a player can answer
many conversations in one batch. Players are in `players`, and worlds are in `worlds`.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agent_pipeline.evaluation.confidence import TurnConfidence
from agent_pipeline.evaluation.variants import GENERAL_VARIANTS, VARIANT, ShownRequest
from agent_pipeline.evaluation.worlds import (
    MakesFreshTasks,
    RunsCalls,
    Unsettled,
    World,
    find_unsettled,
    own_tools,
    run_tool,
    system_message,
    task_outcome,
    tool_schemas,
    user_reply,
    writes,
)
from agent_pipeline.models.families import parse_reply
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool

EpisodeEnd = Literal[
    "answered",
    "silent",
    "unread call",
    "too many turns",
    "too long",
    "cut off",
    "refused",
    "undecided",
]
"""How an episode ended. `unread call` means that the reply contains a call that cannot be parsed,
so it is neither a call nor an answer. `refused` means that the endpoint refused the
conversation. `undecided` means that the world does not know how the task goes on.
"""
UNSEEN: tuple[EpisodeEnd, ...] = ("cut off", "refused")
"""Ways in which an episode can end so that harm by the model may have remained unseen."""
PLAYED = "played-"
"""The prefix of the ids of sessions that `agent-pipeline play` writes."""


@dataclass(frozen=True)
class Conversation:
    """A conversation that waits for a player's reply.

    Attributes:
        messages: The messages so far.
        tools: The tools.
        number: The number of the task.
        trial: The trial of the task.
    """

    messages: list[Message]
    tools: list[Tool]
    number: int = 0
    trial: int = 0


@dataclass(frozen=True)
class EpisodeReply:
    """The reply of a player to a conversation.

    Attributes:
        message: The assistant message in the OpenAI form; `None` if the reply cannot be read.
        prompt_tokens: The number of tokens in the prompt.
        new_tokens: The number of tokens that the model wrote.
        finish_reason: `length` if the token limit cut off the message, or the endpoint's reason. If
            there is no message, any other value means that the conversation is too long.
        refused: The endpoint's error message if it refused the conversation.
        confidence: The confidence of the message; `None` if there are no log-probabilities.
    """

    message: Message | None
    prompt_tokens: int = 0
    new_tokens: int = 0
    finish_reason: str | None = None
    refused: str = ""
    confidence: TurnConfidence | None = None


Player = Callable[[Sequence[Conversation]], list[EpisodeReply]]
"""A function that takes the conversations that wait for a reply, and returns the replies in the
same order.
"""


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        task_key: The key of the task.
        seed: The seed of a fresh task.
        trial: The trial of the task.
        done: Whether the task was done: the reward is at least 1, and the episode ended with an
            answer that the world does not call wrong.
        reward: The world's reward at the end.
        must_act: Whether the task asks for a change; `None` if the world does not say.
        kind: The kind of decision; `None` if the world does not say.
        wrong_changes: Changes that the task did not ask for; `None` if the world does not say.
        complaint: The reason why the task is not done.
        acted_early: Changes that the model made before the user had said enough; `None` if the
            world does not say.
        said_wrong: The reason why the last answer is wrong, or an empty text if it is right; `None`
            if the world does not say.
        end: How the episode ended.
        turns: The number of assistant messages.
        calls: The number of calls.
        prompt_tokens: The number of tokens of all prompts together.
        tokens: The number of tokens that the model wrote.
        unended: The number of replies that the token limit cut off.
        variant: The variant in which the task was played; empty for the original task.
        change: What a variant of every world changed in the request, as one line of text.
        unused_calls: The number of calls of a tool that the variant added.
        messages: The whole conversation, as the model saw it.
        tools: The tools.
        confidence: The model's confidence in each assistant message, in order. `None` stands for a
            message without log-probabilities.
        unsettled: Why the world does not know the outcome; `None` if it does.
        sources: In a replayed world, the session that each result and each reply of the user comes
            from, in order.
        broken_preconditions: The preconditions that the model's calls broke, one text per call.
            `None` means that the agent has no preconditions, or that the variant renamed a tool.
    """

    task_key: str
    seed: int | None
    trial: int
    done: bool
    reward: float
    must_act: bool | None
    kind: str | None
    wrong_changes: list[str] | None
    complaint: str
    acted_early: list[str] | None
    said_wrong: str | None
    end: EpisodeEnd
    turns: int
    calls: int
    prompt_tokens: int
    tokens: int
    unended: int
    variant: str
    change: str
    unused_calls: int
    messages: list[Message] = field(repr=False)
    tools: list[Tool] = field(repr=False)
    confidence: list[TurnConfidence | None] = field(repr=False, default_factory=list)
    unsettled: Unsettled | None = None
    sources: list[str] = field(repr=False, default_factory=list)
    broken_preconditions: list[str] | None = None

    @property
    def is_suspect(self) -> bool:
        """Return whether the episode ended undecided, with a change that is probably harmful."""
        return self.unsettled is not None and self.unsettled.harm_suspected


@dataclass(frozen=True)
class _Task:
    """A trial of a task that is going to be played.

    Attributes:
        row: The arguments of the world's `reset`.
        number: The position of the row.
        trial: The number of the trial.
    """

    row: Mapping[str, Any]
    number: int
    trial: int

    @property
    def variant(self) -> str:
        """Return the variant in which the task is played; empty for the original task."""
        return str(self.row.get(VARIANT) or "")


def play(
    world: Callable[[], World],
    rows: Sequence[Mapping[str, object]],
    player: Player,
    max_turns: int = 12,
    trials: int = 1,
    at_once: int = 128,
    progress: Progress = silent,
) -> list[Episode]:
    """Let one player play all tasks.

    Args:
        world: The world's class.
        rows: The arguments of the world's `reset`: `task_key`, and `messages` and `tools` of a
            recorded session if there is one. `variant` names the variant in which the task is
            played.
        player: The model.
        max_turns: The number of assistant messages after which an episode is stopped.
        trials: The number of trials per task.
        at_once: The number of episodes that are played at the same time.
        progress: A callback that reports progress.

    Returns:
        The episodes in the order of the rows, `trials` per row. Tasks that cannot be played in the
        variant are left out.
    """
    tasks = [
        _Task(row, number, trial) for number, row in enumerate(rows) for trial in range(trials)
    ]
    episodes: list[Episode] = []
    for start in range(0, len(tasks), at_once):
        begun = [_begin_episode(world, task) for task in tasks[start : start + at_once]]
        group = [episode for episode in begun if episode]
        while waiting := [episode for episode in group if not episode.end]:
            replies = player([episode.conversation() for episode in waiting])
            for episode, reply in zip(waiting, replies, strict=True):
                episode.take(reply, max_turns)
            done = start + sum(bool(episode.end) for episode in group)
            progress(done, len(tasks), "episodes played")
        episodes += [episode.finish() for episode in group]
    return episodes


def play_side_by_side(
    world: Callable[[], World],
    rows: Sequence[Mapping[str, object]],
    players: Sequence[Player],
    max_turns: int = 12,
    trials: int = 1,
    progress: Progress = silent,
) -> list[Episode]:
    """Play all tasks with several players of the same model, for servers that answer one request at
    a time.

    Each player finishes an episode before it begins the next episode. The position of a task alone
    decides which player plays it, so the same tasks are always played in the same way. Players run
    in threads. All worlds run in the caller's thread.

    Args:
        world: The world's class.
        rows: The arguments of the world's `reset`.
        players: The players.
        max_turns: The number of assistant messages after which an episode is stopped.
        trials: The number of trials per task.
        progress: A callback that reports progress.

    Returns:
        The episodes in the order of the rows, `trials` per row. Tasks that cannot be played in the
        variant are left out.
    """
    tasks_by_player = [
        iter(
            [
                _Task(row, number, trial)
                for number, row in enumerate(rows)
                if number % len(players) == player_index
                for trial in range(trials)
            ]
        )
        for player_index in range(len(players))
    ]
    episodes: dict[tuple[int, int], Episode] = {}
    with ThreadPoolExecutor(len(players)) as threads:
        pending: dict[Future[list[EpisodeReply]], tuple[int, _RunningEpisode]] = {}

        def ask_player(player_index: int, episode: _RunningEpisode) -> None:
            future = threads.submit(players[player_index], [episode.conversation()])
            pending[future] = (player_index, episode)

        def start_next_episode(player_index: int) -> None:
            for task in tasks_by_player[player_index]:
                if episode := _begin_episode(world, task):
                    ask_player(player_index, episode)
                    break

        for player_index in range(len(players)):
            start_next_episode(player_index)
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                player_index, episode = pending.pop(future)
                episode.take(future.result()[0], max_turns)
                if not episode.end:
                    ask_player(player_index, episode)
                    continue
                episodes[episode.task.number, episode.task.trial] = episode.finish()
                progress(len(episodes), len(rows) * trials, "episodes played")
                start_next_episode(player_index)
    return [episodes[name] for name in sorted(episodes)]


def fresh_task_id(task_key: str, seed: int | None) -> str:
    """Return the task id of a played session. Tasks with different seeds are different tasks."""
    return task_key if seed is None else f"{task_key}-seed{seed}"


def played_task(task_id: str) -> re.Match[str] | None:
    """Return a regex match with a fresh task and its seed as groups 1 and 2.

    Return None if the id does not belong to a session that played a fresh task.
    """
    return re.fullmatch(r"(.+)-seed(\d+)", task_id)


def _reset_arguments(world: World, row: Mapping[str, object]) -> Mapping[str, object]:
    """Return the arguments of `reset`. A fresh task that was played before is generated again from
    its seed.
    """
    played = played_task(str(row.get("task_key", "")))
    if played and isinstance(world, MakesFreshTasks):
        return {**row, "task_key": played[1], "seed": int(played[2])}
    return row


def _begin_episode(world: Callable[[], World], task: _Task) -> "_RunningEpisode | None":
    """Return an episode of a task, or `None` if the task cannot be played in its variant."""
    episode = _RunningEpisode(world(), task)
    return episode if episode.is_possible else None


@dataclass(frozen=True)
class TaskOpening:
    """The beginning of a task in a world.

    Attributes:
        system: The system messages.
        user: The first message of the user; empty if the task has none.
        tools: The tools.
    """

    system: list[Message]
    user: list[Message]
    tools: list[Tool]


def start_task(world: World, row: Mapping[str, Any], left_out: Collection[str] = ()) -> TaskOpening:
    """Start a task in a world, and return the beginning of the conversation.

    Args:
        world: The world, which `reset` starts.
        row: The arguments of `reset`. The row's messages and tools are used if the world has none.
        left_out: The names of arguments that `reset` does not get.
    """
    arguments = _reset_arguments(world, row)
    text = world.reset(**{name: value for name, value in arguments.items() if name not in left_out})
    recorded = list(row.get("messages") or ())
    system = system_message(world)
    system_messages: list[Message] = (
        [{"role": "system", "content": system}] if system else opening_messages(recorded, "system")
    )
    user_messages: list[Message] = (
        [{"role": "user", "content": text}] if text else opening_messages(recorded, "user")
    )
    tools = own_tools(world) or list(row.get("tools") or ())
    if not tools and not isinstance(world, RunsCalls):
        tools = tool_schemas(world)
    return TaskOpening(system_messages, user_messages, tools)


class _RunningEpisode:
    """An episode that is being played, with its world and the conversation so far.

    Attributes:
        task: The task that is played.
        end: How the episode ended; `None` while it runs.
        is_possible: Whether the task can be played in its variant.
    """

    def __init__(self, world: World, task: _Task) -> None:
        self.task = task
        self.end: EpisodeEnd | None = None
        self._world = world
        self._counts: Counter[str] = Counter()
        self._confidence: list[TurnConfidence | None] = []
        self._refused = ""
        row = task.row
        change_request = GENERAL_VARIANTS.get(task.variant)
        # The world knows nothing of such a variant.
        opening = start_task(world, row, [VARIANT] if change_request else [])
        self._messages: list[Message] = [*opening.system, *opening.user]
        tools = opening.tools
        request: ShownRequest | None = ShownRequest(self._messages, tools)
        if request and change_request:
            request = change_request(request, str(row.get("task_key", task.number)))
        self.is_possible = request is not None
        self._shown = request or ShownRequest(self._messages, tools)
        self._messages, self._tools = self._shown.messages, self._shown.tools

    def conversation(self) -> Conversation:
        """Return the conversation as the player sees it."""
        return Conversation(list(self._messages), self._tools, self.task.number, self.task.trial)

    def take(self, reply: EpisodeReply, max_turns: int) -> None:
        """Continue the episode with the player's reply: run the reply's calls, or let the user
        answer.
        """
        self._counts.update(prompt_tokens=reply.prompt_tokens, tokens=reply.new_tokens)
        was_cut = reply.finish_reason == "length"
        if reply.message is None or (was_cut and self._contains_call(reply.message)):
            if reply.refused:
                self.end, self._refused = "refused", reply.refused
            else:
                self.end = "cut off" if was_cut else "too long"
            return
        self._messages.append(reply.message)
        self._counts["turns"] += 1
        calls = reply.message.get("tool_calls") or []
        called = [self._shown.find_call(call["function"]["name"], {})[0] for call in calls]
        is_write = any(name and writes(self._world, name) for name in called)
        self._confidence.append(
            msgspec.structs.replace(reply.confidence, writes=is_write) if reply.confidence else None
        )
        for call in calls:
            function = call["function"]
            self._counts["unused_calls"] += self._shown.is_unused(function["name"])
            name, arguments = self._shown.find_call(
                function["name"], decode_arguments(function["arguments"])
            )
            result = run_tool(self._world, name, arguments)
            if find_unsettled(self._world):
                self.end = "undecided"
                break
            self._messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call.get("id", ""),
                    "name": function["name"],
                    "content": result,
                }
            )
        self._counts["calls"] += len(calls)
        if not calls and not self.end:
            self._counts["unended"] += was_cut
            self._let_user_answer(reply.message.get("content") or "")
        if not self.end and self._counts["turns"] >= max_turns:
            self.end = "too many turns"

    def _contains_call(self, message: Message) -> bool:
        """Return whether a message contains a call or the beginning of a call."""
        if message.get("tool_calls"):
            return True
        return parse_reply(message.get("content") or "", self._tools).is_call

    def _let_user_answer(self, answer: str) -> None:
        """Let the simulated user reply to an answer, or end the episode."""
        if parse_reply(answer, self._tools).is_call:
            self.end = "unread call"
            return
        reply = user_reply(self._world, answer)
        if reply is not None:
            self._messages.append({"role": "user", "content": reply})
        elif find_unsettled(self._world):
            self.end = "undecided"
        else:
            self.end = "answered" if answer.strip() else "silent"

    def finish(self) -> Episode:
        """Return the finished episode, with the outcome that its world reports."""
        outcome = task_outcome(self._world)
        # An episode without a last answer is not done, whatever the world knows.
        unsettled = outcome.unsettled if self.end in ("answered", "silent", "undecided") else None
        return Episode(
            task_key=str(self.task.row.get("task_key", self.task.number)),
            seed=self.task.row.get("seed"),
            trial=self.task.trial,
            done=outcome.reward >= 1 and self.end == "answered" and not outcome.said_wrong,
            reward=outcome.reward,
            must_act=outcome.must_act,
            kind=outcome.kind,
            wrong_changes=outcome.wrong_changes,
            complaint=self._refused or outcome.complaint or outcome.said_wrong or "",
            acted_early=outcome.acted_early,
            said_wrong=outcome.said_wrong,
            end="undecided" if unsettled else self.end or "answered",
            turns=self._counts["turns"],
            calls=self._counts["calls"],
            prompt_tokens=self._counts["prompt_tokens"],
            tokens=self._counts["tokens"],
            unended=self._counts["unended"],
            variant=self.task.variant,
            change=self._shown.change,
            unused_calls=self._counts["unused_calls"],
            messages=self._messages,
            tools=self._tools,
            confidence=self._confidence,
            unsettled=unsettled,
            sources=list(outcome.sources),
        )


def opening_messages(messages: Sequence[Message], role: Literal["system", "user"]) -> list[Message]:
    """Return the system messages at the start of a conversation, or its first user message."""
    if role == "user":
        return [message for message in messages if message["role"] == "user"][:1]
    opening = []
    for message in messages:
        if message["role"] != "system":
            break
        opening.append(message)
    return opening
