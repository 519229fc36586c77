"""The report at the end of `make demo`."""

from agent_pipeline.cli.report import _episodes
from agent_pipeline.reports.episode_report import ROWS, share


def test_the_first_figure_is_the_models_in_whatever_order_the_manifest_names_the_players() -> None:
    done = {
        "base": share([False, False]),
        "model": share([True, False]),
        "recorded": share([True, True]),
    }
    report = {
        "players": {player: dict.fromkeys(ROWS, figure) for player, figure in done.items()},
        "against": [],
    }
    assert (
        _episodes(report)[0] == "[green]tasks done: 1 of 2[/green] (base 0 of 2, recorded 2 of 2)"
    )
