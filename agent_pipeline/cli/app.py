"""The command `agent-pipeline`. Exit code 0 only on success.

Each group of commands has a module of its own; this one puts them together.
"""

import sys

import typer

from agent_pipeline.cli import champions, checking, governing, running, stores
from agent_pipeline.cli.compare import compare
from agent_pipeline.cli.instance import dagster_home, database_sentence
from agent_pipeline.cli.play import play
from agent_pipeline.errors import PipelineError, disk_sentence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="From the sessions that agents leave behind to a small local model that does their job.",
)
for command in (
    stores.discover,
    checking.check,
    running.materialize,
    champions.promote,
    champions.hold,
    champions.rollback,
    champions.champions,
    champions.report,
    stores.review,
    stores.status,
    stores.explain,
    play,
    compare,
    governing.forget,
    governing.prune,
    running.demo,
    running.dev,
    running.serve,
):
    app.command()(command)
app.add_typer(governing.lineage, name="lineage")


def main() -> None:
    """Run the command; what the user can fix ends in one line on standard error and exit code 1."""
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
    """Return what to say of an error that a user can mend; None for any other error."""
    if isinstance(error, PipelineError):
        return str(error)
    if type(error).__module__.startswith(("sqlalchemy", "sqlite3", "psycopg2", "dagster_postgres")):
        return database_sentence(dagster_home(), error)
    return disk_sentence(error)


if __name__ == "__main__":
    main()
