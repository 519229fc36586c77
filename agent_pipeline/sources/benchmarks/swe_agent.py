"""SWE-agent trajectories (`.traj`): `{trajectory, history, info{exit_status, submission, model_stats}}`, a file each.

There is no verdict: a measure has to give it. Of `history`, demonstrations are left out and counted; what a second agent said is a session
of its own that names its parent.
"""

from collections.abc import Iterable
from typing import ClassVar

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import to_messages
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.formats.fields import Record, clean_text, decoded, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident
from agent_pipeline.sources.formats.record_files import Kind, Place
from agent_pipeline.sources.formats.session_fields import new_session

_BROKEN = ("exit_api", "exit_environment_error", "exit_error")
_STATS = ("tokens_sent", "tokens_received", "api_calls")


class SWEAgentSource(FileSource):
    """A folder of trajectories: a run's folder is the agent, the instance is the task."""

    name: ClassVar[str] = "swe_agent"
    looks_like: ClassVar[str] = "trajectories (.traj) with history and info"
    kinds: ClassVar[tuple[Kind, ...]] = ("lines", "document")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        history = record.get("history")
        if not isinstance(history, list):
            return False
        marked = any("role" in each and ("agent" in each or "message_type" in each) for each in objects(history))
        return marked or isinstance(record.get("trajectory"), list)

    def identify(self, record: Record, place: Place) -> Ident:
        folders = self.folders_of(place.path)
        run = folders[:-1] if folders[-1:] == (place.path.stem,) else folders
        return Ident(None, ":".join([*folders, place.path.stem]), None, run[-1] if run else None)

    def build(self, key: PartitionKey, session_id: str, records: list[tuple[Place, Record]]) -> Iterable[Session]:
        place, record = records[0]
        history = record.get("history")
        messages = history if isinstance(history, list) else [None]
        agents = list(dict.fromkeys(clean_text(text(each.get("agent"))) for each in messages if isinstance(each, dict)))
        info, stats = section(record, "info"), section(record, "info", "model_stats")
        status = text(info.get("exit_status"))
        for number, agent in enumerate(agents or [None]):
            mine = [each for each in messages if (text(each.get("agent")) == agent if isinstance(each, dict) else number == 0)]
            shown = [each for each in mine if not (isinstance(each, dict) and each.get("is_demo"))]
            chat = to_messages(shown)
            chat.skipped["demonstration"] += len(mine) - len(shown)
            main = number == 0
            yield new_session(
                self.name,
                key,
                session_id if main else f"{session_id}:{agent}",
                chat,
                context={"exit_status": status, "submission": info.get("submission"), "environment": record.get("environment")},
                usage=[{name: stats.get(name) for name in _STATS}] if main else (),
                cost_usd=stats.get("instance_cost") if main else None,
                task_id=place.path.stem,
                model_id=section(decoded(record.get("replay_config")), "agent", "model").get("name"),
                parent_session_id=None if main else session_id,
                error=status if status and any(broken in status for broken in _BROKEN) else None,
            )
