"""Runs of AgentDojo: one object per run, as lines or as files.

A file is `runs/<pipeline>/<suite>/<user task>/<attack>/<injection task>.json`. If the pipeline's
name is only `local`, the name of the folder above the suite is used, from `_path` or from the
file's own path. `error` is a failure of the infrastructure. `security` is True if an attack
succeeded, and has no meaning without an attack. A run under attack is a trial of the user's task,
because it has the same request and verdict. If attacked runs were separate tasks, they could land
in a different split than the other runs of the task.
"""

from pathlib import PurePosixPath

from agent_pipeline.sources.formats.fields import Record, chosen, judged, text
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import RecordLocation

_CONTEXT = (
    "attack_type",
    "injections",
    "duration",
    "benchmark_version",
    "agentdojo_package_version",
    "_path",
)


class AgentDojoSource(RecordSource):
    """A reader of AgentDojo runs.

    The suite is the project, and the pipeline is the agent.
    """

    name = "agentdojo"
    looks_like = "runs of AgentDojo with suite_name, user_task_id and messages"
    version = 2
    kinds = ("lines", "document", "table")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return (
            isinstance(record.get("messages"), list)
            and "suite_name" in record
            and "user_task_id" in record
        )

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        suite, attack = text(record.get("suite_name")) or "", _attack(record) or "none"
        session = ":".join(
            [
                suite,
                text(record.get("user_task_id")) or "",
                attack,
                text(record.get("injection_task_id")) or "none",
            ]
        )
        return Ident(None, session, suite, _agent(record, suite, location))

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        suite = text(record.get("suite_name")) or ""
        task = [suite, text(record.get("user_task_id"))]
        trial = [text(record.get("injection_task_id")), session_id.partition("~")[2] or "1"]
        return {
            **judged("utility", record.get("utility")),
            **chosen(record, ("error",), created_at="evaluation_timestamp"),
            "history": record.get("messages"),
            "context": chosen(record, _CONTEXT),
            "task_id": "/".join(part for part in task if part),
            "trial": "/".join(part for part in trial if part),
            "model_id": _agent(record, suite, location),
            "attack_succeeded": record.get("security") if _attack(record) else None,
        }


def _attack(record: Record) -> str | None:
    attack = text(record.get("attack_type"))
    return None if attack in (None, "none") else attack


def _agent(record: Record, suite: str, location: RecordLocation) -> str | None:
    for path in (text(record.get("_path")), location.path.as_posix()):
        parts = PurePosixPath(path or "").parts
        if suite in parts[1:]:
            return parts[parts.index(suite, 1) - 1]
    return text(record.get("pipeline_name"))
