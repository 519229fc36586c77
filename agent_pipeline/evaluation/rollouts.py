"""What a model earns while it is trained: episodes in a world, or single turns beside the logged ones. Tokens in, tokens out.

What the model wrote stays as it wrote it: what tools and users say is put after its tokens, and nothing is tokenised twice.
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
from agent_pipeline.sessions.session import Message, ToolCall
from agent_pipeline.training.config import GrpoTraining, OnPolicyTraining
from agent_pipeline.training.trainers.on_policy import Play, Rollout, Row, Sampler

if TYPE_CHECKING:
    pass

LENIENT, NAMED, RIGHT_CLASS = 0.8, 0.2, 0.2
"""What a turn earns that is not right as a whole: the same call to a reader; the right tools with other arguments; an answer of the right
class with wrong values. The exact call, or the right answer, earns 1."""


def turn_reward(sample: TurnSample, text: str, cut: bool, harm_penalty: float) -> float:
    """What a written turn earns beside the logged one, by the matcher of `scoring`; a call where none was due costs `harm_penalty`."""
    of = score(sample, text, cut)
    if not sample.calls:
        return (
            -harm_penalty
            if of.called
            else 1.0
            if of.answer
            else RIGHT_CLASS
            if of.right_class
            else 0.0
        )
    return 1.0 if of.exact else LENIENT if of.lenient else NAMED if of.tool_name else 0.0


def turn_rollouts(samples: Sequence[TurnSample], harm_penalty: float) -> tuple[list[Row], Play]:
    """The samples as rows of turns, and the play that rewards what a model writes in their place."""
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

    def rollouts(renderer: ChatRenderer, asked: Sequence[Row], sample: Sampler) -> list[Rollout]:
        prompts = [renderer.prompt_ids(row["prompt"], row["tools"]) for row in asked]
        played = []
        for row, prompt, written in zip(asked, prompts, sample(prompts), strict=True):
            text, ended = _text(renderer, written)
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
    """The play of tasks in a world. An episode earns its world's reward where it came to an answer, less `harm_penalty` where it changed
    the world wrongly."""

    def rollouts(renderer: ChatRenderer, asked: Sequence[Row], sample: Sampler) -> list[Rollout]:
        writer = _Writer(renderer, sample, max_length - max_new_tokens)
        episodes = play(world, asked, writer.reply, max_turns, at_once=len(asked))
        return [
            writer.rollout(number, episode, harm_penalty) for number, episode in enumerate(episodes)
        ]

    return rollouts


@dataclass(frozen=True)
class Practice:
    """What `train_on_policy` practises on.

    Attributes:
        rows: The tasks to play, or the turns to answer.
        play: The play that rewards them; None if a teacher corrects them.
        details: What the identity of the training names beside the rows.
    """

    rows: list[Row]
    play: Play | None = None
    details: dict[str, Any] = field(default_factory=dict)


def practice(rows: Sequence[Row], config: OnPolicyTraining, world: str = "") -> Practice:
    """Return what `train_on_policy` practises on.

    Args:
        rows: SFT rows of the split `train`.
        config: The options of the step.
        world: The agent's world, `package.module:Class`. With a world, GRPO plays the first row of
            each task.

    Raises:
        SettingsError: the world cannot be imported.
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
    """A player that keeps each episode's tokens: the prompt, and after it all that was written and heard, with whose it is."""

    def __init__(
        self,
        renderer: ChatRenderer,
        sample: Sampler,
        longest_prompt: int,
    ) -> None:
        self._renderer, self._sample, self._longest = renderer, sample, longest_prompt
        # In some templates a turn of the past ends with another token than one that is written (gpt-oss).
        ends = {
            *renderer.template.stops,
            *(stop for family in FAMILIES for stop in family.stops),
        }
        self._stop = re.compile("|".join(map(re.escape, sorted(ends))))
        self._prompts: dict[int, list[int]] = {}
        self._after: dict[int, list[tuple[int, bool]]] = {}

    def reply(self, conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        for each in conversations:
            if each.number in self._prompts:
                self._after[each.number] += [(token, False) for token in self._tokens_heard(each)]
            else:
                self._prompts[each.number] = self._renderer.prompt_ids(each.messages, each.tools)
                self._after[each.number] = []
        contexts = [
            self._prompts[each.number] + [token for token, _ in self._after[each.number]]
            for each in conversations
        ]
        fitting = [context for context in contexts if len(context) <= self._longest]
        answers = iter(self._sample(fitting) if fitting else [])
        return [
            self._reply(each, context, next(answers))
            if len(context) <= self._longest
            else EpisodeReply(None)
            for each, context in zip(conversations, contexts, strict=True)
        ]

    def _tokens_heard(self, conversation: Conversation) -> list[int]:
        """Return the tokens that follow the model's last stop token.

        These are the results of tools or the user's words, with the template's frame around them
        and the opening of the model's next turn.

        The rendered conversation does not always contain the turn as the model wrote it, because
        some templates are not prefix-preserving (Qwen 3 drops thoughts from past turns). So the end
        of the turn cannot be found by its text. It is found by a comparison instead: the
        conversation is rendered with two versions of the turn that differ only in their last
        character. Everything after the last difference of the two texts follows the turn. It begins
        with what closes the turn, such as a quote, a bracket and the stop token. What was heard
        begins after the first stop token.
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
        text, ended = _text(self._renderer, written)
        if not ended:
            return EpisodeReply(None, len(context), len(written), "length")
        message = message_of(text, conversation.tools)
        for number, call in enumerate(message.get("tool_calls") or ()):
            call["id"] = (
                f"call{number:05d}"  # some templates write it, and the same training must give the same bytes
            )
        return EpisodeReply(message, len(context), len(written))

    def rollout(self, number: int, episode: Episode, harm_penalty: float) -> Rollout:
        # An episode whose beginning is too long has no token of the model's; TRL wants one, which carries no loss.
        after = self._after[number] or [(min(self._renderer.stop_ids), False)]
        harm = bool(episode.wrong_changes)
        reward = (episode.reward if episode.end == "answered" else 0.0) - harm_penalty * harm
        written, own = map(list, zip(*after, strict=True))
        return Rollout(
            self._prompts[number],
            written,
            own,
            reward,
            {"done": float(episode.done), "harm": float(harm)},
        )


def _common_ending(first: str, second: str) -> str:
    """Return the longest text with which both texts end."""
    length = 0
    for left, right in zip(reversed(first), reversed(second), strict=False):
        if left != right:
            break
        length += 1
    return first[len(first) - length :]


def _with_ending(turn: Message, end: str) -> Message:
    """Return the assistant's turn with another end: of its last call if it calls, else of its words."""
    calls = turn.get("tool_calls")
    if not calls:
        return {**turn, "content": end}
    last: ToolCall = {
        **calls[-1],
        "function": {**calls[-1]["function"], "arguments": json.dumps({"end": end})},
    }
    return {**turn, "tool_calls": [*calls[:-1], last]}


def _text(renderer: ChatRenderer, written: list[int]) -> tuple[str, bool]:
    """What was written, without its stop token, and whether it had one."""
    ended = bool(written) and written[-1] in renderer.stop_ids
    text = renderer.decode(written[:-1] if ended else written)
    return text, ended
