"""The files with which LiteLLM's proxy gives an agent's champion a share of the traffic.

    <lake>/serving/litellm/config.yaml               for litellm --config
    <lake>/serving/litellm/agent_pipeline_traffic.py the hook that the configuration names
    <lake>/serving/litellm/traffic.json              the share and the rules of each agent

The hook reads `traffic.json` again when it changes, so a new share needs no restart. Without the
hook, every request goes to the large model.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.export.serving_folder import serving_root
from agent_pipeline.gateway.turn_checks import CHAMPION, RULES_FILE, TrafficRules
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.filesystem import write_atomically
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import decode_json

FOLDER = "litellm"
CONFIG_FILE = "config.yaml"
HOOK_FILE = "agent_pipeline_traffic.py"
_HOOK = '''"""The hook of agent-pipeline, for LiteLLM's proxy."""

from pathlib import Path

from agent_pipeline.gateway.litellm_hook import TrafficHook

hook = TrafficHook(Path(__file__).parent)
'''


class Models(NamedTuple):
    """The servers of an agent's two models.

    Attributes:
        large_model: The agent's model of today, as LiteLLM names it.
        large_url: The base URL of its server; empty for the provider's own URL.
        large_key: The environment variable with its API key; empty for the provider's variable.
        champion_url: The base URL of the server of the champion.
        seconds: The longest time that the champion may take for an answer.
    """

    large_model: str
    large_url: str
    large_key: str
    champion_url: str
    seconds: float


def traffic_folder(lake: Lake) -> Path:
    """Return the folder of the files on this machine."""
    return serving_root(lake) / FOLDER


def read_rules(lake: Lake) -> dict[str, TrafficRules]:
    """Return the rules by agent.

    Raises:
        DataError: The file is damaged.
    """
    file = traffic_folder(lake) / RULES_FILE
    try:
        return decode_json(file.read_bytes(), dict[str, TrafficRules])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeError) as error:
        raise DataError(
            f"{file} is damaged ({error}): delete it, and run `agent-pipeline traffic` again for "
            "each agent."
        ) from error


def describe_rules(rules: TrafficRules) -> str:
    """Return the champion's share and the rules for its calls, in words.

    Example:
        >>> describe_rules(TrafficRules(share=0.05, act="sure"))
        'the champion answers 5 % of the conversations; accepted calls: sure'
    """
    parts = [f"the champion answers {100 * rules.share:.3g} % of the conversations"]
    if rules.share:
        parts.append(f"accepted calls: {rules.act}")
        count = len(rules.preconditions)
        if count:
            parts.append(f"{count} {'tool' if count == 1 else 'tools'} with preconditions")
    return "; ".join(parts)


def write_traffic(
    lake: Lake, key: PartitionKey, rules: TrafficRules, models: Mapping[str, Models]
) -> Path:
    """Write the rules of an agent, and the configuration of all agents. Return the folder.

    Args:
        lake: The lake.
        key: The agent.
        rules: The agent's rules.
        models: The models of the agents, by agent. Agents without rules are left out.
    """
    folder = traffic_folder(lake)
    with lake.fs.lock(lake.root / ".locks" / "traffic.lock"):
        all_rules = read_rules(lake) | {str(key): rules}
        known = {agent: models[agent] for agent in sorted(all_rules) if agent in models}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / CONFIG_FILE, make_config(known).encode())
        write_atomically(folder / HOOK_FILE, _HOOK.encode())
        write_atomically(folder / RULES_FILE, msgspec.json.encode(all_rules))
    return folder


def pause_champion(lake: Lake, key: PartitionKey, champion: str) -> None:
    """Let no champion answer until `follow_champion`, if the served champion is going to change.

    Otherwise, a turn of the new model could be checked and logged as a turn of the old model.

    Args:
        lake: The lake.
        key: The partition.
        champion: The identity of the new champion; empty if there is none.

    Raises:
        DataError: The file of the rules is damaged.
    """

    def pause(rules: TrafficRules) -> TrafficRules:
        if rules.champion in ("", champion[:16]):
            return rules
        return msgspec.structs.replace(rules, champion="", threshold=None)

    _change_rules(lake, key, pause)


def follow_champion(
    lake: Lake, key: PartitionKey, champion: str, threshold: float | None, is_back: bool
) -> str:
    """Adapt the rules of an agent after its champion moved. Return a sentence, or an empty text.

    After a rollback, or without a champion, the share becomes 0. After a promotion, the new
    champion keeps the share.

    Args:
        lake: The lake.
        key: The agent.
        champion: The identity of the champion; empty if there is none.
        threshold: The smallest confidence of a sure write of this champion.
        is_back: Whether the champion was the champion before.

    Raises:
        DataError: The file of the rules is damaged.
    """

    def is_stopped(rules: TrafficRules) -> bool:
        return not champion or (is_back and rules.champion != champion[:16])

    def follow(rules: TrafficRules) -> TrafficRules:
        moved = msgspec.structs.replace(rules, champion=champion[:16], threshold=threshold)
        if moved == rules or not is_stopped(rules):
            return moved
        return msgspec.structs.replace(moved, share=0.0)

    before = _change_rules(lake, key, follow)
    return _describe_stop(key, before.share) if before and is_stopped(before) else ""


def stop_traffic(lake: Lake, key: PartitionKey) -> str:
    """Set the share of an agent to 0. Return a sentence, or an empty text if nothing changed.

    Raises:
        DataError: The file of the rules is damaged.
    """
    before = _change_rules(lake, key, lambda rules: msgspec.structs.replace(rules, share=0.0))
    return _describe_stop(key, before.share) if before else ""


def _change_rules(
    lake: Lake, key: PartitionKey, change: Callable[[TrafficRules], TrafficRules]
) -> TrafficRules | None:
    """Change the rules of an agent. Return the rules before, or None if nothing changed.

    Args:
        lake: The lake.
        key: The agent. An agent without rules gets none.
        change: Returns the new rules.

    Raises:
        DataError: The file of the rules is damaged.
    """
    file = traffic_folder(lake) / RULES_FILE
    if not file.exists():
        return None
    with lake.fs.lock(lake.root / ".locks" / "traffic.lock"):
        all_rules = read_rules(lake)
        before = all_rules.get(str(key))
        if before is None or (after := change(before)) == before:
            return None
        write_atomically(file, msgspec.json.encode(all_rules | {str(key): after}))
    return before


def _describe_stop(key: PartitionKey, share: float) -> str:
    """Return a sentence, or an empty text if the share was 0 before."""
    if not share:
        return ""
    return f"The share of {key} in the traffic of LiteLLM is 0 now. It was {100 * share:.3g} %."


def make_config(models: Mapping[str, Models]) -> str:
    """Return the configuration of LiteLLM's proxy for the models of some agents."""
    lines = [
        "# Written by `agent-pipeline traffic`, which overwrites changes.",
        "model_list:",
    ]
    fallbacks = []
    for agent, agent_models in models.items():
        large = {"model": agent_models.large_model}
        if agent_models.large_url:
            large["api_base"] = agent_models.large_url
        if agent_models.large_key:
            large["api_key"] = f"os.environ/{agent_models.large_key}"
        champion = {
            "model": f"openai/{agent}",
            "api_base": agent_models.champion_url,
            "api_key": "os.environ/LLAMA_API_KEY" if os.environ.get("LLAMA_API_KEY") else "none",
            "timeout": agent_models.seconds,
            "max_retries": 0,
        }
        for name, parameters in ((agent, large), (f"{agent}{CHAMPION}", champion)):
            lines.append(f"  - model_name: {json.dumps(name)}")
            lines.append("    litellm_params:")
            lines += [f"      {field}: {json.dumps(value)}" for field, value in parameters.items()]
        fallbacks.append({f"{agent}{CHAMPION}": [agent]})
    lines += [
        "router_settings:",
        "  num_retries: 0",
        f"  fallbacks: {json.dumps(fallbacks)}",
        "litellm_settings:",
        f"  callbacks: [{Path(HOOK_FILE).stem}.hook]",
        "",
    ]
    return "\n".join(lines)


def parse_share(text: str) -> float:
    """Return a share from 0 to 1.

    Raises:
        SettingsError: The text is not a share.

    Example:
        >>> parse_share("5%"), parse_share("0.5")
        (0.05, 0.5)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest.strip() or not 0 <= share <= 1:
        raise SettingsError(f"{text!r} is not a share: write a share such as 5% or 0.05.")
    return share
