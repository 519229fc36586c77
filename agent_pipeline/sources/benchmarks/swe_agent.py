"""SWE-agent trajectories (`.traj`): `{trajectory, history, info{exit_status, submission, model_stats}}`, a file each.

There is no verdict: a measure has to give it. Of `history`, demonstrations are left out and counted; what a second agent said is a session
of its own that names its parent.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import chat_to_messages
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import clean_text
from agent_pipeline.sources.formats.fields import section
from agent_pipeline.sources.formats.files import FileSource, Ident, Record, text
from agent_pipeline.sources.formats.records import Place, parsed

_BROKEN = ("exit_api", "exit_environment_error", "exit_error")
_STATS = ("tokens_sent", "tokens_received", "api_calls")


class SWEAgentSource(FileSource):
    """A folder of trajectories: a run's folder is the agent, the instance is the task."""

    name: ClassVar[str] = "swe_agent"
    looks_like: ClassVar[str] = "trajectories (.traj) with history and info"
    kinds: ClassVar = ("lines", "document")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        history = record.get("history")
        if not isinstance(history, list):
            return False
        marked = any(isinstance(each, dict) and "role" in each and ("agent" in each or "message_type" in each) for each in history)
        return marked or isinstance(record.get("trajectory"), list)

    def identify(self, record: Record, place: Place) -> Ident:
        folders = self.under(place.path)
        run = folders[:-1] if folders[-1:] == (place.path.stem,) else folders
        return Ident(None, ":".join([*folders, place.path.stem]), None, run[-1] if run else None)

    def build(self, key: PartitionKey, session_id: str, found: list[tuple[Place, Record]]) -> Iterable[Session]:
        place, record = found[0]
        history = record.get("history")
        messages = history if isinstance(history, list) else [None]
        agents = list(dict.fromkeys(clean_text(text(each.get("agent"))) for each in messages if isinstance(each, dict)))
        info, stats = section(record, "info"), section(record, "info", "model_stats")
        status = text(info.get("exit_status"))
        for number, agent in enumerate(agents or [None]):
            mine = [each for each in messages if (text(each.get("agent")) == agent if isinstance(each, dict) else number == 0)]
            shown = [each for each in mine if not (isinstance(each, dict) and each.get("is_demo"))]
            chat = chat_to_messages(shown)
            chat.skipped["demonstration"] += len(mine) - len(shown)
            main = number == 0
            yield self.made(
                key,
                session_id if main else f"{session_id}:{agent}",
                chat,
                context={"exit_status": status, "submission": info.get("submission"), "environment": record.get("environment")},
                usage=[{name: stats.get(name) for name in _STATS}] if main else (),
                cost_usd=stats.get("instance_cost") if main else None,
                task_id=place.path.stem,
                model_id=_model(record.get("replay_config")),
                parent_session_id=None if main else session_id,
                error=status if status and any(broken in status for broken in _BROKEN) else None,
            )


def _model(config: Any) -> str | None:
    """The model of a run's configuration, which may be JSON in a string."""
    try:
        config = parsed(config.encode("utf-8", "surrogateescape")) if isinstance(config, str) else config
    except (ValueError, UnicodeError):
        return None
    return text(section(config, "agent", "model").get("name"))
