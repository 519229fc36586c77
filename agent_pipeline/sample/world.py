"""The types that all simulated worlds share: events, tools that really run, tasks, and the bundle
that makes up a domain.
"""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from random import Random
from typing import Any, ClassVar, Literal, Protocol, Self

Records = dict[str, dict[str, Any]]
"""The state of a world: records by id. Tools change it, tasks define its goal, and the judge
compares the two.
"""


Variant = Literal["", "changed_rule", "other_words", "second_request"]
"""How a task differs from the tasks of the sample: a value in the rules of the system prompt, the
user's words, or the number of requests. An empty text means that the task does not differ.
"""


@dataclass(frozen=True)
class User:
    """A message of the user."""

    text: str


@dataclass(frozen=True)
class Call:
    """An agent's tool call. `note` is the agent's text before the call, which says why it makes the
    call.
    """

    name: str
    arguments: dict[str, Any]
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Result:
    """The world's result of the preceding call, as any JSON value."""

    value: Any


@dataclass(frozen=True)
class Say:
    """An answer of the agent to the user. `kind` names the phrase that the answer is made from."""

    text: str
    kind: str

    def after(self, facts: str) -> Self:
        """Return this answer with the facts on which it relies at the beginning."""
        return replace(self, text=f"{facts} {self.text}")


Event = User | Call | Result | Say
Step = Call | Say


def tool(name: str, **properties: dict[str, object]) -> dict[str, Any]:
    """Return an OpenAI tool schema. It is as short as possible, because every training row contains
    it.
    """
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


class World:
    """A state and the tools that read or change it. Each schema in `tools` names a method of the
    subclass.

    Tools refuse only impossible calls, such as an unknown id or a taken room. They do not enforce
    the house rules. Following the rules is the agent's task, and a violation is visible in the
    final state.
    """

    tools: ClassVar[Sequence[dict[str, Any]]] = ()
    reads: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, records: Records) -> None:
        self.records = copy.deepcopy(records)

    def run(self, call: Call) -> Any:
        """Run a call and return its JSON result. An unknown tool or wrong arguments return
        `{"error": ...}`.
        """
        properties = {
            schema["function"]["name"]: schema["function"]["parameters"]["properties"]
            for schema in self.tools
        }
        if call.name not in properties:
            return {"error": "no such tool"}
        if set(call.arguments) != set(properties[call.name]):
            return {"error": "wrong arguments"}
        return getattr(self, call.name)(**call.arguments)


@dataclass(frozen=True)
class Turn:
    """A message of the user, and its meaning as a request object of the domain.

    The simulated agents receive the meaning, as if they had understood the text. They learn about
    the *world* only from its tools.
    """

    text: str
    request: Any


@dataclass(frozen=True)
class Task:
    """A task of a user: the script of turns, the state of the world before the task, and the
    required state after it.

    `day` is the date of the task. `personal` names the personal detail in the first message (such
    as `email`), if there is one.
    """

    task_id: str
    kind: str
    day: date
    system: str
    turns: tuple[Turn, ...]
    start: Records
    goal: Records
    personal: str = ""


Voice = Callable[..., Say]
"""A function `voice(kind, **slots)` that words an answer. Trials of a task differ in their wording
but not in their meaning.
"""


@dataclass
class Mind:
    """The state of an agent in one session: its voice, its look-ups, and whether it follows the
    house rules.
    """

    voice: Voice
    obeys: bool = True
    seen: dict[Any, Any] = field(default_factory=dict)


Policy = Callable[[Any, Mind], Generator[Step, Any, None]]
"""A generator that handles one request. It yields steps, receives the result of each call, and ends
after a `Say`.
"""

Slip = Callable[[Call, Random], Call | None]
"""A function that spoils a changing call, for example with a wrong tool or a wrong amount. It
returns None if it cannot spoil the call.
"""


class MakeTasks(Protocol):
    """A function that makes the tasks of an agent."""

    def __call__(self, prefix: str, count: int, rng: Random, variant: Variant = "") -> list[Task]:
        """Return `count` tasks with ids `<prefix>-001`, and so on."""


@dataclass(frozen=True, eq=False)
class Domain:
    """A bundle of everything that the simulation needs for one kind of world."""

    world: type[World]
    policy: Policy
    phrases: Mapping[str, tuple[str, ...]]
    tasks: MakeTasks
    imagine: Callable[[Call, object, Random], object]
    """A function `imagine(look_up, request, rng)` that returns the result that an agent makes up if
    it skips a look-up.
    """
    slips: Mapping[str, Slip]
    looked_up: Callable[[Call, list[tuple[Call, object]]], bool]
    """A function `looked_up(call, results)` that returns whether the earlier results showed the
    record that a changing call changes.
    """
    said_wrong: Callable[[str, Say, Sequence[Call]], str | None]
    """A function `said_wrong(answer, right, writes)` that returns why a last answer is wrong, or None.
    It gets the good agent's answer, and the calls that changed the world.
    """
    variants: tuple[Variant, ...] = ()
    """The variants in which `tasks` can make tasks."""
