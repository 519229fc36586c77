"""Results of omniagents evaluations: `{results: [{passed, history, ...}]}`.

A result is a session, and the runs of one prompt are its trials. A result's `measures` (`{passed,
reason, tier, counts}` by name) become its scores: 1 for passed, 0 for not passed.
"""

from collections import Counter

from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    elements,
    mean,
    objects,
    scalar,
    section,
    text,
    verdict,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import RecordLocation

_RUN = ("project", "agent", "model", "tools", "created_at")
_TAKEN = {
    *_RUN,
    "task_id",
    "trial",
    "measures",
    "history",
    "passed",
    "error",
    "usage",
    "session_id",
    "run_of",
}


class OmniagentsEvalSource(RecordSource):
    """A reader of a file of results, or of a folder of such files.

    Each file is one run of the evaluation.
    """

    name = "omniagents_eval"
    version = 2
    looks_like = "omniagents evaluation results: a list of results with passed and history"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return any(
            "passed" in result and "history" in result for result in objects(record.get("results"))
        )

    def unpack(self, record: Record) -> list[Record]:
        """Return the results of a file, each with its run number and the fields that all share.

        The runs of each prompt are numbered separately.
        """
        shared = chosen(record, _RUN)
        runs: Counter[str | None] = Counter()
        results: list[Record] = []
        for result in map(section, elements(record.get("results"))):
            runs[_task(result)] += 1
            results.append({**shared, **result, "run_of": runs[_task(result)]})
        return results

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        session = (
            text(record.get("session_id"))
            or f"{location.path.stem}:{location.position:06d}:{location.part:06d}"
        )
        return Ident(None, session, text(record.get("project")), text(record.get("agent")))

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        trial = scalar(record.get("trial")) or str(record["run_of"])
        measures = section(record, "measures")
        measured = {name: verdict(section(measures, name).get("passed"))[0] for name in measures}
        scores = {name: value for name, value in measured.items() if value is not None}
        return {
            **chosen(record, ("tools", "created_at", "error"), model_id="model"),
            "history": record.get("history"),
            "context": {name: value for name, value in record.items() if name not in _TAKEN},
            "usage": [record.get("usage")],
            "score": mean(scores),
            "scores": scores,
            "task_id": _task(record),
            "trial": f"{location.path.stem}:{trial}" if location.path != self.path else trial,
            "judgment": verdict(record.get("passed"))[1],
        }


def _task(result: Record) -> str | None:
    """Return the task that an evaluation result names.

    If the task is only given as a prompt, return the sha256 of the prompt, because a key must not
    contain text of a conversation.
    """
    named, prompt = text(result.get("task_id")), text(result.get("prompt"))
    return named or (f"prompt:{hash_json(prompt)[:16]}" if prompt else None)
