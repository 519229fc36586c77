"""Chat messages as a record has them → messages that every later stage can rely on; one module, after all readers.

Calls are paired with their results **by position**, not by a dictionary of ids: real logs reuse ids, leave them empty, and reorder
results. A result answers the open call of its turn that carries its id, else the oldest open call. Each kind of damage is counted, and
a policy says what is done about it: the session is dropped (by curation, with the reason `broken:<kind>`; its table row stays), the turn is
taken out, the damage is mended, or it is kept.
"""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.items import MAX_DEPTH, mended_unicode, storable
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tools import CallShape, call_shape

Action = Literal["drop_session", "drop_turn", "repair", "keep"]


class Kind(NamedTuple):
    """A kind of damage: what is done without a setting, what else may be, and what it is."""

    default: Action
    allowed: tuple[Action, ...]
    meaning: str


_ANY: tuple[Action, ...] = ("drop_session", "drop_turn", "repair", "keep")
_NOT_KEPT: tuple[Action, ...] = ("drop_session", "drop_turn", "repair")
_LOST: tuple[Action, ...] = ("drop_session", "keep")

KINDS: dict[str, Kind] = {
    "invalid_item": Kind("drop_session", _LOST, "an item that could not be read, or a message or call that is none; it is lost"),
    "invalid_context": Kind("drop_session", _LOST, "a context that could not be read; it may have named the task, and so the split"),
    "invalid_arguments": Kind("drop_session", _ANY, "arguments that are no JSON object; repair takes the call and its result out"),
    "orphan_output": Kind("drop_session", _NOT_KEPT, "a result without a call; it is left out"),
    "mismatched_call_id": Kind("drop_session", _NOT_KEPT, "a result that names no open call; it is put to the oldest one, a guess"),
    "invalid_tools": Kind("keep", _LOST, "a tool schema that is none; it is lost"),
    "empty_call_id": Kind("repair", _NOT_KEPT, "a call or a result without an id; paired by position, and the call given an id"),
    "reused_call_id": Kind("repair", _NOT_KEPT, "an id that an earlier call has; the later call is given one of its own"),
    "double_encoded_arguments": Kind("repair", _NOT_KEPT, "arguments that are JSON inside a JSON string; decoded"),
    "invalid_unicode": Kind("repair", _NOT_KEPT, "half a character, which no UTF-8 can hold; replaced by U+FFFD"),
    "empty_message": Kind("repair", _ANY, "a message without words and calls; repair leaves it out"),
    "duplicated_history": Kind(
        "repair",
        ("drop_session", "repair", "keep"),
        "messages that stand twice, the history's beginning or a block of calls; repair keeps one",
    ),
    "trailing_user": Kind("keep", _ANY, "the session ends on user messages; repair cuts them off"),
    "trailing_tool": Kind("keep", _ANY, "the session ends on a tool's result; repair cuts the calls and results at the end off"),
    "unanswered_call": Kind("drop_session", _ANY, "a call without a result; repair takes it out"),
}
"""The kinds in the order in which the first one that drops the session is named. What is certain is mended, a guess drops the session."""

Policy = Mapping[str, Action]
DEFAULT_POLICY: dict[str, Action] = {kind: each.default for kind, each in KINDS.items()}


@dataclass
class Repaired:
    """Messages whose calls have unique ids and stand before their results; `reasoning` with the indices that hold now.

    `damage` counts what was found by kind, `skipped` the messages that `drop_turn` took out and the reasoning that lost its message.
    """

    messages: list[Message]
    reasoning: list[dict[str, Any]] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def repair_policy(actions: Mapping[str, str]) -> dict[str, Action]:
    """The defaults with some kinds' actions changed.

    Raises:
        SettingsError: there is no such kind, or such a kind cannot be treated so.
    """
    policy = dict(DEFAULT_POLICY)
    for kind, action in actions.items():
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KINDS)}."
            raise SettingsError(f"repair has no kind {kind!r}: {hint}")
        found = next((each for each in KINDS[kind].allowed if each == action), None)
        if found is None:
            raise SettingsError(f"repair cannot treat {kind} by {action!r}: choose one of {', '.join(KINDS[kind].allowed)}.")
        policy[kind] = found
    return policy


def broken_by(damage: Mapping[str, int], policy: Policy = DEFAULT_POLICY) -> str | None:
    """The first kind of a session's damage that drops it; null where none does."""
    return next((kind for kind in KINDS if damage.get(kind) and policy[kind] == "drop_session"), None)


def repaired(messages: list[Message], reasoning: Sequence[dict[str, Any]] = (), policy: Policy = DEFAULT_POLICY) -> Repaired:
    """Mend one session's messages, which are left as they are; sound ones come back themselves.

    What mending leaves may show more (two equal blocks side by side, once what stood between them is gone), so it is gone over until
    nothing changes: repairing again then changes nothing.
    """
    if (sound_ := sound(messages, policy)) is not None:
        return Repaired(messages, list(reasoning), Counter(sound_.damage))
    found = _Pass(messages, reasoning, policy).found()
    total = Counter(found.damage)
    while found.messages != messages:
        messages, skipped = found.messages, found.skipped
        found = _Pass(messages, found.reasoning, policy).found()
        for kind, count in found.damage.items():  # what stays is met again; what is mended is new
            total[kind] = total[kind] + count if policy[kind] in ("repair", "drop_turn") else max(total[kind], count)
        found.skipped += skipped
    found.damage = +total
    return found


def arguments_json(raw: str, damage: Counter[str]) -> str:
    """A call's arguments as the JSON text of one object; other forms are mended where that is certain, else counted.

    NaN and infinity are no JSON; half an emoji may hide behind an escape that only decoding brings to light.
    """
    if not raw.strip():
        return "{}"
    value: Any = raw
    decoded = 0
    try:
        while isinstance(value, str) and decoded < 3:
            value, decoded = json.loads(value), decoded + 1
        if isinstance(value, dict):
            mended = mended_unicode(value, damage)
            text = json.dumps(mended, ensure_ascii=False, allow_nan=False)
            damage["double_encoded_arguments"] += decoded > 1
            return raw if decoded == 1 and mended == value else text
    except (ValueError, RecursionError):
        pass
    damage["invalid_arguments"] += 1
    return raw


@dataclass(eq=False)
class _Line:
    """A message on its way: the turn it belongs to (a turn begins with each user message), and what was thought before it."""

    message: Message
    turn: int
    thoughts: list[str] = field(default_factory=list)

    @property
    def role(self) -> str:
        return self.message["role"]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []


@dataclass(eq=False)
class _Call:
    line: _Line
    made: dict[str, Any]
    id: str
    turn: int
    position: int
    output: "_Output | None" = None
    removed: bool = False


@dataclass(eq=False)
class _Output:
    line: _Line
    id: str
    turn: int
    preceding: int
    call: _Call | None = None


class _Pass:
    """One pass over a session's messages: each step finds one kind of damage, counts it, and does what the policy says."""

    def __init__(self, messages: list[Message], reasoning: Sequence[dict[str, Any]], policy: Policy) -> None:
        self.given = messages
        self.reasoning = reasoning
        self.policy = policy
        self.damage: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.dropped_turns: set[int] = set()
        self.lines: list[_Line] = []

    def found(self) -> Repaired:
        """The messages as they are after this pass."""
        self._spread()
        self._mend_unicode()
        self._leave_out_empty()
        self._leave_out_repeated()
        self._mend_calls()
        self._drop_turns()
        self._cut_the_end()
        return self._gathered()

    def _count(self, kind: str, line: _Line, number: int = 1) -> Action:
        """Count damage at a line; a policy that drops turns marks the line's."""
        self.damage[kind] += number
        action = self.policy[kind]
        if action == "drop_turn" and number:
            self.dropped_turns.add(line.turn)
        return action

    def _spread(self) -> None:
        turn = 0
        for message in self.given:
            turn += message["role"] == "user"
            self.lines.append(_Line(message, turn))
        for each in self.reasoning:
            if 0 <= each["message"] < len(self.lines):
                self.lines[each["message"]].thoughts.append(each["text"])
            else:
                self.skipped["reasoning"] += 1

    def _mend_unicode(self) -> None:
        for line in self.lines:
            counted: Counter[str] = Counter()
            message, thoughts = mended_unicode(line.message, counted), mended_unicode(line.thoughts, counted)
            if counted:
                line.message, line.thoughts = message, thoughts
                self._count("invalid_unicode", line, counted["invalid_unicode"])

    def _leave_out_empty(self) -> None:
        empty = [line for line in self.lines if line.role != "tool" and not line.calls and not line.message["content"].strip()]
        mending = [line for line in empty if self._count("empty_message", line) in ("repair", "drop_turn")]
        self._remove([line for line in mending if self.policy["empty_message"] == "repair" or line.role == "system"])

    def _leave_out_repeated(self) -> None:
        while repeat := _repeat([line.message for line in self.lines]):
            first, size, times = repeat
            copies = self.lines[first + size : first + (times + 1) * size]
            if self._count("duplicated_history", copies[0], times) != "repair":
                break
            for at, copy in enumerate(copies):
                line = self.lines[first + at % size]
                line.thoughts = line.thoughts or copy.thoughts
                copy.thoughts = []
            self._remove(copies)

    def _mend_calls(self) -> None:
        """Pair every result with its call; give every call an id of its own; put every result directly after its call's message."""
        calls, outputs = self._calls(), self._outputs()
        _answer(calls, outputs, lambda each: (each.turn, each.id) if each.id else None)
        _answer(calls, outputs, lambda each: each.turn)
        for output in outputs:
            if output.call is None:
                self._count("orphan_output", output.line)
            elif not (output.id and output.call.id):
                self._count("empty_call_id", output.line)
            elif output.id != output.call.id:
                self._count("mismatched_call_id", output.line)
        for call in calls:
            if call.output is None and self._count("unanswered_call", call.line) == "repair":
                call.removed = True
        answers: dict[_Line, list[_Line]] = defaultdict(list)
        kept: dict[_Line, list[dict[str, Any]]] = defaultdict(list)
        for call in calls:
            if call.removed:
                continue
            kept[call.line].append(call.made)
            if call.output is not None:
                line = call.output.line
                line.message = line.message | {"tool_call_id": call.made["id"]}
                answers[call.line].append(line)
        lines, emptied = [], []
        for line in self.lines:
            if line.role == "tool":
                continue
            if line.calls:
                line.message = {name: value for name, value in line.message.items() if name != "tool_calls" or kept[line]}
                if kept[line]:
                    line.message["tool_calls"] = kept[line]
                elif not line.message["content"].strip():
                    emptied.append(line)
            lines += [line, *answers[line]]
        self.lines = lines
        self._remove(emptied)

    def _calls(self) -> list[_Call]:
        found: list[_Call] = []
        uses: Counter[str] = Counter()
        made_ids: set[str] = set()
        for line in self.lines:
            for raw in line.calls:
                call_id = raw["id"]
                if not call_id:
                    self._count("empty_call_id", line)
                elif uses[call_id]:
                    self._count("reused_call_id", line)
                uses[call_id] += 1
                made_id = _free_id(call_id or f"call_{len(found) + 1}", uses[call_id], made_ids)
                counted: Counter[str] = Counter()
                function = raw["function"] | {"arguments": arguments_json(raw["function"]["arguments"], counted)}
                actions = {kind: self._count(kind, line, count) for kind, count in (+counted).items()}
                call = _Call(line, raw | {"id": made_id, "function": function}, call_id, line.turn, len(found))
                call.removed = actions.get("invalid_arguments") == "repair"
                found.append(call)
        return found

    def _outputs(self) -> list[_Output]:
        found, calls = [], 0
        for line in self.lines:
            calls += len(line.calls)
            if line.role == "tool":
                found.append(_Output(line, line.message["tool_call_id"], line.turn, calls))
        return found

    def _drop_turns(self) -> None:
        gone = [line for line in self.lines if line.turn in self.dropped_turns and line.role != "system"]
        self._lose(gone)

    def _lose(self, gone: list[_Line]) -> None:
        self.skipped["message:drop_turn"] += len(gone)
        self.skipped["reasoning"] += sum(len(line.thoughts) for line in gone)
        for line in gone:
            line.thoughts = []
        self._remove(gone)

    def _cut_the_end(self) -> None:
        last = self.lines[-1].role if self.lines else None
        if last not in ("user", "tool"):
            return
        number = _trailing([line.message for line in self.lines], last)
        action = self._count(f"trailing_{last}", self.lines[-1], number)
        if action == "drop_turn":
            self._lose([line for line in self.lines if line.turn == self.lines[-1].turn and line.role != "system"])
        elif action == "repair":
            gone = self.lines[-number:]
            if last == "tool" and len(self.lines) > number:
                caller = self.lines[-number - 1]
                caller.message = {name: value for name, value in caller.message.items() if name != "tool_calls"}
                gone = gone if caller.message["content"].strip() else [caller, *gone]
            self._remove(gone)

    def _remove(self, gone: Iterable[_Line]) -> None:
        """Take lines out; what was thought before one goes to the next words of the assistant in its turn, or is counted."""
        marked = set(gone)
        if not marked:
            return
        for at, line in enumerate(self.lines):
            if line in marked and line.thoughts:
                heirs = (each for each in self.lines[at:] if each not in marked and each.role == "assistant" and each.turn == line.turn)
                if heir := next(heirs, None):
                    heir.thoughts = line.thoughts + heir.thoughts
                else:
                    self.skipped["reasoning"] += len(line.thoughts)
                line.thoughts = []
        self.lines = [line for line in self.lines if line not in marked]

    def _gathered(self) -> Repaired:
        reasoning = [{"message": at, "text": text} for at, line in enumerate(self.lines) for text in line.thoughts]
        return Repaired([line.message for line in self.lines], reasoning, +self.damage, +self.skipped)


def _free_id(wanted: str, number: int, made_ids: set[str]) -> str:
    """The id, or one like it that no call of the conversation has yet."""
    made_id = wanted
    while made_id in made_ids:
        made_id, number = f"{wanted}_{number}", number + 1
    made_ids.add(made_id)
    return made_id


def _answer(calls: list[_Call], outputs: list[_Output], place: Callable[[_Call | _Output], Hashable]) -> None:
    """Put each result that has no call yet to the oldest open call in the same place (null: none) that was made before it."""
    waiting: dict[Hashable, deque[_Call]] = defaultdict(deque)
    for call in calls:
        if call.output is None:
            waiting[place(call)].append(call)
    for output in outputs:
        open_calls = waiting[place(output)] if place(output) is not None else None
        if output.call is None and open_calls and open_calls[0].position < output.preceding:
            output.call = open_calls.popleft()
            output.call.output = output


class Sound(NamedTuple):
    """What was seen of a session that needs no repair: the damage that stays, and the shapes of its calls."""

    damage: Mapping[str, int]
    calls: frozenset[CallShape]


def sound(messages: list[Message], policy: Policy) -> Sound | None:
    """The quick way for most sessions, those with which nothing is wrong but how they end, if nothing is to be done about that; null for
    any other."""
    calls = _sound_calls(messages)
    if calls is None:
        return None
    last = messages[-1]["role"] if messages else None
    if last not in ("user", "tool"):
        return Sound({}, calls)
    kind = f"trailing_{last}"
    return Sound({kind: _trailing(messages, last)}, calls) if policy[kind] in ("keep", "drop_session") else None


def _sound_calls(messages: list[Message]) -> frozenset[CallShape] | None:
    """The shapes of the calls of a session with which nothing is wrong but how it ends; null for any other."""
    shapes: set[CallShape] = set()
    ids: set[str] = set()
    expected: deque[str] = deque()
    starts: dict[str, str] = {}
    for message in messages:
        content, role = message["content"], message["role"]
        if not (content.isascii() or storable(content)):
            return None
        if role == "tool":
            if not expected or expected.popleft() != message["tool_call_id"]:
                return None
            continue
        if expected:
            return None
        if calls := message.get("tool_calls"):
            for call in calls:
                call_id, name, arguments = call["id"], call["function"]["name"], call["function"]["arguments"]
                shape = call_shape(name, arguments)
                if shape is None or not call_id or call_id in ids or not storable(call_id + name) or _is_deep(arguments):
                    return None
                shapes.add(shape)
                ids.add(call_id)
                expected.append(call_id)
        elif not content or content.isspace():
            return None
        if role != "assistant":
            if starts.get(role) == content:
                return None  # it begins again, perhaps
            starts.setdefault(role, content)
    return None if expected else frozenset(shapes)


def _is_deep(arguments: str) -> bool:
    """Whether arguments may be nested deeper than anybody walks."""
    return len(arguments) >= 2 * MAX_DEPTH and arguments.count("[") + arguments.count("{") >= MAX_DEPTH


def _trailing(messages: list[Message], role: str) -> int:
    return next((at for at, message in enumerate(reversed(messages)) if message["role"] != role), len(messages))


def _repeat(messages: list[Message]) -> tuple[int, int, int] | None:
    """Where messages stand again right after themselves, as (start, size, times): the history's beginning, or a block of calls.

    Words alone may be said twice, and a call made twice has another id each time; only a replay repeats a beginning with both sides' words,
    or a call with its id and its result. A beginning with calls of which none has an id may be an agent that was asked the same again.
    """
    system = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    for start in {0, system}:
        for again in range(start + 1, (len(messages) + start) // 2 + 1):
            if messages[again] == messages[start] and messages[again : 2 * again - start] == messages[start:again]:
                block = messages[start:again]
                telling = any(map(_telling_ids, block)) or not any(message.get("tool_calls") for message in block)
                if telling and {"user", "assistant"} <= {message["role"] for message in block}:
                    return start, again - start, _times(messages, start, again - start)
    last: dict[tuple[str, ...], int] = {}
    for at, message in enumerate(messages):
        if not (ids := _telling_ids(message)):
            continue
        before = last.setdefault(ids, at)
        if before != at and (found := _block(messages, before, at - before)):
            return found
        last[ids] = at
    return None


def _telling_ids(message: Message) -> tuple[str, ...]:
    """The ids of a message's calls that tell one call from another: some services take the function's name for the id."""
    return tuple(call["id"] for call in message.get("tool_calls") or () if call["id"] not in ("", call["function"]["name"]))


def _block(messages: list[Message], at: int, size: int) -> tuple[int, int, int] | None:
    """The block around a message that is repeated `size` messages further on, if all of it is, its results too."""
    start = end = at
    while start > 0 and messages[start - 1] == messages[start - 1 + size]:
        start -= 1
    while end + size < len(messages) and messages[end] == messages[end + size]:
        end += 1
    answered = any(message["role"] == "tool" for message in messages[start : start + size])
    return (start, size, (end - start) // size) if end - start >= size and answered else None


def _times(messages: list[Message], start: int, size: int) -> int:
    block, times = messages[start : start + size], 0
    while messages[start + (times + 1) * size : start + (times + 2) * size] == block:
        times += 1
    return times
