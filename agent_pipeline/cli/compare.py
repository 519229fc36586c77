"""`agent-pipeline compare`: which way to train an agent's model is better, and at what cost."""

import json
from typing import Annotated

import typer

from agent_pipeline.cli.running import run
from agent_pipeline.keys import parse_key

ASSET = "method_comparison"


def compare(
    partition: Annotated[str, typer.Argument(help="Partition, as project/agent.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Ids of methods, separated by commas, from MethodRegistry or from the table "
            "\\[methods] in pipeline.toml."
        ),
    ] = "",
    seeds: Annotated[
        int,
        typer.Option(
            min=0,
            help=(
                "Number of training runs per method. 0 means the setting "
                "method_comparison.seeds, which is 3 by default."
            ),
        ),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=(
                f"asset.setting=value for every method, or a setting of {ASSET}. You can use the "
                "option several times."
            ),
        ),
    ] = None,
) -> None:
    """Train an agent's model with several methods, and print a report that compares them."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.defs.jobs import COMPARE
    from agent_pipeline.method_comparison.report import PAGE

    key = parse_key(partition)
    own_settings = [setting for setting in settings or [] if setting.startswith(f"{ASSET}.")]
    shared = [setting for setting in settings or [] if setting not in own_settings]
    own_settings += [f"{ASSET}.methods={methods}"] * bool(methods) + [
        f"{ASSET}.seeds={seeds}"
    ] * bool(seeds)
    own_settings += [f"{ASSET}.settings={json.dumps(shared)}"] * bool(shared)
    run(key, ASSET, own_settings, job_name=COMPARE)
    comparison = load_settings().open_lake().latest(ASSET, key)
    page = comparison.path / PAGE
    typer.echo(f"{page.read_text(encoding='utf-8')}\n\nThe report is {page}.")
