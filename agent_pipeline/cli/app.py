"""The command `agent-pipeline`. Exit code 0 only on success.

Each group of commands has its own module; this module puts the groups together.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from agent_pipeline.cli import (
    champions,
    checking,
    governing,
    labels,
    models,
    running,
    sessions,
    stores,
)
from agent_pipeline.cli.chat import chat
from agent_pipeline.cli.compare import compare
from agent_pipeline.cli.doctor import doctor
from agent_pipeline.cli.init import init
from agent_pipeline.cli.instance import dagster_home, database_sentence
from agent_pipeline.cli.night import night
from agent_pipeline.cli.pages import pages, review
from agent_pipeline.cli.play import play
from agent_pipeline.cli.registry import Command, OrderedGroup, register
from agent_pipeline.cli.serve import serve
from agent_pipeline.cli.status import status
from agent_pipeline.cli.traffic import traffic
from agent_pipeline.errors import PipelineError, disk_sentence
from agent_pipeline.models.threads import control_threads, let_idle_threads_sleep

app = typer.Typer(
    cls=OrderedGroup,
    no_args_is_help=True,
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


PANELS: dict[str, list[Command]] = {
    "Start": [
        Command(running.demo, "demo", ("demo",), "chat shop/support"),
        Command(
            init,
            "init",
            ("init sessions", "init sessions.jsonl --yes"),
            "materialize PARTITION",
        ),
        Command(
            doctor,
            "doctor",
            ("doctor", "doctor sessions.jsonl", "doctor shop/support", "doctor --json"),
            "materialize PARTITION",
        ),
        Command(
            stores.discover,
            "discover",
            ("discover data/sample", "discover --json"),
            "materialize PARTITION --select '+sft_dataset'",
        ),
        Command(checking.check, "config check", ("config check",), "discover"),
        Command(
            checking.show,
            "config show",
            ("config show", "config show shop/support --all"),
            "config check",
        ),
    ],
    "Data": [
        Command(
            sessions.list_sessions,
            "sessions list",
            (
                "sessions list --agent shop/support",
                "sessions list --dropped unjudged --limit 5",
                "sessions list --damage orphan_output --json",
            ),
            "sessions show SESSION_ID",
        ),
        Command(
            sessions.show,
            "sessions show",
            ("sessions show SESSION_ID", "sessions show SESSION_ID --lineage --json"),
            "status",
        ),
        Command(
            review,
            "review",
            ("review shop/support", "review shop/support --annotator ana --sample 20"),
            "materialize {partition}",
        ),
        Command(
            labels.export,
            "label export",
            ("label export shop/support --out review.html", "label export shop/support"),
            "label import FILE {partition}",
        ),
        Command(
            labels.import_file,
            "label import",
            ("label import review.jsonl shop/support",),
            "materialize {partition}",
        ),
    ],
    "Train": [
        Command(
            running.materialize,
            "materialize",
            (
                "materialize shop/support",
                "materialize shop/support --select '+sft_dataset'",
                "materialize shop/support --set sft_adapter.lora_r=8 --save",
            ),
            "status",
        ),
        Command(
            compare,
            "compare",
            ("compare shop/support --seeds 3",),
            "materialize {partition} --set sft_adapter.lora_r=8 --save",
        ),
    ],
    "Decide and serve": [
        Command(
            champions.report,
            "report",
            ("report shop/support", "report shop/support --path"),
            "promote {partition}",
        ),
        Command(
            models.list_models,
            "models list",
            ("models list", "models list --json"),
            "models show PARTITION",
        ),
        Command(
            models.show,
            "models show",
            (
                "models show shop/support",
                "models show shop/support --lineage",
                "models show 3f2a91c04b7d",
            ),
            "models list",
        ),
        Command(
            champions.promote,
            "promote",
            ("promote shop/support --why 'good transcripts'",),
            "models show {partition}",
        ),
        Command(
            champions.hold,
            "hold",
            ("hold shop/support --why 'too much harm'",),
            "models show {partition}",
        ),
        Command(
            champions.rollback,
            "rollback",
            ("rollback shop/support", "rollback shop/support --to 3"),
            "models show {partition}",
        ),
        Command(
            chat,
            "chat",
            (
                "chat shop/support",
                "chat shop/support --model candidate --compare champion",
                "chat shop/support --tools ask",
            ),
            "report {partition}",
        ),
        Command(
            serve,
            "serve",
            ("serve shop/support", "serve shop/support --port 8081"),
            "chat {partition}",
        ),
        Command(
            traffic,
            "traffic",
            ("traffic shop/support --share 5%", "traffic shop/support --share 0"),
            "status",
        ),
        Command(
            play,
            "play",
            ("play shop/support --out played --tasks 20",),
            "discover {out}",
        ),
    ],
    "Audit": [
        Command(
            pages,
            "pages",
            ("pages shop/support --open", "pages shop/support --out site"),
            "sessions show SESSION_ID",
        ),
        Command(
            governing.forget,
            "forget",
            ("forget SESSION_ID OTHER_ID --partition shop/support", "forget --file ids.txt"),
            "status",
        ),
        Command(
            governing.prune,
            "prune",
            ("prune shop/support", "prune shop/support --keep 3 --delete"),
            "models list",
        ),
    ],
    "Operate": [
        Command(status, "status", ("status", "status --json"), "materialize PARTITION"),
        Command(
            night,
            "night",
            ("night --dry-run", "night --dry-run --json"),
            "materialize PARTITION",
        ),
        Command(checking.test_notification, "notify test", ("notify test",), "config show"),
        Command(running.dev, "dev", ("dev", "dev --port 3001"), "status"),
        Command(
            running.webserver,
            "service webserver",
            ("service webserver", "service webserver --host 0.0.0.0"),
            "service daemon",
        ),
        Command(running.daemon, "service daemon", ("service daemon",), "service webserver"),
    ],
}
"""Commands by the panel of the help in which they appear."""

GROUPS = {
    "config": "Check or show the settings.",
    "sessions": "List sessions, or show what happened to a session.",
    "label": "Write sessions to a file for people to judge, and read their judgments.",
    "models": "List the models of the agents, or show a model's history and origin.",
    "notify": "Test the notifications.",
    "service": "Run Dagster's web server or its daemon as a service.",
}
"""Help of the groups of commands."""

register(app, PANELS, GROUPS)


def main() -> None:
    """Run the command.

    An error that the user can fix ends in one line on standard error and exit code 1.
    """
    let_idle_threads_sleep()
    control_threads()
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
