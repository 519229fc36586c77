"""The commands that choose the served model: promote, hold, rollback, champions and report."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table

from agent_pipeline.cli.report import latest
from agent_pipeline.cli.running import print_outcome
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.verdicts import describe_verdicts
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.intervals import shown
from agent_pipeline.governance.champion_moves import complete_interrupted_moves, follow
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.promotion import champions as champion_history
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.decision_page import ASSET
from agent_pipeline.promotion.decision_wording import (
    clip_interval,
    describe_outcome,
    make_markdown,
    summarize,
)
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision, open_ledger
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
    console.print(f"{_short(record.candidate)} of {partition} is held back.", highlight=False)


def champions(
    partition: Annotated[
        str | None, typer.Argument(help="Partition, as project/agent, to show its history.")
    ] = None,
) -> None:
    """Show the champion, the latest export and its decision for every partition.

    If a partition is given, the command shows the whole history of the partition instead.
    """
    settings = load_settings()
    lake = settings.open_lake()
    exported = list(champion_history.champions(lake))
    known = ", ".join(str(key) for key, _ in exported)
    if not exported:
        raise DataError(
            f"The lake {lake.root} holds no exported model of {partition or 'any agent'}: run "
            f"`agent-pipeline materialize {partition or 'PARTITION'}` first."
        )
    if partition and parse_key(partition) not in dict(exported):
        raise DataError(
            f"The lake {lake.root} holds no exported model of {partition}, only of {known}: run "
            f"`agent-pipeline materialize {partition}` first."
        )
    keys = [parse_key(partition)] if partition else [key for key, _ in exported]
    for sentence in complete_interrupted_moves(settings, lake, keys):
        console.print(sentence, style="bold red", markup=False, soft_wrap=True, highlight=False)
    if partition:
        _print_history(lake, parse_key(partition))
        print_outcome(parse_key(partition))
        _complete_moves(lake, keys)
        return
    names = ("champion", "latest", "decision on the latest", "verified verdicts", "moved", "when")
    table = Table(
        Column("partition", no_wrap=True), *(Column(name, overflow="fold") for name in names)
    )
    for key, entry in exported:
        decided = find_last_decision(lake, key, entry.latest) if entry.latest else None
        outcome = describe_outcome(decided.decision) if decided else "none"
        if outcome == "promote" and entry.champion != entry.latest:
            outcome = "promote: it waits for you"
        verified = (
            f"{decided.verdicts['verified']} of {decided.verdicts['verdicts']}"
            if decided and decided.verdicts
            else "not known"
        )
        table.add_row(
            str(key),
            _short(entry.champion),
            _short(entry.latest),
            outcome,
            verified,
            entry.moved,
            entry.when,
        )
    console.print(table)
    _complete_moves(lake, keys)


def _complete_moves(lake: Lake, keys: list[PartitionKey]) -> None:
    """Note that a user has now seen the result of each rollback that was interrupted."""
    for key in keys:
        if champion_history.interrupted_rollback(
            lake, key
        ) and not champion_history.serving_difference(lake, key):
            champion_history.complete_move(lake, key)


def report(
    partition: PARTITION,
    out: Annotated[
        Path | None,
        typer.Option(help="File to which the page is copied, as one HTML file."),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Print the path of the page that explains the last decision.

    The page shows the figures, and every turn in which the models differ. If there is no decision
    yet, the command prints the path of the evaluation's page.
    """
    lake, key = load_settings().open_lake(), parse_key(partition)
    evaluated, decided = lake.latest("evaluation", key), latest(lake, ASSET, key)
    named = decided if decided and evaluated.identity in decided.manifest["parents"] else evaluated
    if PAGE not in named.manifest["files"]:
        raise DataError(
            f"The {named.asset} of {key} has no page, because a session on the page was forgotten "
            f"or an older version made it: materialize `{named.asset}` again."
        )
    try:
        page = shutil.copyfile(named.path / PAGE, out) if out else named.path / PAGE
    except OSError as error:
        raise DataError(
            f"The page cannot be copied to {out} ({error.strerror}): name a file in an existing "
            "folder."
        ) from error
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)
    if browse:
        typer.launch(page.absolute().as_uri())


def _print_history(lake: Lake, key: PartitionKey) -> None:
    console.print("[bold]history[/bold]")
    for entry in lake.history(EXPORT, key):
        moved = _short(entry.champion if entry.moved == "champion" else entry.latest)
        _print_entry(
            entry.generation, entry.when, f"{entry.moved} {moved}, by {entry.who}", entry.why
        )
    console.print("[bold]decisions[/bold]")
    for record in (records := open_ledger(lake, key).records()):
        decision = record.decision
        gains = [
            figure for figure in decision.figures if figure.name == "gain" and figure.tasks > 1
        ]
        gain = "".join(f"; gain {shown(gain.difference, *clip_interval(gain))}" for gain in gains)
        chance = (
            ""
            if decision.p_value is None
            else f", p = {decision.p_value:.2g} of {decision.allowed_error:.2g} allowed"
        )
        rival = _short(record.champion) if record.champion else "its base"
        what = f"{_short(record.candidate)} against {rival}{gain}{chance}"
        verdicts = f"; {describe_verdicts(record.verdicts)}" if record.verdicts else ""
        _print_entry(record.number, record.when, what + verdicts, record.why or summarize(decision))
    if records:
        last = records[-1]
        console.print(
            Markdown(
                make_markdown(last.decision, last.test, "champion" if last.champion else "base")
            )
        )


def _print_entry(number: int, when: str, what: str, why: str) -> None:
    console.print(f"{number:>3}  {when}  {what}", markup=False, highlight=False, soft_wrap=True)
    console.print(Padding(escape(why), (0, 0, 0, 5)), highlight=False)


def _print_champion(partition: str, move: Callable[[Lake, PartitionKey], Entry]) -> None:
    """Move the champion, and start serving the new champion immediately.

    If this is killed, the same command completes it.
    """
    settings, key = load_settings(), parse_key(partition)
    lake = settings.open_lake()
    entry = move(lake, key)
    instead = (
        f", instead of {_short(entry.against)}"
        if entry.against and entry.moved == "champion"
        else ""
    )
    warnings, lines = follow(settings, key, entry)
    for warning in warnings:
        console.print(warning, style="bold red", markup=False, soft_wrap=True)
    for line in (f"{_short(entry.champion)} is the champion of {partition}{instead}.", *lines):
        console.print(escape(line), soft_wrap=True, highlight=False)
    champion_history.complete_move(lake, key)


def _short(identity: str | None) -> str:
    return identity[:16] if identity else "none"
