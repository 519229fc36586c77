"""An adapter against the base model that it was trained from, on the same held-out turns.

The weights are loaded once; PEFT switches the adapter off for the base's turn, so the two differ in nothing else. Both get the
training template: the base is asked in the form that the adapter was trained on.
"""

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.bootstrap import paired_bootstrap
from agent_pipeline.evaluation.comparison import accuracies, by_tool, differences
from agent_pipeline.evaluation.samples import as_text, turn_samples
from agent_pipeline.evaluation.scoring import score
from agent_pipeline.evaluation.turns import Answering, Question
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import probe_device
from agent_pipeline.training.encoding import encode_row
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.losses import RowLoss, mean_loss
from agent_pipeline.training.templates import load_tokenizer


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
) -> dict[str, Any]:
    """Both models on the rows of `split`; other rows are not looked at.

    The report: `n` and `counts`; for `base` and `adapter` the held-out loss (nats an assistant token) and accuracies; their
    `differences` (adapter − base) with 95 % intervals over tasks; `by_tool`; `examples`; `samples`, one entry a turn. No
    times. Raises DataError where no held-out turn is left, ModelError where a model cannot be loaded.
    """
    heldout = [row for row in rows if row["split"] == split]
    samples, counts = turn_samples(heldout, max_samples, split, seed)
    if not samples:
        given = len({row["task_key"] for row in rows})
        raise DataError(
            f"There are no held-out turns to evaluate on: none of {given} task(s) fell to the split {split}; give at least "
            f"{max(10, 2 * given)} tasks, or a larger share for {split}."
        )
    tokenizer, template = load_tokenizer(adapter_dir, base.trust_remote_code)
    answering = Answering(load_model(base, probe_device(), adapter_dir), tokenizer, template, max_length, progress)
    questions = [question for sample in samples if (question := answering.question(sample, max_new_tokens))]
    if not questions:
        raise DataError(f"None of {len(samples)} held-out turns fits into {max_length} tokens: raise max_length.")
    rows_that_fit = [(row, fitting) for row in heldout if (fitting := encode_row(tokenizer, row, max_length))]

    said: dict[str, list[str]] = {}
    losses: dict[str, list[RowLoss]] = {}
    for name in ("base", "adapter"):
        with answering.model.disable_adapter() if name == "base" else nullcontext():
            losses[name] = answering.losses([fitting for _, fitting in rows_that_fit])
            said[name] = answering.answers(questions, f"turns answered by the {name}")

    scores = {name: [asdict(score(q.sample, text)) for q, text in zip(questions, said[name], strict=True)] for name in said}
    tasks = [question.sample.task_key for question in questions]
    calls = [question.sample.calls for question in questions]
    entries = [_entry(q, said["base"][i], said["adapter"][i], scores["base"][i], scores["adapter"][i]) for i, q in enumerate(questions)]
    return {
        "n": len(questions),
        "n_calls": sum(map(bool, calls)),
        "tasks": len(set(tasks)),
        "counts": {**counts, "dropped": len(samples) - len(questions), "rows_dropped": len(heldout) - len(rows_that_fit)},
        **{name: {"heldout_loss": mean_loss(losses[name]), **accuracies(scores[name])} for name in said},
        "differences": {
            "heldout_loss": _loss_difference([row["task_key"] for row, _ in rows_that_fit], losses, seed),
            **differences(tasks, scores["base"], scores["adapter"], seed),
        },
        "by_tool": by_tool([c[0].name if c else None for c in calls], scores["base"], scores["adapter"]),
        "examples": _examples(entries),
        "samples": entries,
    }


def _loss_difference(tasks: list[str], losses: dict[str, list[RowLoss]], seed: int) -> dict[str, Any] | None:
    judged = [i for i, row in enumerate(losses["base"]) if row.loss is not None]
    base, adapter = ([losses[name][i].loss or 0.0 for i in judged] for name in ("base", "adapter"))
    weights = [losses["base"][i].trained_tokens for i in judged]
    interval = paired_bootstrap([tasks[i] for i in judged], base, adapter, weights, seed=seed)
    return asdict(interval) if interval else None


def _entry(question: Question, base: str, adapter: str, base_score: dict, adapter_score: dict) -> dict[str, Any]:
    sample = question.sample
    last = sample.prompt[-1] if sample.prompt else {"role": "", "content": ""}
    return {
        "row_id": sample.row_id,
        "session_id": sample.session_id,
        "task_key": sample.task_key,
        "turn_index": sample.turn_index,
        "prompt_tail": f"{last['role']}: {(last.get('content') or '')[-300:]}",
        "expected": as_text(sample),
        "expects_call": bool(sample.calls),
        "base_said": base,
        "adapter_said": adapter,
        "base": base_score,
        "adapter": adapter_score,
    }


def _examples(entries: list[dict[str, Any]], each: int = 2) -> list[dict[str, Any]]:
    """A few turns worth reading: what the adapter gained, lost, still gets wrong, and answers; up to `each` of a kind."""

    def right(entry: dict[str, Any], model: str) -> bool:
        return entry[model]["exact"] if entry["expects_call"] else entry[model]["call_or_answer"]

    kinds: dict[str, list[dict[str, Any]]] = {"gained": [], "lost": [], "both wrong": [], "both right": []}
    for entry in entries:
        outcome = {(False, True): "gained", (True, False): "lost", (False, False): "both wrong", (True, True): "both right"}
        kinds[outcome[bool(right(entry, "base")), bool(right(entry, "adapter"))]].append(entry)
    fields = ("session_id", "prompt_tail", "expected", "base_said", "adapter_said")
    return [{"kind": kind, **{field: entry[field] for field in fields}} for kind, group in kinds.items() for entry in group[:each]]
