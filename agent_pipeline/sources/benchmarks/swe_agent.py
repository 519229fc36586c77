"""Trajectories of SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`), one per file.

A trajectory is `{trajectory, history, info{exit_status, submission, model_stats}}`. Trajectories of
mini-swe-agent have `messages` instead of `history`. They have no verdict; a measure has to provide
one. A submitted run ends with the call that submitted it. Demonstrations in `history` are left out
and counted. The messages of a second agent are a separate session that names its parent.
"""

from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    clean_text,
    decoded,
    first_of,
    objects,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.model_calls import stop_reason
from agent_pipeline.sources.formats.record_files import RecordLocation

_BROKEN = ("exit_api", "exit_environment_error", "exit_error", "Error")
_STATS = ("tokens_sent", "tokens_received", "api_calls")


class SWEAgentSource(FileSource):
    """A reader of a folder of SWE-agent trajectories.

    The folder of a run is the agent, and the instance is the task.
    """

    name = "swe_agent"
    looks_like = "trajectories (.traj) with history and info, or with messages (mini-swe-agent)"
    version = 3

    @classmethod
    def accepts(cls, record: Record) -> bool:
        history = record.get("history")
        if str(record.get("trajectory_format")).startswith("mini-swe-agent"):
            return isinstance(record.get("messages"), list)
        if not isinstance(history, list):
            return False
        marked = any(
            "role" in message and ("agent" in message or "message_type" in message)
            for message in objects(history)
        )
        return marked or isinstance(record.get("trajectory"), list)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        folders = self.folders_of(location.path)
        run = folders[:-1] if folders[-1:] == (_instance(location),) else folders
        return Ident(
            None, ":".join([*folders, _instance(location)]), None, run[-1] if run else None
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        location, record = records[0]
        history = first_of(record, "history", "messages")
        messages = history if isinstance(history, list) else [None]
        agents = list(
            dict.fromkeys(
                clean_text(text(message.get("agent")))
                for message in messages
                if isinstance(message, dict)
            )
        )
        info, stats, replay = (
            section(record, "info"),
            section(record, "info", "model_stats"),
            decoded(record.get("replay_config")),
        )
        status = text(info.get("exit_status"))
        for agent_index, agent in enumerate(agents or [None]):
            mine = [
                message
                for message in messages
                if (
                    text(message.get("agent")) == agent
                    if isinstance(message, dict)
                    else agent_index == 0
                )
            ]
            shown = [
                message
                for message in mine
                if not (isinstance(message, dict) and message.get("is_demo"))
            ]
            kept = [
                message
                for message in shown
                if not (isinstance(message, dict) and message.get("role") == "exit")
            ]  # the exit message only repeats the status
            main = agent_index == 0
            used = [
                chosen(stats, _STATS),
                *(section(message, "extra", "response", "usage") for message in kept),
            ]
            session_fields = {
                "history": [_message(message) for message in kept],
                "skipped": {"demonstration": len(mine) - len(shown)},
                "context": {
                    "exit_status": status,
                    "submission": info.get("submission"),
                    "environment": record.get("environment"),
                },
                "usage": used if main else (),
                "cost_usd": stats.get("instance_cost") if main else None,
                "task_id": _instance(location),
                "times": [section(message, "extra").get("timestamp") for message in kept],
                "models": [
                    section(info, "config", "model").get("model_name"),
                    section(replay, "agent", "model").get("name"),
                ],
                "ends_on_tool": status in ("submitted", "Submitted"),
                "parent_session_id": None if main else session_id,
                "error": status if status and any(broken in status for broken in _BROKEN) else None,
            }
            yield session_id if main else f"{session_id}:{agent}", session_fields


def _message(message: object) -> object:
    """Return a message without the copies in its field `extra`, but with its stop reason."""
    if not isinstance(message, dict):
        return message
    response = section(message, "extra", "response")
    choice = next(iter(objects(response.get("choices"))), response)
    without_extra = {name: value for name, value in message.items() if name != "extra"}
    reason = stop_reason(choice)
    return without_extra | {"finish_reason": reason} if reason else without_extra


def _instance(location: RecordLocation) -> str:
    return location.path.stem.removesuffix(".traj")
