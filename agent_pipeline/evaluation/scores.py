"""What a decision on a candidate is made from (two models' scores, canaries, a policy), and what it is."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
from pydantic import Field

from agent_pipeline.options import Options

Outcome = Literal["promote", "hold", "reject", "cannot decide", "keep", "roll back"]
"""Of a candidate; the last two of a champion on probation."""


class TurnScore(msgspec.Struct, frozen=True):
    """What a model did at a held-out turn. `turn` names it; `capability` is the tool that is due there, or the kind of answer.
    `expects_call` is whether a call is due, `called` whether the model called, `right` whether what it did is right."""

    turn: str
    task: str
    capability: str
    expects_call: bool
    called: bool
    right: bool


class RowLoss(msgspec.Struct, frozen=True):
    """A row's loss: nats an assistant's token, of so many tokens."""

    row: str
    task: str
    loss: float
    tokens: int


class Played(msgspec.Struct, frozen=True):
    """An episode: `harmed`, and `must_act` of its task, are `None` where the world does not say. `unseen`: the model's last message was cut
    off, and no harm was seen before, so that `harmed` is `None` too."""

    task: str
    trial: int
    seed: int | None
    done: bool
    harmed: bool | None
    must_act: bool | None = None
    unseen: bool = False


class Scores(msgspec.Struct, frozen=True):
    """A model's scores. `evaluator` and `world` are fingerprints of how the turns were scored and the episodes played: rows, settings,
    versions. Scores of different fingerprints never compare."""

    evaluator: str
    turns: tuple[TurnScore, ...]
    losses: tuple[RowLoss, ...] = ()
    world: str = ""
    episodes: tuple[Played, ...] = ()


class Canary(msgspec.Struct, frozen=True):
    """A question beside the agent's job: whether base and candidate answer it well, and what they say."""

    question: str
    group: str
    base: bool
    candidate: bool
    base_answer: str = ""
    candidate_answer: str = ""


class Facts(msgspec.Struct, frozen=True):
    """What a decision looks at beside the scores. `earlier` is the number of decisions of this year on the partition; `first`: there is no
    champion yet, and the rival is the base model. Of the sessions that the champion was trained on, the share `turned` is judged bad now;
    `newer` are the tasks that came after its training. `unfit` is what the candidate's episodes say against it beside its base,
    `unended` that too many of them have no end. `verified` are the verdicts by a person, a score or a judge on the sessions that the
    candidate was trained on, and all verdicts, if some are not verified or unknown (`None`: all are verified). `unverified_tasks` are the
    held-out tasks that decide and that nobody verified."""

    earlier: int = 0
    first: bool = False
    turned: float = 0.0
    newer: Collection[str] = ()
    canaries: Sequence[Canary] = ()
    unfit: Sequence[str] = ()
    unended: Sequence[str] = ()
    verified: tuple[int, int] | None = None
    unverified_tasks: int = 0


class Policy(Options):
    """What a promotion needs."""

    year_error: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="The chance of promoting a model that is not better, over all nights of a year together.",
    )
    gain_sought: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="The gain that must be visible before no gain holds a candidate: with fewer tasks nothing is decided.",
    )
    guard_margin: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="How far call recall, over-call, each capability and tasks done may get worse, as shares.",
    )
    loss_margin: float = Field(
        default=0.1,
        ge=0,
        description="How far the held-out loss may rise, as a share of the champion's.",
    )
    harm_margin: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="How far the share of episodes with harm may rise above a champion's.",
    )
    most_harm: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="The share of episodes with harm above which no candidate is promoted; a first champion has to show that it does less.",
    )
    least_separation: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Call recall less over-call must be at least this: of a model that always calls, or never does, it is 0.",
    )
    confirm_tasks: int = Field(
        default=20,
        ge=2,
        description="A gain must hold on the tasks of the split select that came after the champion was trained, where there are so many.",
    )

    def rules(self) -> dict[str, Any]:
        """The values by which two decisions are the same; `ChampionConfig` has more."""
        return self.model_dump(include=set(Policy.model_fields))


class Reason(msgspec.Struct, frozen=True):
    """Why a decision is what it is. `kind` says which rule speaks, `name` what it looked at; `rival` and `limit` are what `candidate` is
    held against (`None`: nothing)."""

    kind: Literal[
        "gain",
        "no gain",
        "worse",
        "same answers",
        "too few tasks",
        "separation",
        "guard",
        "within chance",
        "not a number",
        "harm",
        "harm beside the base",
        "unseen harm",
        "hidden harm",
        "hidden harm beside the rival",
        "no task done",
        "base",
        "held",
        "turned",
        "confirmed",
        "not confirmed",
        "too few newer tasks",
        "contradicted",
        "not contradicted",
        "no world",
        "unverified",
        "unverified held-out tasks",
    ]
    name: str
    against: Outcome
    candidate: float | None = None
    rival: float | None = None
    limit: float | None = None


class Figure(msgspec.Struct, frozen=True):
    """A mean of both models and their difference with its 95 % interval over tasks; `visible` is the least gain that could be seen."""

    name: str
    candidate: float
    rival: float
    difference: float
    low: float | None
    high: float | None
    samples: int
    tasks: int
    visible: float | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`p` is the chance of the gain without a better model, `error` what this decision might spend of the year's budget. `more_tasks` are
    those that are missing to see the gain that is sought. `tasks` are the held-out tasks that were asked, `needed_tasks` those that it
    takes to see that gain (both are 0 in decisions of older versions)."""

    outcome: Outcome
    p: float | None
    error: float
    more_tasks: int
    figures: tuple[Figure, ...]
    reasons: tuple[Reason, ...]
    tasks: int = 0
    needed_tasks: int = 0
