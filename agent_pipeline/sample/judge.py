"""The verdict on an episode. An episode is acceptable if it was finished by the rules and the world
is in the right state.

The judge sees the events, the goal and the final state. It does not see which agent acted or which
flaw it had.
"""

import json
from dataclasses import dataclass
from itertools import pairwise

from agent_pipeline.sample.play import Episode
from agent_pipeline.sample.world import Call, Domain, Records, Result, Say, Task


@dataclass(frozen=True)
class Verdict:
    """A verdict on an episode of the sample.

    Attributes:
        judgment: `acceptable` or `unacceptable`.
        reason: One line that explains the judgment to a person.
    """

    judgment: str
    reason: str


def judge(task: Task, domain: Domain, episode: Episode) -> Verdict:
    """Return the verdict on an episode. The first complaint makes it unacceptable."""
    complaint = (
        silence(episode)
        or repetition(episode)
        or haste(episode, domain)
        or difference(task.goal, episode.final)
    )
    return (
        Verdict("unacceptable", complaint)
        if complaint
        else Verdict("acceptable", "the task is done by the rules")
    )


def silence(episode: Episode) -> str | None:
    """Return a complaint if the episode does not end with an answer."""
    return None if isinstance(episode.events[-1], Say) else "stopped without an answer"


def repetition(episode: Episode) -> str | None:
    """Return a complaint if a call was made twice with the same arguments."""
    calls = [shown(event) for event in episode.events if isinstance(event, Call)]
    return next(
        (f"called {call} {calls.count(call)} times" for call in calls if calls.count(call) > 1),
        None,
    )


def haste(episode: Episode, domain: Domain) -> str | None:
    """Return a complaint if a call changed a record that no earlier look-up showed."""
    results: list[tuple[Call, object]] = []
    for event, after in pairwise(episode.events):
        if isinstance(event, Call) and isinstance(after, Result):
            if event.name not in domain.world.reads and not domain.looked_up(event, results):
                return f"called {shown(event)} without a look-up that showed it"
            results.append((event, after.value))
    return None


def difference(goal: Records, final: Records) -> str | None:
    """Return the first difference between the final state and the goal in words, or None if they
    are equal.
    """
    for key in sorted(goal.keys() | final.keys()):
        should, final_value = goal.get(key, {}), final.get(key, {})
        for field in sorted(should.keys() | final_value.keys()):
            if should.get(field) != final_value.get(field):
                return (
                    f"{key}: {field} should be {should.get(field, 'unset')}, is "
                    f"{final_value.get(field, 'unset')}"
                )
    return None


def shown(call: Call) -> str:
    """Return a tool call as one line of text."""
    return f"{call.name}({', '.join(json.dumps(value, ensure_ascii=False) for value in call.arguments.values())})"
