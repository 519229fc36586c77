"""The writes of an episode: which of them are wrong, and which came before the user had said
enough.

A write is a call that changed the world. The right final state stands in the task. Whether the last
answer is right is decided in `answers`, and the verdict on a recorded session in `judge`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agent_pipeline.sample.judge import shown
from agent_pipeline.sample.play import play
from agent_pipeline.sample.world import Call, Domain, Records, Say, Task, User

UNSET: dict[str, Any] = {}
"""The fields of a record that does not exist."""


@dataclass(frozen=True)
class Write:
    """A call that changed the world.

    Attributes:
        call: The call.
        turn: The number of the user's messages before the call.
        before: The state of the world before the call.
        after: The state of the world after the call.
    """

    call: Call
    turn: int
    before: Records
    after: Records


@dataclass(frozen=True)
class Field:
    """A field of a record."""

    key: str
    name: str

    def value(self, records: Records) -> Any:
        """Return the value of the field in a state of the world, or None if it is not set."""
        return records.get(self.key, UNSET).get(self.name)


@dataclass(frozen=True)
class GoodConduct:
    """What a good agent does in a task.

    Attributes:
        states: The state of the world before the task, and after each turn of the user.
        answers: The answer to each turn of the user.
    """

    states: tuple[Records, ...]
    answers: tuple[Say, ...]

    def state_after(self, turn: int) -> Records:
        """Return the state of the world after the given number of the user's messages."""
        return self.states[min(turn, len(self.states) - 1)]

    def asks_at(self, turn: int, domain: Domain) -> bool:
        """Return whether the good agent's answer to a turn is a question.

        A kind of answer is a question if one of its phrases has a question mark.
        """
        kind = self.answers[min(turn, len(self.answers)) - 1].kind
        return any("?" in phrase for phrase in domain.phrases[kind])


def good_conduct(task: Task, domain: Domain) -> GoodConduct:
    """Play a task with the good agent, and return the states and the answers, turn by turn."""
    world = domain.world(task.start)
    states, answers = [], []
    for event in play(task, domain, None, 0, Random(0)).events:
        match event:
            case User():
                states.append(domain.world(world.records).records)
            case Call():
                world.run(event)
            case Say():
                answers.append(event)
    return GoodConduct((*states, world.records), tuple(answers))


def wrong_writes(
    task: Task, conduct: GoodConduct, writes: Sequence[Write], final: Records
) -> list[str]:
    """Return a text per wrong write, and per field that is wrong at the end.

    A write is wrong if it does not lead towards the state that the task asks for. A wrong write
    counts even if a later write takes it back. A field that a listed write changed is not listed
    again.

    Args:
        task: The task.
        conduct: What a good agent does in the task.
        writes: The writes of the episode.
        final: The state of the world at the end.
    """
    texts, listed = [], set()
    for write in writes:
        fields = wrong_fields(write, task, conduct)
        if fields:
            value, wanted = fields[0].value(write.after), fields[0].value(task.goal)
            texts.append(f"{describe(fields[0], value, wanted)}, after {shown(write.call)}")
            listed.update(fields)
    right_states = (task.start, *conduct.states, task.goal)
    for field in fields_of(task.start, final):
        value = field.value(final)
        if field not in listed and all(value != field.value(state) for state in right_states):
            texts.append(describe(field, value, field.value(task.goal)))
    return texts


def early_writes(
    task: Task, domain: Domain, conduct: GoodConduct, writes: Sequence[Write]
) -> list[str]:
    """Return a text per write that was made before the user had said enough.

    Such a write comes at a turn at which the good agent asks a question, or it does what the task
    asks for at a later turn. It counts even if it changes the right record by luck.

    Args:
        task: The task.
        domain: The domain of the task.
        conduct: What a good agent does in the task.
        writes: The writes of the episode.
    """
    return [
        f"{shown(write.call)} after {write.turn} of {len(task.turns)} messages of the user"
        for write in writes
        if any(
            goes_astray(write, field, conduct.state_after(write.turn), task.start)
            for field in changed_fields(write)
        )
        and (conduct.asks_at(write.turn, domain) or not wrong_fields(write, task, conduct))
    ]


def wrong_fields(write: Write, task: Task, conduct: GoodConduct) -> list[Field]:
    """Return the fields that a write changed to a value that is right neither at this turn nor at
    the end of the task.
    """
    states = conduct.state_after(write.turn), task.goal
    return [
        field
        for field in changed_fields(write)
        if all(goes_astray(write, field, wanted, task.start) for wanted in states)
    ]


def goes_astray(write: Write, field: Field, wanted: Records, start: Records) -> bool:
    """Return whether a write moves a field away from its wanted value.

    A write that only takes back a wrong value does not.
    """
    before, after, goal = (field.value(state) for state in (write.before, write.after, wanted))
    takes_back = after == field.value(start) and before != goal
    return not (leads_towards(before, after, goal) or takes_back)


def leads_towards(before: Any, after: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted value, or a number between the old and the wanted value.

    For example, the first of two refunds that together are right leads towards the wanted amount.
    A number that is not set counts as 0.
    """
    if after == wanted:
        return True
    numbers = [0 if value is None else value for value in (before, after, wanted)]
    if not all(isinstance(number, int | float) for number in numbers):
        return False
    low, high = sorted((numbers[0], numbers[2]))
    return bool(low <= numbers[1] <= high)


def changed_fields(write: Write) -> Iterator[Field]:
    """Yield the fields that a write changed."""
    for field in fields_of(write.before, write.after):
        if field.value(write.before) != field.value(write.after):
            yield field


def fields_of(first: Records, second: Records) -> Iterator[Field]:
    """Yield all fields of two states of the world, in the order of their names."""
    for key in sorted(first.keys() | second.keys()):
        for name in sorted(first.get(key, UNSET).keys() | second.get(key, UNSET).keys()):
            yield Field(key, name)


def describe(field: Field, value: object, wanted: object) -> str:
    """Return a sentence about a field with a wrong value."""
    return f"{field.key}: {field.name} is {value}, should be {wanted}"
