"""Rollouts for reinforcement learning: the model plays episodes in a world, or answers single
logged turns, and earns a reward.

Rollouts are kept as tokens. The model's tokens stay exactly as it wrote them: the words of tools
and users are appended, and nothing is tokenized twice.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.episodes import Conversation, Episode, EpisodeReply, play
from agent_pipeline.evaluation.players import message_of
from agent_pipeline.evaluation.samples import TurnSample, turn_samples
from agent_pipeline.evaluation.worlds import World, hash_world_source, load_world
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.families import FAMILIES
from agent_pipeline.sessions.session import Message, Tool, ToolCall
from agent_pipeline.training.config import GrpoTraining, OnPolicyTraining
from agent_pipeline.training.trainers.on_policy import Play, Rollout, Row, Sampler

if TYPE_CHECKING:
    pass

LENIENT, NAMED, RIGHT_CLASS = 0.8, 0.2, 0.2
"""Rewards of turns that are not fully right: a call that a reader would regard as the same (0.8),
the right tools with other arguments (0.2), and an answer of the right class with wrong values
(0.2). An exact call or a right answer earns 1.
"""


def turn_reward(sample: TurnSample, text: str, cut: bool, harm_penalty: float) -> float:
    """Return the reward of a generated turn, which `answer_scoring` compares with the logged turn.

    A call at a turn where no call was due costs `harm_penalty`.

    Args:
        sample: The logged turn.
        text: The generated turn.
        cut: Whether the token limit ended the text.
        harm_penalty: The cost of a call at a turn where no call was due.
    """
    answer_score = score(sample, text, cut)
    if not sample.calls:
        return (
            -harm_penalty
            if answer_score.called
            else 1.0
            if answer_score.answer
            else RIGHT_CLASS
            if answer_score.right_class
            else 0.0
        )
    return (
        1.0
        if answer_score.exact
        else LENIENT
        if answer_score.lenient
        else NAMED
        if answer_score.tool_name
        else 0.0
    )


def turn_rollouts(samples: Sequence[TurnSample], harm_penalty: float) -> tuple[list[Row], Play]:
    """Return the samples as training rows, and the function that lets the model answer them and
    rewards the answers.
    """
    by_id = {f"{sample.row_id}:{sample.turn_index}": sample for sample in samples}
    rows: list[Row] = [
        {
            "row_id": row_id,
            "session_id": sample.session_id,
            "split": "train",
            "prompt": sample.prompt,
            "completion": [sample.expected],
            "tools": sample.tools,
        }
        for row_id, sample in by_id.items()
    ]

    def rollouts(renderer: ChatRenderer, rows: Sequence[Row], sample: Sampler) -> list[Rollout]:
        prompts = [renderer.prompt_ids(row["prompt"], row["tools"]) for row in rows]
        played = []
        for row, prompt, written in zip(rows, prompts, sample(prompts), strict=True):
            text, ended = _text(renderer, written, row["tools"])
            reward = turn_reward(by_id[row["row_id"]], text, not ended, harm_penalty)
            played.append(
                Rollout(
                    prompt,
                    written,
                    [True] * len(written),
                    reward,
                    {"done": float(reward >= 1), "harm": float(reward < 0)},
                )
            )
        return played

    return rows, rollouts


def world_rollouts(
    world: Callable[[], World],
    max_turns: int,
    max_new_tokens: int,
    max_length: int,
    harm_penalty: float,
) -> Play:
    """Return the function that lets a model play tasks in a world and rewards the episodes.

    An episode earns the world's reward if it ends with an answer that the world does not call
    wrong. `harm_penalty` is subtracted if the episode changed the world wrongly.

    Args:
        world: The world's class.
        max_turns: The number of assistant messages after which an episode is stopped.
        max_new_tokens: The maximum number of tokens in a reply.
        max_length: The maximum number of tokens in an episode.
        harm_penalty: The cost of an episode that changes the world wrongly.
    """

    def rollouts(renderer: ChatRenderer, rows: Sequence[Row], sample: Sampler) -> list[Rollout]:
        writer = _Writer(renderer, sample, max_length - max_new_tokens)
        episodes = play(world, rows, writer.reply, max_turns, at_once=len(rows))
        return [
            writer.rollout(number, episode, harm_penalty) for number, episode in enumerate(episodes)
        ]

    return rollouts


@dataclass(frozen=True)
class Practice:
    """The tasks or turns on which `train_on_policy` trains, and how they are rewarded.

    Attributes:
        rows: The tasks to play, or the turns to answer.
        play: The function that plays and rewards the rows; None if a teacher corrects the model
            instead.
        details: Entries for the identity of the training run, in addition to the rows.
    """

    rows: list[Row]
    play: Play | None = None
    details: dict[str, Any] = field(default_factory=dict)


def practice(rows: Sequence[Row], config: OnPolicyTraining, world: str = "") -> Practice:
    """Return the tasks or the turns on which `train_on_policy` trains a model.

    Args:
        rows: SFT rows of the split `train`.
        config: The options of the training step.
        world: The agent's world, `package.module:Class`. If it is set, GRPO plays the first row of
            each task in it.

    Raises:
        SettingsError: The world cannot be imported.
    """
    if isinstance(config, GrpoTraining) and config.use_world and world:
        tasks = list({row["task_key"]: row for row in reversed(rows)}.values())[::-1]
        play = world_rollouts(
            load_world(world),
            config.max_turns,
            config.max_completion_length,
            config.max_length,
            config.harm_penalty,
        )
        details = {"reward": world, "world_sha256": hash_world_source(world)}
        return Practice(tasks, play, details)
    samples = turn_samples(rows, split="train")[0]
    if isinstance(config, GrpoTraining):
        turns, play = turn_rollouts(samples, config.harm_penalty)
        return Practice(turns, play, {"reward": "logged turns"})
    return Practice(turn_rollouts(samples, 0.0)[0])


class _Writer:
    """A player that records the tokens of each episode and marks the tokens that the model wrote.

    The tokens of an episode are the prompt, and everything that was written or heard after it.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        sample: Sampler,
        longest_prompt: int,
    ) -> None:
        self._renderer, self._sample, self._longest = renderer, sample, longest_prompt
        # Some templates (gpt-oss) end a past turn with another token than a turn that is being
        # written.
        ends = {
            *renderer.template.stops,
            *(stop for family in FAMILIES for stop in family.stops),
        }
        self._stop = re.compile("|".join(map(re.escape, sorted(ends))))
        self._prompts: dict[int, list[int]] = {}
        self._after: dict[int, list[tuple[int, bool]]] = {}

    def reply(self, conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        for conversation in conversations:
            if conversation.number in self._prompts:
                self._after[conversation.number] += [
                    (token, False) for token in self._tokens_heard(conversation)
                ]
            else:
                self._prompts[conversation.number] = self._renderer.prompt_ids(
                    conversation.messages, conversation.tools
                )
                self._after[conversation.number] = []
        contexts = [
            self._prompts[conversation.number]
            + [token for token, _ in self._after[conversation.number]]
            for conversation in conversations
        ]
        fitting = [context for context in contexts if len(context) <= self._longest]
        answers = iter(self._sample(fitting) if fitting else [])
        return [
            self._reply(conversation, context, next(answers))
            if len(context) <= self._longest
            else EpisodeReply(None)
            for conversation, context in zip(conversations, contexts, strict=True)
        ]

    def _tokens_heard(self, conversation: Conversation) -> list[int]:
        """Return the tokens in the conversation after the model's last stop token.

        These tokens are the results of tools or the user's words, with the template's markers
        around them and the opening of the model's next turn.

        The rendered conversation does not always contain the turn as the model wrote it, because
        some templates are not prefix-preserving (Qwen 3 drops thoughts from past turns). So the end
        of the turn cannot be found by its text. It is found by a comparison instead: the
        conversation is rendered with two versions of the turn that differ only in their last
        character. All text after the last difference of the two renderings follows the turn. It
        begins with the characters that close the turn, such as a quote, a bracket and the stop
        token. The words that the model heard begin after the first stop token.
        """
        messages = conversation.messages
        last_turn = max(
            index for index, message in enumerate(messages) if message["role"] == "assistant"
        )

        def render_with(turn: Message) -> str:
            return self._renderer.render(
                [*messages[:last_turn], turn, *messages[last_turn + 1 :]],
                conversation.tools,
                add_generation_prompt=True,
            )

        text = render_with(messages[last_turn])
        after_turn = _common_ending(
            render_with(_with_ending(messages[last_turn], "1")),
            render_with(_with_ending(messages[last_turn], "2")),
        )
        heard = self._stop.split(after_turn, maxsplit=1)[-1]
        heard_start = len(text) - len(heard)
        tokens = self._renderer.tokenize(text)
        return [
            token
            for token, (start, _) in zip(tokens.ids, tokens.offsets, strict=True)
            if start >= heard_start
        ]

    def _reply(
        self, conversation: Conversation, context: list[int], written: list[int]
    ) -> EpisodeReply:
        self._after[conversation.number] += [(token, True) for token in written]
        text, ended = _text(self._renderer, written, conversation.tools)
        if not ended:
            return EpisodeReply(None, len(context), len(written), "length")
        message = message_of(text, conversation.tools)
        for number, call in enumerate(message.get("tool_calls") or ()):
            call["id"] = (
                f"call{number:05d}"  # some templates write the id, so it must not be random
            )
        return EpisodeReply(message, len(context), len(written))

    def rollout(self, number: int, episode: Episode, harm_penalty: float) -> Rollout:
        # If the beginning of an episode is too long, the model wrote no token. TRL needs one token,
        # so a token without loss is used.
        after = self._after[number] or [(min(self._renderer.stop_ids), False)]
        harm = bool(episode.wrong_changes)
        is_answered = episode.end == "answered" and not episode.said_wrong
        reward = (episode.reward if is_answered else 0.0) - harm_penalty * harm
        written, own_words = map(list, zip(*after, strict=True))
        return Rollout(
            self._prompts[number],
            written,
            own_words,
            reward,
            {"done": float(episode.done), "harm": float(harm)},
        )


def _common_ending(first: str, second: str) -> str:
    """Return the longest common suffix of two texts."""
    length = 0
    for left, right in zip(reversed(first), reversed(second), strict=False):
        if left != right:
            break
        length += 1
    return first[len(first) - length :]


def _with_ending(turn: Message, end: str) -> Message:
    """Return an assistant turn with another ending.

    This is the end of its last call, or of its words if it has no call.
    """
    calls = turn.get("tool_calls")
    if not calls:
        return {**turn, "content": end}
    last: ToolCall = {
        **calls[-1],
        "function": {**calls[-1]["function"], "arguments": json.dumps({"end": end})},
    }
    return {**turn, "tool_calls": [*calls[:-1], last]}


def _text(
    renderer: ChatRenderer, written: list[int], tools: Sequence[Tool] | None
) -> tuple[str, bool]:
    """Return the generated text without its stop token, and whether it had a stop token."""
    ended = bool(written) and written[-1] in renderer.stop_ids
    text = renderer.decode_reply(written[:-1] if ended else written, tools)
    return text, ended
