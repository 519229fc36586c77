"""Methods compared: what is noise is called noise, and what is said is what was measured."""

import msgspec
import numpy as np
import pytest

from agent_pipeline.evaluation.intervals import report_difference
from agent_pipeline.evaluation.paired import crossed, paired
from agent_pipeline.evaluation.scores import RowScore, Scores, TurnScore
from agent_pipeline.method_comparison.comparison_report import ComparisonReport
from agent_pipeline.method_comparison.report import chart, page
from agent_pipeline.method_comparison.results import Cost, Measured, Method, Run, compared


@pytest.mark.parametrize(
    ("tasks", "seeds", "luck"), [(8, 3, 0.0), (20, 2, 0.3), (40, 3, 0.3), (40, 5, 0.1)]
)
def test_noise_of_tasks_and_of_seeds_is_called_a_difference_in_at_most_one_of_twenty_comparisons(
    tasks, seeds, luck
):
    rng, false = np.random.default_rng(0), 0
    names = [(f"{task:02}", f"{seed}") for seed in range(seeds) for task in range(tasks)]
    for _ in range(400):
        likes = 0.4 * rng.standard_normal(
            (2, tasks)
        )  # a method suits some tasks; none is better over all tasks that there may be
        lucky = luck * rng.standard_normal((2, seeds))
        chances = np.clip(0.5 + likes[:, None, :] + lucky[:, :, None], 0, 1).reshape(2, -1)
        right = (rng.uniform(size=chances.shape) < chances).astype(float)
        false += report_difference(
            crossed(*zip(*names, strict=True), *right.tolist()), of_shares=False
        ).beyond_noise
    assert false / 400 <= 0.065


def test_without_luck_of_seeds_the_interval_is_that_over_tasks_and_with_one_seed_there_is_none():
    tasks, right = [f"{i:02}" for i in range(12)] * 3, [float(i % 3 > 0) for i in range(12)] * 3
    over_tasks, both = (
        paired(tasks, right, [0.0] * 36),
        crossed(tasks, [f"{i // 12}" for i in range(36)], right, [0.0] * 36),
    )
    assert (both.value, both.low, both.high) == pytest.approx(
        (over_tasks.value, over_tasks.low, over_tasks.high)
    )
    one = crossed(tasks, ["0"] * 36, right, [0.0] * 36)
    assert one.value == both.value and one.low is None and not report_difference(one).beyond_noise


def runs(method: str, share: float, auc: float, seeds: int = 3, adapter: str = "") -> list[Run]:
    """Trainings that are right on this share of 40 tasks, which are other ones each time."""
    found = []
    for seed in range(seeds):
        turns = [
            TurnScore(
                f"t{i}",
                f"task{i}",
                "tool",
                i % 2 == 0,
                i % 2 == 0,
                (i * 7 + seed) % 40 < 40 * share,
            )
            for i in range(40)
        ]
        scores = Scores(
            "evaluator",
            tuple(turns),
            (RowScore("r1", "task1", 1 - share, 10), RowScore("r2", "task2", 1 - share, 10)),
        )
        names = {
            "method": method,
            "seed": seed,
            "base_model": "base",
            "adapter": adapter or f"{method} {seed}",
            "made_by": [],
        }
        of_pass = {"decision_auc": auc, "verified_calls": auc / 2}
        found.append(
            Run(
                scores=scores,
                of_pass=of_pass,
                base=scores,
                base_of_pass=of_pass,
                cost=Cost(9, 900, 2.0, 0.5, False),
                **names,
            )
        )
    return found


def report(*made: list[Run], **controls: str) -> ComparisonReport:
    methods = [
        Method(
            each[0].method, each[0].method, "", ["sft"], False, {}, controls.get(each[0].method, "")
        )
        for each in made
    ]
    every_run = [run for of in zip(*made, strict=True) for run in of]
    return compared(methods, every_run, Measured("a/b", "select", ""))


def test_the_report_calls_a_clear_difference_by_its_name_and_noise_noise(tmp_path):
    found = report(
        runs("good", 0.9, 0.9), runs("as_good", 0.85, 0.8), runs("poor", 0.2, 0.6), poor="good"
    )
    said = {
        (each.method, each.against): each
        for each in found.comparisons
        if each.figure == "exact_calls"
    }
    assert [pair for pair, each in said.items() if each.beyond_noise] == [("poor", "good")] and set(
        said
    ) == {
        ("as_good", "good"),
        ("poor", "good"),
    }
    text = page(found)
    assert (
        "- **poor** against good: exact calls worse, beyond noise (-0.700" in text
        and "**as_good**" not in text
    )
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith("| as_good | good | exact calls | -0.050 |")
    )  # one turn of 20
    assert line.endswith("| within noise |") and "needs four methods that differ" in text
    assert (
        found.methods["good"].figures["exact_calls"].high == 1
    )  # a share ends there, whatever t says
    chart(found, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert "every difference may come from the random seed" in page(
        report(runs("a", 0.9, 0.9, 1), runs("b", 0.1, 0.1, 1))
    )


def test_methods_that_trained_the_same_adapters_are_not_compared():
    found = report(
        runs("A_baseline", 0.9, 0.9, adapter="x"), runs("E_fireact", 0.9, 0.9, adapter="x")
    )
    assert found.comparisons == [] and found.methods["E_fireact"].same_as == "A_baseline"
    assert "E_fireact trained exactly the same adapters as A_baseline" in page(found)


def test_the_rank_correlation_is_that_of_the_methods_means():
    shares, areas = [0.9, 0.7, 0.5, 0.2], [0.8, 0.9, 0.7, 0.6]
    found = report(
        *(runs(f"m{i}", *each) for i, each in enumerate(zip(shares, areas, strict=True)))
    ).rank_correlation
    assert found["decision_auc"].rho == pytest.approx(0.8)
    assert found["heldout_loss"].rho == pytest.approx(1.0)
    assert found["decision_auc"].methods == 4 and found["verified_calls"] == found["decision_auc"]


def test_losses_of_different_base_models_do_not_compare():
    other = [msgspec.structs.replace(run, base_model="other") for run in runs("m1", 0.5, 0.5)]
    assert "heldout_loss" not in {
        each.figure for each in report(runs("m0", 0.9, 0.9), other).comparisons
    }
