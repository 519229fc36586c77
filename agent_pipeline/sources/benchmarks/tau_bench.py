"""tau-bench results: a list of `{task_id, trial, reward, info, traj}` with OpenAI messages.

The tools are not in the file (`agents."project/agent".tools` may name a file of tools). A run that
broke has an `info.error`. A run ends when the user ends it, or with the tool that transfers the
user to a person.
"""

from agent_pipeline.sources.formats.fields import Record, chosen, judged, objects, scalar, section
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import RecordLocation

_ENDING_TOOLS = ("transfer_to_human_agents",)


class TauBenchSource(RecordSource):
    """A reader of a file of tau-bench results, or of a folder of such files.

    In a folder, each file is an agent.
    """

    name = "tau_bench"
    looks_like = "a JSON list of results with task_id, reward and traj"
    kinds = ("lines", "document", "table")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return isinstance(record.get("traj"), list) and "task_id" in record

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        trial = scalar(record.get("trial"))
        session = f"task{scalar(record.get('task_id'))}" + (
            f"-trial{trial}" if trial is not None else ""
        )
        return Ident(
            None, session, None, location.path.stem if location.path != self.path else None
        )

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        last = next(iter(objects(record.get("traj"))[-1:]), {})
        return {
            **judged("reward", record.get("reward")),
            **chosen(record, ("task_id", "trial")),
            "history": record.get("traj"),
            "context": {"info": section(record, "info")},
            "ends_on_tool": last.get("role") == "tool" and last.get("name") in _ENDING_TOOLS,
            "error": section(record, "info").get("error"),
        }
