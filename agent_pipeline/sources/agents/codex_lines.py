"""Types of lines in a Codex rollout, and the conversations that the lines form.

The lists name the types that Codex is known to write (`RolloutItem` and `EventMsg` of its
protocol). A line of any other type is bookkeeping only if it contains no text, no tool call and no
tool result.
"""

from bisect import bisect_left
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sessions.session import encode_json
from agent_pipeline.sources.agents.lines import says_something, words_in
from agent_pipeline.sources.formats.fields import Record, elements, objects, section, text

_BOOKKEEPING_LINES = {
    "session_meta",
    "session_state",
    "token_usage_record",
    "turn_context",
    "world_state",
}
"""Types of lines that the model never sees directly. A `response_item` holds the text that it sees.
"""

_BOOKKEEPING_ITEMS = {"compaction_trigger", "ghost_snapshot", "other"}

_COMPACTIONS = {"compaction", "compaction_summary", "context_compaction"}
"""Types of items that replace the history by a summary that only OpenAI's servers can read."""

_REPEATED_EVENTS = {
    "agent_message", "agent_reasoning", "agent_reasoning_raw_content",
    "agent_reasoning_section_break", "background_event", "collab_agent_interaction_end",
    "collab_agent_spawn_end", "collab_close_end", "collab_resume_end", "collab_waiting_end",
    "context_compacted", "deprecation_notice", "dynamic_tool_call_request",
    "dynamic_tool_call_response", "entered_review_mode", "error", "exec_command_begin",
    "exec_command_end", "exited_review_mode", "guardian_assessment", "guardian_warning",
    "image_generation_end", "mcp_startup_complete", "mcp_startup_update", "mcp_tool_call_begin",
    "mcp_tool_call_end", "model_reroute", "model_verification", "patch_apply_begin",
    "patch_apply_end", "plan_update", "session_configured", "shutdown_complete", "stream_error",
    "sub_agent_activity", "task_complete", "task_started", "thread_goal_updated",
    "thread_name_updated", "thread_settings_applied", "token_count", "turn_complete", "turn_diff",
    "turn_started", "undo_completed", "undo_started", "view_image_tool_call", "warning",
    "web_search_begin", "web_search_end",
}  # fmt: skip
"""Types of events that repeat a `response_item`, or that only the screen shows."""

_REPEATED_ITEMS = {
    "AgentMessage", "CollabAgentToolCall", "CommandExecution", "ContextCompaction",
    "DynamicToolCall", "EnteredReviewMode", "ExitedReviewMode", "FileChange", "HookPrompt",
    "ImageGeneration", "ImageView", "McpToolCall", "Plan", "Reasoning", "Sleep", "SubAgentActivity",
    "WebSearch",
}  # fmt: skip
"""Types of items in `item_completed` events that repeat a `response_item`. `UserMessage` items are
compared with the response items instead.
"""

_INJECTED = (
    "<environment_context>", "<user_instructions>", "<permissions instructions>",
    "<skills_instructions>", "# AGENTS.md instructions", "<skill>", "<user_shell_command>",
    "<turn_aborted>", "<subagent_notification>", "<goal_context>", "<recommended_plugins>",
)  # fmt: skip
"""Beginnings of texts that Codex puts into the conversation as user messages."""

_ABORTED = "<turn_aborted>"
_VOLATILE = ("id", "status", "metadata", "internal_chat_message_metadata_passthrough")
_MOST_KEPT = 80_000
"""Maximum number of characters (about 20,000 tokens) of user messages that a compaction of older
versions keeps.
"""

_CALLS = {
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "tool_search_call",
    "web_search_call",
    "mcp_call",
}


class Stretch(NamedTuple):
    """The items that the model saw between two compactions.

    `inherited` is the number of items at the beginning that an earlier stretch already contains.
    """

    items: list[Any]
    inherited: int = 0


def says_nothing(line: Record) -> bool:
    """Return whether a line of a rollout is only bookkeeping, without content for the model."""
    return text(line.get("type")) in _BOOKKEEPING_LINES or not says_something(line)


def missing_lines(lines: list[Record]) -> int:
    """Count the gaps in the line numbers that Codex writes (`ordinal`)."""
    numbers = [line["ordinal"] for line in lines if isinstance(line.get("ordinal"), int)]
    return sum(later > earlier + 1 for earlier, later in pairwise(numbers))


class Thread:
    """The history of a thread, rebuilt line by line as Codex does when it resumes a thread.

    Args:
        copied: Number of leading response items that are copies from another thread.
    """

    def __init__(self, copied: int = 0) -> None:
        self.stretches: list[Stretch] = []
        self.tools: list[Any] = []
        self.taken_back = 0
        self._items: list[Any] = []
        self._inherited = 0
        self._copied = copied
        self._user_texts: list[str] = []
        self._event_texts: list[str] = []
        self._missing_pictures = 0

    def add(self, line: Record) -> None:
        """Add the next line of the rollout to the history."""
        kind, payload = text(line.get("type")), section(line, "payload")
        if kind == "response_item":
            self._add_item(payload)
        elif kind == "compacted":
            self._compact(payload)
        elif kind == "event_msg":
            self._add_event(payload)
        elif kind not in _BOOKKEEPING_LINES and says_something(line):
            self._items.append(mark_unread(f"line {kind or 'none'}"))

    def end(self) -> list[Stretch]:
        """Return the stretches of the thread. The last stretch ends the thread."""
        user_text = "\n".join(self._user_texts)
        self._items += [
            mark_unread("user message event")
            for words in self._event_texts
            if words not in user_text
        ]
        self._items += [mark_unread("picture of the user")] * max(self._missing_pictures, 0)
        return [*self.stretches, Stretch(self._items, self._inherited)]

    def _add_item(self, item: Record) -> None:
        kind = text(item.get("type")) or "none"
        if kind in _BOOKKEEPING_ITEMS:
            return
        if kind == "additional_tools":
            self.tools += elements(item.get("tools"))
            return
        if item.get("role") == "user":
            self._user_texts.append(_plain(words_in(item.get("content"))))
            self._missing_pictures -= sum(
                part.get("type") == "input_image" for part in objects(item.get("content"))
            )
        if injected(item, _ABORTED) is not None:
            self._cut()
        self._items.append(mark_unread(f"item {kind}") if kind in _COMPACTIONS else item)
        if self._copied > 0:
            self._copied -= 1
            self._inherited = len(self._items)

    def _add_event(self, event: Record) -> None:
        kind, item = text(event.get("type")) or "none", section(event, "item")
        if kind == "thread_rolled_back":
            self._roll_back(event.get("num_turns"))
        elif kind == "turn_aborted":
            self._cut()
        elif kind == "user_message":
            self._event_texts.append(_plain(words_in(event.get("message"))))
            self._missing_pictures += sum(
                len(elements(event.get(name))) for name in ("images", "local_images")
            )
        elif kind == "item_completed" and item.get("type") == "UserMessage":
            self._event_texts.append(_plain(words_in(item.get("content"))))
        elif kind == "item_completed" and (
            text(item.get("type")) in _REPEATED_ITEMS or not says_something(item)
        ):
            return
        elif kind not in _REPEATED_EVENTS and says_something(event):
            self._items.append(mark_unread(f"event {kind}"))

    def _roll_back(self, turns: object) -> None:
        """Remove the user's last turns, and the texts that Codex put in front of them."""
        user_indices = [
            item_index for item_index, item in enumerate(self._items) if _is_users(item)
        ]
        if not isinstance(turns, int) or isinstance(turns, bool) or turns < 1:
            self._items.append(mark_unread("event thread_rolled_back"))
            return
        if not user_indices:
            return
        cut = user_indices[max(len(user_indices) - turns, 0)]
        while cut > user_indices[0] and injected(self._items[cut - 1]) is not None:
            cut -= 1
        if (
            cut < self._inherited and self.stretches
        ):  # the turn began before the compaction, so its beginning is in an earlier stretch
            self.stretches = [
                stretch._replace(items=[*stretch.items, mark_unread("turn taken back")])
                for stretch in self.stretches
            ]
        self.taken_back += len(self._items) - cut
        self._items = self._items[:cut]
        self._inherited = min(self._inherited, cut)

    def _cut(self) -> None:
        """Mark the agent's last message and calls as interrupted.

        Nothing is marked if the user has written since.
        """
        has_marked = False
        for item_index in range(len(self._items) - 1, -1, -1):
            item = self._items[item_index]
            is_agents = isinstance(item, dict) and (
                item.get("role") == "assistant" or item.get("type") in _CALLS
            )
            if is_agents:
                self._items[item_index] = item | {"status": "interrupted"}
                has_marked = True
            elif _is_users(item) or (has_marked and not _is_thought(item)):
                return

    def _compact(self, compacted: Record) -> None:
        """Start a new stretch with the items that the model sees after a compaction."""
        before = self._items
        if any(
            isinstance(item, dict) and item.get("role") == "assistant"
            for item in before[self._inherited :]
        ):
            self.stretches.append(Stretch(before, self._inherited))
        replaced = compacted.get("replacement_history")
        if isinstance(replaced, list):
            self._items = []
            for item in replaced:
                self._add_item(section(item))
        else:
            kept = [item for item in before if _is_users(item)]
            self._items = list(takewhile(lambda item: injected(item) is not None, before)) + kept
            if sum(len(words_in(item.get("content"))) for item in kept) > _MOST_KEPT:
                self._items.append(mark_unread("compaction of many words"))
            self._items.append(
                {"type": "message", "role": "user", "content": compacted.get("message")}
            )
        self._inherited = len(self._items)


def injected(item: object, begins: str | tuple[str, ...] = _INJECTED) -> str | None:
    """Return the text of a message that Codex itself inserted, or None for any other item."""
    if (
        not isinstance(item, dict)
        or item.get("type") != "message"
        or item.get("role") not in ("user", "developer", "system")
    ):
        return None
    content = words_in(item.get("content"))
    if content.lstrip().startswith(begins):
        return content
    return content if item["role"] != "user" and begins is _INJECTED else None


def _is_users(item: object) -> bool:
    return isinstance(item, dict) and item.get("role") == "user" and injected(item) is None


def _is_thought(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _plain(words: str) -> str:
    return " ".join(words.split())


def copied_from(parent: list[Record], child: list[Record]) -> int:
    """Return how many leading response items of a thread are copies of its parent thread's items.

    Codex writes the parent's lines again with new times. The copies keep the order of the parent's
    items, but turns that were taken back are missing. The copies end at the first message or call
    that the parent does not have.
    """
    indices_by_content: dict[bytes, list[int]] = {}
    for parent_index, item in enumerate(parent):
        indices_by_content.setdefault(_content_of(item), []).append(parent_index)
    after = count = 0
    for item_number, item in enumerate(child, 1):
        same = indices_by_content.get(_content_of(item), [])
        same_index = bisect_left(same, after)
        if same_index < len(same):
            after, count = same[same_index] + 1, item_number
        elif injected(item) is None:
            break
    return count


def _content_of(item: Record) -> bytes:
    return encode_json({name: value for name, value in item.items() if name not in _VOLATILE})


def response_items(lines: list[Record]) -> list[Record]:
    """Return the response items of a rollout that a `Thread` counts."""
    return [
        section(line, "payload")
        for line in lines
        if line.get("type") == "response_item" and _is_counted(section(line, "payload"))
    ]


def _is_counted(item: Record) -> bool:
    return text(item.get("type")) not in (*_BOOKKEEPING_ITEMS, "additional_tools")


def system_texts(meta: Record, items: list[object]) -> tuple[list[str], int]:
    """Return the instructions, and the texts that Codex put before the user's first message.

    Instructions that such a text repeats are left out, because the model saw them once.

    Returns:
        The texts, and the number of items that they come from.
    """
    before = [
        content
        for content in takewhile(
            lambda injected_text: injected_text is not None, map(injected, items)
        )
        if content is not None
    ]
    texts: list[str] = []
    for instructions in (section(meta, "base_instructions").get("text"), meta.get("instructions")):
        if not isinstance(instructions, str) or not instructions.strip() or instructions in texts:
            continue
        if not any(instructions.strip() in content for content in before):
            texts.append(instructions)
    return [*texts, *(content for content in before if content)], len(before)


def parent_of(meta: Record) -> str | None:
    """Return the id of the thread that started this thread as a sub-agent, or that it forked."""
    spawned = section(meta, "source", "subagent", "thread_spawn").get("parent_thread_id")
    return text(spawned) or text(meta.get("parent_thread_id")) or text(meta.get("forked_from_id"))


def is_copy_of(meta: Record, metas: list[Record]) -> str | None:
    """Return the id of the thread whose lines a rollout repeats at its beginning.

    The result is None if the rollout repeats no other thread.
    """
    forked = text(meta.get("forked_from_id"))
    parent = parent_of(meta)
    return forked or next(
        (parent for other in metas[1:] if parent and text(other.get("id")) == parent), None
    )


def usages(lines: list[Record]) -> list[Record]:
    """Return the token counts of a rollout.

    Codex writes running totals, so the last count is returned.
    """
    events = objects(
        [section(line, "payload") for line in lines if line.get("type") == "event_msg"]
    )
    counts = [
        section(event, "info", "total_token_usage")
        for event in events
        if event.get("type") == "token_count"
    ]
    return next(([count] for count in reversed(counts) if count), [])
