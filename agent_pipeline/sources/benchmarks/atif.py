"""Trajectories in the Agent Trajectory Interchange Format (ATIF), as Harbor writes them.

A trajectory is `<trial>/agent/trajectory.json`. A step is a message of the system, the user or the
agent, with the agent's calls and their results. `<trial>/result.json` names the task and the
rewards. Agents that an agent called are separate sessions that name their parent. A run may end
with its last calls (`mark_task_complete` of Terminus, `finish` of OpenHands), with or without
results.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    elements,
    first_text,
    judged,
    objects,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.model_calls import stop_reason
from agent_pipeline.sources.formats.record_files import RecordLocation

_COMPLETES = "mark_task_complete"
"""Name of the tool that Terminus calls to end a run."""

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")


class ATIFSource(RecordSource):
    """A reader of an ATIF trajectory, or of a folder of trials."""

    name = "atif"
    version = 3
    looks_like = "ATIF trajectories with schema_version, agent and steps"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return str(record.get("schema_version")).startswith("ATIF-") and isinstance(
            record.get("steps"), list
        )

    def unpack(self, record: Record) -> list[Record]:
        """Return a trajectory and the trajectories of the agents that it called."""
        trajectories = [record]
        for trajectory in trajectories:
            trajectories += [
                sub | {"parent": _name(trajectory)}
                for sub in objects(trajectory.get("subagent_trajectories"))
            ]
        return trajectories

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        trial = (
            location.path.parent.parent.name
            if location.path.parent.name == "agent"
            else location.path.stem
        )
        return Ident(
            None,
            _name(record) or trial,
            text(self._result(location.path).get("source")),
            text(section(record, "agent").get("name")),
        )

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        steps, result = (
            objects(record.get("steps")),
            self._result(location.path) if "parent" not in record else {},
        )
        rewards, failed = (
            section(result, "verifier_result", "rewards"),
            section(result, "exception_info"),
        )
        agent = section(record, "agent")
        return {
            **judged("reward", rewards.get("reward")),
            **chosen(result, task_id="task_name", trial="trial_name"),
            "history": [
                message
                for element in elements(record.get("steps"))
                for message in _messages(element)
            ],
            "tools": agent.get("tool_definitions"),
            "context": chosen(record, ("notes", "extra")),
            "usage": [chosen(section(step, "metrics"), _COUNTS) for step in steps],
            "cost_usd": section(record, "final_metrics").get("total_cost_usd"),
            "scores": rewards,
            "times": [step.get("timestamp") for step in steps],
            "models": [agent.get("model_name"), *(text(step.get("model_name")) for step in steps)],
            "parent_session_id": record.get("parent"),
            "ends_on_tool": bool(steps) and bool(steps[-1].get("tool_calls")),
            "error": (text(failed.get("exception_message")) or failed.get("exception_type"))
            if not rewards
            else None,
        }

    def sidecars(self) -> list[Path]:
        """Return the result file of a store that is a single trajectory.

        In a folder, the result files are part of the store.
        """
        result = _result_of(self.path)
        return [result] if self.path.is_file() and result else []

    def _result(self, trajectory: Path) -> Record:
        """Return Harbor's result of the trial that a trajectory belongs to."""
        path = _result_of(trajectory)
        return self.file_beside(path, f"The verdict on {trajectory} is not known") if path else {}


def _result_of(trajectory: Path) -> Path | None:
    path = trajectory.parent.parent / "result.json"
    return path if trajectory.parent.name == "agent" and path.is_file() else None


def _name(trajectory: Record) -> str | None:
    """Return the session id for a trajectory.

    The id of a called agent is unique only within its parent, so the parent's id is put in front.
    """
    parent, local_id = (
        text(trajectory.get("parent")),
        first_text(trajectory, "trajectory_id", "session_id"),
    )
    return (
        f"{parent}~{local_id}" if parent else first_text(trajectory, "session_id", "trajectory_id")
    )


def _messages(step: object) -> Iterator[Any]:
    """Yield the message of a trajectory step, its tool calls, and their results.

    A message that was copied, or that no model wrote, is not trained.
    """
    if not isinstance(step, dict):
        yield None
        return
    if section(
        step, "extra", "context_management"
    ):  # from here on, the model saw a different history than the earlier steps show
        yield mark_unread("compaction")
        return
    calls = [
        element | {"name": element.get("function_name")} if isinstance(element, dict) else None
        for element in elements(step.get("tool_calls"))
    ]
    role = "assistant" if step.get("source") == "agent" else step.get("source")
    message = {"role": role, "content": step.get("message"), "tool_calls": calls}
    if (reason := stop_reason(section(step, "extra"))) is not None:
        message["finish_reason"] = reason
    weight = (
        {"weight": 0}
        if step.get("is_copied_context") is True or step.get("llm_call_count") == 0
        else {}
    )
    if (
        calls and not message["content"]
    ):  # Harbor splits a Codex response into a step for the text and one step per call
        if thought := step.get("reasoning_content"):
            yield {"type": "reasoning", "text": thought}
        yield from (call and call | {"type": "function_call"} | weight for call in calls)
    elif message["content"] or calls or not step.get("observation"):
        yield message | {"reasoning": step.get("reasoning_content")} | weight
    yield from _results(calls, elements(section(step, "observation").get("results")))


def _results(calls: list[Any], results: list[Any]) -> Iterator[Any]:
    """Yield the results of a step's calls, in the order of the record.

    A result may name its call. Results without a name answer the calls that no other result names,
    in their order, if there are as many results as calls. A single result may also answer several
    calls, as the screen of Terminus shows the output of a batch of commands. Then the last call
    gets the result, and the other calls get an empty one. If a step has no calls, its observation
    is the next message to the agent.
    """
    named = {text(result.get("source_call_id")) for result in objects(results)} - {None}
    open_ids = [
        call.get("tool_call_id")
        for call in calls
        if isinstance(call, dict) and text(call.get("tool_call_id")) not in named
    ]
    unnamed = [
        result
        for result in objects(results)
        if not text(result.get("source_call_id")) and not _is_reference(result)
    ]
    completes = {
        call["tool_call_id"]
        for call in objects(calls)
        if call.get("name") == _COMPLETES and "tool_call_id" in call
    }
    if len(unnamed) == 1 and len(open_ids) > 1 and not named:
        yield from (
            {"role": "tool", "tool_call_id": call_id, "content": ""} for call_id in open_ids[:-1]
        )
        open_ids = open_ids[-1:]
    elif (
        not unnamed and named
    ):  # the screen that answers the commands of Terminus also answers the completion call
        yield from (
            {"role": "tool", "tool_call_id": call_id, "content": ""}
            for call_id in open_ids
            if call_id in completes
        )
    answered = iter(open_ids if len(open_ids) == len(unnamed) else ())
    for result in results:
        if not isinstance(result, dict):
            yield None
        elif text(result.get("source_call_id")):
            yield _result(result, result["source_call_id"])
            if _is_reference(result):  # the called agent's answer is in another file
                yield mark_unread("result of a called agent")
        elif _is_reference(result):
            continue
        elif not calls:
            yield {"role": "user", "content": result.get("content")}
        elif (call_id := next(answered, None)) is not None:
            yield _result(result, call_id)
        else:
            yield mark_unread("result without a call")


def _is_reference(result: object) -> bool:
    """Return whether a result only references the trajectory of a called agent."""
    return (
        isinstance(result, dict)
        and result.get("content") is None
        and bool(result.get("subagent_trajectory_ref"))
    )


def _result(result: Record, call_id: object) -> Record:
    original = section(
        result, "extra", "tool_result_metadata", "raw_tool_result"
    )  # the result as Claude Code recorded it; Harbor adds text to it
    content = original.get("content", result.get("content"))
    return {
        "role": "tool",
        "content": content,
        "is_error": original.get("is_error"),
        "tool_call_id": call_id,
    }
