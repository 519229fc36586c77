"""The capabilities of a model, measured on the turns of recorded conversations.

The model gets all messages before a turn of the agent, and its reply is compared with the turn. All
scores are from 0 to 1:

| capability | score |
|---|---|
| `tool_use` | share of the turns with calls in which all calls are right: name and arguments |
| `planning` | progress rate: share of a conversation's steps before the first wrong step |
| `reasoning` | share of coherent steps: see below |
| `instruction_following` | share of the instructions that replies follow |

- `planning` is the progress rate of AgentBoard (Ma et al. 2024). If there is a world, the model
  plays the tasks of the conversations instead, and the score is the share of tasks done.
- `reasoning`: a call counts if a call was due, its values occur earlier (or in the recorded call),
  and it repeats no call. An answer counts by the words that it shares with the recorded answer (F1;
  Rajpurkar et al. 2016), and not at all if it states a number or an id that occurs nowhere earlier.
- `instruction_following` is the measure of IFEval (Zhou et al. 2023). The `instructions` of a
  sample are measures of `judging`. Without instructions, a reply must call or answer as the agent
  did, fit the schemas, and refuse nothing.

Scores of whole models for the decision belong to `evaluation`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from agent_pipeline.compat.examples import resolve_measure
from agent_pipeline.compat.models import load_answerer
from agent_pipeline.compat.sage.capability_report import CapabilityReport, CapabilityScore, mean
from agent_pipeline.compat.sage.coherence import compute_f1, find_fault
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.episodes import EpisodeReply, Player, play
from agent_pipeline.evaluation.players import message_of, model_player
from agent_pipeline.evaluation.samples import TurnSample, expected_calls, turn_samples
from agent_pipeline.evaluation.worlds import load_world
from agent_pipeline.judging import EvaluationContext
from agent_pipeline.models.families import parse_reply
from agent_pipeline.progress import Progress, silent
from agent_pipeline.reports.episode_report import measure_player
from agent_pipeline.sessions.session import Message, Tool, hash_json

DEFAULT_INSTRUCTIONS = ("arguments_match_schema", "no_refusal")

Model = Callable[[list[Message], list[Tool]], "str | Message"]
"""A function that takes messages and tools and returns a reply: a text, or a message with calls."""


class SampleRow(DatasetRow, total=False):
    """A sample as a dataset row, together with its instructions."""

    instructions: Sequence[object] | None


@dataclass(frozen=True)
class _AnsweredTurn:
    """A turn of a conversation, and the model's reply at this turn."""

    sample: TurnSample
    reply: str


@dataclass(frozen=True)
class _Measurement:
    """The values whose mean is a score, and the score's details."""

    values: Sequence[float]
    details: Mapping[str, object]


@dataclass(frozen=True)
class _TestedModel:
    """A model under test, which can answer turns and play tasks.

    Attributes:
        reply: Returns the reply at each turn; None if the turn does not fit.
        player: Plays episodes.
    """

    reply: Callable[[Sequence[TurnSample]], Sequence[str | None]]
    player: Player


@dataclass
class AgentCapabilityEvaluator:
    """An evaluator that measures the capabilities of a model.

    Attributes:
        max_samples: The largest number of turns per capability, spread over the tasks; 0 for all.
        max_new_tokens: The longest reply, in tokens.
        max_length: The longest prompt, in tokens.
        progress: The progress to report to.
        world: The world in which `planning` is played, as `package.module:Class`.
    """

    max_samples: int = 0
    max_new_tokens: int = 96
    max_length: int = 2048
    progress: Progress = silent
    world: str = ""

    def evaluate(
        self, model: object, test_sets: Mapping[str, Sequence[Mapping[str, object]]]
    ) -> CapabilityReport:
        """Measure several capabilities of a model.

        Args:
            model: A function (`Model`), the name or directory of a model, a model of transformers
                in memory, or an `AgentSFTTrainer`.
            test_sets: The samples of each capability, with `messages`, `tools` and maybe
                `instructions`.

        Raises:
            ArgumentError: A capability does not exist, or `model` is not a model.
            DataError: A sample has no messages.
            ModelError: The model cannot be loaded.
        """
        tested_model = self._make_tested_model(model)
        scores = {cap: self._measure(tested_model, cap, data) for cap, data in test_sets.items()}
        return CapabilityReport(scores)

    def evaluate_capability(
        self, model: object, cap: str, data: Sequence[Mapping[str, object]]
    ) -> CapabilityScore:
        """Measure one capability of a model. The errors are those of `evaluate`."""
        return self._measure(self._make_tested_model(model), cap, data)

    def _measure(
        self, model: _TestedModel, cap: str, data: Sequence[Mapping[str, object]]
    ) -> CapabilityScore:
        if cap not in CAPABILITIES:
            raise ArgumentError(
                f"The capability {cap!r} does not exist: choose one of {', '.join(CAPABILITIES)}."
            )
        rows = [_make_row(sample, cap, number) for number, sample in enumerate(data, 1)]
        if cap == "planning" and self.world:
            return self._play(model.player, rows)
        samples, counts = turn_samples(rows, 0 if cap == "planning" else self.max_samples)
        if cap == "tool_use":
            samples = [sample for sample in samples if sample.calls]
        if cap == "planning":
            steps = Counter(sample.row_id for sample in samples)
            samples = [sample for sample in samples if steps[sample.row_id] > 1]
        turns = [
            _AnsweredTurn(sample, reply)
            for sample, reply in zip(samples, model.reply(samples), strict=True)
            if reply is not None
        ]
        if cap == "instruction_following":
            instructions = {row["row_id"]: row["instructions"] for row in rows}
            measurement = _measure_instructions(turns, instructions)
        else:
            measurement = MEASUREMENTS[cap](turns)
        details = {
            **measurement.details,
            "conversations": len(rows),
            **counts,
            "too_long": len(samples) - len(turns),
        }
        return CapabilityScore(cap, mean(measurement.values), len(measurement.values), details)

    def _play(self, player: Player, rows: Sequence[SampleRow]) -> CapabilityScore:
        """Play each task once, and return the share of tasks done."""
        tasks = list({row["task_key"]: row for row in rows}.values())
        episodes = play(load_world(self.world), tasks, player, progress=self.progress)
        share_done = mean([episode.done for episode in episodes])
        figures = msgspec.to_builtins(measure_player(episodes))
        return CapabilityScore(
            "planning", share_done, len(episodes), {"of": "tasks played", **figures}
        )

    def _make_tested_model(self, model: object) -> _TestedModel:
        answerer = load_answerer(model, self.max_length, self.progress)
        if answerer is not None:
            player = model_player(
                answerer.model, answerer.renderer, self.max_new_tokens, self.max_length
            )
            return _TestedModel(lambda samples: answerer.on(samples, self.max_new_tokens), player)
        if not callable(model):
            raise ArgumentError(
                f"The model has the type {type(model).__name__}: give a model of transformers, "
                "its name, a trainer, or a function."
            )
        return _TestedModel(
            lambda samples: [
                _write_reply(model(sample.prompt, sample.tools)) for sample in samples
            ],
            lambda conversations: [
                EpisodeReply(
                    message_of(
                        _write_reply(model(conversation.messages, conversation.tools)),
                        conversation.tools,
                    )
                )
                for conversation in conversations
            ],
        )


def _measure_tool_use(turns: Sequence[_AnsweredTurn]) -> _Measurement:
    scores = [score(turn.sample, turn.reply) for turn in turns]
    details = {
        "of": "turns with calls",
        "called": mean([answer.called for answer in scores]),
        "tool_name": mean([bool(answer.tool_name) for answer in scores]),
        "arguments": mean([bool(answer.arguments) for answer in scores]),
        "invalid_calls": sum(answer.invalid_call for answer in scores),
    }
    return _Measurement([bool(answer.exact) for answer in scores], details)


def _measure_planning(turns: Sequence[_AnsweredTurn]) -> _Measurement:
    right_steps: dict[str, list[bool]] = defaultdict(list)
    for turn in turns:
        answer = score(turn.sample, turn.reply)
        is_right = bool(answer.tool_name) if turn.sample.calls else not answer.called
        right_steps[turn.sample.row_id].append(is_right)
    progress = [
        (steps.index(False) if False in steps else len(steps)) / len(steps)
        for steps in right_steps.values()
    ]
    all_steps = [step for steps in right_steps.values() for step in steps]
    details = {
        "of": "conversations of several steps",
        "complete": mean([rate == 1 for rate in progress]),
        "next_step": mean(all_steps),
        "steps": len(all_steps),
    }
    return _Measurement(progress, details)


def _measure_reasoning(turns: Sequence[_AnsweredTurn]) -> _Measurement:
    step_scores: dict[str, list[float]] = defaultdict(list)
    faults: Counter[str] = Counter()
    for turn in turns:
        sample = turn.sample
        parsed = parse_reply(turn.reply, sample.tools)
        fault = find_fault(sample, parsed)
        if fault is not None:
            faults[fault] += 1
        if fault is not None or bool(sample.calls) != parsed.is_call:
            step_score = 0.0
        elif sample.calls:
            step_score = 1.0
        else:
            step_score = compute_f1(turn.reply, sample.text)
        step_scores[sample.row_id].append(step_score)
    coherence = [sum(steps) / len(steps) for steps in step_scores.values()]
    details = {
        "of": "chains",
        "steps": sum(len(steps) for steps in step_scores.values()),
        "faults": dict(sorted(faults.items())),
    }
    return _Measurement(coherence, details)


def _measure_instructions(
    turns: Sequence[_AnsweredTurn], instructions: Mapping[str, Sequence[object] | None]
) -> _Measurement:
    """Measure how many of the instructions the replies follow.

    Args:
        turns: The turns.
        instructions: The instructions of each row by its id; None for the default instructions.
    """
    followed: list[bool] = []
    complete_turns: list[bool] = []
    missed: Counter[str] = Counter()
    for turn in turns:
        outcomes = _check_instructions(turn, instructions[turn.sample.row_id])
        if outcomes:
            followed += outcomes.values()
            complete_turns.append(all(outcomes.values()))
        missed.update(name for name, passed in outcomes.items() if not passed)
    details = {
        "of": "instructions",
        "all_of_a_turn": mean(complete_turns),
        "turns": len(complete_turns),
        "missed": dict(sorted(missed.items())),
    }
    return _Measurement(followed, details)


MEASUREMENTS: dict[str, Callable[[Sequence[_AnsweredTurn]], _Measurement]] = {
    "tool_use": _measure_tool_use,
    "planning": _measure_planning,
    "reasoning": _measure_reasoning,
}
CAPABILITIES = (*MEASUREMENTS, "instruction_following")


def _check_instructions(
    turn: _AnsweredTurn, instructions: Sequence[object] | None
) -> dict[str, bool]:
    """Return, for each instruction that applies to a reply, whether the reply follows it."""
    sample = turn.sample
    outcomes: dict[str, bool] = {}
    if not instructions:
        is_call = parse_reply(turn.reply, sample.tools).is_call
        outcomes["call_or_answer"] = bool(sample.calls) == is_call
    messages = [message for message in sample.prompt[-1:] if message["role"] == "user"]
    messages.append(message_of(turn.reply, sample.tools))
    context = EvaluationContext(messages, sample.tools)
    for instruction in instructions or DEFAULT_INSTRUCTIONS:
        measure = resolve_measure(instruction)
        passed = measure.take(context).passed
        if passed is not None:
            outcomes[measure.name] = passed
    return outcomes


def _write_reply(reply: object) -> str:
    """Convert the reply of a function into text that `parse_reply` can read."""
    if isinstance(reply, str):
        return reply
    if not isinstance(reply, Mapping):
        raise ArgumentError(
            f"The model returned a value of type {type(reply).__name__}: return a text or an "
            "assistant message."
        )
    parts = [reply.get("content") or ""]
    for call in expected_calls(cast(Message, dict(reply))):
        written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>{written}</tool_call>")
    return "\n".join(parts).strip()


def _make_row(sample: Mapping[str, object], cap: str, number: int) -> SampleRow:
    messages = sample.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DataError(
            f"Sample {number} of {cap} has no messages: give each sample as a conversation with "
            f"its tools."
        )
    row_id = str(sample.get("row_id") or f"{cap}-{number}")
    requests = [message.get("content") for message in messages if message.get("role") == "user"]
    request = requests[0] if requests else row_id
    return {
        "row_id": row_id,
        "session_id": str(sample.get("session_id") or row_id),
        "task_key": str(sample.get("task_key") or f"text:{hash_json(request)[:16]}"),
        "split": "test",
        "messages": messages,
        "tools": cast("list[Tool]", sample.get("tools") or []),
        "instructions": cast("Sequence[object] | None", sample.get("instructions")),
    }
