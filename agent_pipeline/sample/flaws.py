"""The mistakes of unskilled agents. Each flaw changes the steps of a good agent, one by one.

A flaw is drawn before the session is played. The judge never sees it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from agent_pipeline.sample.world import Call, Domain, Say, Step


@dataclass(frozen=True)
class Imagined:
    """A made-up result of a call that the agent did not make. The policy receives it, but the world
    and the session do not.
    """

    value: Any


@dataclass(frozen=True)
class Moment:
    """The point in a session at which the agent takes a step."""

    domain: Domain
    request: Any
    last_turn: bool
    rng: Random


Spoil = Callable[[Step, Moment], list[Step | Imagined]]


def honest(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Return the agent's step unchanged."""
    return [step]


def loop(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Repeat a tool call three times."""
    return [step] * 3 if isinstance(step, Call) else [step]


def no_answer(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Leave out the last answer of the session."""
    return [] if isinstance(step, Say) and moment.last_turn else [step]


def skipped_lookup(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Make up the result of a look-up instead of making the call."""
    if isinstance(step, Call) and step.name in moment.domain.world.reads:
        return [Imagined(moment.domain.imagine(step, moment.request, moment.rng))]
    return [step]


def empty_promise(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Leave out a changing call, so that the agent says that something is done although it is not."""
    return (
        [Imagined({"ok": True})]
        if isinstance(step, Call) and step.name not in moment.domain.world.reads
        else [step]
    )


def slip(name: str) -> Spoil:
    """Return a flaw that makes a domain-specific mistake, such as a wrong amount, in calls that
    change the world.
    """

    def spoil(step: Step, moment: Moment) -> list[Step | Imagined]:
        if not isinstance(step, Call) or step.name in moment.domain.world.reads:
            return [step]
        return [moment.domain.slips[name](step, moment.rng) or step]

    return spoil


BEHAVIOURS: dict[str, Spoil] = {
    "loop": loop,
    "no_answer": no_answer,
    "skipped_lookup": skipped_lookup,
    "empty_promise": empty_promise,
    "broken_rule": honest,
}
"""The flaws that every domain has. The flaw `broken_rule` is implemented in the agent's policy
(`Mind.obeys`), so its step is unchanged here.
"""


def flaws_of(domain: Domain) -> dict[str, Spoil]:
    """Return all flaws that the agents of a domain can have, by name."""
    return {**BEHAVIOURS, **{name: slip(name) for name in domain.slips}}
