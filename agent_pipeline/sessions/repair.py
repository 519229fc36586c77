"""Chat messages as a record has them → messages that every later stage can rely on; one module, after all readers.

Calls are paired with their results **by position**, not by a dictionary of ids: real logs reuse ids, leave them empty, and reorder
results. A result answers the open call of its turn that carries its id, else the oldest open call. Each kind of damage is counted, and
a policy says what is done about it: the session is dropped (by curation; its table row stays), the turn is taken out, the damage is
repaired, or it is kept.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from agent_pipeline.sessions.session import Message, Session, drop_keys


@dataclass
class RepairedChat:
    """Messages whose calls have unique ids and stand before their results; `reasoning` with the indices that hold now.

    `damage` counts what was found by kind, `skipped` the messages that `drop_turn` took out and the reasoning that lost its message.
    """

    messages: list[Message]
    reasoning: list[dict[str, Any]] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def repair_session(session: Session, policy: RepairPolicy = DEFAULT_REPAIR_POLICY) -> None:
    """Repair a session as its source gave it, in place, and say which kind of its damage drops it (`broken`)."""
    result = repair_messages(session.messages, session.reasoning, policy)
    session.messages, session.reasoning = result.messages, result.reasoning
    if result.skipped:
        session.skipped = dict(Counter(session.skipped) + result.skipped)
    if result.damage:
        session.damage = dict(Counter(session.damage) + result.damage)
    if session.damage:
        session.broken = find_breaking_kind(session.damage, policy)
    if session.broken == "unanswered_call" and session.ends_on_tool and session.messages:
        last_calls = session.messages[-1].get("tool_calls") or ()
        if session.damage["unanswered_call"] == len(
            last_calls
        ):  # by the source's rules these calls ended the run
            session.broken = None


def repair_messages(
    messages: list[Message],
    reasoning: Sequence[dict[str, Any]] = (),
    policy: RepairPolicy = DEFAULT_REPAIR_POLICY,
) -> RepairedChat:
    """Repair one session's messages. The list that is given stays as it is; sound messages are returned themselves.

    A repair may bring more to light (two equal blocks side by side, once what stood between them is gone), so the passes go on until
    nothing changes: repairing twice changes nothing. Most sessions are sound, and a look that is twenty times as fast as a pass says so.
    """
    if _is_sound(messages):
        role = messages[-1]["role"] if messages else None
        if role not in ("user", "tool"):
            return RepairedChat(messages, list(reasoning))
        if policy[f"trailing_{role}"] in ("keep", "drop_session"):
            return RepairedChat(
                messages, list(reasoning), Counter({f"trailing_{role}": _trailing(messages, role)})
            )
    result = _Pass(messages, reasoning, policy).result()
    total = Counter(result.damage)
    while result.messages != messages:
        messages, skipped = result.messages, result.skipped
        result = _Pass(messages, result.reasoning, policy).result()
        for (
            kind,
            count,
        ) in result.damage.items():  # what stays is met again; what is repaired is new
            total[kind] = (
                total[kind] + count
                if policy[kind] in ("repair", "drop_turn")
                else max(total[kind], count)
            )
        result.skipped += skipped
    result.damage = +total
    return result


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
    message: dict[str, Any]
    id: str
    position: int
    output: "_Output | None" = None
    removed: bool = False


@dataclass(eq=False)
class _Output:
    line: _Line
    id: str
    preceding: int
    call: _Call | None = None


class _Pass:
    """One pass over a session's messages: each step finds one kind of damage, counts it, and does what the policy says."""

    def __init__(
        self, messages: list[Message], reasoning: Sequence[dict[str, Any]], policy: RepairPolicy
    ) -> None:
        self.given = messages
        self.reasoning = reasoning
        self.policy = policy
        self.damage: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.dropped_turns: set[int] = set()
        self.lines: list[_Line] = []

    def result(self) -> RepairedChat:
        """The messages as they are after this pass."""
        self._spread()
        self._repair_unicode()
        self._unsay_calls()
        self._drop_empty()
        self._drop_repeated()
        self._pair_calls()
        self._drop_turns()
        self._cut_the_end()
        return self._gathered()

    def _count(self, kind: str, line: _Line, number: int = 1) -> RepairAction:
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

    def _repair_unicode(self) -> None:
        for line in self.lines:
            counted: Counter[str] = Counter()
            message, thoughts = (
                make_storable(line.message, counted),
                make_storable(line.thoughts, counted),
            )
            if counted:
                line.message, line.thoughts = message, thoughts
                self._count("invalid_unicode", line, counted["invalid_unicode"])

    def _unsay_calls(self) -> None:
        for line in self.lines:
            words = drop_call_texts(line.message)
            if (
                words != line.message["content"]
                and self._count("call_said_twice", line) == "repair"
            ):
                line.message = line.message | {"content": words}

    def _drop_empty(self) -> None:
        empty = [
            line
            for line in self.lines
            if line.role != "tool" and not line.calls and not line.message["content"].strip()
        ]
        to_drop = [
            line for line in empty if self._count("empty_message", line) in ("repair", "drop_turn")
        ]
        self._remove(
            [
                line
                for line in to_drop
                if self.policy["empty_message"] == "repair" or line.role == "system"
            ]
        )

    def _drop_repeated(self) -> None:
        while repeat := find_repeat([line.message for line in self.lines]):
            first, size, times = repeat
            copies = self.lines[first + size : first + (times + 1) * size]
            if self._count("duplicated_history", copies[0], times) != "repair":
                break
            for at, copy in enumerate(copies):
                line = self.lines[first + at % size]
                line.thoughts = line.thoughts or copy.thoughts
                copy.thoughts = []
            self._remove(copies)

    def _pair_calls(self) -> None:
        """Pair every result with its call; give every call an id of its own; put every result directly after its call's message."""
        calls, outputs = self._calls(), self._outputs()
        _answer(calls, outputs, lambda each: (each.line.turn, each.id) if each.id else None)
        _answer(calls, outputs, lambda each: each.line.turn)
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
        remaining: dict[_Line, list[dict[str, Any]]] = defaultdict(list)
        for call in calls:
            if call.removed:
                continue
            remaining[call.line].append(call.message)
            if call.output is not None:
                line = call.output.line
                line.message = line.message | {"tool_call_id": call.message["id"]}
                answers[call.line].append(line)
        lines, emptied = [], []
        for line in self.lines:
            if line.role == "tool":
                continue
            if line.calls:
                line.message = {
                    name: value
                    for name, value in line.message.items()
                    if name != "tool_calls" or remaining[line]
                }
                if remaining[line]:
                    line.message["tool_calls"] = remaining[line]
                elif not line.message["content"].strip():
                    emptied.append(line)
            lines += [line, *answers[line]]
        self.lines = lines
        self._remove(emptied)

    def _calls(self) -> list[_Call]:
        calls: list[_Call] = []
        uses: Counter[str] = Counter()
        used_ids: set[str] = set()
        for line in self.lines:
            for raw in line.calls:
                call_id = raw["id"]
                if not call_id:
                    self._count("empty_call_id", line)
                elif uses[call_id]:
                    self._count("reused_call_id", line)
                uses[call_id] += 1
                new_id = make_unique_id(
                    call_id or f"call_{len(calls) + 1}", uses[call_id], used_ids
                )
                counted: Counter[str] = Counter()
                function = raw["function"] | {
                    "arguments": repair_arguments(raw["function"]["arguments"], counted)
                }
                actions = {
                    kind: self._count(kind, line, count) for kind, count in (+counted).items()
                }
                call = _Call(line, raw | {"id": new_id, "function": function}, call_id, len(calls))
                call.removed = actions.get("invalid_arguments") == "repair"
                calls.append(call)
        return calls

    def _outputs(self) -> list[_Output]:
        outputs, calls = [], 0
        for line in self.lines:
            calls += len(line.calls)
            if line.role == "tool":
                outputs.append(_Output(line, line.message["tool_call_id"], calls))
        return outputs

    def _drop_turns(self) -> None:
        gone = [
            line for line in self.lines if line.turn in self.dropped_turns and line.role != "system"
        ]
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
            self._lose(
                [
                    line
                    for line in self.lines
                    if line.turn == self.lines[-1].turn and line.role != "system"
                ]
            )
        elif action == "repair":
            gone = self.lines[-number:]
            if last == "tool" and len(self.lines) > number:
                caller = self.lines[-number - 1]
                caller.message = drop_keys(caller.message, "tool_calls")
                gone = gone if caller.message["content"].strip() else [caller, *gone]
            self._remove(gone)

    def _remove(self, gone: Iterable[_Line]) -> None:
        """Take lines out; what was thought before one goes to the next words of the assistant in its turn, or is counted."""
        marked = set(gone)
        if not marked:
            return
        for at, line in enumerate(self.lines):
            if line in marked and line.thoughts:
                heirs = (
                    each
                    for each in self.lines[at:]
                    if each not in marked and each.role == "assistant" and each.turn == line.turn
                )
                if heir := next(heirs, None):
                    heir.thoughts = line.thoughts + heir.thoughts
                else:
                    self.skipped["reasoning"] += len(line.thoughts)
                line.thoughts = []
        self.lines = [line for line in self.lines if line not in marked]

    def _gathered(self) -> RepairedChat:
        reasoning = [
            {"message": at, "text": text}
            for at, line in enumerate(self.lines)
            for text in line.thoughts
        ]
        return RepairedChat(
            [line.message for line in self.lines], reasoning, +self.damage, +self.skipped
        )


def _answer(
    calls: list[_Call], outputs: list[_Output], place: Callable[[_Call | _Output], Hashable]
) -> None:
    """Put each result that has no call yet to the oldest open call in the same place (`None`: no place) that was called before it."""
    waiting: dict[Hashable, deque[_Call]] = defaultdict(deque)
    for call in calls:
        if call.output is None:
            waiting[place(call)].append(call)
    for output in outputs:
        open_calls = waiting[place(output)] if place(output) is not None else None
        if output.call is None and open_calls and open_calls[0].position < output.preceding:
            output.call = open_calls.popleft()
            output.call.output = output


def _is_sound(messages: list[Message]) -> bool:
    """Whether nothing is wrong with the messages but, maybe, that they end on a user or a tool."""
    ids: set[str] = set()
    expected: deque[str] = deque()
    starts: dict[str, str] = {}
    for message in messages:
        content, role = message["content"], message["role"]
        if not (content.isascii() or is_storable(content)):
            return False
        if role == "tool":
            if not expected or expected.popleft() != message["tool_call_id"]:
                return False
            continue
        if expected:
            return False
        if calls := message.get("tool_calls"):
            for call in calls:
                call_id, name, arguments = (
                    call["id"],
                    call["function"]["name"],
                    call["function"]["arguments"],
                )
                if (
                    not call_id
                    or call_id in ids
                    or not is_storable(call_id + name)
                    or not is_shallow_object(arguments)
                ):
                    return False
                ids.add(call_id)
                expected.append(call_id)
            if drop_call_texts(message) != content:
                return False
        elif not content or content.isspace():
            return False
        if role != "assistant":
            if starts.get(role) == content:
                return False  # it begins again, perhaps
            starts.setdefault(role, content)
    return not expected


def _trailing(messages: list[Message], role: str) -> int:
    return next(
        (at for at, message in enumerate(reversed(messages)) if message["role"] != role),
        len(messages),
    )
