"""Results of tau2-bench: one file of `{info, tasks, simulations}`, or a file per simulation.

Files of single simulations are in `simulations/` next to `results.json`. The user has tools too,
but the agent never sees them, so the user's calls and results are left out and counted. The file
contains the agent's policy, but not the prompt around it, so the policy is stored in the context.
Voice runs have ticks instead of messages and count as damage.
"""

from collections import Counter
from collections.abc import Iterator

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    elements,
    judged,
    objects,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.model_calls import stop_reason
from agent_pipeline.sources.formats.record_files import RecordLocation

_BROKEN = ("infrastructure_error", "unexpected_error", "user_error")


class Tau2Source(RecordSource):
    """A reader of a file or folder of tau2-bench results.

    The domain is the project, and the agent's model is the agent.
    """

    name = "tau2_bench"
    version = 2
    looks_like = (
        "tau2-bench results with info, tasks and simulations, or simulations with task_id and "
        "termination_reason"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        is_whole = "environment_info" in section(record, "info") and "tasks" in record
        return is_whole or {"task_id", "termination_reason", "messages", "trial"} <= record.keys()

    def unpack(self, record: Record) -> list[Record]:
        if "termination_reason" in record:
            return [record]
        return [
            section(element) | {"of": record.get("info")}
            for element in elements(record.get("simulations"))
        ]

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        info = self._info(record, location)
        domain, model = (
            section(info, "environment_info").get("domain_name"),
            section(info, "agent_info").get("llm"),
        )
        return Ident(None, text(record.get("id")), text(domain), text(model))

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        rewards, ended = section(record, "reward_info"), text(record.get("termination_reason"))
        messages, left_out = elements(record.get("messages")), Counter[str]()
        ticks = [mark_unread("tick of a voice run")] if record.get("ticks") else []
        measured = judged("reward", rewards.get("reward"))
        return {
            **chosen(
                record,
                ("task_id", "trial"),
                created_at="start_time",
                ended_at="end_time",
                cost_usd="agent_cost",
            ),
            **measured,
            "history": [*_seen_by_agent(messages, left_out), *ticks],
            "skipped": left_out,
            "context": chosen(record, ("policy", "termination_reason", "seed")),
            "usage": [
                message.get("usage")
                for message in objects(messages)
                if message.get("role") == "assistant"
            ],
            "scores": section(rewards, "reward_breakdown") | measured["scores"],
            "model_id": section(self._info(record, location), "agent_info").get("llm"),
            "error": ended if ended in _BROKEN else None,
        }

    def _info(self, record: Record, location: RecordLocation) -> Record:
        """Return the information that a results file states once for all its simulations."""
        if "of" in record:
            return section(record, "of")
        return section(
            self.file_beside(
                location.path.parent.parent / "results.json",
                "The domain and the agent are not known",
            ),
            "info",
        )


def _seen_by_agent(messages: list[object], left_out: Counter[str]) -> Iterator[object]:
    """Yield the messages without the user's own calls, which the agent never sees.

    A greeting of the assistant at the beginning is not trained, because no model wrote it.
    """
    for message_index, recorded in enumerate(messages):
        if not isinstance(recorded, dict):
            yield None
        elif recorded.get("requestor") == "user":
            left_out["user_result"] += 1
        elif recorded.get("role") == "user" and recorded.get("tool_calls"):
            left_out["user_call"] += 1
            if recorded.get("content"):
                yield {"role": "user", "content": recorded["content"]}
        elif recorded.get("role") == "tool":
            yield recorded | {"tool_call_id": recorded.get("id")}
        else:
            reason = stop_reason(section(recorded, "raw_data"))
            message = {
                name: value for name, value in recorded.items() if name != "raw_data"
            }  # raw_data is a copy of the API's response
            message |= (
                {"finish_reason": reason} if reason and recorded.get("role") == "assistant" else {}
            )
            yield message | (
                {"weight": 0} if message_index == 0 and recorded.get("role") == "assistant" else {}
            )
