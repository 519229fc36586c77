"""What an agent's model can do, capability by capability.

Each capability is asked turn by turn of recorded conversations: the model is shown all that came
before a turn of the agent's, and what it says is compared with what the agent did. Scores are from
0 to 1.

- `tool_use`: the share of the turns with calls whose calls are right, by name and arguments.
- `planning`: the progress rate (AgentBoard, Ma et al. 2024) over conversations of several steps:
  how far along its steps the right tools, or an answer, came next without a miss. With a `world`,
  the model plays the conversations' tasks in it instead: the share done.
- `reasoning`: the coherence of a chain of steps. A call counts where one was due, its values stand
  before it (or in what the agent called), and it repeats no call. An answer counts by its words in
  common with the agent's (F1; Rajpurkar et al. 2016), and not at all where it states a number or an
  id that nothing before it gives.
- `instruction_following`: the share of the instructions that replies follow (IFEval, Zhou et al.
  2023). A sample's `instructions` are measures (`agent_pipeline.judging`); without any: it calls or
  answers as was due, calls fit their schemas, and nothing is refused.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import msgspec

from agent_pipeline.compat.examples import measure_of
from agent_pipeline.compat.models import answering_of
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline.evaluation.answer_scoring import score, values
from agent_pipeline.evaluation.call_matching import same_call
from agent_pipeline.evaluation.episodes import EpisodeReply as Played
from agent_pipeline.evaluation.episodes import Player, play
from agent_pipeline.evaluation.players import message_of, model_player
from agent_pipeline.evaluation.samples import TurnSample, expected_calls, turn_samples
from agent_pipeline.evaluation.turns import plain
from agent_pipeline.evaluation.worlds import load_world
from agent_pipeline.judging import EvaluationContext
from agent_pipeline.models.families import ParsedReply, parse_reply
from agent_pipeline.models.tool_call_parsers import list_parameter_schemas
from agent_pipeline.progress import Progress, silent
from agent_pipeline.reports.episode_report import measure_player
from agent_pipeline.sessions.session import Message, Tool, hash_json
from agent_pipeline.sessions.transcript import list_texts

USUAL_INSTRUCTIONS = ("arguments_match_schema", "no_refusal")

Model = Callable[[list[Message], list[Tool]], "str | Message"]
"""A model as a function: messages and tools → what it says, a text or an assistant's message (with
`tool_calls`, maybe).
"""


@dataclass(frozen=True)
class CapabilityScore:
    """`score` is `None` where no sample can say; `num_samples` is what it is the mean over
    (`details` says of what, and the parts).
    """

    capability: str
    score: float | None
    num_samples: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CapabilityReport:
    scores: dict[str, CapabilityScore]

    @property
    def overall(self) -> float | None:
        """The mean of the scores that there are."""
        return _mean([score.score for score in self.scores.values() if score.score is not None])

    def get_score(self, cap: str) -> float | None:
        """A capability's score. Raises ArgumentError for one that was not evaluated."""
        if cap not in self.scores:
            raise ArgumentError(
                f"The report has no capability {cap!r}: it has {', '.join(self.scores) or 'none'}."
            )
        return self.scores[cap].score

    def to_dict(self) -> dict[str, object]:
        return {
            "overall": self.overall,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
        }

    def summary(self) -> str:
        """A line a capability, for a person."""
        lines = [
            f"{name:<22} {_shown(score.score)}  ({score.num_samples} "
            f"{score.details.get('of', 'samples')})"
            for name, score in self.scores.items()
        ]
        return "\n".join([*lines, f"{'overall':<22} {_shown(self.overall)}"])


@dataclass
class AgentCapabilityEvaluator:
    """Asks a model what it can do. `max_samples`: turns a capability at most (0: all), spread over
    tasks; `max_new_tokens`: of a reply. `world`, as `package.module:Class`: where `planning` is
    played.
    """

    max_samples: int = 0
    max_new_tokens: int = 96
    max_length: int = 2048
    progress: Progress = silent
    world: str = ""

    def evaluate(
        self, model: object, test_sets: Mapping[str, Sequence[Mapping[str, object]]]
    ) -> CapabilityReport:
        """The capabilities that `test_sets` names, each with its own samples: `{"messages",
        "tools", ["instructions"]}`.

        `model`: a function (`Model`), the name or directory of a model, one of transformers in
        memory, or an `AgentSFTTrainer`. Raises ArgumentError, DataError, ModelError.
        """
        player = self._asked(model)
        return CapabilityReport(
            {cap: self._score(player, cap, data) for cap, data in test_sets.items()}
        )

    def evaluate_capability(
        self, model: object, cap: str, data: Sequence[Mapping[str, object]]
    ) -> CapabilityScore:
        """One capability. Raises as `evaluate`."""
        return self._score(self._asked(model), cap, data)

    def _score(
        self,
        replies_of_model: "tuple[_Replies, Player]",
        cap: str,
        data: Sequence[Mapping[str, object]],
    ) -> CapabilityScore:
        if cap not in CAPABILITIES:
            raise ArgumentError(
                f"There is no capability {cap!r}: choose one of {', '.join(CAPABILITIES)}."
            )
        rows = [_row(sample, cap, number) for number, sample in enumerate(data, 1)]
        replies, player = replies_of_model
        if cap == "planning" and self.world:
            return _played(
                self.world,
                list({row["task_key"]: row for row in rows}.values()),
                player,
                self.progress,
            )
        samples, counts = turn_samples(rows, 0 if cap == "planning" else self.max_samples)
        if cap == "tool_use":
            samples = [sample for sample in samples if sample.calls]
        if cap == "planning":
            steps = Counter(sample.row_id for sample in samples)
            samples = [sample for sample in samples if steps[sample.row_id] > 1]
        answers = [
            (sample, text)
            for sample, text in zip(samples, replies(samples), strict=True)
            if text is not None
        ]
        scores, details = _SCORED[cap](answers, {row["row_id"]: row for row in rows})
        details |= {"conversations": len(rows), **counts, "too_long": len(samples) - len(answers)}
        return CapabilityScore(cap, _mean(scores), len(scores), details)

    def _asked(self, model: object) -> "tuple[_Replies, Player]":
        """The model as one that is asked turns, and as one that plays."""
        if (answering := answering_of(model, self.max_length, self.progress)) is not None:
            player = model_player(
                answering.model, answering.renderer, self.max_new_tokens, self.max_length
            )
            return (lambda samples: answering.on(samples, self.max_new_tokens)), player
        if callable(model):
            return (
                lambda samples: [_text(model(sample.prompt, sample.tools)) for sample in samples],
                lambda waiting: [
                    Played(message_of(_text(model(prompt.messages, prompt.tools)), prompt.tools))
                    for prompt in waiting
                ],
            )
        raise ArgumentError(
            f"A {type(model).__name__} is not a model: give a model of transformers, its name, a "
            f"trainer, or a function."
        )


_Replies = Callable[[Sequence[TurnSample]], Sequence[str | None]]
_Answers = Sequence[tuple[TurnSample, str]]
_Rows = Mapping[str, Mapping[str, Any]]
_Scored = tuple[Sequence[float], dict[str, Any]]
"""The scores that a capability is the mean of, and the details: `of` what they are, and the
parts.
"""


def _tool_use(answers: _Answers, rows: _Rows) -> _Scored:
    scores = [score(sample, text) for sample, text in answers]
    return [bool(score.exact) for score in scores], {
        "of": "turns with calls",
        "called": _mean([score.called for score in scores]),
        "tool_name": _mean([bool(score.tool_name) for score in scores]),
        "arguments": _mean([bool(score.arguments) for score in scores]),
        "invalid_calls": sum(score.invalid_call for score in scores),
    }


def _planning(answers: _Answers, rows: _Rows) -> _Scored:
    plans: dict[str, list[bool]] = defaultdict(list)
    for sample, text in answers:
        turn_score = score(sample, text)
        plans[sample.row_id].append(
            bool(turn_score.tool_name) if sample.calls else not turn_score.called
        )
    progress = [
        (steps.index(False) if False in steps else len(steps)) / len(steps)
        for steps in plans.values()
    ]
    steps = [step for plan in plans.values() for step in plan]
    parts = {
        "complete": _mean([share == 1 for share in progress]),
        "next_step": _mean(steps),
        "steps": len(steps),
    }
    return progress, {"of": "conversations of several steps", **parts}


def _reasoning(answers: _Answers, rows: _Rows) -> _Scored:
    chains: dict[str, list[float]] = defaultdict(list)
    faults: Counter[str] = Counter()
    for sample, text in answers:
        parsed = parse_reply(text, sample.tools)
        if fault := _incoherent(sample, parsed):
            faults[fault] += 1
        due = bool(sample.calls) == parsed.is_call
        chains[sample.row_id].append(
            0.0 if fault or not due else 1.0 if sample.calls else _f1(text, sample.text)
        )
    coherence = [sum(steps) / len(steps) for steps in chains.values()]
    return coherence, {
        "of": "chains",
        "steps": sum(map(len, chains.values())),
        "faults": dict(sorted(faults.items())),
    }


def _instruction_following(answers: _Answers, rows: _Rows) -> _Scored:
    followed: list[bool] = []
    whole_turns: list[bool] = []
    missed: Counter[str] = Counter()
    for sample, text in answers:
        taken = {
            name: passed
            for name, passed in _instructions(sample, text, rows[sample.row_id])
            if passed is not None
        }
        followed += taken.values()
        whole_turns += [all(taken.values())] if taken else []
        missed.update(name for name, passed in taken.items() if not passed)
    parts = {
        "all_of_a_turn": _mean(whole_turns),
        "turns": len(whole_turns),
        "missed": dict(sorted(missed.items())),
    }
    return followed, {"of": "instructions", **parts}


def _played(
    world: str, rows: Sequence[Mapping[str, object]], player: Player, progress: Progress
) -> CapabilityScore:
    """Each task once, to its end; the details are those of `episodes`, done where the model must
    act and must not, and harm among them.
    """
    episodes = play(load_world(world), rows, player, progress=progress)
    return CapabilityScore(
        "planning",
        _mean([episode.done for episode in episodes]),
        len(episodes),
        {"of": "tasks played", **msgspec.to_builtins(measure_player(episodes))},
    )


_SCORED: dict[str, Callable[[_Answers, _Rows], _Scored]] = {
    "tool_use": _tool_use,
    "planning": _planning,
    "reasoning": _reasoning,
    "instruction_following": _instruction_following,
}
CAPABILITIES = tuple(_SCORED)


def _instructions(
    sample: TurnSample, text: str, row: Mapping[str, Any]
) -> list[tuple[str, bool | None]]:
    """Each instruction of a turn, and whether the reply follows it (`None`: it says nothing of this
    reply).
    """
    parsed = parse_reply(text, sample.tools)
    instructions = row.get("instructions")
    measures = [measure_of(instruction) for instruction in instructions or USUAL_INSTRUCTIONS]
    last_request = (
        sample.prompt[-1:] if sample.prompt and sample.prompt[-1]["role"] == "user" else []
    )
    context = EvaluationContext([*last_request, message_of(text, sample.tools)], sample.tools)
    due: list[tuple[str, bool | None]] = (
        [] if instructions else [("call_or_answer", bool(sample.calls) == parsed.is_call)]
    )
    return [*due, *((measure.name, measure.take(context).passed) for measure in measures)]


def _incoherent(sample: TurnSample, parsed: ParsedReply) -> str | None:
    """What breaks the chain at a reply: `invalid_call`, `repeated_call`, `ungrounded_argument`,
    `ungrounded_number`; `None`: nothing.
    """
    before = " ".join(text for message in sample.prompt for text in list_texts(message))
    if parsed.invalid:
        return "invalid_call"
    done = [call for message in sample.prompt for call in expected_calls(message)]
    schemas = list_parameter_schemas(sample.tools)
    new = [
        call
        for call in parsed.calls
        if not any(same_call(call, due, schemas) for due in sample.calls)
    ]
    if any(same_call(call, other, schemas) for call in new for other in done):
        return "repeated_call"
    known = plain(before)
    due_values = {str(value) for call in sample.calls for value in _values(call.arguments)}
    for call in parsed.calls:
        if any(
            value not in due_values and plain(value) not in known
            for value in map(str, _values(call.arguments))
        ):
            return "ungrounded_argument"
    return (
        "ungrounded_number"
        if not parsed.is_call and values([parsed.text]) - values([before, sample.text])
        else None
    )


def _values(arguments: object) -> list[object]:
    """The texts and numbers in a call's arguments."""
    if isinstance(arguments, dict | list):
        return [
            value
            for argument in (arguments.values() if isinstance(arguments, dict) else arguments)
            for value in _values(argument)
        ]
    return (
        [arguments]
        if isinstance(arguments, str | int | float) and not isinstance(arguments, bool)
        else []
    )


def _f1(one: str, other: str) -> float:
    """F1 of the words that two texts have in common; 1 where both have none."""
    left, right = Counter(plain(one).split()), Counter(plain(other).split())
    if not left or not right:
        return float(left == right)
    common = sum((left & right).values())
    return 2 * common / (left.total() + right.total())


def _text(reply: object) -> str:
    """What a function said, as the text that `families.parse_reply` reads."""
    if isinstance(reply, str):
        return reply
    if not isinstance(reply, Mapping):
        raise ArgumentError(
            f"The model gave a {type(reply).__name__}: it must give a text or an assistant's "
            f"message."
        )
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        for call in expected_calls(cast(Message, dict(reply)))
    ]
    return "\n".join(
        [reply.get("content") or "", *(f"<tool_call>{call}</tool_call>" for call in calls)]
    ).strip()


class _SampleRow(DatasetRow, total=False):
    """A sample as a row, with what the agent was told."""

    instructions: object


def _row(sample: Mapping[str, object], cap: str, number: int) -> _SampleRow:
    messages = sample.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DataError(
            f"Sample {number} of {cap} has no messages: give each as a conversation, with its "
            f"tools."
        )
    name = str(sample.get("row_id") or f"{cap}-{number}")
    question = next(
        (message.get("content") for message in messages if message.get("role") == "user"), name
    )
    return {
        "row_id": name,
        "session_id": str(sample.get("session_id") or name),
        "task_key": str(sample.get("task_key") or f"text:{hash_json(question)[:16]}"),
        "split": "test",
        "messages": messages,
        "tools": cast("list[Tool]", sample.get("tools") or []),
        "instructions": sample.get("instructions"),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _shown(value: float | None) -> str:
    return "   –" if value is None else f"{value:.2f}"
