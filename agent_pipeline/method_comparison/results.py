"""The results of a method comparison: the scores of each method, and the significant differences.

The results also show whether figures that need no decoding rank the methods in the same order as
exact calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from agent_pipeline.evaluation.intervals import ERROR, report_difference
from agent_pipeline.evaluation.paired import Difference, crossed
from agent_pipeline.evaluation.scores import Scores
from agent_pipeline.method_comparison.comparison_report import (
    ComparisonReport,
    MeanCost,
    MethodDifference,
    MethodFigure,
    MethodResult,
    RankCorrelation,
)

REFERENCE = "A_baseline"
LESS_IS_BETTER = ("over_call", "heldout_loss", "harm")
PASS_FIGURES = ("decision_auc", "verified_calls")
"""Figures that one forward pass gives for all held-out turns, in addition to the loss."""
FEWEST_RANKED = 4
"""Number of methods below which a rank correlation means nothing."""


class Method(msgspec.Struct, frozen=True):
    """A training method with all settings of its training.

    Attributes:
        control: The id of the method that selects as many rows at random; empty if the method
            selects none.
    """

    id: str
    name: str
    description: str
    chain: list[str]
    mix: bool
    assets: dict[str, dict[str, Any]]
    control: str = ""


class Cost(msgspec.Struct, frozen=True):
    """The cost of one training run.

    Attributes:
        rows: The number of training rows, including replayed rows.
        tokens: The number of tokens in these rows, over all epochs and all steps of a chain.
        seconds: The seconds of training.
        selection_seconds: The seconds that the selection of rows took.
        resumed: Whether the run was killed and resumed, so that earlier seconds are missing.
    """

    rows: int
    tokens: int
    seconds: float
    selection_seconds: float
    resumed: bool


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training run of a method, with the scores of the trained model.

    Attributes:
        of_pass: The model's `PASS_FIGURES`.
        base: The base model's scores on the same turns.
        made_by: The identities of all artifacts of the run.
        adapter: The identity of the last adapter.
    """

    method: str
    seed: int
    scores: Scores
    of_pass: dict[str, float | None]
    base: Scores
    base_of_pass: dict[str, float | None]
    base_model: str
    adapter: str
    made_by: list[str]
    cost: Cost
    notes: list[str] = []


class Sample(NamedTuple):
    """The score of one turn, row or episode, with its task and its weight."""

    task: str
    value: float
    weight: float = 1.0


FIGURES: dict[str, Callable[[Scores], dict[str, Sample]]] = {
    "exact_calls": lambda run_result: {
        turn.turn: Sample(turn.task, turn.right) for turn in run_result.turns if turn.expects_call
    },
    "call_recall": lambda run_result: {
        turn.turn: Sample(turn.task, turn.called) for turn in run_result.turns if turn.expects_call
    },
    "over_call": lambda run_result: {
        turn.turn: Sample(turn.task, turn.called)
        for turn in run_result.turns
        if not turn.expects_call
    },
    "right_answers": lambda run_result: {
        turn.turn: Sample(turn.task, turn.right)
        for turn in run_result.turns
        if not turn.expects_call
    },
    "heldout_loss": lambda run_result: {
        loss.row: Sample(loss.task, loss.loss, loss.tokens) for loss in run_result.losses
    },
    "tasks_done": lambda run_result: {
        f"{episode.task} {episode.seed} {episode.trial}": Sample(episode.task, episode.done)
        for episode in run_result.episodes
    },
    "harm": lambda run_result: {
        f"{episode.task} {episode.seed} {episode.trial}": Sample(episode.task, episode.harmed)
        for episode in run_result.episodes
        if episode.harmed is not None
    },
}
"""Functions that select the samples of a figure, by the figure's name."""


@dataclass(frozen=True)
class Measured:
    """The conditions under which all methods were measured.

    Attributes:
        partition: The agent's partition.
        split: The split of the turns, rows and tasks.
        world: The agent's world; empty if no episodes were played.
    """

    partition: str
    split: str
    world: str


def compared(
    methods: Sequence[Method], runs: Sequence[Run], measured: Measured
) -> ComparisonReport:
    """Return the report of a method comparison.

    Each method is compared with the reference. Each method that selects rows is also compared with
    its random coreset. The intervals of one figure hold simultaneously with 95 % confidence
    (Bonferroni).

    Args:
        methods: The methods, in the order of the report.
        runs: The training runs of all methods.
        measured: The conditions of the measurement.
    """
    by_method = {method.id: [run for run in runs if run.method == method.id] for method in methods}
    adapters = {name: tuple(run.adapter for run in value) for name, value in by_method.items()}
    same_as = {
        name: next(other for other in adapters if adapters[other] == adapters[name])
        for name in adapters
    }
    reference = REFERENCE if REFERENCE in by_method else methods[0].id
    wanted = [
        (method.id, against)
        for method in methods
        for against in dict.fromkeys((reference, method.control))
        if against
    ]
    pairs = list(
        {frozenset(pair): pair for pair in wanted if same_as[pair[0]] != same_as[pair[1]]}.values()
    )
    error = ERROR / max(len(pairs), 1)
    comparisons = []
    for left, right in pairs:
        for figure in FIGURES:
            measured_difference = _difference(by_method[left], by_method[right], figure, error)
            reported = report_difference(measured_difference, False, error)
            if reported is not None:
                comparisons.append(
                    MethodDifference(
                        **msgspec.structs.asdict(reported),
                        method=left,
                        against=right,
                        figure=figure,
                    )
                )
    figures = {
        name: {figure: _figure(value, figure) for figure in FIGURES}
        | {figure: _of_pass(value, figure) for figure in PASS_FIGURES}
        for name, value in by_method.items()
    }
    return ComparisonReport(
        partition=measured.partition,
        split=measured.split,
        world=measured.world,
        reference=reference,
        seeds=len(by_method[reference]),
        turns=len(runs[0].scores.turns),
        rows=len(runs[0].scores.losses),
        episodes=len(runs[0].scores.episodes),
        base={"model": runs[0].base_model, **runs[0].base_of_pass}
        | {name: _mean(list(value(runs[0].base).values())) for name, value in FIGURES.items()},
        methods={
            method.id: MethodResult(
                name=method.name,
                description=method.description,
                control=method.control,
                same_as=same_as[method.id] if same_as[method.id] != method.id else "",
                figures=figures[method.id],
                cost=_cost([run.cost for run in by_method[method.id]]),
                adapters=list(adapters[method.id]),
                notes=list(
                    dict.fromkeys(note for run in by_method[method.id] for note in run.notes)
                ),
            )
            for method in methods
        },
        comparisons=comparisons,
        rank_correlation=rank_correlation(
            {name: figures[name] for name in figures if same_as[name] == name}
        ),
    )


def rank_correlation(
    figures: Mapping[str, Mapping[str, MethodFigure | None]],
) -> dict[str, RankCorrelation | None]:
    """Return Spearman's rank correlation between exact calls and cheaper figures, over the methods.

    The cheaper figures are `PASS_FIGURES` and the held-out loss. A correlation is None if there are
    fewer than four methods or if all methods have equal values.
    """
    from scipy.stats import spearmanr

    correlations: dict[str, RankCorrelation | None] = {}
    for name, sign in (*((name, 1) for name in PASS_FIGURES), ("heldout_loss", -1)):
        known = []
        for figures_of_method in figures.values():
            cheap_figure, exact_calls = figures_of_method[name], figures_of_method["exact_calls"]
            if cheap_figure and exact_calls:
                known.append((cheap_figure.mean, exact_calls.mean))
        cheap, dear = ([pair[side] for pair in known] for side in (0, 1))
        ranked = len(known) >= FEWEST_RANKED and len(set(cheap)) > 1 and len(set(dear)) > 1
        rho = spearmanr([sign * value for value in cheap], dear).statistic if ranked else None
        correlations[name] = None if rho is None else RankCorrelation(float(rho), len(known))
    return correlations


def better(comparison: MethodDifference) -> bool:
    """Return whether a difference is an improvement, even if noise may explain it."""
    return (comparison.difference < 0) is (comparison.figure in LESS_IS_BETTER)


def _difference(
    left: Sequence[Run], right: Sequence[Run], figure: str, error: float
) -> Difference | None:
    """Return the difference between two methods over the samples of both, run by run.

    Losses of different base models cannot be compared.

    Args:
        left: The runs of one method.
        right: The runs of the method that it is compared with, in the order of the seeds.
        figure: The name of the figure.
        error: The error rate of the interval.
    """
    if figure == "heldout_loss" and len({run.base_model for run in (*left, *right)}) > 1:
        return None
    samples_of = FIGURES[figure]
    samples = [
        (str(run.seed), new[sample_id], old[sample_id].value)
        for run, rival in zip(left, right, strict=True)
        for new, old in [(samples_of(run.scores), samples_of(rival.scores))]
        for sample_id in new
        if sample_id in old
    ]
    return _crossed(samples, error, None if figure == "heldout_loss" else (-1.0, 1.0))


def _figure(runs: Sequence[Run], figure: str) -> MethodFigure | None:
    """Return the mean of a figure over training runs, with its confidence interval."""
    by_seed = [list(FIGURES[figure](run.scores).values()) for run in runs]
    samples = [
        (str(run.seed), sample, 0.0)
        for run, samples_of_run in zip(runs, by_seed, strict=True)
        for sample in samples_of_run
    ]
    crossed = _crossed(samples, ERROR, None if figure == "heldout_loss" else (0.0, 1.0))
    if crossed is None:
        return None
    means = [_mean(samples_of_seed) for samples_of_seed in by_seed]
    return MethodFigure(
        crossed.value, crossed.low, crossed.high, [mean for mean in means if mean is not None]
    )


def _crossed(
    samples: Sequence[tuple[str, Sample, float]], error: float, bounds: tuple[float, float] | None
) -> Difference | None:
    """Return the mean difference of samples. Its interval holds for other tasks and other seeds.

    Args:
        samples: The seed, the score of the sample, and the value that it is compared with.
        error: The error rate of the interval.
        bounds: The bounds of the difference, if it has any.
    """
    values, rivals = (
        [float(new.value) for _, new, _ in samples],
        [float(old) for _, _, old in samples],
    )
    tasks, seeds = [new.task for _, new, _ in samples], [seed for seed, _, _ in samples]
    return crossed(
        tasks, seeds, values, rivals, [new.weight for _, new, _ in samples], error, bounds
    )


def _mean(samples: Sequence[Sample]) -> float | None:
    return (
        sum(sample.value * sample.weight for sample in samples)
        / sum(sample.weight for sample in samples)
        if samples
        else None
    )


def _of_pass(runs: Sequence[Run], figure: str) -> MethodFigure | None:
    values = [run.of_pass[figure] for run in runs]
    known = [value for value in values if value is not None]
    if len(known) < len(runs):
        return None
    return MethodFigure(sum(known) / len(known), None, None, known)


def _cost(costs: Sequence[Cost]) -> MeanCost:
    """Return the mean cost of a training run."""
    count = len(costs)
    return MeanCost(
        rows=sum(cost.rows for cost in costs) / count,
        tokens=sum(cost.tokens for cost in costs) / count,
        seconds=sum(cost.seconds for cost in costs) / count,
        selection_seconds=sum(cost.selection_seconds for cost in costs) / count,
        resumed=any(cost.resumed for cost in costs),
    )
