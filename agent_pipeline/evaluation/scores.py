"""What a decision on a candidate is made from (two models' scores, canaries, a policy), and what it is."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

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
    `unended` that too many of them have no end."""

    earlier: int = 0
    first: bool = False
    turned: float = 0.0
    newer: Collection[str] = ()
    canaries: Sequence[Canary] = ()
    unfit: Sequence[str] = ()
    unended: Sequence[str] = ()


class Policy(msgspec.Struct, frozen=True):
    """What a promotion needs; see `ChampionConfig` for what each value means."""

    year_error: float = 0.05
    gain_sought: float = 0.1
    guard_margin: float = 0.05
    loss_margin: float = 0.1
    harm_margin: float = 0.02
    most_harm: float = 0.05
    least_separation: float = 0.2
    confirm_tasks: int = 20


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
    those that are missing to see the gain that is sought."""

    outcome: Outcome
    p: float | None
    error: float
    more_tasks: int
    figures: tuple[Figure, ...]
    reasons: tuple[Reason, ...]
