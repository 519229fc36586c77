"""The command traffic, which gives an agent's champion a share of the real traffic."""

from typing import Annotated

import typer
from rich.console import Console

from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.evaluation.replay_proof import prove_tape
from agent_pipeline.gateway.traffic import (
    Models,
    parse_share,
    read_rules,
    stop_traffic,
    write_traffic,
)
from agent_pipeline.gateway.turn_checks import TrafficRules
from agent_pipeline.governance.played_world import find_world_in_force
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.promotion.champions import describe_missing_threshold, find_write_threshold
from agent_pipeline.promotion.ledger import EXPORT

console = Console()


def traffic(
    partition: Annotated[
        str, typer.Argument(help="Partition, as project/agent.", show_default=False)
    ],
    share: Annotated[
        str,
        typer.Option(
            help=(
                "Share of the conversations that the champion answers, such as 5%. Default: the "
                "share does not change."
            ),
            show_default=False,
        ),
    ] = "",
) -> None:
    """Write the configuration of LiteLLM's proxy, and set the champion's share of the traffic.

    A running proxy reads a new share immediately. All other conversations, and turns of the
    champion that fail a check, go to the large model.
    """
    settings, key = load_settings(), parse_key(partition)
    lake = settings.open_lake()
    before = read_rules(lake).get(str(key), TrafficRules())
    wanted = parse_share(share) if share else before.share
    if not wanted:
        stop_traffic(lake, key)  # whatever fails below, the champion answers nothing more
    rules = make_rules(settings, key, wanted)
    models = {
        agent: find_models(settings, parse_key(agent))
        for agent in {*read_rules(lake), str(key)}
        if settings.traffic(parse_key(agent)).large_model or agent == str(key)
    }
    folder = write_traffic(lake, key, rules, models)
    lines = [
        f"The champion of {key} ({rules.champion or 'none'}) answers {100 * wanted:.3g} % of the "
        f"conversations. Before, it was {100 * before.share:.3g} %.",
        f"Start the proxy with: litellm --config {folder / 'config.yaml'}",
    ]
    if rules.log not in {str(location) for location in settings.stores}:
        lines.append(
            f"The proxy logs to {rules.log}: add this folder to the setting `store`, so that the "
            "pipeline reads the conversations as sessions."
        )
    champion = lake.champion(EXPORT, key)
    if champion and wanted and rules.act == "sure" and rules.threshold is None:
        world = find_world_in_force(settings, lake, key, prove_tape)
        lines.append(describe_missing_threshold(lake, key, champion.identity, world))
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def make_rules(settings: Settings, key: PartitionKey, share: float) -> TrafficRules:
    """Return the rules of an agent's traffic.

    A champion without a share of the traffic has no threshold, because none is needed.

    Raises:
        DataError: The agent has no champion, although the share is above 0.
        SettingsError: A precondition cannot be loaded.
    """
    options, lake = settings.traffic(key), settings.open_lake()
    champion = lake.champion(EXPORT, key)
    if champion is None and share:
        raise DataError(
            f"{key} has no champion that can answer: run `agent-pipeline promote {key}` first."
        )
    preconditions = settings.preconditions(key)
    Preconditions.parse(preconditions)
    threshold = None
    if champion and share:
        deciding_world = find_world_in_force(settings, lake, key, prove_tape)
        threshold = find_write_threshold(lake, key, champion.identity, deciding_world)
    return TrafficRules(
        share=share,
        champion=champion.identity[:16] if champion else "",
        act=options.act,
        reads=settings.reads(key),
        threshold=threshold,
        preconditions=preconditions,
        log=str(settings.traffic_log(key)),
        modules=str(settings.folder or ""),
    )


def find_models(settings: Settings, key: PartitionKey) -> Models:
    """Return the servers of an agent's two models.

    Raises:
        SettingsError: The agent has no large model.
    """
    options = settings.traffic(key)
    if not options.large_model:
        raise SettingsError(
            f'{key} has no large model: set `agents."{key}".traffic.large_model` in pipeline.toml '
            "to LiteLLM's name of the model that the agent uses today, such as openai/gpt-4.1."
        )
    return Models(
        options.large_model,
        options.large_url,
        options.large_key,
        options.champion_url,
        options.seconds,
    )
