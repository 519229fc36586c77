"""The simulation of a task: the user's script, the agent's steps, and tools that really run."""

from dataclasses import dataclass
from random import Random

from agent_pipeline.sample.flaws import Imagined, Moment, flaws_of, honest
from agent_pipeline.sample.world import (
    Call,
    Domain,
    Event,
    Mind,
    Records,
    Result,
    Say,
    Task,
    User,
    Voice,
)


@dataclass(frozen=True)
class Episode:
    """A played task.

    Attributes:
        events: The events in order.
        final: The final state of the world.
    """

    events: tuple[Event, ...]
    final: Records

    def outline(self) -> tuple[object, ...]:
        """Return the events without their wording. Two episodes of a task with the same outline
        differ only in phrases.
        """
        return tuple(event.kind if isinstance(event, Say) else repr(event) for event in self.events)


def voice(domain: Domain, wording: int) -> Voice:
    """Return a function that words the agent's answers.

    It always uses the phrase with the number `wording` (modulo the number of phrases).
    """

    def say(kind: str, **slots: object) -> Say:
        forms = domain.phrases[kind]
        return Say(forms[wording % len(forms)].format(**slots), kind)

    return say


def play(task: Task, domain: Domain, flaw: str | None, wording: int, rng: Random) -> Episode:
    """Play a task to its end.

    Args:
        task: The task.
        domain: The domain of the task.
        flaw: A flaw of `flaws_of(domain)`, or None.
        wording: The index of the agent's wording.
        rng: The random stream that decides how a flaw appears.
    """
    world = domain.world(task.start)
    mind = Mind(voice(domain, wording), obeys=flaw != "broken_rule")
    spoil = flaws_of(domain)[flaw] if flaw else honest
    events: list[Event] = []
    for number, turn in enumerate(task.turns, start=1):
        events.append(User(turn.text))
        moment = Moment(domain, turn.request, number == len(task.turns), rng)
        policy = domain.policy(turn.request, mind)
        answer = None
        while True:
            try:
                step = policy.send(answer)
            except StopIteration:
                break
            for actual in spoil(step, moment):
                if isinstance(actual, Imagined):
                    answer = actual.value
                    continue
                events.append(actual)
                if isinstance(actual, Call):
                    answer = world.run(actual)
                    events.append(Result(answer))
    return Episode(tuple(events), world.records)


def play_flawed(
    task: Task, domain: Domain, flaws: list[str], wording: int, rng: Random
) -> tuple[Episode, str]:
    """Play a task with the first flaw that changes the outcome, and return the episode and the
    flaw.

    Not every flaw can appear in every task. For example, a wrong amount needs a refund.

    Args:
        task: The task.
        domain: The domain of the task.
        flaws: The flaws in the order in which they are tried.
        wording: The index of the agent's wording.
        rng: The random stream that decides how a flaw appears.
    """
    good = play(task, domain, None, wording, rng).outline()
    for flaw in flaws:
        episode = play(task, domain, flaw, wording, rng)
        if episode.outline() != good:
            return episode, flaw
    raise ValueError(f"none of the flaws {flaws} shows in task {task.task_id}")
