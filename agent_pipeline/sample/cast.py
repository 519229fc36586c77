"""Who acts in the sample, how well, and how much: the knobs on the amount and the quality of the
sessions.

The knobs on the *difficulty* of the tasks are at the top of `shop/tasks.py` and `office/tasks.py`.
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
"""How often each flaw is drawn, relative to the others; flaws that a domain does not have are left
out.
"""


@dataclass(frozen=True)
class Agent:
    """One partition of the sample, `project/name`.

    `skill` is the share of sessions played without a flaw; `preamble` the share in which calls come
    after a sentence. Then follow numbers of sessions: `archived`, `unjudged`, `rejudged` (a first,
    wrong judgment and a later, right one) are marks on the played ones; `copies` and each kind of
    `broken` come on top of `tasks * trials + extra_trials`.
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
        """The partition's key, `project/agent`."""
        return f"{self.project}/{self.name}"


CAST = (
    Agent(
        "shop",
        "support",
        tasks=640,
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
        tasks=1420,
        trials=1,
        extra_trials=100,
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
        tasks=1300,
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
"""The three agents. `shop/support` is the one that the demo trains; it leaves about 370 good
training sessions, `shop/intern` 400, `office/rooms` 570. With these numbers of tasks, the kinds of
decision are about as frequent among what is held out as among what is trained.
"""
