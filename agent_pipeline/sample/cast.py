"""The agents of the sample: their skill, and the number and the quality of their sessions.

The settings for the *difficulty* of the tasks are in `shop/difficulty.py` and `office/tasks.py`.
"""

from dataclasses import dataclass, field

FLAWS = {
    "wrong_tool": 3,
    "wrong_amount": 4,
    "invented_id": 3,
    "wrong_hour": 3,
    "wrong_day": 2,
    "skipped_lookup": 4,
    "broken_rule": 4,
    "empty_promise": 3,
    "loop": 3,
    "no_answer": 2,
}
"""The relative frequency of each flaw. Flaws that a domain does not have are skipped."""


@dataclass(frozen=True)
class Agent:
    """A simulated agent of the sample, and the numbers of its sessions.

    Its partition is `project/name`. The played sessions are `tasks * trials + extra_trials`.
    Archived, unjudged and rejudged sessions are among the played sessions. Copies and broken
    sessions are additional sessions.

    Attributes:
        project: The project.
        name: The name of the agent.
        tasks: The number of tasks.
        trials: The number of trials per task.
        extra_trials: The number of tasks that get one more trial.
        skill: The share of sessions that are played without a flaw.
        preamble: The share of sessions in which a sentence precedes the first call of a turn.
        archived: The number of archived sessions.
        unjudged: The number of sessions without a verdict.
        rejudged: The number of sessions with a first, wrong judgment and a later, right judgment.
        copies: The number of copies.
        broken: The number of broken sessions by kind of damage.
    """

    project: str
    name: str
    tasks: int
    trials: int
    extra_trials: int
    skill: float
    preamble: float = 0.0
    archived: int = 0
    unjudged: int = 0
    rejudged: int = 0
    copies: int = 0
    broken: dict[str, int] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        """Return the key of the partition, `project/agent`."""
        return f"{self.project}/{self.name}"


CAST = (
    Agent(
        "shop",
        "support",
        tasks=700,
        trials=1,
        extra_trials=50,
        skill=0.80,
        archived=4,
        unjudged=7,
        rejudged=3,
        copies=3,
        broken={"cut_json": 2, "orphan_output": 1, "unanswered_call": 2, "empty": 1},
    ),
    Agent(
        "shop",
        "intern",
        tasks=1380,
        trials=1,
        extra_trials=50,
        skill=0.40,
        preamble=0.3,
        archived=6,
        unjudged=11,
        rejudged=4,
        copies=4,
        broken={"cut_json": 2, "orphan_output": 1, "unanswered_call": 2, "empty": 1},
    ),
    Agent(
        "office",
        "rooms",
        tasks=1250,
        trials=1,
        extra_trials=50,
        skill=0.65,
        archived=4,
        unjudged=7,
        rejudged=3,
        copies=3,
        broken={"cut_json": 2, "orphan_output": 1, "unanswered_call": 2, "empty": 1},
    ),
)
"""The three agents. The demo trains `shop/support`. The numbers of good training sessions are about
400 for `shop/support`, 390 for `shop/intern` and 560 for `office/rooms`. With these numbers of
tasks, each kind of decision is about as frequent in the held-out tasks as in the training tasks.
"""
