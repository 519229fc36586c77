"""Distillation: a teacher's evaluation runs that passed, as a student's training data."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from agent_pipeline.compat.examples import (
    Intake,
    counted,
    session_of_chat,
    value_of,
    why_filtered,
    without_system,
    words_only,
)
from agent_pipeline.datasets.splits import TaskSplit, add_splits
from agent_pipeline.errors import DataError
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.session import Session, hash_json
from agent_pipeline.sessions.tables import to_table

if TYPE_CHECKING:
    from datasets import Dataset

_MODEL = ("model", "model_id")

DISTILLATION = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("teacher", pa.string()),
        pa.field("student", pa.string()),
        pa.field("messages", pa.json_(), nullable=False),
        pa.field("tools", pa.json_(), nullable=False),
    ]
)


def eval_results_to_sft_dataset(
    results: object,
    *,
    filter_passed: bool = True,
    filter_fn: Callable[[object], bool] | None = None,
    include_system: bool = True,
    include_tool_calls: bool = True,
    teacher: str | None = None,
    student: str | None = None,
    redaction: RedactionOptions | None = None,
    counts: Counter[str] | None = None,
    split: TaskSplit | None = None,
) -> "Dataset":
    """A Hugging Face `Dataset` of the schema `DISTILLATION`, in the order of the results, redacted.

    `results.results` (or the list itself) each have `passed` and `history`, as attributes or keys.
    `filter_passed` keeps those that passed; one that nobody judged did not. `filter_fn` is a
    predicate on a result. Without `include_tool_calls` only the words are left. The teacher is the
    model that the result, or the results, name, else `teacher`, which may be `None`. With `split`
    (the student's ledger: `ledger.read_ledger`) a row also has the `split` that its `task_key` is
    on there, so that no task that tests the student teaches it.

    `counts` gets `results` = `rows` + the reasons (`not_passed`, `passed_unknown`, `filtered`,
    `filter_raised: <what>`, `infrastructure_error`, `broken:<kind>`, `no_assistant_message`).

    Raises:
        DataError: no row is left; says why, or `results` has none.
        RedactionError: private data cannot be looked for.
    """
    from datasets import Dataset

    counts = Counter() if counts is None else counts
    intake = Intake(redaction)
    runs = results if isinstance(results, list | tuple) else value_of(results, "results")
    if not isinstance(runs, Iterable) or isinstance(runs, str | bytes | Mapping):
        raise DataError(
            f"Evaluation results of type {type(results).__name__} hold no list results: give the "
            f"runs of an evaluation."
        )
    rows = []
    for run in runs:
        counts["results"] += 1
        if reason := _why_passed_over(run, filter_passed) or why_filtered(run, filter_fn):
            counts[reason] += 1
            continue
        example = intake.take(
            _session(
                run,
                include_system,
                include_tool_calls,
                _text(run, *_MODEL) or _text(results, *_MODEL) or teacher,
            )
        )
        if isinstance(example, str):
            counts[example] += 1
            continue
        counts["rows"] += 1
        session = example.session
        tools = session.tools if include_tool_calls else []
        rows.append(
            example.lineage
            | {
                "teacher": session.model_id,
                "student": student,
                "messages": example.messages,
                "tools": tools,
            }
        )
    if not rows:
        reasons = counted(counts) or "there are no results"
        raise DataError(
            f"No evaluation result can be trained on ({reasons}): run the evaluation on tasks that "
            f"the teacher passes."
        )
    if split is None:
        return Dataset(to_table(rows, DISTILLATION))
    return Dataset(
        to_table(
            add_splits(rows, split),
            DISTILLATION.append(pa.field("split", pa.string(), nullable=False)),
        )
    )


def _why_passed_over(run: object, filter_passed: bool) -> str | None:
    passed = value_of(run, "passed")
    if not filter_passed or passed is True:
        return None
    return "passed_unknown" if passed is None else "not_passed"


def _session(
    run: object, include_system: bool, include_tool_calls: bool, teacher: str | None
) -> Session:
    """A run as a session, before any repair."""
    history = value_of(run, "history")
    chat = read_chat(history)
    if not include_tool_calls:
        chat.messages = words_only(chat.messages)
    if not include_system:
        chat.messages = without_system(chat.messages)
    return session_of_chat(
        chat,
        value_of(run, "tools"),
        "omniagents_eval",
        session_id=_text(run, "session_id", "id") or f"result:{hash_json(repr(history))[:16]}",
        project="evaluation",
        agent=teacher or "teacher",
        task_id=_text(run, "task_id", "prompt_id", "case_id"),
        model_id=teacher,
        error=_text(run, "error"),
    )


def _text(record: object, *names: str) -> str | None:
    value = value_of(record, *names)
    return None if value is None else str(value)
