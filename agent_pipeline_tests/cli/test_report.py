"""The report at the end of `make demo`."""

from agent_pipeline.cli.report import _episodes
from agent_pipeline.reports.episode_report import (
    FIGURE_LABELS,
    EpisodeReport,
    PlayerFigures,
    count_true,
)


def test_the_first_figure_is_the_models_in_whatever_order_the_manifest_names_the_players() -> None:
    done = {
        "base": count_true([False, False]),
        "model": count_true([True, False]),
        "recorded": count_true([True, True]),
    }
    report = EpisodeReport(
        {
            player: PlayerFigures(**dict.fromkeys(FIGURE_LABELS, share))
            for player, share in done.items()
        }
    )
    assert (
        _episodes(report)[0] == "[green]tasks done: 1 of 2[/green] (base 0 of 2, recorded 2 of 2)"
    )
