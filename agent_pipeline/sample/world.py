"""What all simulated worlds share: events, tools that really run, tasks, and the bundle that makes
a domain.
"""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from random import Random
from typing import Any, ClassVar, Self

Records = dict[str, dict[str, Any]]
"""The state of a world: things by id. Tools change it, tasks say how it should end, the judge
compares.
"""


@dataclass(frozen=True)
class User:
    """What the user says."""

    text: str


@dataclass(frozen=True)
class Call:
    """An agent's call of a tool; `note` is what the agent writes beside it: why this call is
    due.
    """

    name: str
    arguments: dict[str, Any]
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Result:
    """What the world answered to the call before it (any JSON value)."""

    value: Any


@dataclass(frozen=True)
class Say:
    """What the agent says to the user; `kind` names the phrase it was worded from."""

    text: str
    kind: str

    def after(self, facts: str) -> Self:
        """The same, with the facts that it rests on before it."""
        return replace(self, text=f"{facts} {self.text}")


Event = User | Call | Result | Say
Step = Call | Say


def tool(name: str, **properties: dict[str, object]) -> dict[str, Any]:
    """An OpenAI tool schema, as terse as the form allows: every token of it is paid for in every
    training row.
    """
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


class World:
    """A state and the tools that read or change it: each schema in `tools` names a method of the
    subclass.

    Tools refuse only what is impossible (an unknown id, a taken room). What is merely against the
    house rules they do: keeping the rules is the agent's task, and the difference shows in the
    final state.
    """

    tools: ClassVar[Sequence[dict[str, Any]]] = ()
    reads: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, records: Records) -> None:
        self.records = copy.deepcopy(records)

    def run(self, call: Call) -> Any:
        """Run a call for real and return its JSON result; an unknown tool or wrong arguments give
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
    """One message of the user, and what it means (a request object of the domain).

    The simulated agents are given the meaning, as if they had understood the text; what they know
    of the *world* they learn from its tools only.
    """

    text: str
    request: Any


@dataclass(frozen=True)
class Task:
    """A user with something to do: the script of turns, the world before, the world as it should be
    after.

    `day` is when it happens; `personal` names the personal detail that a first message carries
    (`email`, ...), if any.
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
"""`voice(kind, **slots)` words an answer; trials of a task differ in their wording, never in what
they say.
"""


@dataclass
class Mind:
    """What an agent carries through one session: its voice, what it has looked up, whether it keeps
    the house rules.
    """

    voice: Voice
    obeys: bool = True
    seen: dict[Any, Any] = field(default_factory=dict)


Policy = Callable[[Any, Mind], Generator[Step, Any, None]]
"""A policy handles one request: it yields steps, is sent the result of each call, and ends after a
`Say`.
"""

Slip = Callable[[Call, Random], Call | None]
"""A slip spoils a changing call (wrong tool, wrong amount, ...); `None`: it has nothing to spoil in
this one.
"""


@dataclass(frozen=True, eq=False)
class Domain:
    """Everything the simulation needs to know about one kind of world."""

    world: type[World]
    policy: Policy
    phrases: Mapping[str, tuple[str, ...]]
    tasks: Callable[[str, int, Random], list[Task]]
    imagine: Callable[[Call, object, Random], object]
    """`imagine(look_up, request, rng)`: the result that an agent makes up when it skips a
    look-up.
    """
    slips: Mapping[str, Slip]
    looked_up: Callable[[Call, list[tuple[Call, object]]], bool]
    """`looked_up(call, results so far)`: whether what a changing call touches had been looked up
    before.
    """
