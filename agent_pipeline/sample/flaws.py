"""What an unskilled agent does wrong: each flaw spoils the steps of a good agent, one by one.

A flaw is drawn before the session is played and is never shown to the judge.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from agent_pipeline.sample.world import Call, Domain, Say, Step


@dataclass(frozen=True)
class Imagined:
    """A result that the agent made up for a call that it never made: the policy sees it, the world
    and the session don't.
    """

    value: Any


@dataclass(frozen=True)
class Moment:
    """Where in the session a step is about to be taken."""

    domain: Domain
    request: Any
    last_turn: bool
    rng: Random


Spoil = Callable[[Step, Moment], list[Step | Imagined]]


def honest(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Take the step as it is."""
    return [step]


def loop(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Make each call three times over."""
    return [step] * 3 if isinstance(step, Call) else [step]


def no_answer(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Fall silent where the last answer is due."""
    return [] if isinstance(step, Say) and moment.last_turn else [step]


def skipped_lookup(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Imagine what a look-up would say."""
    if isinstance(step, Call) and step.name in moment.domain.world.reads:
        return [Imagined(moment.domain.imagine(step, moment.request, moment.rng))]
    return [step]


def empty_promise(step: Step, moment: Moment) -> list[Step | Imagined]:
    """Say that it is done without doing it."""
    return (
        [Imagined({"ok": True})]
        if isinstance(step, Call) and step.name not in moment.domain.world.reads
        else [step]
    )


def slip(name: str) -> Spoil:
    """The domain's slip of this name, as a flaw: it spoils changing calls only."""

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
"""The flaws that every domain has; `broken_rule` is in the mind (`Mind.obeys`), not in the hand."""


def flaws_of(domain: Domain) -> dict[str, Spoil]:
    """All flaws that agents of this domain can have, by name."""
    return {**BEHAVIOURS, **{name: slip(name) for name in domain.slips}}
