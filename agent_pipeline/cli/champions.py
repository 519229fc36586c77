"""The commands that choose the served model: promote, hold, rollback and report."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from agent_pipeline.cli.report import latest
from agent_pipeline.cli.words import shorten
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import DataError
from agent_pipeline.governance.champion_moves import follow
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.promotion import champions as champion_history
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.decision_page import ASSET
from agent_pipeline.redaction import Redactor
from agent_pipeline.reports.page import PAGE
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry

console = Console()

PARTITION = Annotated[str, typer.Argument(help="Partition, as project/agent.")]
WHY = Annotated[str, typer.Option(help="Reason, which is stored in the history.")]


def promote(
    partition: PARTITION,
    identity: Annotated[
        str,
        typer.Argument(
            help="First characters of the identity of an export or its adapter. Default: the "
            "latest export."
        ),
    ] = "",
    why: WHY = "",
) -> None:
    """Make an export the champion, so that it is served."""
    redactor = Redactor(load_settings().redaction_options)
    _print_champion(
        partition,
        lambda lake, key: champion_history.promote(lake, key, identity, why, redactor),
    )


def rollback(
    partition: PARTITION,
    to: Annotated[
        int | None,
        typer.Option(help="Number of the champion in the history. Default: the previous champion."),
    ] = None,
    why: WHY = "",
) -> None:
    """Make an earlier champion the champion again."""
    _print_champion(partition, lambda lake, key: champion_history.rollback(lake, key, to, why))


def hold(
    partition: PARTITION,
    identity: Annotated[
        str,
        typer.Argument(
            help="First characters of the identity of an export or its adapter. Default: the "
            "latest export."
        ),
    ] = "",
    why: WHY = "",
) -> None:
    """Hold an export back, so that no decision promotes it. The champion does not change."""
    record = hold_back(load_settings().open_lake(), parse_key(partition), identity, why)
    console.print(
        f"{shorten(record.candidate)} of {partition} is held back, so no decision promotes it.",
        highlight=False,
    )


def report(
    partition: PARTITION,
    out: Annotated[
        Path | None,
        typer.Option(help="File to which the page is copied, as one HTML file."),
    ] = None,
    only_path: Annotated[
        bool, typer.Option("--path", help="Print the path of the page, and do not open it.")
    ] = False,
    browse: Annotated[
        bool, typer.Option("--open", hidden=True, help="Open the page in the browser.")
    ] = False,
) -> None:
    """Open the page that explains the last decision, and print its path.

    The decision's page shows the figures behind the decision, and every turn in which the compared
    models differ. If there is no decision yet, the command opens the evaluation's page. With
    `--out`, or if the output is not a terminal, the command only prints the path.
    """
    lake, key = load_settings().open_lake(), parse_key(partition)
    evaluated, decided = lake.latest("evaluation", key), latest(lake, ASSET, key)
    named = decided if decided and evaluated.identity in decided.manifest["parents"] else evaluated
    if PAGE not in named.manifest["files"]:
        raise DataError(
            f"The {named.asset} of {key} has no page. Either a session on the page was forgotten, "
            f"or an older version of agent-pipeline made the page: materialize `{named.asset}` "
            "again."
        )
    try:
        page = shutil.copyfile(named.path / PAGE, out) if out else named.path / PAGE
    except OSError as error:
        raise DataError(
            f"The page cannot be copied to {out} ({error.strerror}): choose a file in an existing "
            "folder."
        ) from error
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)
    if browse or not (only_path or out or not sys.stdout.isatty()):
        typer.launch(page.absolute().as_uri())


def _print_champion(partition: str, move: Callable[[Lake, PartitionKey], Entry]) -> None:
    """Move the champion, and start serving the new champion immediately.

    If this is killed, the same command completes it.
    """
    settings, key = load_settings(), parse_key(partition)
    lake = settings.open_lake()
    entry = move(lake, key)
    instead = (
        f", instead of {shorten(entry.against)}"
        if entry.against and entry.moved == "champion"
        else ""
    )
    warnings, lines = follow(settings, key, entry)
    for warning in warnings:
        console.print(warning, style="bold red", markup=False, soft_wrap=True)
    for line in (f"{shorten(entry.champion)} is the champion of {partition}{instead}.", *lines):
        console.print(escape(line), soft_wrap=True, highlight=False)
    champion_history.complete_move(lake, key)
