"""The report of a method comparison, as stored in `comparison.json` and in the manifest.

The figures are computed in `results`, and `report` formats them for people.
"""

import msgspec

from agent_pipeline.evaluation.intervals import ReportedDifference


class MethodFigure(msgspec.Struct, frozen=True):
    """The mean of a figure over all training runs of a method.

    Attributes:
        mean: The mean over tasks and seeds.
        low: The lower end of its 95 % interval; `None` if there is no interval.
        high: The upper end of the interval.
        by_seed: The mean of each training run.
    """

    mean: float
    low: float | None
    high: float | None
    by_seed: list[float]


class MeanCost(msgspec.Struct, frozen=True, kw_only=True):
    """The mean cost over all training runs of a method.

    Attributes:
        rows: The number of training rows, including replayed rows.
        tokens: The number of tokens in these rows, over all epochs and all steps of a chain.
        seconds: The seconds of training.
        selection_seconds: The seconds that the selection of rows took.
        resumed: Whether a training run was killed and resumed, so that earlier seconds are missing.
    """

    rows: float
    tokens: float
    seconds: float
    selection_seconds: float
    resumed: bool


class MethodResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one training method.

    Attributes:
        name: The name of the method for people.
        description: A sentence about it.
        control: The id of its random coreset; empty if it has none.
        same_as: The id of an earlier method with the same adapters; empty if there is none.
        figures: The figures by name; `None` for a figure without samples.
        cost: The mean cost of a training run.
        adapters: The identities of the last adapters, by seed.
        notes: Notes about the training runs for readers.
    """

    name: str
    description: str
    control: str
    same_as: str
    figures: dict[str, MethodFigure | None]
    cost: MeanCost
    adapters: list[str]
    notes: list[str]


class MethodDifference(ReportedDifference, frozen=True, kw_only=True):
    """The difference between two training methods in one figure.

    Attributes:
        method: The id of the method.
        against: The id of the method that it is compared with.
        figure: The name of the figure.
    """

    method: str
    against: str
    figure: str


class RankCorrelation(msgspec.Struct, frozen=True):
    """Spearman's rank correlation between a figure and the figure of exact calls.

    Attributes:
        rho: The correlation.
        methods: The number of methods.
    """

    rho: float
    methods: int


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all methods on the same turns, rows and episodes.

    Attributes:
        partition: The agent's partition.
        split: The split that was measured.
        world: The agent's world; empty if no episodes were played.
        reference: The id of the method that the other methods are compared with.
        seeds: The number of training runs per method.
        turns: The number of answered turns.
        rows: The number of rows with a loss.
        episodes: The number of played episodes.
        base: The name of the base model (`model`), and its figures by name.
        methods: The results by the id of the method.
        comparisons: The differences. Their intervals hold simultaneously.
        rank_correlation: The rank correlation of each figure with exact calls over the methods;
            `None` if it is not known.
    """

    partition: str
    split: str
    world: str
    reference: str
    seeds: int
    turns: int
    rows: int
    episodes: int
    base: dict[str, str | float | None]
    methods: dict[str, MethodResult]
    comparisons: list[MethodDifference]
    rank_correlation: dict[str, RankCorrelation | None]

    def base_figure(self, name: str) -> float | None:
        """Return a figure of the base model, or `None` if it was not measured."""
        value = self.base[name]
        return None if value is None else float(value)

    def measured_figures(self, names: tuple[str, ...]) -> list[str]:
        """Return the given figure names for which at least one method has a figure."""
        return [
            name for name in names if any(method.figures[name] for method in self.methods.values())
        ]
