"""NeMo Gym rollouts, one per line: `{responses_create_params, response, reward, ...}`.

The response's output holds all turns of the run. A rollout with `_ng_task_index` is a trial of that
task. If a limit of tokens or steps ended a run, its last turn is cut off. A run may end with calls
that are judged but have no results. Lines in the file of failures have an error. Fields such as
`is_correct` are metrics.
"""

from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    elements,
    first_text,
    judged,
    number,
    scalar,
    section,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.model_calls import request_of, stop_reason, with_reason
from agent_pipeline.sources.formats.record_files import RecordLocation

_NO_METRICS = {"reward", "terminated", "truncated"}
_MORE = (
    "task_id",
    "task_name",
    "category",
    "metadata",
    "info",
    "failure_reason",
    "expected_answer",
    "verifier_metadata",
)


class NemoGymSource(RecordSource):
    """A reader of a file of NeMo Gym rollouts, or of a folder of such files.

    The name in `agent_ref` is the agent.
    """

    name = "nemo_gym"
    looks_like = "NeMo Gym rollouts with responses_create_params, response and reward"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return isinstance(record.get("responses_create_params"), dict) and isinstance(
            record.get("response"), dict
        )

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        task, rollout = (
            scalar(record.get("_ng_task_index")),
            scalar(record.get("_ng_rollout_index")),
        )
        response_id = first_text(section(record, "response"), "id")
        session = (
            f"{location.path.stem}:task{task}-rollout{rollout}"
            if task is not None and rollout is not None
            else response_id
        )
        return Ident(None, session, None, first_text(section(record, "agent_ref"), "name"))

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        request, response = section(record, "responses_create_params"), section(record, "response")
        rewarded = judged("reward", record.get("reward"))
        reason = stop_reason(response) or ("length" if record.get("truncated") is True else None)
        flags = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, bool) and name not in _NO_METRICS
        }
        metrics = {
            name: value
            for name, value in record.items()
            if name not in _NO_METRICS and not name.startswith("_ng_")
        }
        numbers = {
            name: figure for name, value in metrics.items() if (figure := number(value)) is not None
        }
        turns = _turns(response)
        return {
            **rewarded,
            "history": [*request_of(request).messages, *with_reason(turns, reason)],
            "ends_on_tool": bool(turns)
            and isinstance(turns[-1], dict)
            and turns[-1].get("type") == "function_call",
            "tools": request.get("tools") or response.get("tools"),
            "context": chosen(record, _MORE),
            "usage": [response.get("usage")],
            "scores": numbers | flags | rewarded["scores"],
            "created_at": response.get("created_at"),
            "model_id": response.get("model"),
            "task_id": _task(record, location),
            "trial": scalar(record.get("_ng_rollout_index")),
            "error": record.get("_ng_failure_class") or section(response, "error") or None,
        }


def _turns(response: Record) -> list[Any]:
    """Return the conversation turns of a run.

    If each step is recorded with its whole context (transitions), the last step contains all turns.
    If it does not, an item of damage is added.
    """
    output = elements(response.get("output"))
    if not output or not all(isinstance(step, list) for step in output):
        return output
    last = output[-1]
    grows = all(last[: len(step)] == step for step in output)
    return last if grows else [mark_unread("transitions that do not go on with one another"), *last]


def _task(record: Record, location: RecordLocation) -> str | None:
    """Return the task that a rollout belongs to.

    The task index is unique only within one input, so the file's name is put in front.
    """
    index = scalar(record.get("_ng_task_index"))
    return (
        f"{location.path.stem}/{index}"
        if index is not None
        else first_text(record, "task_id", "id", "uuid")
    )
