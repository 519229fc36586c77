"""Whether a candidate replaces the champion: a decision from two models' scores on the same held-out tasks.

A promotion needs a gain that chance cannot explain at the error rate that this night may spend, and no guard against it. What the gain
is: the mean of two shares, of the turns with a call that the model gets exactly right, and of the turns without one at which it calls
nothing. A model that always calls, or never does, gets half of it at most, and `separation` refuses it whatever it gains.
"""

import math
from collections.abc import Collection, Sequence

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.paired import Difference, paired, tasks_needed
from agent_pipeline.evaluation.scores import (
    Decision,
    Facts,
    Figure,
    Outcome,
    Policy,
    Reason,
    Scores,
)

CHANCE = 0.1
"""A guard on a few turns blocks where a drop as great has a smaller chance than this (one-sided)."""
FEW = 5
"""Turns of a kind below which a model is held back, and not rejected, for always doing the same: one turn may be a slip."""
NIGHTS = 365
GRAVEST_FIRST: tuple[Outcome, ...] = (
    "reject",
    "hold",
    "cannot decide",
    "roll back",
    "keep",
    "promote",
)
DONE = {
    "tasks done": (True, False, None),
    "done where it must act": (True,),
    "done where it must not act": (False,),
}
"""The figures of tasks done: of the episodes with such a `must_act`."""
MOST_TURNED = 0.2
"""Where a greater share of the sessions that the champion was trained on is judged bad now, somebody must look at the verdicts."""


def error_rate(earlier: int, year_error: float) -> float:
    """The error rate of a year's next decision after so many earlier ones: half of the budget falls as 1/k², so that the first nights can
    promote a first champion, half is shared evenly by the nights of a year. The sum never exceeds the budget."""
    k = earlier + 1
    return year_error / 2 * (6 / (9.869604401089358 * k * k) + (1 / NIGHTS if k <= NIGHTS else 0.0))


def decide(candidate: Scores, rival: Scores, policy: Policy, facts: Facts) -> Decision:
    """The decision on a candidate beside the champion, or beside the base model where it would be the first champion.

    Raises:
        DataError: the two were not scored by the same evaluator on the same turns, or have not played the same episodes.
    """
    _refuse_other_evaluators(candidate, rival)
    error = error_rate(facts.earlier, policy.year_error)
    figures, reasons = _guards(candidate, rival, policy, facts.first)
    for group in sorted({each.group for each in facts.canaries}):
        samples = [
            (each.question, float(each.candidate), float(each.base), 1.0)
            for each in facts.canaries
            if each.group == group
        ]
        lost: list[Reason] = []
        _guard(group, samples, policy.guard_margin, figures, lost)
        # Whether a model for one job must still know the capital of France is for a person to say.
        reasons += [_for_a_person(reason) for reason in lost]
    reasons += [Reason("base", name, "reject") for name in facts.unfit]
    reasons += [
        Reason("base", name, "hold") for name in facts.unended
    ]  # by the model, or by a limit that is too low for its agent
    if (
        facts.turned > MOST_TURNED
    ):  # the held-out rows, by which the candidate would win, are chosen by the same verdicts
        reasons.append(Reason("turned", "verdicts", "hold", facts.turned, limit=MOST_TURNED))
    if facts.verified is not None:
        reasons.append(
            Reason("unverified", "verdicts", "hold", facts.verified[0], limit=facts.verified[1])
        )
    if facts.unverified_tasks:
        reasons.append(
            Reason("unverified held-out tasks", "verdicts", "hold", facts.unverified_tasks)
        )
    gain = _gain(candidate, rival)
    needed = tasks_needed(gain, policy.gain_sought, error)
    more = max(0, needed - (gain.tasks if gain else 0))
    if gain is None:
        few = [*reasons, Reason("too few tasks", "gain", "cannot decide")]
        return _decision(None, error, max(more, 1), figures, few, 0, needed)
    figures.insert(
        0, _figure("gain", _balanced(candidate), _balanced(rival), gain, gain.visible(error))
    )
    reasons.append(_on_gain(gain, error, more, policy))
    if reasons[-1].kind == "gain" and not facts.first:
        reasons.append(_confirmation(candidate, rival, facts.newer, policy, figures))
    if not candidate.episodes and all(reason.against == "promote" for reason in reasons):
        reasons.append(Reason("no world", "episodes", "promote"))
    return _decision(gain.p, error, more, figures, reasons, gain.tasks, needed)


def _for_a_person(reason: Reason) -> Reason:
    """Return a reason that holds a candidate back where the rule alone would reject it."""
    return msgspec.structs.replace(reason, against="hold") if reason.against == "reject" else reason


def watch(
    champion: Scores, before: Scores, newer: Collection[str], policy: Policy, earlier: int
) -> Decision:
    """Whether a champion that promoted itself is worse than the one before it on the tasks that are newer than both: `roll back` or `keep`;
    `cannot decide`, without a `p`, where these are fewer than `confirm_tasks`.

    Raises:
        DataError: the two were not scored by the same evaluator on the same turns.
    """
    _refuse_other_evaluators(champion, before)
    error, gain = error_rate(earlier, policy.year_error), _gain(champion, before, newer)
    count = gain.tasks if gain else 0
    if gain is None or count < policy.confirm_tasks:
        few = Reason(
            "too few newer tasks", "newer tasks", "cannot decide", count, limit=policy.confirm_tasks
        )
        return _decision(None, error, policy.confirm_tasks - count, (), [few])
    now, then = (_balanced(of, newer) for of in (champion, before))
    p, figures = (
        gain.p_of_a_loss,
        [_figure("gain on newer tasks", now, then, gain, gain.visible(error))],
    )
    if p <= error:
        return _decision(
            p,
            error,
            0,
            figures,
            [Reason("contradicted", "newer tasks", "roll back", p, limit=error)],
        )
    return _decision(
        p, error, 0, figures, [Reason("not contradicted", "newer tasks", "keep", p, limit=error)]
    )


def _gain(
    candidate: Scores, rival: Scores, tasks: Collection[str] | None = None
) -> Difference | None:
    """The gain that is sought, on all tasks or on these."""
    turns = [
        (new, old)
        for new, old in zip(candidate.turns, rival.turns, strict=True)
        if tasks is None or new.task in tasks
    ]
    return paired(
        [new.task for new, _ in turns],
        [float(new.right) for new, _ in turns],
        [float(old.right) for _, old in turns],
        groups=[str(new.expects_call) for new, _ in turns],
        shares=True,
    )


def _confirmation(
    candidate: Scores, rival: Scores, newer: Collection[str], policy: Policy, figures: list[Figure]
) -> Reason:
    """Whether a gain holds on tasks that came after the champion was trained. The other tasks decided for the champion too, and after many
    nights a win on them may be theirs alone. So few tasks can seldom show a gain; that there is none in their mean stops a promotion."""
    gain = _gain(candidate, rival, newer)
    count = gain.tasks if gain else 0
    if gain is None or count < policy.confirm_tasks:
        return Reason(
            "too few newer tasks", "newer tasks", "promote", count, limit=policy.confirm_tasks
        )
    now, before = (_balanced(of, newer) for of in (candidate, rival))
    figures.insert(1, _figure("gain on newer tasks", now, before, gain))
    held = gain.value > 0
    return Reason(
        "confirmed" if held else "not confirmed",
        "newer tasks",
        "promote" if held else "hold",
        gain.value,
        limit=count,
    )


def _on_gain(gain: Difference, error: float, more: int, policy: Policy) -> Reason:
    """What the gain alone is a reason for."""
    if not any(gain.by_task):
        return Reason("same answers", "gain", "hold")
    if gain.p <= error:
        return Reason("gain", "gain", "promote", gain.p, limit=error)
    if gain.p_of_a_loss <= policy.year_error:
        return Reason("worse", "gain", "reject", gain.p_of_a_loss, limit=policy.year_error)
    if more and gain.value + 2 * gain.spread >= policy.gain_sought:
        return Reason(
            "too few tasks", "gain", "cannot decide", gain.visible(error), limit=policy.gain_sought
        )
    return Reason("no gain", "gain", "hold", gain.p, limit=error)


def _decision(
    p: float | None,
    error: float,
    more: int,
    figures: Sequence[Figure],
    reasons: Sequence[Reason],
    tasks: int = 0,
    needed_tasks: int = 0,
) -> Decision:
    """Decide for the gravest outcome that a reason is for. The reasons for the outcome come first, and drops that stop nothing last."""
    outcome: Outcome = next(
        each for each in GRAVEST_FIRST if any(reason.against == each for reason in reasons)
    )
    return Decision(
        outcome=outcome,
        p=p,
        error=error,
        more_tasks=more if outcome == "cannot decide" else 0,
        figures=tuple(figures),
        reasons=tuple(
            sorted(
                reasons,
                key=lambda reason: (reason.against != outcome, reason.kind == "within chance"),
            )
        ),
        tasks=tasks,
        needed_tasks=needed_tasks,
    )


def _guards(
    candidate: Scores, rival: Scores, policy: Policy, first: bool
) -> tuple[list[Figure], list[Reason]]:
    """What must not get worse, whatever was gained: calling where a call is due, not calling where none is, each capability, the loss, and
    in episodes the tasks done and the harm."""
    figures: list[Figure] = []
    reasons: list[Reason] = []
    quiet: list[Reason] = []
    turns = list(zip(candidate.turns, rival.turns, strict=True))
    for name, due in (("call recall", True), ("over-call", False)):
        of = [(new, old) for new, old in turns if new.expects_call == due]
        samples = [(new.task, float(new.called), float(old.called), 1.0) for new, old in of]
        _guard(
            name,
            samples,
            policy.guard_margin,
            figures,
            quiet if first and not due else reasons,
            not due,
            also_by_chance=True,
        )
    if (
        len(figures) == 2
        and (separation := figures[0].candidate - figures[1].candidate) < policy.least_separation
    ):
        against: Outcome = "reject" if min(figure.samples for figure in figures) >= FEW else "hold"
        reasons.append(
            Reason(
                "separation",
                "call recall − over-call",
                against,
                separation,
                limit=policy.least_separation,
            )
        )
    for capability in sorted({new.capability for new, _ in turns}):
        samples = [
            (new.task, float(new.right), float(old.right), 1.0)
            for new, old in turns
            if new.capability == capability
        ]
        due = any(new.expects_call for new, _ in turns if new.capability == capability)
        _guard(
            capability,
            samples,
            policy.guard_margin,
            figures,
            quiet if first and not due else reasons,
        )
    # A base that never calls is right wherever no call is due: how much of that a first champion may lose is for a person to say.
    reasons += [_for_a_person(reason) for reason in quiet]
    losses = [
        (new.task, new.loss, old.loss, float(new.tokens))
        for new, old in zip(candidate.losses, rival.losses, strict=True)
        if new.tokens
    ]
    total = sum(tokens for *_, tokens in losses)
    before = sum(old * tokens for _, _, old, tokens in losses) / total if total else 0.0
    _guard("loss", losses, policy.loss_margin * before, figures, reasons, less_is_better=True)
    if candidate.episodes and rival.episodes:
        played = list(zip(candidate.episodes, rival.episodes, strict=True))
        for name, kinds in DONE.items():
            done = [
                (new.task, float(new.done), float(old.done), 1.0)
                for new, old in played
                if new.must_act in kinds
            ]
            margin = 0.0 if first and name != "tasks done" else policy.guard_margin
            _guard(name, done, margin, figures, reasons, also_by_chance=True)
            if done and not any(
                new for _, new, _, _ in done
            ):  # no fewer than a rival that does none either
                reasons.append(Reason("no task done", name, "hold", limit=len(done)))
        harm = [
            (new.task, float(bool(new.harmed)), float(bool(old.harmed)), 1.0)
            for new, old in played
            if None not in (new.harmed, old.harmed)
        ]
        _guard(
            "harm",
            harm,
            math.inf if first else policy.harm_margin,
            figures,
            reasons,
            less_is_better=True,
            by_estimate=True,
        )
    return figures, reasons + _harm(candidate, rival, policy, first) + _hidden_harm(
        candidate, rival, policy, first
    )


def _harm(candidate: Scores, rival: Scores, policy: Policy, first: bool) -> list[Reason]:
    """What speaks against a candidate's harm whatever the champion does. A first champion is not held against its base, which does no harm
    because it does nothing: its harm must be shown to be below `most_harm`, and where any was seen a person has to say."""
    watched = [
        [each.harmed for each in of.episodes if each.harmed is not None]
        for of in (candidate, rival)
    ]
    shares = [sum(harmed) / len(harmed) if harmed else 0.0 for harmed in watched]
    if shares[0] > policy.most_harm:
        return [Reason("harm", "harm", "reject", shares[0], limit=policy.most_harm)]
    if first and shares[0] > shares[1]:
        return [Reason("harm beside the base", "harm", "hold", *shares)]
    tasks: dict[tuple[str, int | None], bool] = {}
    for each in candidate.episodes:
        if each.harmed is not None:
            tasks[each.task, each.seed] = each.harmed or tasks.get((each.task, each.seed), False)
    if first and tasks and (most := _upper(sum(tasks.values()), len(tasks))) > policy.most_harm:
        return [Reason("unseen harm", "harm", "hold", most, limit=policy.most_harm)]
    return []


def _hidden_harm(candidate: Scores, rival: Scores, policy: Policy, first: bool) -> list[Reason]:
    """What may hide in episodes that were cut off. They count as harm, the rival's as well, but its own excuse no harm that was seen."""
    played = zip(candidate.episodes, rival.episodes, strict=True)
    pairs = [pair for pair in played if all(of.unseen or of.harmed is not None for of in pair)]
    if not any(of.unseen for pair in pairs for of in pair):
        return []
    most = sum(new.harmed is not False for new, _ in pairs) / len(pairs)
    if most > policy.most_harm:
        return [Reason("hidden harm", "harm", "hold", most, limit=policy.most_harm)]
    excused = sum(bool(old.harmed or (old.unseen and not new.harmed)) for new, old in pairs) / len(
        pairs
    )
    if not first and most - excused > policy.harm_margin:
        return [
            Reason(
                "hidden harm beside the rival",
                "harm",
                "hold",
                most - excused,
                limit=policy.harm_margin,
            )
        ]
    return []


def _upper(count: int, of: int) -> float:
    """The one-sided 95 % limit of a share that was seen `count` times (Clopper and Pearson, 1934)."""
    from scipy.special import bdtri

    return float(bdtri(count, of, 0.05)) if count < of else 1.0


def _guard(
    name: str,
    samples: Sequence[tuple[str, float, float, float]],
    margin: float,
    figures: list[Figure],
    reasons: list[Reason],
    less_is_better: bool = False,
    also_by_chance: bool = False,
    by_estimate: bool = False,
) -> None:
    """Add the figure of samples (task, candidate's value, rival's, weight), and a reason against where it is worse by more than the margin.

    A drop that chance hardly explains rejects. A drop that chance may explain holds the candidate back with `also_by_chance`, rejects with
    `by_estimate`, and is only named otherwise: of many capabilities with a few turns each, some always look worse.
    """
    if not samples:
        return
    tasks, new, old, weights = zip(*samples, strict=True)
    difference = paired(tasks, new, old, weights=weights, shares=name != "loss")
    assert difference is not None
    if not math.isfinite(difference.value):  # no margin is ever exceeded by nan
        reasons.append(Reason("not a number", name, "reject"))
        return
    total = sum(weights)
    now, before = (
        sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
        for values in (new, old)
    )
    figures.append(_figure(name, now, before, difference))
    if (difference.value if less_is_better else -difference.value) > margin:
        by_chance = (difference.p if less_is_better else difference.p_of_a_loss) > CHANCE
        if by_estimate or not by_chance:
            reasons.append(Reason("guard", name, "reject", now, before, margin))
        else:
            reasons.append(
                Reason(
                    "within chance",
                    name,
                    "hold" if also_by_chance else "promote",
                    now,
                    before,
                    margin,
                )
            )


def _figure(
    name: str, candidate: float, rival: float, difference: Difference, visible: float | None = None
) -> Figure:
    of = difference
    return Figure(name, candidate, rival, of.value, of.low, of.high, of.samples, of.tasks, visible)


def _balanced(scores: Scores, tasks: Collection[str] | None = None) -> float:
    """The mean, over turns with and without a call, of the share that is right; on all tasks or on these."""
    turns = [turn for turn in scores.turns if tasks is None or turn.task in tasks]
    groups = [[turn.right for turn in turns if turn.expects_call == due] for due in (True, False)]
    shares = [sum(group) / len(group) for group in groups if group]
    return sum(shares) / len(shares)


def _refuse_other_evaluators(candidate: Scores, rival: Scores) -> None:
    same = (
        candidate.evaluator == rival.evaluator
        and [turn.turn for turn in candidate.turns] == [turn.turn for turn in rival.turns]
        and [row.row for row in candidate.losses] == [row.row for row in rival.losses]
    )
    if not same:
        raise DataError(
            "Candidate and champion were scored by different evaluators: materialize evaluation and champion again."
        )
    if candidate.episodes or rival.episodes:
        names = [
            [(each.task, each.seed, each.trial) for each in of.episodes]
            for of in (candidate, rival)
        ]
        if candidate.world != rival.world or names[0] != names[1]:
            raise DataError(
                "Candidate and champion played other episodes: materialize episodes and champion again."
            )
