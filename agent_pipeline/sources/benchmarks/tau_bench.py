"""tau-bench results: a list of `{task_id, trial, reward, info, traj}` with OpenAI messages.

The tools are not in the file (`agents."project/agent".tools` may name a file of them). A run that broke says so in `info.error`. A run ends
when the user says so, or with the tool that hands the user over to a person.
"""

from typing import ClassVar

from agent_pipeline.sessions.chat import to_messages
from agent_pipeline.sources.formats.fields import Record, objects, scalar, section, verdict
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import Place

_ENDING_TOOLS = ("transfer_to_human_agents",)


class TauBenchSource(RecordSource):
    """A file of results, or a folder of them (an agent each)."""

    name: ClassVar[str] = "tau_bench"
    looks_like: ClassVar[str] = "a JSON list of results with task_id, reward and traj"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return isinstance(record.get("traj"), list) and "task_id" in record

    def identify(self, record: Record, place: Place) -> Ident:
        trial = scalar(record.get("trial"))
        session = f"task{scalar(record.get('task_id'))}" + (f"-trial{trial}" if trial is not None else "")
        return Ident(None, session, None, place.path.stem if place.path != self.path else None)

    def fields(self, record: Record, place: Place, session_id: str) -> Record:
        info = section(record, "info")
        reward, judgment = verdict(record.get("reward"))
        last = next(iter(objects(record.get("traj"))[-1:]), {})
        return {
            "chat": to_messages(record.get("traj")),
            "context": {"info": info},
            "score": reward,
            "scores": {"reward": reward},
            "task_id": record.get("task_id"),
            "trial": record.get("trial"),
            "judgment": judgment,
            "ends_on_tool": last.get("role") == "tool" and last.get("name") in _ENDING_TOOLS,
            "error": info.get("error"),
        }
