"""`agent-pipeline explain SESSION`: what became of a session, and why."""

from typing import Annotated

import typer

from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import parse_key


def explain(
    session_id: Annotated[str, typer.Argument(help="The session's id.")],
    partition: Annotated[str, typer.Option(help="project/agent; without it, every partition of the lake is looked at.")] = "",
) -> None:
    """What became of a session in ten lines: source, damage, task, verdict and by whom, measures, use, rows."""
    from agent_pipeline.judging.explain import explain as lines_about

    for line in lines_about(load_settings().open_lake(), session_id, parse_key(partition) if partition else None):
        typer.echo("".join(character if character.isprintable() else "\ufffd" for character in line))
