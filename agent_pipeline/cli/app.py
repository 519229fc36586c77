"""The command `agent-pipeline`. Exit code 0 only on success.

Each group of commands has a module of its own; this one puts them together.
"""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from agent_pipeline.cli import champions, checking, governing, running, stores
from agent_pipeline.cli.compare import compare
from agent_pipeline.cli.instance import dagster_home, database_sentence
from agent_pipeline.cli.pages import pages
from agent_pipeline.cli.play import play
from agent_pipeline.errors import PipelineError, disk_sentence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"agent-pipeline {version('agent-pipeline')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Turn the sessions of an AI agent into a small model that does the agent's job."""


PANELS: dict[str, list[tuple[Callable[..., Any], str]]] = {
    "Start": [
        (running.demo, "demo"),
        (stores.discover, "discover data/sample"),
        (checking.check, "check"),
    ],
    "Data": [
        (stores.review, "review shop/support --out review.html"),
        (stores.explain, "explain SESSION_ID --partition shop/support"),
    ],
    "Train": [
        (running.materialize, "materialize shop/support --set sft_adapter.lora_r=8"),
        (compare, "compare shop/support --seeds 3"),
    ],
    "Decide and serve": [
        (champions.report, "report shop/support --open"),
        (champions.champions, "champions shop/support"),
        (champions.promote, "promote shop/support --why 'good transcripts'"),
        (champions.hold, "hold shop/support --why 'too much harm'"),
        (champions.rollback, "rollback shop/support"),
        (play, "play shop/support --out played --tasks 20"),
    ],
    "Audit": [
        (pages, "pages shop/support --open"),
        (governing.forget, "forget SESSION_ID OTHER_ID --partition shop/support"),
        (governing.prune, "prune shop/support --keep 3"),
    ],
    "Operate": [
        (stores.status, "status"),
        (running.dev, "dev --port 3001"),
        (running.serve, "serve daemon"),
    ],
}
"""Commands by the panel of the help in which they appear, each with example arguments."""

for panel, commands in PANELS.items():
    for command, example in commands:
        app.command(rich_help_panel=panel, epilog=f"Example: agent-pipeline {example}")(command)
app.add_typer(governing.lineage, name="lineage", rich_help_panel="Audit")


def main() -> None:
    """Run the command.

    An error that the user can fix ends in one line on standard error and exit code 1.
    """
    try:
        app()
    except KeyboardInterrupt:
        sys.stderr.write("agent-pipeline: interrupted\n")
        sys.exit(running.INTERRUPTED)
    except Exception as error:
        if (sentence := sentence_of(error)) is None:
            raise
        sys.exit(f"agent-pipeline: {sentence}")


def sentence_of(error: Exception) -> str | None:
    """Return the sentence about an error that a user can fix, or None for any other error."""
    if isinstance(error, PipelineError):
        return str(error)
    if type(error).__module__.startswith(("sqlalchemy", "sqlite3", "psycopg2", "dagster_postgres")):
        return database_sentence(dagster_home(), error)
    return disk_sentence(error)


if __name__ == "__main__":
    main()
