"""The models that a command's option names, opened as players."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey

if TYPE_CHECKING:
    from agent_pipeline.compute.playing import OpenedPlayer
    from agent_pipeline.config.settings import Settings


def find_limits(
    settings: "Settings", key: PartitionKey, model: str, max_new_tokens: int | None
) -> tuple[int, int]:
    """Return the longest message and the longest conversation, in tokens, as in `episodes`.

    Args:
        settings: The settings.
        key: The agent's partition.
        model: The model. The champion has the length of its own training, and not of the last one.
        max_new_tokens: The longest message that the user chose; None for that of `episodes`.
    """
    from agent_pipeline.config.assets import EpisodesConfig
    from agent_pipeline.config.resolution import find_trained_length, resolve
    from agent_pipeline.evaluation.heldout import reply_limit
    from agent_pipeline.promotion.ledger import EXPORT
    from agent_pipeline.training.chain import find_trained_adapters

    lake = settings.open_lake()
    champion = lake.champion(EXPORT, key) if model == "champion" else None
    adapters = (
        find_trained_adapters(lake, key, champion.manifest["made_from"]["adapter"])
        if champion
        else []
    )
    trained_length = find_trained_length(settings, key, adapters[0] if adapters else None)
    usual = resolve(settings, EpisodesConfig, key, trained_length=trained_length).options
    longest_message = max_new_tokens or usual.max_new_tokens
    return longest_message or reply_limit(lake, key), usual.max_length


def open_player(
    model: str,
    key: PartitionKey,
    temperature: float,
    limits: tuple[int, int],
    side_by_side: bool = True,
) -> "OpenedPlayer":
    """Open the model that the options name as a player.

    Args:
        model: The model's name, file or address.
        key: The agent's partition.
        temperature: The sampling temperature.
        limits: The longest message and the longest conversation, in tokens.
        side_by_side: Whether a GGUF file plays in two servers, which is faster for many
            conversations and slower for one conversation.
    """
    from agent_pipeline.compute.params import common_params
    from agent_pipeline.compute.playing import gguf_player, memory_player
    from agent_pipeline.compute.tasks import fit_context
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.evaluation.players import endpoint_player
    from agent_pipeline.export.serving_folder import Form, served_form
    from agent_pipeline.judging.llm_client import Endpoint
    from agent_pipeline.promotion.ledger import EXPORT

    settings = load_settings()
    lake = settings.open_lake()
    if model.startswith(("http://", "https://")):
        url, _, name = model.partition("#")
        parameters = {"temperature": temperature, "max_tokens": limits[0]}
        return nullcontext(
            endpoint_player(
                Endpoint(url, name, os.environ.get(settings.judge.api_key_variable, ""), parameters)
            )
        )
    if model == "champion" and lake.champion(EXPORT, key) is None:
        raise SettingsError(
            f"{key} has no champion to play: run `agent-pipeline promote {key}` to make the "
            "latest export the champion."
        )
    if model in ("champion", "gguf") or model.endswith(".gguf"):
        export = (
            lake.champion(EXPORT, key)
            if model == "champion"
            else lake.latest(EXPORT, key)
            if model == "gguf"
            else None
        )
        form = served_form(lake, export) if export else Form(Path(model))
        if not form.model.is_file():
            raise SettingsError(
                f"There is no GGUF file {form.model}: materialize `gguf_export`, or give another "
                "file."
            )
        return gguf_player(form, *limits, temperature, side_by_side)
    if model not in ("adapter", "base"):
        raise SettingsError(
            f"{model!r} is not a model that can play: give champion, gguf, adapter, base, a .gguf "
            "file, or an endpoint as URL#name."
        )
    if temperature:
        raise SettingsError(
            "The models `adapter` and `base` decode greedily, so they do not support "
            "--temperature: leave it out, or play `gguf` or an endpoint."
        )
    adapter = settings.candidate(key)
    base = common_params(settings, key).base_of(adapter)
    max_length = fit_context({"max_length": limits[1]}, base)["max_length"]
    adapter_dir = adapter.path if model == "adapter" else None
    return memory_player(base, adapter.path, adapter_dir, limits[0], max_length)
