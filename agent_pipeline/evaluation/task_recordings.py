"""The recordings of a task, arranged for looking up: results, answers, and how sessions ended.

Playing an episode belongs to `replayed_world`, and the table `tape` to `tape`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from agent_pipeline.evaluation.free_texts import FreeTexts
from agent_pipeline.evaluation.tape import (
    GOOD,
    Recording,
    State,
    Step,
    TaskTape,
    add_write,
    list_steps,
)
from agent_pipeline.evaluation.wording import Wording
from agent_pipeline.models.tool_call_parsers import ParameterSchemas

Heard = tuple[str, ...]
"""The user's messages so far."""


@dataclass(frozen=True)
class RecordedTurn:
    """An answer of the agent in a recorded session.

    Attributes:
        heard: The user's messages before it.
        state: The successful writes before it.
        text: The answer.
        reply: The user's next message; None if the session ends.
        session_id: The session.
        is_good: Whether the session is good.
    """

    heard: Heard
    state: State
    text: str
    reply: str | None
    session_id: str
    is_good: bool


@dataclass(frozen=True)
class RecordedEnding:
    """How a recorded session ended.

    Attributes:
        session_id: The session.
        writes: The successful writes in their order.
        text: The last answer.
        is_good: Whether the session is good; None if nobody judged it.
        looked_up: By successful write, the look-ups before it.
        most_repeated: How often the most frequent call was made.
    """

    session_id: str
    writes: tuple[str, ...]
    text: str
    is_good: bool | None
    looked_up: Mapping[str, frozenset[str]]
    most_repeated: int

    @property
    def state(self) -> State:
        """Return the successful writes in any order."""
        return tuple(sorted(self.writes))


@dataclass(frozen=True)
class RecordedResult:
    """A recorded result of a call.

    Attributes:
        text: The result.
        failed: Whether it is an error.
        session_id: The session that recorded it.
        is_tied: Whether it holds only together with other results of the same session.
        heard: The user's messages before the call.
    """

    text: str
    failed: bool
    session_id: str
    is_tied: bool
    heard: Heard


@dataclass
class TaskRecordings:
    """The recordings of a task, arranged for looking up.

    Attributes:
        free: The arguments of writes that are free texts.
        reads: The tools that only look things up.
        results: The recorded results by tool, canonical arguments and writes before the call.
        turns: The recorded answers of the agent.
        endings: How the sessions ended.
        good_calls: The calls that good sessions made, word for word.
        good_writes: The successful writes of good sessions, without arguments of several words.
    """

    free: FreeTexts
    reads: frozenset[str]
    results: defaultdict[tuple[str, str, State], list[RecordedResult]] = field(
        default_factory=lambda: defaultdict(list)
    )
    turns: list[RecordedTurn] = field(default_factory=list)
    endings: list[RecordedEnding] = field(default_factory=list)
    good_calls: set[str] = field(default_factory=set)
    good_writes: set[str] = field(default_factory=set)

    @classmethod
    def arrange(
        cls, tape: TaskTape, schemas: ParameterSchemas, wording: Wording
    ) -> "TaskRecordings":
        """Arrange the recordings of a task.

        Args:
            tape: The recordings.
            schemas: The parameter schemas by tool.
            wording: The words that do not carry content.
        """
        steps = [
            _drop_last_words(list_steps(recording.messages, schemas))
            for recording in tape.recordings
        ]
        good_steps = [
            (recording.session_id, step)
            for recording, session_steps in zip(tape.recordings, steps, strict=True)
            for step in session_steps
            if recording.verdict == GOOD and step.kind == "call"
        ]
        good_writes = [
            (session_id, step) for session_id, step in good_steps if add_write((), step, tape.reads)
        ]
        free = FreeTexts.find(good_writes, wording)
        arranged = cls(free, frozenset(tape.reads))
        arranged.good_calls.update(step.call for _, step in good_steps)
        arranged.good_writes.update(
            replace(step, arguments=free.drop_prose(step.tool, step.arguments)).call
            for _, step in good_writes
        )
        for recording, session_steps in zip(tape.recordings, steps, strict=True):
            arranged._add(recording, [arranged._reduce(step) for step in session_steps])
        return arranged

    def _reduce(self, step: Step) -> Step:
        """Return a step without the wording of free texts."""
        if step.kind != "call":
            return step
        return replace(step, arguments=self.free.reduce(step.tool, step.arguments))

    def _add(self, recording: Recording, steps: Sequence[Step]) -> None:
        """Add the steps of a recording."""
        writes: list[str] = []
        heard: Heard = ()
        calls: Counter[str] = Counter()
        looked_up: dict[str, frozenset[str]] = {}
        is_good = None if recording.verdict is None else recording.verdict == GOOD
        last_answer = ""
        for index, step in enumerate(steps):
            following = steps[index + 1] if index + 1 < len(steps) else None
            state = tuple(sorted(writes))
            if step.kind == "user":
                heard = hear(heard, step.text)
            elif step.kind == "answer":
                last_answer = step.text if following is None else ""
                if following is None or following.kind == "user":
                    reply = following.text if following else None
                    self.turns.append(
                        RecordedTurn(
                            heard, state, step.text, reply, recording.session_id, bool(is_good)
                        )
                    )
            else:
                is_tied = calls.total() in recording.tied_calls
                self.results[step.tool, step.arguments, state].append(
                    RecordedResult(step.text, step.failed, recording.session_id, is_tied, heard)
                )
                if add_write(state, step, self.reads) != state:
                    looked_up.setdefault(step.call, self.list_look_ups(calls))
                    writes.append(step.call)
                calls[step.call] += 1
        self.endings.append(
            RecordedEnding(
                recording.session_id,
                tuple(writes),
                last_answer,
                is_good,
                looked_up,
                max(calls.values(), default=0),
            )
        )

    def list_look_ups(self, calls: Mapping[str, int]) -> frozenset[str]:
        """Return the look-ups among calls."""
        return frozenset(call for call in calls if tool_of(call) in self.reads)

    @property
    def good(self) -> Iterator[RecordedEnding]:
        """Yield the endings of the good sessions."""
        return (ending for ending in self.endings if ending.is_good)

    def is_write_of_good(self, tool: str, arguments: str) -> bool:
        """Return whether a good session made a write, perhaps in other words or another state."""
        return f"{tool}({self.free.drop_prose(tool, arguments)})" in self.good_writes

    def keeps_order_of_good(self, writes: Sequence[str]) -> bool:
        """Return whether a good session made these writes in this order, perhaps among others."""
        return any(_is_subsequence(writes, ending.writes) for ending in self.good)


def hear(heard: Heard, text: str) -> Heard:
    """Return the user's messages after another one. Repeating the request says nothing new."""
    return heard if text in heard[:1] else (*heard, text)


def _drop_last_words(steps: list[Step]) -> list[Step]:
    """Return steps without the user's last words, which nobody answered: they end a session."""
    while steps and steps[-1].kind == "user":
        steps = steps[:-1]
    return steps


def tool_of(call: str) -> str:
    """Return the tool of a call that is written as text."""
    return call.partition("(")[0]


def _is_subsequence(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Return whether a sequence is what remains of another one if some items are left out."""
    remaining = iter(whole)
    return all(item in remaining for item in part)
