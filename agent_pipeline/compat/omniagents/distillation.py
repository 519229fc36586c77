"""Distillation: evaluation runs that a teacher model passed become training data for a student."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from agent_pipeline.compat.examples import (
    ExampleMaker,
    drop_system_messages,
    find_filter_reason,
    format_counts,
    get_text,
    get_value,
    keep_texts,
    make_session,
)
from agent_pipeline.datasets.splits import TaskSplit, add_splits
from agent_pipeline.errors import DataError
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.session import Session, hash_json
from agent_pipeline.sessions.tables import to_table

if TYPE_CHECKING:
    from datasets import Dataset

MODEL_NAMES = ("model", "model_id")

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
    """Convert evaluation runs into a Hugging Face dataset with the columns of `DISTILLATION`.

    The runs are redacted, and stay in their order.

    Args:
        results: The runs, or an object with the attribute or key `results`. Each run has `passed`
            and `history`, as attributes or keys.
        filter_passed: Whether only runs that passed are kept. A run without a verdict did not pass.
        filter_fn: Keep the runs for which this function returns True.
        include_system: Whether system messages are kept.
        include_tool_calls: Whether tool calls and results are kept.
        teacher: The name of the teacher, if neither a run nor the results name their model.
        student: The name of the student.
        redaction: What is redacted; by default what the lake redacts.
        counts: Receives `results`, which is `rows` + the reasons why runs were left out:
            `not_passed`, `passed_unknown`, `filtered`, `filter_raised: <error>`,
            `infrastructure_error`, `broken:<kind>` and `no_assistant_message`.
        split: The student's ledger (`datasets.ledger.read_ledger`). Each row then has the split of
            its task, so that no held-out task of the student is trained on.

    Raises:
        DataError: No row is left, or `results` holds no runs. The message has the counts.
        RedactionError: The search for private data is not possible.
    """
    from datasets import Dataset

    counts = Counter() if counts is None else counts
    runs = results if isinstance(results, list | tuple) else get_value(results, "results")
    if not isinstance(runs, Iterable) or isinstance(runs, str | bytes | Mapping):
        raise DataError(
            f"The evaluation results have the type {type(results).__name__} and contain no list "
            "`results`: give the runs of an evaluation."
        )
    example_maker = ExampleMaker(redaction)
    rows: list[dict[str, object]] = []
    for run in runs:
        counts["results"] += 1
        reason = _check_passed(run) if filter_passed else None
        reason = reason or find_filter_reason(run, filter_fn)
        if reason is not None:
            counts[reason] += 1
            continue
        run_teacher = get_text(run, *MODEL_NAMES) or get_text(results, *MODEL_NAMES) or teacher
        session = _make_run_session(run, run_teacher)
        if not include_tool_calls:
            session.messages = keep_texts(session.messages)
        if not include_system:
            session.messages = drop_system_messages(session.messages)
        example = example_maker.make(session)
        if isinstance(example, str):
            counts[example] += 1
            continue
        counts["rows"] += 1
        rows.append(
            example.lineage
            | {
                "teacher": session.model_id,
                "student": student,
                "messages": example.messages,
                "tools": session.tools if include_tool_calls else [],
            }
        )
    if not rows:
        raise DataError(
            "No evaluation result can be used for training "
            f"({format_counts(counts) or 'there are no results'}): evaluate the teacher on tasks "
            "that it can pass."
        )
    if split is None:
        return Dataset(to_table(rows, DISTILLATION))
    with_split = DISTILLATION.append(pa.field("split", pa.string(), nullable=False))
    return Dataset(to_table(add_splits(rows, split), with_split))


def _check_passed(run: object) -> str | None:
    """Return the reason why an evaluation run did not pass, or None if it passed."""
    passed = get_value(run, "passed")
    if passed is True:
        return None
    return "passed_unknown" if passed is None else "not_passed"


def _make_run_session(run: object, teacher: str | None) -> Session:
    """Convert an evaluation run into a session that is not repaired yet."""
    history = get_value(run, "history")
    return make_session(
        read_chat(history),
        get_value(run, "tools"),
        "omniagents_eval",
        session_id=get_text(run, "session_id", "id") or f"result:{hash_json(repr(history))[:16]}",
        project="evaluation",
        agent=teacher or "teacher",
        task_id=get_text(run, "task_id", "prompt_id", "case_id"),
        model_id=teacher,
        error=get_text(run, "error"),
    )
