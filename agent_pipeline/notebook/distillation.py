"""Distillation: a teacher's evaluation runs that passed, as a student's training data."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from agent_pipeline.datasets.sft import to_last_assistant
from agent_pipeline.datasets.splits import TaskSplit, with_splits
from agent_pipeline.errors import DataError
from agent_pipeline.notebook.intake import Intake
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.chat import to_messages
from agent_pipeline.sessions.session import Message, Session, canonical_json, sha256_of
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.sources.formats.fields import elements, function_tools

if TYPE_CHECKING:
    from datasets import Dataset

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

_IDS = ("session_id", "id")
_TASKS = ("task_id", "prompt_id", "case_id")
_MODELS = ("model", "model_id")


def eval_results_to_sft_dataset(
    results: Any,
    *,
    filter_passed: bool = True,
    filter_fn: Callable[[Any], bool] | None = None,
    include_system: bool = True,
    include_tool_calls: bool = True,
    teacher: str | None = None,
    student: str | None = None,
    redaction: RedactionOptions | None = None,
    counts: Counter[str] | None = None,
    split: TaskSplit | None = None,
) -> "Dataset":
    """A Hugging Face `Dataset` of the schema `DISTILLATION`, in the order of the results, redacted.

    `results.results` (or the list itself) each have `passed` and `history`, as attributes or keys. `filter_passed` keeps those that passed;
    one that nobody judged did not. `filter_fn` is a predicate on a result. Without `include_tool_calls` only the words are left. The
    teacher is the model that the result, or the results, name, else `teacher`, which may be `None`. With `split` (the student's ledger:
    `ledger.read_ledger`) a row also has the `split` that its `task_key` is on there, so that no task that tests the student teaches it.

    `counts` gets `results` = `rows` + the reasons (`not_passed`, `passed_unknown`, `filtered`, `filter_raised: <what>`,
    `infrastructure_error`, `broken:<kind>`, `no_assistant_message`).

    Raises:
        DataError: no row is left; says why, or `results` has none.
        RedactionError: private data cannot be looked for.
    """
    from datasets import Dataset

    counts = Counter() if counts is None else counts
    intake = Intake(redaction or RedactionOptions())
    found = results if isinstance(results, list | tuple) else _get(results, "results")
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise DataError(f"Evaluation results of type {type(results).__name__} hold no list results: give the runs of an evaluation.")
    rows = []
    for result in found:
        counts["results"] += 1
        if reason := _passed_over(result, filter_passed, filter_fn):
            counts[reason] += 1
            continue
        session = _session(result, include_system, include_tool_calls, _named(result, _MODELS) or _named(results, _MODELS) or teacher)
        reason = intake.take(session)
        messages = to_last_assistant(session.messages)
        if reason or not messages:
            counts[reason or "no_assistant_message"] += 1
            continue
        counts["rows"] += 1
        rows.append(
            {
                "session_id": session.session_id,
                "content_sha256": session.content_sha256(),
                "task_key": session.task_key,
                "teacher": session.model_id,
                "student": student,
                "messages": messages,
                "tools": session.tools if include_tool_calls else [],
            }
        )
    if not rows:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count) or "there are no results"
        raise DataError(f"No evaluation result can be trained on ({reasons}): run the evaluation on tasks that the teacher passes.")
    if split is None:
        return Dataset(to_table(rows, DISTILLATION))
    return Dataset(to_table(with_splits(rows, split), DISTILLATION.append(pa.field("split", pa.string(), nullable=False))))


def _passed_over(result: Any, filter_passed: bool, filter_fn: Callable[[Any], bool] | None) -> str | None:
    passed = _get(result, "passed")
    if filter_passed and passed is not True:
        return "passed_unknown" if passed is None else "not_passed"
    try:
        return None if filter_fn is None or filter_fn(result) else "filtered"
    except Exception as error:  # a user's predicate may raise anything; it must cost its own result
        return f"filter_raised: {type(error).__name__}: {error}"


def _session(result: Any, include_system: bool, include_tool_calls: bool, teacher: str | None) -> Session:
    """A result as a session, before any repair."""
    history = _get(result, "history")
    chat = to_messages(history)
    tools, strange = function_tools(_get(result, "tools"))
    chat.damage["invalid_tools"] += strange
    messages = chat.messages if include_tool_calls else said_only(chat.messages)
    if not include_system:
        messages = [message for message in messages if message["role"] != "system"]
    return Session(
        session_id=_named(result, _IDS) or f"result:{sha256_of(_jsonable(history))[:16]}",
        project="evaluation",
        agent=teacher or "teacher",
        source="omniagents_eval",
        messages=messages,
        tools=tools,
        tools_origin="source" if tools else "none",
        task_id=_named(result, _TASKS),
        model_id=teacher,
        error=_named(result, ("error",)),
        damage=dict(+chat.damage),
        skipped=dict(chat.skipped),
    )


def said_only(messages: list[Message]) -> list[Message]:
    """The words of a chat, without its calls and results; messages without words go."""
    words = [{name: message[name] for name in ("role", "content")} for message in messages if message["role"] != "tool"]
    return [message for message in words if message["content"].strip()]


def _jsonable(history: Any) -> str:
    try:
        return canonical_json(history)
    except (TypeError, ValueError, RecursionError):
        return repr(elements(history))


def _named(of: Any, names: tuple[str, ...]) -> str | None:
    return next((str(value) for name in names if (value := _get(of, name)) is not None and not callable(value) and value != ""), None)


def _get(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
