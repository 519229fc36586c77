"""Repair of a session's messages, so that every later stage can rely on them.

All readers use this module. Calls are paired with their results **by position**, not by a
dictionary of ids, because real logs reuse ids, leave them empty, and reorder results. A result
answers the open call of its turn that has the same id. A result without an id may name its tool, as
Gemini's results do; it answers the oldest open call of this tool. If there is no such call, the
result answers the oldest open call. This is a guess if the result names an id, a tool that the turn
also called, or a tool of the session although several calls are open.

Each kind of damage (`damage.DAMAGE_KINDS`) is counted, and a policy decides how it is treated:
curation drops the session (its table row stays), the turn is removed, the damage is repaired, or it
is kept. Finding repetitions belongs to `repeats`, and repairing arguments to `json_text`.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from agent_pipeline.sessions.damage import (
    DEFAULT_REPAIR_POLICY,
    RepairAction,
    RepairPolicy,
    find_breaking_kind,
)
from agent_pipeline.sessions.json_text import (
    is_shallow_object,
    is_storable,
    make_storable,
    repair_arguments,
)
from agent_pipeline.sessions.repeats import drop_call_texts, find_repeat, make_unique_id
from agent_pipeline.sessions.session import (
    Message,
    Role,
    Session,
    Thought,
    ToolCall,
    drop_keys,
)


@dataclass
class RepairedChat:
    """Messages whose calls have unique ids and are directly followed by their results.

    Attributes:
        messages: The repaired messages.
        reasoning: The thoughts, with the indices of the repaired messages.
        damage: Counts of the damage, by kind.
        skipped: Counts of the messages that `drop_turn` removed, and of the thoughts whose message
            was removed.
    """

    messages: list[Message]
    reasoning: list[Thought] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def repair_session(session: Session, policy: RepairPolicy = DEFAULT_REPAIR_POLICY) -> None:
    """Repair the messages of a session in place.

    `broken` is set if the policy drops the session because of its damage.
    """
    offered = {tool["function"].get("name", "") for tool in session.tools}
    chat = repair_messages(session.messages, session.reasoning, policy, offered)
    session.messages, session.reasoning = chat.messages, chat.reasoning
    if chat.skipped:
        session.skipped = dict(Counter(session.skipped) + chat.skipped)
    if chat.damage:
        session.damage = dict(Counter(session.damage) + chat.damage)
    if session.damage:
        session.broken = find_breaking_kind(session.damage, policy)
    if session.broken == "unanswered_call" and session.ends_on_tool and session.messages:
        last_calls = session.messages[-1].get("tool_calls") or ()
        if session.damage["unanswered_call"] == len(last_calls):
            session.broken = None  # by the source's rules, these calls ended the run


def repair_messages(
    messages: list[Message],
    reasoning: Sequence[Thought] = (),
    policy: RepairPolicy = DEFAULT_REPAIR_POLICY,
    offered: Collection[str] = (),
) -> RepairedChat:
    """Repair the messages of one session.

    A repair may uncover more damage: two equal blocks become neighbors if a message between them is
    removed. The passes are therefore repeated until nothing changes. Most sessions have no damage,
    and a check that is twenty times as fast as a pass finds these sessions first.

    Args:
        messages: The messages of the record. The list stays as it is.
        reasoning: The thoughts before the messages.
        policy: The action for each kind of damage.
        offered: The names of the tools that were offered to the agent.

    Returns:
        The repaired chat. If the messages have no damage, it contains the same list.
    """
    if _is_sound(messages):
        last_role = messages[-1]["role"] if messages else None
        if last_role not in ("user", "tool"):
            return RepairedChat(messages, list(reasoning))
        kind = f"trailing_{last_role}"
        if policy[kind] in ("keep", "drop_session"):
            damage = Counter({kind: _count_trailing(messages, last_role)})
            return RepairedChat(messages, list(reasoning), damage)
    chat = _RepairPass(messages, reasoning, policy, offered).run()
    damage = Counter(chat.damage)
    while chat.messages != messages:
        messages, skipped = chat.messages, chat.skipped
        chat = _RepairPass(messages, chat.reasoning, policy, offered).run()
        for kind, count in chat.damage.items():
            if policy[kind] in ("repair", "drop_turn"):
                # the last pass repaired the earlier damage, so this damage is new
                damage[kind] += count
            else:
                damage[kind] = max(damage[kind], count)  # the last pass counted the same damage too
        chat.skipped += skipped
    chat.damage = +damage
    return chat


@dataclass(eq=False)
class _Entry:
    """A message with its turn and thoughts, used during a repair pass.

    Attributes:
        message: The message; a repair replaces it.
        turn: The turn of the message. A turn begins with each user message.
        thoughts: The thoughts before the message.
    """

    message: Message
    turn: int
    thoughts: list[str] = field(default_factory=list)

    @property
    def role(self) -> Role:
        """Return the role of the message that this entry holds."""
        return self.message["role"]

    @property
    def calls(self) -> list[ToolCall]:
        """Return the tool calls of the message that this entry holds."""
        return self.message.get("tool_calls") or []


@dataclass(eq=False)
class _Call:
    """A tool call as the repair pass sees it.

    Attributes:
        entry: The message that makes the call.
        repaired: The call with its new id and repaired arguments.
        id: The id in the record.
        position: Number of calls before this call.
        result: The result that answers the call.
        removed: Whether a repair removes the call.
    """

    entry: _Entry
    repaired: ToolCall
    id: str
    position: int
    result: "_Result | None" = None
    removed: bool = False

    @property
    def tool(self) -> str:
        """Return the name of the called tool."""
        return self.repaired["function"]["name"]

    @property
    def bare_tool(self) -> str:
        """Return the name of the called tool without its namespace."""
        return _drop_namespace(self.tool)


@dataclass(eq=False)
class _Result:
    """A tool result as the repair pass sees it.

    Attributes:
        entry: The tool's message.
        id: The call's id in the record.
        tool: The tool that the record names, or an empty text. Only results without an id have it.
        calls_before: Number of calls before the result.
        call: The call that the result answers.
        is_only_choice: Whether no other call was open that the result could answer.
    """

    entry: _Entry
    id: str
    tool: str
    calls_before: int
    call: _Call | None = None
    is_only_choice: bool = False

    @property
    def bare_tool(self) -> str:
        """Return the name of the tool without its namespace."""
        return _drop_namespace(self.tool)


class _RepairPass:
    """One pass over a session's messages.

    Each step of the pass finds one kind of damage, counts it, and applies the policy's action.
    """

    def __init__(
        self,
        messages: list[Message],
        reasoning: Sequence[Thought],
        policy: RepairPolicy,
        offered: Collection[str] = (),
    ) -> None:
        self._messages = messages
        self._offered = offered
        self._reasoning = reasoning
        self._policy = policy
        self._damage: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._dropped_turns: set[int] = set()
        self._entries: list[_Entry] = []

    def run(self) -> RepairedChat:
        """Run all repairs and return the repaired chat."""
        self._make_entries()
        self._repair_unicode()
        self._drop_call_texts()
        self._drop_empty_messages()
        self._drop_repeats()
        self._pair_calls()
        self._drop_turns()
        self._cut_trailing_messages()
        return self._make_chat()

    def _count(self, kind: str, entry: _Entry, count: int = 1) -> RepairAction:
        """Count one kind of damage, and return the policy's action for it.

        If the action is `drop_turn`, the turn is marked and dropped later.

        Args:
            kind: The kind of damage.
            entry: The damaged message.
            count: Number of times that the damage occurs in the message.
        """
        self._damage[kind] += count
        action = self._policy[kind]
        if action == "drop_turn" and count:
            self._dropped_turns.add(entry.turn)
        return action

    def _make_entries(self) -> None:
        """Create an entry for each message, with its turn and the thoughts before it."""
        turn = 0
        for message in self._messages:
            if message["role"] == "user":
                turn += 1
            self._entries.append(_Entry(message, turn))
        for thought in self._reasoning:
            if 0 <= thought["message"] < len(self._entries):
                self._entries[thought["message"]].thoughts.append(thought["text"])
            else:
                self._skipped["reasoning"] += 1

    def _repair_unicode(self) -> None:
        """Replace unpaired surrogates in messages and thoughts."""
        for entry in self._entries:
            damage: Counter[str] = Counter()
            message = make_storable(entry.message, damage)
            thoughts = make_storable(entry.thoughts, damage)
            if damage:
                entry.message, entry.thoughts = message, thoughts
                self._count("invalid_unicode", entry, damage["invalid_unicode"])

    def _drop_call_texts(self) -> None:
        """Remove the raw text of a call if the message also has the call itself."""
        for entry in self._entries:
            words = drop_call_texts(entry.message)
            if words == entry.message["content"]:
                continue
            if self._count("call_said_twice", entry) == "repair":
                entry.message = {**entry.message, "content": words}

    def _drop_empty_messages(self) -> None:
        """Remove messages that have neither text nor calls."""
        removed = []
        for entry in self._entries:
            if entry.role == "tool" or entry.calls or entry.message["content"].strip():
                continue
            action = self._count("empty_message", entry)
            # Dropping a turn later removes its messages, but not system prompts.
            if action == "repair" or (action == "drop_turn" and entry.role == "system"):
                removed.append(entry)
        self._remove(removed)

    def _drop_repeats(self) -> None:
        """Keep only one of several equal blocks of messages, with the thoughts of all of them."""
        while True:
            repeat = find_repeat([entry.message for entry in self._entries])
            if repeat is None:
                return
            copies_start = repeat.start + repeat.size
            copies_end = copies_start + repeat.copies * repeat.size
            copies = self._entries[copies_start:copies_end]
            if self._count("duplicated_history", copies[0], repeat.copies) != "repair":
                return
            for index, copy in enumerate(copies):
                original = self._entries[repeat.start + index % repeat.size]
                original.thoughts = original.thoughts or copy.thoughts
                copy.thoughts = []
            self._remove(copies)

    def _pair_calls(self) -> None:
        """Pair every result with its call, and move it directly after the message of the call.

        Every call gets a unique id.
        """
        calls, results = self._list_calls(), self._list_results()
        _answer_calls(calls, results, _key_by_turn_and_id)
        _answer_calls(calls, results, _key_by_turn_and_tool)
        _answer_calls(calls, results, _key_by_turn_and_bare_tool)
        _answer_calls(calls, results, _key_by_turn)
        for result in results:
            if result.call is None:
                self._count("orphan_output", result.entry)
            elif _is_guess(result, result.call, calls, self._offered):
                self._count("mismatched_call_id", result.entry)
            elif not (result.id and result.call.id):
                self._count("empty_call_id", result.entry)
            elif result.id != result.call.id:
                self._count("mismatched_call_id", result.entry)
        for call in calls:
            if call.result is None and self._count("unanswered_call", call.entry) == "repair":
                call.removed = True
        self._arrange([call for call in calls if not call.removed])

    def _list_calls(self) -> list[_Call]:
        """Return all calls, with unique ids and repaired arguments."""
        calls: list[_Call] = []
        uses: Counter[str] = Counter()
        used_ids: set[str] = set()
        for entry in self._entries:
            for recorded in entry.calls:
                call_id = recorded["id"]
                if not call_id:
                    self._count("empty_call_id", entry)
                elif uses[call_id]:
                    self._count("reused_call_id", entry)
                uses[call_id] += 1
                wanted_id = call_id or f"call_{len(calls) + 1}"
                new_id = make_unique_id(wanted_id, uses[call_id], used_ids)
                damage: Counter[str] = Counter()
                arguments = repair_arguments(recorded["function"]["arguments"], damage)
                actions = {
                    kind: self._count(kind, entry, count) for kind, count in damage.items() if count
                }
                repaired: ToolCall = {
                    **recorded,
                    "id": new_id,
                    "function": {**recorded["function"], "arguments": arguments},
                }
                call = _Call(entry, repaired, call_id, position=len(calls))
                call.removed = actions.get("invalid_arguments") == "repair"
                calls.append(call)
        return calls

    def _list_results(self) -> list[_Result]:
        """Return all tool results of the session, in order."""
        results = []
        calls_before = 0
        for entry in self._entries:
            calls_before += len(entry.calls)
            if entry.role == "tool":
                call_id, tool = entry.message["tool_call_id"], entry.message.get("name", "")
                entry.message = drop_keys(entry.message, "name")
                results.append(_Result(entry, call_id, "" if call_id else tool, calls_before))
        return results

    def _arrange(self, calls: list[_Call]) -> None:
        """Keep only the given calls, and move their results directly after their messages.

        Results that answer no call are removed. Messages that have neither calls nor text
        afterwards are removed too.
        """
        calls_by_entry: dict[_Entry, list[ToolCall]] = defaultdict(list)
        results_by_entry: dict[_Entry, list[_Entry]] = defaultdict(list)
        for call in calls:
            calls_by_entry[call.entry].append(call.repaired)
            if call.result is not None:
                result_entry = call.result.entry
                result_entry.message = {**result_entry.message, "tool_call_id": call.repaired["id"]}
                results_by_entry[call.entry].append(result_entry)
        arranged, emptied = [], []
        for entry in self._entries:
            if entry.role == "tool":
                continue
            if entry.calls:
                if entry in calls_by_entry:
                    entry.message = {**entry.message, "tool_calls": calls_by_entry[entry]}
                else:
                    entry.message = drop_keys(entry.message, "tool_calls")
                    if not entry.message["content"].strip():
                        emptied.append(entry)
            arranged += [entry, *results_by_entry[entry]]
        self._entries = arranged
        self._remove(emptied)

    def _drop_turns(self) -> None:
        """Remove the turns that the policy drops, except for system prompts."""
        self._skip(
            [
                entry
                for entry in self._entries
                if entry.turn in self._dropped_turns and entry.role != "system"
            ]
        )

    def _skip(self, entries: list[_Entry]) -> None:
        """Remove messages with their thoughts, and count both as skipped."""
        self._skipped["message:drop_turn"] += len(entries)
        for entry in entries:
            self._skipped["reasoning"] += len(entry.thoughts)
            entry.thoughts = []
        self._remove(entries)

    def _cut_trailing_messages(self) -> None:
        """Count the user or tool messages at the end, and apply the policy's action."""
        last_role = self._entries[-1].role if self._entries else None
        if last_role not in ("user", "tool"):
            return
        last = self._entries[-1]
        count = _count_trailing([entry.message for entry in self._entries], last_role)
        action = self._count(f"trailing_{last_role}", last, count)
        if action == "drop_turn":
            self._skip(
                [
                    entry
                    for entry in self._entries
                    if entry.turn == last.turn and entry.role != "system"
                ]
            )
        elif action == "repair":
            removed = self._entries[-count:]
            if last_role == "tool" and len(self._entries) > count:
                caller = self._entries[-count - 1]
                caller.message = drop_keys(caller.message, "tool_calls")
                if not caller.message["content"].strip():
                    removed = [caller, *removed]
            self._remove(removed)

    def _remove(self, removed: Iterable[_Entry]) -> None:
        """Remove messages, and attach their thoughts to a later message.

        The thoughts go to the next assistant message of the turn. If there is no such message, the
        thoughts are counted as skipped.
        """
        marked = set(removed)
        if not marked:
            return
        for index, entry in enumerate(self._entries):
            if entry not in marked or not entry.thoughts:
                continue
            heir = self._find_heir(index, marked)
            if heir is None:
                self._skipped["reasoning"] += len(entry.thoughts)
            else:
                heir.thoughts = entry.thoughts + heir.thoughts
            entry.thoughts = []
        self._entries = [entry for entry in self._entries if entry not in marked]

    def _find_heir(self, index: int, marked: set[_Entry]) -> _Entry | None:
        """Return the next assistant message of the same turn that is kept, or None."""
        turn = self._entries[index].turn
        for entry in self._entries[index:]:
            if entry not in marked and entry.role == "assistant" and entry.turn == turn:
                return entry
        return None

    def _make_chat(self) -> RepairedChat:
        """Return the messages, thoughts and counts of this pass."""
        reasoning: list[Thought] = [
            {"message": index, "text": text}
            for index, entry in enumerate(self._entries)
            for text in entry.thoughts
        ]
        messages = [entry.message for entry in self._entries]
        return RepairedChat(messages, reasoning, +self._damage, +self._skipped)


_PairKey = Callable[[_Call | _Result], Hashable]
"""Function that returns equal keys for a call and for the results that may answer this call."""


def _key_by_turn_and_id(entry: _Call | _Result) -> Hashable:
    """Return the turn and the id as a key, or None if the id is empty."""
    return (entry.entry.turn, entry.id) if entry.id else None


def _key_by_turn_and_tool(entry: _Call | _Result) -> Hashable:
    """Return the turn and the tool as a key, or None if a result does not name its tool."""
    return (entry.entry.turn, entry.tool) if entry.tool else None


def _key_by_turn_and_bare_tool(entry: _Call | _Result) -> Hashable:
    """Return the turn and the tool without its namespace, or None without a tool."""
    return (entry.entry.turn, entry.bare_tool) if entry.tool else None


def _key_by_turn(entry: _Call | _Result) -> Hashable:
    """Return the turn of a call or a result as the key."""
    return entry.entry.turn


def _answer_calls(calls: list[_Call], results: list[_Result], make_key: _PairKey) -> None:
    """Match each unpaired result with the oldest earlier call that has the same key and no result.

    Args:
        calls: All calls, in order.
        results: All results, in order.
        make_key: Returns the key of a call or a result. A result with the key None is not matched.
    """
    open_calls: dict[Hashable, deque[_Call]] = defaultdict(deque)
    for call in calls:
        if call.result is None:
            open_calls[make_key(call)].append(call)
    for result in results:
        key = make_key(result)
        if result.call is not None or key is None:
            continue
        candidates = open_calls[key]
        if candidates and candidates[0].position < result.calls_before:
            others = (call for call in candidates if call.position < result.calls_before)
            result.is_only_choice = len(list(islice(others, 2))) == 1
            result.call = candidates.popleft()
            result.call.result = result


def _is_guess(result: _Result, call: _Call, calls: Iterable[_Call], offered: Iterable[str]) -> bool:
    """Return whether the tool that a result names shows that its call may be another one.

    A name that is no tool (`tool`) says nothing about the call.

    Args:
        result: The result.
        call: The call that the result answers.
        calls: All calls.
        offered: The names of the tools that were offered to the agent.
    """
    if not result.tool or result.tool == call.tool:
        return False
    namesakes = [other for other in calls if other.bare_tool == result.bare_tool]
    if any(other.entry.turn == call.entry.turn and other.tool != call.tool for other in namesakes):
        return not (result.bare_tool == call.bare_tool and result.is_only_choice)
    if result.bare_tool == call.bare_tool or result.is_only_choice:
        return False
    return bool(namesakes) or result.bare_tool in map(_drop_namespace, offered)


def _drop_namespace(tool: str) -> str:
    """Return the name of a tool without its namespace: `functions.search` becomes `search`."""
    return re.split(r"[./:]", tool)[-1] or tool


def _is_sound(messages: list[Message]) -> bool:
    """Return whether none of the messages is damaged.

    User or tool messages at the end do not count as damage here.
    """
    ids: set[str] = set()
    expected_ids: deque[str] = deque()
    first_contents: dict[str, str] = {}
    for message in messages:
        content, role = message["content"], message["role"]
        if not is_storable(content):
            return False
        if role == "tool":
            if not expected_ids or expected_ids.popleft() != message["tool_call_id"]:
                return False
            continue
        if expected_ids:
            return False
        calls = message.get("tool_calls")
        if calls:
            for call in calls:
                if not _is_sound_call(call, ids):
                    return False
                ids.add(call["id"])
                expected_ids.append(call["id"])
            if drop_call_texts(message) != content:
                return False
        elif not content or content.isspace():
            return False
        if role != "assistant":
            if first_contents.get(role) == content:
                return False  # the history may begin again here
            first_contents.setdefault(role, content)
    return not expected_ids


def _is_sound_call(call: ToolCall, ids_before: set[str]) -> bool:
    """Return whether a call has a unique id, a storable name and valid arguments."""
    call_id, function = call["id"], call["function"]
    return (
        bool(call_id)
        and call_id not in ids_before
        and is_storable(call_id + function["name"])
        and is_shallow_object(function["arguments"])
    )


def _count_trailing(messages: list[Message], role: str) -> int:
    """Count how many messages of one role are at the end of the conversation."""
    count = 0
    for message in reversed(messages):
        if message["role"] != role:
            break
        count += 1
    return count
