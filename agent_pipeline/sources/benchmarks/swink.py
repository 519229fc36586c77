"""Results of swink-agent-eval: `results/<set>/<timestamp>.json`, an `EvalSetResult` per run.

The prompts are in `sets/<set>.json`, by case. A run plays each case once. The runs of a set are one
partition, in which a case is the task and a run's timestamp is the trial. Newer results contain the
prompts themselves. The summary-only report (`schema_version`) contains no conversation.
"""

from collections.abc import Iterator
from pathlib import Path

from agent_pipeline.sessions.items import mark_cut_text
from agent_pipeline.sources.base import add_note, files_of
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    elements,
    mean,
    number,
    objects,
    section,
    text,
    verdict,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import RecordLocation


class SwinkSource(RecordSource):
    """A reader of swink-agent-eval results.

    The set is the project, and the model is the agent.
    """

    name = "swink_eval"
    version = 3
    looks_like = "swink-agent-eval results with eval_set_id and case_results"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        """Return whether a record is a result, a summary of results, or a set of cases."""
        if "eval_set_id" in record or "schema_version" in record:
            return isinstance(
                record.get("case_results" if "eval_set_id" in record else "cases"), list
            )
        return any("user_messages" in case for case in objects(record.get("cases")))

    def unpack(self, record: Record) -> list[Record]:
        shared = {"eval_set_id": record.get("eval_set_id"), "timestamp": record.get("timestamp")}
        return [{**section(element), **shared} for element in elements(record.get("case_results"))]

    def empty(self, record: Record) -> str | None:
        if "schema_version" not in record:
            return None
        return (
            "is a summary without conversations: give the results themselves "
            "(results/<set>/<time>.json)."
        )

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        if not isinstance(record.get("invocation"), dict):
            add_note(
                self.notes,
                f"{location.path} has cases without an invocation: what was not recorded cannot be "
                f"read.",
            )
            return None
        set_name, run, case = (
            text(record.get(name)) for name in ("eval_set_id", "timestamp", "case_id")
        )
        model = section(record, "invocation", "model").get("model_id")
        return Ident(
            None,
            ":".join([set_name or "", run or location.path.stem, case or str(location.part)]),
            set_name,
            text(model),
        )

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        invocation = section(record, "invocation")
        turns = [section(turn) for turn in elements(invocation.get("turns"))]
        spoken = [section(turn, "assistant_message") for turn in turns]
        case = self._case(record, location)
        metrics = [section(metric) for metric in elements(record.get("metric_results"))]
        scores: dict[str, float] = {}
        for metric in metrics:
            name, value = (
                text(metric.get("evaluator_name")) or "",
                number(section(metric, "score").get("value")),
            )
            if value is not None:  # two evaluators may have the same name
                scores[f"{name} ({len(scores) + 1})" if name in scores else name] = value
        failed = [
            message.get("error_message")
            for message in spoken
            if message.get("stop_reason") == "error"
        ]
        times = [message["timestamp"] for message in spoken if number(message.get("timestamp"))]
        return {
            "history": [*_prompts(case), *(message for turn in turns for message in _turn(turn))],
            "context": {
                "final_response": invocation.get("final_response"),
                "case": case.get("name"),
                "metadata": case.get("metadata"),
            },
            "usage": [invocation.get("total_usage")],
            "cost_usd": section(invocation, "total_cost").get("total"),
            "score": mean(scores),
            "scores": scores,
            "times": times,
            "created_at": None if times else record.get("timestamp"),
            "task_id": record.get("case_id"),
            "trial": text(record.get("timestamp")) or location.path.stem,
            "model_id": section(invocation, "model").get("model_id"),
            "judgment": verdict(record.get("verdict"))[1],
            "error": (text(failed[-1]) or "the model's stream broke off")
            if failed and spoken[-1].get("stop_reason") == "error"
            else None,
        }

    def sidecars(self) -> list[Path]:
        """Return the set files that belong to a store that is a single file of results.

        In a folder, the set files are part of the store.
        """
        sets = _sets_of(self.path)
        return files_of(sets) if self.path.is_file() and sets.is_dir() else []

    def _case(self, record: Record, location: RecordLocation) -> Record:
        """Return the test case that a result belongs to.

        If the result contains its prompts, the result itself is returned.
        """
        if record.get("user_messages"):
            return record
        cases = objects(
            self._set(text(record.get("eval_set_id")) or "", location.path).get("cases")
        )
        return next((case for case in cases if case.get("id") == record.get("case_id")), {})

    def _set(self, name: str, results: Path) -> Record:
        if not name or name in (".", "..") or set(name) & set("/\\\0"):
            add_note(
                self.notes,
                f"{results} names a set {name!r}, which is not a file name: its prompts are not "
                f"known.",
            )
            return {}
        lost = f"The prompts of {name} are not known, so its sessions begin with the agent"
        return self.file_beside(_sets_of(results) / f"{name}.json", lost)


def _sets_of(results: Path) -> Path:
    """Return the folder `sets` that is next to the folder `results` of a result file."""
    return results.resolve().parent.parent.parent / "sets"


def _prompts(case: Record) -> Iterator[object]:
    """Yield the user prompts of a test case.

    If the prompts are unknown, yield an item of damage, because the answers would have no request.
    """
    if not elements(case.get("user_messages")):
        yield mark_cut_text("prompts")
    if case.get("system_prompt"):
        yield {"role": "system", "content": case["system_prompt"]}
    for prompt in elements(case.get("user_messages")):
        yield prompt if isinstance(prompt, dict) else {"role": "user", "content": prompt}


def _turn(turn: Record) -> Iterator[object]:
    spoken = section(turn, "assistant_message")
    content = spoken.get("content")
    inside = any(
        isinstance(block, dict) and block.get("type") == "tool_call" for block in elements(content)
    )
    message = {
        "role": "assistant",
        "content": content,
        "tool_calls": None if inside else turn.get("tool_calls"),
    }
    yield message | chosen(spoken, ("stop_reason",))
    for result in elements(turn.get("tool_results")):
        yield {**result, "role": "tool"} if isinstance(result, dict) else None
