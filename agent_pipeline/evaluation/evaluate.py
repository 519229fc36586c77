"""An adapter against the base model that it was trained from, on the same held-out turns.

The weights are loaded once; PEFT switches the adapter off for the base's turn, so the two differ in nothing else. Both get the
training template: the base is asked in the form that the adapter was trained on.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from agent_pipeline.engine.scoring import average_losses, combine_losses
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.evaluation.answer_scoring import AnswerScore, score
from agent_pipeline.evaluation.call_probability import auc
from agent_pipeline.evaluation.intervals import jackknife, reported
from agent_pipeline.evaluation.model_comparison import accuracies, by_tool, differences
from agent_pipeline.evaluation.paired import paired
from agent_pipeline.evaluation.samples import as_text, turn_samples
from agent_pipeline.evaluation.turns import ForwardPass, Question, TurnAnswer, TurnAnswerer
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.tokenization.encoding import encode_row, split_into_trained_rows
from agent_pipeline.tokenization.loss_masks import Encoded

BasePasses = dict[str, ForwardPass]
SAMPLES, ROW_LOSSES = "samples.json", "row_losses.json"
"""Files of an evaluation: what both models did at each turn, and their loss on each row."""


def evaluate(
    rows: list[dict[str, Any]],
    base: BaseModel,
    adapter_dir: Path,
    max_samples: int = 60,
    max_new_tokens: int = 96,
    seed: int = 0,
    progress: Progress = silent,
    split: str = "test",
    max_length: int = 2048,
    base_passes: BasePasses | None = None,
) -> dict[str, Any]:
    """Both models on the rows of `split`; other rows are not looked at.

    Loss, P(call) and `verified_calls` are of all turns, from one forward pass a model; answers are of at most `max_samples` (0: none).
    `base_passes` holds the base's last pass, and gets this one: adapters that are evaluated on the same turns with one
    such dict ask it once.

    The report: the `device`, `n` and `counts`; for `base` and `adapter` the held-out loss (nats an assistant token), the AUC of their
    decisions, the share of turns with a call that they write as it was recorded, token for token (`verified_calls`), and the means of
    `comparison.METRICS`; their `differences` (adapter − base) with 95 % intervals over tasks;
    `by_tool`; `examples`; `samples`, one entry a turn; `row_losses`, one a row. No times.

    Raises:
        DataError: no held-out turn is left.
        ModelError: a model cannot be loaded, or its loss is not finite.
    """
    heldout = [row for row in rows if row["split"] == split]
    every, counts = turn_samples(heldout, 0, split, seed)
    if not every:
        given = len({row["task_key"] for row in rows})
        raise DataError(
            f"There are no held-out turns to evaluate on: none of {given} task(s) fell to the split {split}; give at least "
            f"{max(10, 2 * given)} tasks, or a larger share for {split}."
        )
    answering = TurnAnswerer.of(base, adapter_dir, max_length, progress)
    renderer = answering.renderer
    questions = [
        question for sample in every if (question := answering.question(sample, max_new_tokens))
    ]
    if not questions:
        raise DataError(
            f"None of {len(every)} held-out turns fits into {max_length} tokens: raise max_length."
        )
    heldout = split_into_trained_rows(renderer, heldout)
    rows_that_fit = [
        (row, fitting) for row in heldout if (fitting := encode_row(renderer, row, max_length))
    ]
    chosen = (
        {sample.key for sample in turn_samples(heldout, max_samples, split, seed)[0]}
        if max_samples
        else set()
    )
    asked = [index for index, question in enumerate(questions) if question.sample.key in chosen]
    samples = [questions[index].sample for index in asked]

    passes: dict[str, ForwardPass] = {}
    base_passes = {} if base_passes is None else base_passes
    same = _fingerprint(
        base,
        renderer.template.jinja,
        [fitting.encoded for _, fitting in rows_that_fit],
        questions,
        asked,
    )
    for name in ("base", "adapter"):
        if name == "base" and same in base_passes:
            passes[name] = base_passes[same]
            continue
        with answering.model.disable_adapter() if name == "base" else nullcontext():
            passes[name] = answering.forward(
                [fitting for _, fitting in rows_that_fit], questions, asked
            )

    base_passes.clear()
    base_passes[same] = passes["base"]
    replies = {name: each.replies for name, each in passes.items()}
    scores = {
        name: [
            score(sample, reply.text, reply.cut)
            for sample, reply in zip(samples, replies[name], strict=True)
        ]
        for name in replies
    }
    tasks = [sample.task_key for sample in samples]
    decisions, verified = _decisions(questions, passes), _verified_calls(questions, passes)
    entries = [
        _entry(
            questions[index],
            {
                name: (replies[name][at], scores[name][at], passes[name].call_probabilities[index])
                for name in replies
            },
        )
        for at, index in enumerate(asked)
    ]
    return {
        "device": answering.device,
        "n": len(samples),
        "n_calls": sum(bool(sample.calls) for sample in samples),
        "tasks": len(set(tasks)),
        "counts": {
            **counts,
            "left_out": len(questions) - len(asked),
            "samples": len(asked),
            "dropped": len(every) - len(questions),
            "rows_dropped": len(heldout) - len(rows_that_fit),
        },
        **{
            name: {
                "heldout_loss": average_losses(passes[name].losses),
                "decision_auc": decisions[name],
                "verified_calls": verified[name],
                **accuracies(tasks, scores[name]),
                "verified": sum(reply.verified for reply in replies[name]),
                # What stands behind a whole call is not read, so such a call is right; its server goes on to write.
                "unended_calls": sum(
                    reply.unended and each.whole_call
                    for reply, each in zip(replies[name], scores[name], strict=True)
                ),
            }
            for name in replies
        },
        "differences": {
            "heldout_loss": _loss_difference([row["task_key"] for row, _ in rows_that_fit], passes),
            "decision_auc": decisions["difference"],
            "verified_calls": verified["difference"],
            **differences(tasks, scores["base"], scores["adapter"]),
        },
        "by_tool": by_tool(
            [sample.calls[0].name if sample.calls else None for sample in samples],
            tasks,
            scores["base"],
            scores["adapter"],
        ),
        "examples": _examples(entries),
        "samples": entries,
        "row_losses": _row_losses([row for row, _ in rows_that_fit], passes),
    }


def _fingerprint(
    base: BaseModel, jinja: str, rows: list[Encoded], questions: list[Question], asked: list[int]
) -> str:
    """Everything that decides what a base model says: its weights, the template that ends its turns, and the tokens that it is shown."""
    of_turns = [
        [
            each.row.input_ids,
            each.limit,
            each.too_tight,
            [branch.input_ids for branch in each.branches],
        ]
        for each in questions
    ]
    return hash_json(
        [
            base.name,
            base.revision,
            jinja,
            [[each.input_ids, each.trained] for each in rows],
            of_turns,
            asked,
        ]
    )


def _decisions(questions: list[Question], passes: dict[str, ForwardPass]) -> dict[str, Any]:
    """The AUC of P(call) over all turns that have one, for `base` and `adapter`, and their `difference`."""
    known = [
        index
        for index in range(len(questions))
        if all(passes[name].call_probabilities[index] is not None for name in ("base", "adapter"))
    ]
    called = np.array([bool(questions[index].sample.calls) for index in known], dtype=bool)
    base, adapter = (
        np.array([passes[name].call_probabilities[index] for index in known], dtype=float)
        for name in ("base", "adapter")
    )
    if called.all() or not called.any():
        return {"base": None, "adapter": None, "difference": None}
    difference = jackknife(
        [questions[index].sample.task_key for index in known],
        lambda left: auc(adapter[left], called[left]) - auc(base[left], called[left]),
        bounds=(-1.0, 1.0),
    )
    return {
        "base": auc(base, called),
        "adapter": auc(adapter, called),
        "difference": reported(difference, of_shares=False),
    }


def _verified_calls(questions: list[Question], passes: dict[str, ForwardPass]) -> dict[str, Any]:
    """The share of turns with a call that greedy decoding writes as they were recorded, for `base` and `adapter`, and the `difference`."""
    calls = [index for index, question in enumerate(questions) if question.sample.calls]
    base, adapter = (
        [float(passes[name].verified[index]) for index in calls] for name in ("base", "adapter")
    )
    difference = paired(
        [questions[index].sample.task_key for index in calls], adapter, base, shares=True
    )
    shares = {
        name: sum(of) / len(of) if of else None
        for name, of in (("base", base), ("adapter", adapter))
    }
    return shares | {"difference": reported(difference)}


def _row_losses(
    rows: Sequence[Mapping[str, Any]], passes: Mapping[str, ForwardPass]
) -> list[dict[str, Any]]:
    """The losses of each row: of all its turns, where each of them was a row of its own."""
    parts: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        parts.setdefault(row["row_id"], []).append(index)
    losses = {
        name: [combine_losses([read.losses[index] for index in of]) for of in parts.values()]
        for name, read in passes.items()
    }
    return [
        {
            "row_id": row_id,
            "session_id": rows[of[0]]["session_id"],  # what is forgotten is found by it
            "task_key": rows[of[0]]["task_key"],
            "tokens": losses["base"][number].trained_tokens,
            **{name: each[number].loss for name, each in losses.items()},
        }
        for number, (row_id, of) in enumerate(parts.items())
    ]


def _loss_difference(tasks: list[str], passes: dict[str, ForwardPass]) -> dict[str, Any] | None:
    judged = [i for i, row in enumerate(passes["base"].losses) if row.loss is not None]
    base, adapter = (
        [passes[name].losses[i].loss or 0.0 for i in judged] for name in ("base", "adapter")
    )
    weights = [passes["base"].losses[i].trained_tokens for i in judged]
    for name, losses in (("base model", base), ("adapter", adapter)):
        if broken := sum(not isfinite(loss) for loss in losses):
            raise ModelError(
                f"The {name} has no finite loss on {broken} of {len(losses)} held-out rows: its weights are broken, train again."
            )
    return reported(
        paired([tasks[i] for i in judged], adapter, base, weights=weights), of_shares=False
    )


def _entry(
    question: Question, models: dict[str, tuple[TurnAnswer, AnswerScore, float | None]]
) -> dict[str, Any]:
    sample = question.sample
    last = sample.prompt[-1] if sample.prompt else {"role": "", "content": ""}
    return {
        "row_id": sample.row_id,
        "session_id": sample.session_id,
        "task_key": sample.task_key,
        "turn_index": sample.turn_index,
        "prompt_tail": f"{last['role']}: {(last.get('content') or '')[-300:]}",
        "expected": as_text(sample),
        "expected_class": sample.turn_class,
        "expected_tool": sample.calls[0].name if sample.calls else None,
        **{f"{name}_answer": reply.text for name, (reply, _, _) in models.items()},
        **{
            name: {**asdict(scored), "right": scored.right, "call_probability": chance}
            for name, (_, scored, chance) in models.items()
        },
    }


def _examples(entries: list[dict[str, Any]], each: int = 2) -> list[dict[str, Any]]:
    """A few turns worth reading: what the adapter gained, lost, still gets wrong, and answers; up to `each` of a kind."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "gained": [],
        "lost": [],
        "both wrong": [],
        "both right": [],
    }
    for entry in entries:
        outcome = {
            (False, True): "gained",
            (True, False): "lost",
            (False, False): "both wrong",
            (True, True): "both right",
        }
        kinds[outcome[bool(entry["base"]["right"]), bool(entry["adapter"]["right"])]].append(entry)
    fields = ("session_id", "prompt_tail", "expected", "base_answer", "adapter_answer")
    return [
        {"kind": kind, **{field: entry[field] for field in fields}}
        for kind, group in kinds.items()
        for entry in group[:each]
    ]
