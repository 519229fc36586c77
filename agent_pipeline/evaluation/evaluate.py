"""Evaluation of an adapter against its base model.

Both models answer the same held-out turns. The weights are loaded once, and PEFT switches the
adapter off for the base model, so that nothing else differs. Both models get the training template:
the base model is prompted in the form that the adapter was trained on. The form of the report is
defined in `evaluation_report`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import msgspec
import numpy as np

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.scoring import average_losses, combine_losses
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.evaluation.answer_scoring import AnswerScore, score
from agent_pipeline.evaluation.base_measurements import (
    BaseStore,
    MemoryStore,
    fingerprint_of_base,
)
from agent_pipeline.evaluation.call_probability import auc
from agent_pipeline.evaluation.evaluation_report import EvaluationReport, Example, ModelFigures
from agent_pipeline.evaluation.intervals import ReportedDifference, jackknife, report_difference
from agent_pipeline.evaluation.model_comparison import (
    compare_answers,
    measure_answers,
    measure_by_tool,
)
from agent_pipeline.evaluation.paired import paired
from agent_pipeline.evaluation.samples import as_text, turn_samples
from agent_pipeline.evaluation.stored_entries import RowLossEntry, SampleEntry, ScoredAnswer
from agent_pipeline.evaluation.turns import ForwardPass, Question, TurnAnswer, TurnAnswerer
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.progress import Progress, silent
from agent_pipeline.tokenization.encoding import EncodedRow, encode_row, split_into_trained_rows

SAMPLES, ROW_LOSSES = "samples.json", "row_losses.json"
"""Names of the files of an evaluation: both models' answers at each turn, and both models' losses
on each row.
"""
MODELS = ("base", "adapter")
EXAMPLES_PER_KIND = 2
PROMPT_TAIL_CHARACTERS = 300


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation of an adapter and its base model.

    Attributes:
        report: The figures.
        samples: One entry per answered turn, for the file `SAMPLES`.
        row_losses: One entry per row, for the file `ROW_LOSSES`.
    """

    report: EvaluationReport
    samples: list[SampleEntry]
    row_losses: list[RowLossEntry]


@dataclass(frozen=True)
class FigureOfBoth:
    """The values of one figure for the base model and the adapter.

    Attributes:
        base: The base model's value; `None` if it cannot be measured.
        adapter: The adapter's value.
        difference: The difference adapter − base.
    """

    base: float | None
    adapter: float | None
    difference: ReportedDifference | None


@dataclass(frozen=True)
class _ModelAnswer:
    """A model's answer at one held-out turn.

    Attributes:
        answer: The text, and how it ended.
        score: The score of the answer.
        call_probability: P(call) at the turn; `None` if it cannot be measured.
    """

    answer: TurnAnswer
    score: AnswerScore
    call_probability: float | None


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation. The options apply to both models.

    Attributes:
        max_samples: The maximum number of turns to answer; 0 means that no turn is answered.
        max_new_tokens: The maximum number of tokens in an answer.
        seed: The seed of the choice of turns.
        split: The split of the rows. Rows of other splits are ignored.
        max_length: The maximum number of tokens in a prompt.
    """

    max_samples: int = 60
    max_new_tokens: int = 96
    seed: int = 0
    split: str = "test"
    max_length: int = 2048


def evaluate(
    rows: list[DatasetRow],
    base: BaseModel,
    adapter_dir: Path,
    options: EvaluationOptions,
    progress: Progress = silent,
    base_store: BaseStore | None = None,
) -> EvaluationResult:
    """Evaluate the adapter and the base model on the rows of a split.

    Loss, P(call) and `verified_calls` are measured on all turns, with one forward pass per model.
    At most `options.max_samples` turns are answered.

    Args:
        rows: The rows.
        base: The base model.
        adapter_dir: The folder of the adapter.
        options: The options.
        progress: A callback that reports progress.
        base_store: A store of the base model's passes. If several adapters are evaluated on the
            same turns with the same store, the base model runs only once.

    Raises:
        DataError: There is no held-out turn.
        ModelError: A model cannot be loaded, or its loss is not finite.
    """
    split, max_length = options.split, options.max_length
    heldout = [row for row in rows if row["split"] == split]
    all_samples, counts = turn_samples(heldout, 0, split, options.seed)
    if not all_samples:
        task_count = len({row["task_key"] for row in rows})
        raise DataError(
            f"There are no held-out turns to evaluate on, because none of the {task_count} tasks "
            f"is in the split {split}: collect at least {max(10, 2 * task_count)} tasks, or give "
            f"{split} a larger share."
        )
    answerer = TurnAnswerer.of(base, adapter_dir, max_length, progress)
    prepared = [answerer.question(sample, options.max_new_tokens) for sample in all_samples]
    questions = [question for question in prepared if question is not None]
    if not questions:
        raise DataError(
            f"None of {len(all_samples)} held-out turns fits into {max_length} tokens: raise "
            "`max_length`."
        )
    heldout = split_into_trained_rows(answerer.renderer, heldout)
    fitting_rows: list[DatasetRow] = []
    encoded_rows: list[EncodedRow] = []
    for row in heldout:
        encoded = encode_row(answerer.renderer, row, max_length)
        if encoded is not None:
            fitting_rows.append(row)
            encoded_rows.append(encoded)
    answered = _choose_questions(questions, heldout, options)
    base_store = base_store or MemoryStore()
    passes = _run_passes(base, answerer, encoded_rows, questions, answered, base_store)

    samples = [questions[index].sample for index in answered]
    tasks = [sample.task_key for sample in samples]
    scores = {
        model: [
            score(sample, answer.text, answer.cut)
            for sample, answer in zip(samples, passes[model].replies, strict=True)
        ]
        for model in MODELS
    }
    entries = []
    for position, index in enumerate(answered):
        answers = {
            model: _ModelAnswer(
                passes[model].replies[position],
                scores[model][position],
                passes[model].call_probabilities[index],
            )
            for model in MODELS
        }
        entries.append(_make_entry(questions[index], answers))
    decision_auc = _measure_decisions(questions, passes)
    verified_calls = _measure_verified_calls(questions, passes)
    report = EvaluationReport(
        device=answerer.device,
        n=len(samples),
        n_calls=sum(bool(sample.calls) for sample in samples),
        tasks=len(set(tasks)),
        counts={
            **counts,
            "left_out": len(questions) - len(answered),
            "samples": len(answered),
            "dropped": len(all_samples) - len(questions),
            "rows_dropped": len(heldout) - len(fitting_rows),
        },
        base=_measure_model(
            passes["base"], tasks, scores["base"], decision_auc.base, verified_calls.base
        ),
        adapter=_measure_model(
            passes["adapter"],
            tasks,
            scores["adapter"],
            decision_auc.adapter,
            verified_calls.adapter,
        ),
        differences={
            "heldout_loss": _compare_losses([row["task_key"] for row in fitting_rows], passes),
            "decision_auc": decision_auc.difference,
            "verified_calls": verified_calls.difference,
            **compare_answers(tasks, scores["base"], scores["adapter"]),
        },
        by_tool=measure_by_tool(
            [sample.calls[0].name if sample.calls else None for sample in samples],
            tasks,
            scores["base"],
            scores["adapter"],
        ),
        examples=_choose_examples(entries),
    )
    return EvaluationResult(report, entries, _list_row_losses(fitting_rows, passes))


def _choose_questions(
    questions: Sequence[Question],
    rows: list[DatasetRow],
    options: EvaluationOptions,
) -> list[int]:
    """Return the positions of the questions that the models are asked.

    Args:
        questions: The questions.
        rows: The held-out rows.
        options: The number of turns, and the seed of their choice.
    """
    if not options.max_samples:
        return []
    samples, _ = turn_samples(rows, options.max_samples, options.split, options.seed)
    chosen = {sample.key for sample in samples}
    return [index for index, question in enumerate(questions) if question.sample.key in chosen]


def _run_passes(
    base: BaseModel,
    answerer: TurnAnswerer,
    rows: Sequence[EncodedRow],
    questions: Sequence[Question],
    answered: Sequence[int],
    base_store: BaseStore,
) -> dict[str, ForwardPass]:
    """Run one forward pass of each model, and return the results.

    The base model's pass is reused if it is in `base_store`.

    Args:
        base: The base model.
        answerer: The loaded model.
        rows: The held-out rows as tokens.
        questions: All questions.
        answered: The positions of the questions that are answered.
        base_store: The store of the base model's passes.
    """

    def run_base() -> ForwardPass:
        with answerer.model.disable_adapter():
            return answerer.forward(rows, questions, answered)

    encoded = [row.encoded for row in rows]
    jinja = answerer.renderer.template.jinja
    fingerprint = fingerprint_of_base(base, jinja, encoded, questions, answered)
    base_pass = base_store.measure(fingerprint, ForwardPass, run_base)
    return {"base": base_pass, "adapter": answerer.forward(rows, questions, answered)}


def _measure_model(
    forward_pass: ForwardPass,
    tasks: Sequence[str],
    scores: Sequence[AnswerScore],
    decision_auc: float | None,
    verified_calls: float | None,
) -> ModelFigures:
    """Compute the evaluation figures of a model.

    Args:
        forward_pass: The model's forward pass.
        tasks: The task of each answered turn.
        scores: The scores of the answers.
        decision_auc: The area under the ROC curve of P(call).
        verified_calls: The share of calls that the model writes exactly as recorded.
    """
    answers = measure_answers(tasks, scores)
    # Text after a complete call is not read, so the call counts as right. But a server would
    # continue to generate.
    unended_calls = sum(
        answer.unended and score.whole_call
        for answer, score in zip(forward_pass.replies, scores, strict=True)
    )
    return ModelFigures(
        heldout_loss=average_losses(forward_pass.losses),
        decision_auc=decision_auc,
        verified_calls=verified_calls,
        verified=sum(answer.verified for answer in forward_pass.replies),
        unended_calls=unended_calls,
        **msgspec.structs.asdict(answers),
    )


def _measure_decisions(
    questions: Sequence[Question], passes: Mapping[str, ForwardPass]
) -> FigureOfBoth:
    """Return the AUC of P(call) over all turns at which both models have a P(call)."""
    known = [
        index
        for index in range(len(questions))
        if all(passes[model].call_probabilities[index] is not None for model in MODELS)
    ]
    expects_call = np.array([bool(questions[index].sample.calls) for index in known], dtype=bool)
    base, adapter = (
        np.array([passes[model].call_probabilities[index] for index in known], dtype=float)
        for model in MODELS
    )
    if expects_call.all() or not expects_call.any():
        return FigureOfBoth(None, None, None)
    difference = jackknife(
        [questions[index].sample.task_key for index in known],
        lambda kept: auc(adapter[kept], expects_call[kept]) - auc(base[kept], expects_call[kept]),
        bounds=(-1.0, 1.0),
    )
    return FigureOfBoth(
        auc(base, expects_call),
        auc(adapter, expects_call),
        report_difference(difference, of_shares=False),
    )


def _measure_verified_calls(
    questions: Sequence[Question], passes: Mapping[str, ForwardPass]
) -> FigureOfBoth:
    """Return the share of turns with a call at which greedy decoding writes the call exactly as
    recorded.
    """
    calls = [index for index, question in enumerate(questions) if question.sample.calls]
    base, adapter = ([float(passes[model].verified[index]) for index in calls] for model in MODELS)
    tasks = [questions[index].sample.task_key for index in calls]
    difference = paired(tasks, adapter, base, shares=True)
    return FigureOfBoth(
        sum(base) / len(base) if base else None,
        sum(adapter) / len(adapter) if adapter else None,
        report_difference(difference),
    )


def _list_row_losses(
    rows: Sequence[DatasetRow], passes: Mapping[str, ForwardPass]
) -> list[RowLossEntry]:
    """Return both models' losses on each held-out row.

    If the turns of a row were encoded as separate rows, the row's loss combines all its turns.
    """
    positions_by_row: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        positions_by_row.setdefault(row["row_id"], []).append(position)
    entries: list[RowLossEntry] = []
    for row_id, positions in positions_by_row.items():
        losses = {
            model: combine_losses([passes[model].losses[position] for position in positions])
            for model in MODELS
        }
        entries.append(
            {
                "row_id": row_id,
                # The id is needed to find the losses of a session that must be forgotten.
                "session_id": rows[positions[0]]["session_id"],
                "task_key": rows[positions[0]]["task_key"],
                "tokens": losses["base"].trained_tokens,
                "base": losses["base"].loss,
                "adapter": losses["adapter"].loss,
            }
        )
    return entries


def _compare_losses(
    tasks: Sequence[str], passes: Mapping[str, ForwardPass]
) -> ReportedDifference | None:
    """Return the difference between the two models' losses on the held-out rows.

    Args:
        tasks: The task of each row.
        passes: The passes by model.

    Raises:
        ModelError: A loss is not finite.
    """
    judged = [
        position for position, row in enumerate(passes["base"].losses) if row.loss is not None
    ]
    losses = {
        model: [passes[model].losses[position].loss or 0.0 for position in judged]
        for model in MODELS
    }
    for model, name in (("base", "base model"), ("adapter", "adapter")):
        broken = sum(not isfinite(loss) for loss in losses[model])
        if broken:
            raise ModelError(
                f"The loss of the {name} is infinite or not a number on {broken} of {len(judged)} "
                "held-out rows, so its weights are broken: train the model again."
            )
    difference = paired(
        [tasks[position] for position in judged],
        losses["adapter"],
        losses["base"],
        weights=[passes["base"].losses[position].trained_tokens for position in judged],
    )
    return report_difference(difference, of_shares=False)


def _make_entry(question: Question, answers: Mapping[str, _ModelAnswer]) -> SampleEntry:
    """Return the entry of a turn for the file `SAMPLES`, which contains both models' answers."""
    sample = question.sample
    last = sample.prompt[-1] if sample.prompt else {"role": "", "content": ""}
    tail = (last.get("content") or "")[-PROMPT_TAIL_CHARACTERS:]
    return {
        "row_id": sample.row_id,
        "session_id": sample.session_id,
        "task_key": sample.task_key,
        "turn_index": sample.turn_index,
        "prompt_tail": f"{last['role']}: {tail}",
        "expected": as_text(sample),
        "expected_class": sample.turn_class,
        "expected_tool": sample.calls[0].name if sample.calls else None,
        "base_answer": answers["base"].answer.text,
        "adapter_answer": answers["adapter"].answer.text,
        "base": _make_scored_answer(answers["base"]),
        "adapter": _make_scored_answer(answers["adapter"]),
    }


def _make_scored_answer(answer: _ModelAnswer) -> ScoredAnswer:
    answer_score = answer.score
    return {
        "expected": answer_score.expected,
        "actual": answer_score.actual,
        "called": answer_score.called,
        "right_class": answer_score.right_class,
        "tool_name": answer_score.tool_name,
        "arguments": answer_score.arguments,
        "exact": answer_score.exact,
        "lenient": answer_score.lenient,
        "answer": answer_score.answer,
        "invalid_call": answer_score.invalid_call,
        "truncated": answer_score.truncated,
        "right": answer_score.right,
        "call_probability": answer.call_probability,
    }


def _choose_examples(entries: Sequence[SampleEntry]) -> list[Example]:
    """Return a few example turns of each kind.

    The kinds are turns that the adapter gained, turns that it lost, turns that both models get
    wrong, and turns that both models get right.
    """
    kinds = {
        (False, True): "gained",
        (True, False): "lost",
        (False, False): "both wrong",
        (True, True): "both right",
    }
    examples = []
    for outcome, kind in kinds.items():
        of_kind = [
            entry
            for entry in entries
            if (bool(entry["base"]["right"]), bool(entry["adapter"]["right"])) == outcome
        ]
        for entry in of_kind[:EXAMPLES_PER_KIND]:
            examples.append(
                Example(
                    kind=kind,
                    session_id=entry["session_id"],
                    prompt_tail=entry["prompt_tail"],
                    expected=entry["expected"],
                    base_answer=entry["base_answer"],
                    adapter_answer=entry["adapter_answer"],
                )
            )
    return examples
