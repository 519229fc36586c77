"""OpenHands conversations as its agent SDK keeps them: a folder of `base_state.json` and `events/event-<number>-<id>.json`; or event lines.

Events form a tree by `parent_id`; the branch that ends in the state's `leaf_event_id` is taken. What a condenser took out of the model's
view stays in the conversation. A run may end with the call of `finish`.
"""

from collections.abc import Iterator
from typing import Any

from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.formats.fields import Record, elements, first_of, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, Said
from agent_pipeline.sources.formats.record_files import Place

_RESULTS = ("observation", "error", "rejection_reason")


class OpenHandsSource(FileSource):
    """A conversation's folder, a folder of them, or a file of events: the workspace's name is the project."""

    name = "openhands"
    looks_like = "OpenHands conversations: events with kind, source and timestamp, beside base_state.json"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return (str(record.get("kind")).endswith(("Event", "Observation")) and {"id", "source", "timestamp"} <= record.keys()) or (
            "persistence_dir" in record and "execution_status" in record
        )

    def identify(self, record: Record, place: Place) -> Ident:
        folder = place.path.parent.parent if place.path.parent.name == "events" else place.path.parent
        whole = "kind" not in record or place.path.parent.name == "events"
        name = str(folder) if whole else str(place.path)
        workspace = folder_name(section(record, "workspace").get("working_dir"))
        return Ident(name, folder.name if whole else place.path.stem, workspace, self.name)

    def build(self, session_id: str, records: list[tuple[Place, Record]]) -> Said:
        state = next((record for _, record in records if "kind" not in record), {})
        events = [record for _, record in records if "kind" in record]
        branch = _branch(events, state.get("leaf_event_id"))
        stats = [each.get("value") for each in events if each.get("key") == "stats"]
        metrics = section(first_of({"a": section(state).get("stats"), "b": stats[-1] if stats else None}, "a", "b"), "usage_to_metrics")
        failed = next((each for each in reversed(branch) if each.get("kind") != "ConversationStateUpdateEvent"), {})
        said = {
            "history": list(_spoken(branch)),
            "skipped": {"other_branch": len(events) - len(branch)},
            "context": {"execution_status": state.get("execution_status")},
            "usage": [section(metrics, name, "accumulated_token_usage") for name in metrics],
            "costs": [section(metrics, name).get("accumulated_cost") for name in metrics],
            "times": [each.get("timestamp") for each in events],
            "model_id": section(state, "agent", "llm").get("model"),
            "ends_on_tool": any(each.get("tool_name") == "finish" for each in branch[-2:]),
            "error": (text(failed.get("detail")) or "the run failed") if failed.get("kind") == "ConversationErrorEvent" else None,
        }
        yield session_id, said


def _branch(events: list[Record], leaf: Any) -> list[Record]:
    """The events on the way to a leaf; all of them where there is no tree."""
    by_id = {text(each.get("id")): each for each in events}
    way: set[str] = set()
    here = text(leaf)
    while here is not None and here in by_id and here not in way:
        way.add(here)
        here = text(by_id[here].get("parent_id"))
    return [each for each in events if text(each.get("id")) in way] if way else events


def _spoken(events: list[Record]) -> Iterator[Any]:
    for event in events:
        kind, message = event.get("kind"), section(event, "llm_message")
        if kind == "SystemPromptEvent":
            parts = [event.get("system_prompt"), event.get("dynamic_context")]
            yield {"role": "system", "content": [part for part in parts if part]}
        elif kind == "MessageEvent":
            yield message | {"content": [*elements(message.get("content")), *elements(event.get("extended_content"))]}
        elif kind == "ActionEvent":
            call = event.get("tool_call")
            yield {"role": "assistant", "content": event.get("thought"), "reasoning": event.get("reasoning_content"), "tool_calls": [call]}
        elif (result := first_of(event, *_RESULTS)) is not None and "tool_call_id" in event:
            content, failed = (result.get("content"), result.get("is_error")) if isinstance(result, dict) else (result, True)
            yield {"role": "tool", "tool_call_id": event["tool_call_id"], "content": content, "is_error": failed}
        elif kind not in ("ConversationStateUpdateEvent", "ConversationErrorEvent"):
            yield {"type": f"event:{kind}"}
