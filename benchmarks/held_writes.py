"""`python -m benchmarks.held_writes PARTITION [EPISODES.jsonl ...]`: wrong and right writes that the gateway holds back.

The episodes are those of the lake's exports, as the asset `episodes` wrote them, and those of the named files. Every call of an episode is
made again in the agent's world, which says whether the call did harm. Then the checks of the gateway (`gateway.turn_checks`) look at each turn
that writes.

The first table is about `act = "sure"`. The tasks are divided into two halves. The threshold is chosen on the plain tasks of one half, as the
asset `episodes` chooses it, and used on the tasks of the other half; then the other way round. The second table is about the preconditions
that `doctor` proposes from 200 good sessions of the sample, used as proposed. The variant `renamed_tool` is left out, because its tools have
other names than the world's.

`python -m benchmarks.held_writes PARTITION play FILE.jsonl SCALE TASKS` makes the episodes of a weak model: the base model with the latest
adapter, whose weights are multiplied by SCALE, in llama.cpp's server. TASKS tasks of a new seed are played as they are and with the changed
rule. Each episode is written when it ends, so a play that is stopped keeps its episodes. The lake is only read.
"""

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from agent_pipeline.cli.players import open_player
from agent_pipeline.compute.params import common_params
from agent_pipeline.compute.playing import tasks_to_play
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.evaluation.confidence import ScoredWrite, TurnConfidence, choose_threshold
from agent_pipeline.evaluation.episodes import play_side_by_side
from agent_pipeline.evaluation.variants import vary_tasks
from agent_pipeline.evaluation.worlds import load_world, run_tool, user_reply, writes
from agent_pipeline.export.converter import convert
from agent_pipeline.export.merge import merge_adapter
from agent_pipeline.gateway.turn_checks import ChampionTurn, TrafficRules, find_objection
from agent_pipeline.judging.preconditions import NO_PRECONDITIONS, Preconditions
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.readiness.precondition_proposals import propose_preconditions
from agent_pipeline.reports.episode_report import TRANSCRIPTS
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.structs import convert_value
from benchmarks.preconditions import sessions

MAX_NEW_TOKENS, MAX_LENGTH, MAX_TURNS = 192, 2048, 16
SEED_OF_TASKS = 7001
RULE, RENAMED = "changed_rule", "renamed_tool"
WORLD_VARIANTS = (RULE, "other_words", "second_request")


@dataclass(frozen=True)
class Write:
    """A turn that writes: its task, whether it did harm, and what the gateway needs to check it."""

    half: int
    variant: str
    is_harmful: bool
    turn: ChampionTurn
    before: list[Any]
    tools: list[Any]

    def is_stopped(self, rules: TrafficRules, preconditions: Preconditions) -> bool:
        return bool(find_objection(self.turn, self.before, self.tools, rules, preconditions))


def list_writes(world: Any, episode: dict[str, Any]) -> Iterator[Write]:
    """Make the calls of an episode again in its world, and yield the turns that write."""
    variant = episode.get("variant") or ""
    seed = {"seed": episode["seed"]} if episode["seed"] is not None else {}
    own = variant if variant in WORLD_VARIANTS else ""
    world.reset(task_key=episode["task_key"], variant=own, **seed)
    half = int(hash_json([episode["task_key"], episode["seed"]])[:8], 16) % 2
    confidences = convert_value(episode.get("confidence") or [], list[TurnConfidence | None])
    turns = 0
    for index, message in enumerate(episode["messages"]):
        if message["role"] != "assistant":
            continue
        harm, changes = len(world.wrong_changes), False
        for call in message.get("tool_calls") or ():
            name = call["function"]["name"]
            changes |= bool(writes(world, name))
            run_tool(world, name, json.loads(call["function"]["arguments"]))
        if changes:
            turn = ChampionTurn(message, "stop", confidences[turns])
            is_harmful = len(world.wrong_changes) > harm
            before = episode["messages"][:index]
            yield Write(half, variant, is_harmful, turn, before, episode["tools"])
        elif not message.get("tool_calls"):
            user_reply(world, message["content"])
        turns += 1


def read_episodes(settings: Settings, key: PartitionKey, files: Sequence[str]) -> Iterator[Any]:
    """Yield a label and the episodes of each export of the lake, and of each file."""
    lake = settings.open_lake()
    for artifact in lake.finished("episodes", key):
        export = str(artifact.manifest["made_from"].get("gguf_export", ""))[:16]
        yield f"export {export}", artifact.path / TRANSCRIPTS
    for file in files:
        yield Path(file).stem, Path(file)


def count(
    found: Iterable[tuple[Write, TrafficRules]], preconditions: Preconditions = NO_PRECONDITIONS
) -> tuple[str, str]:
    """The harmful writes that pass, and the right writes that pass, each of all."""
    passed: defaultdict[bool, list[bool]] = defaultdict(list)
    for write, rules in found:
        passed[write.is_harmful].append(not write.is_stopped(rules, preconditions))
    shown = [
        f"{sum(passed[kind])} of {len(passed[kind])}" if passed[kind] else "-"
        for kind in (True, False)
    ]
    return shown[0], shown[1]


def choose_rules(found: Sequence[Write], half: int) -> TrafficRules:
    """Rules with the threshold of the plain tasks of one half."""
    scored = [
        ScoredWrite(write.turn.confidence.words, write.is_harmful)
        for write in found
        if write.half == half and not write.variant and write.turn.confidence
    ]
    return TrafficRules(act="sure", threshold=choose_threshold(scored))


def compare(partition: str, files: Sequence[str]) -> None:
    """Print both tables."""
    key, settings = parse_key(partition), load_settings()
    name = settings.world(key)
    assert name, f"{key} has no world"
    world: Any = load_world(name)()
    by_tool: defaultdict[str, list[str]] = defaultdict(list)
    good = [
        [message for message, _ in turns] for _, turns in sessions(key.agent, 1, 200, flawed=False)
    ]
    for proposal in propose_preconditions(good):
        by_tool[proposal.tool].append(proposal.precondition)
    preconditions = Preconditions.parse(by_tool)
    print("| model | tasks | thresholds | sure: wrong left | sure: right kept |", end="")
    print(" preconditions: wrong left | preconditions: right kept |")
    print("|---|---|---|---:|---:|---:|---:|")
    for label, file in read_episodes(settings, key, files):
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        episodes = [line for line in lines if line["player"] == "model"]
        episodes = [line for line in episodes if line.get("variant") != RENAMED]
        found = [write for episode in episodes for write in list_writes(world, episode)]
        rules = [choose_rules(found, half) for half in (0, 1)]
        shown = ", ".join(f"{each.threshold:.2f}" for each in rules)
        for variant in dict.fromkeys(write.variant for write in found):
            group = [write for write in found if write.variant == variant]
            sure = count((write, rules[1 - write.half]) for write in group)
            checked = count(((write, TrafficRules()) for write in group), preconditions)
            print(f"| {label} | {variant or 'plain'} | {shown} | {' | '.join((*sure, *checked))} |")
    print(f"\n{msgspec.json.encode(by_tool).decode()}")


def make_weak_model(settings: Settings, key: PartitionKey, scale: float, folder: Path) -> Path:
    """Merge the candidate's adapter, with weaker weights, and write a GGUF file of it."""
    adapter = settings.candidate(key)
    base = common_params(settings, key).base_of(adapter)
    weak = folder / "adapter"
    shutil.copytree(adapter.path, weak)
    config = json.loads((weak / "adapter_config.json").read_text())
    config["lora_alpha"] *= scale
    (weak / "adapter_config.json").write_text(json.dumps(config))
    merge_adapter(base, weak, folder / "merged", [[0, 1, 2, 3]])
    return convert(folder / "merged", folder / "weak.gguf", "q8_0")


def play(partition: str, file: str, scale: float, tasks: int) -> None:
    """Let a weak model play, and append each episode to a file."""
    key, settings = parse_key(partition), load_settings()
    name = settings.world(key)
    assert name, f"{key} has no world"
    plain = tasks_to_play(name, [], 0, tasks, SEED_OF_TASKS, like=f"{key.agent}-")
    varied = vary_tasks(plain, [RULE], tasks)
    order = [task for pair in zip(plain, varied, strict=True) for task in pair]
    make = load_world(name)
    with TemporaryDirectory() as folder, Path(file).open("a", encoding="utf-8") as output:
        weak = make_weak_model(settings, key, scale, Path(folder))
        opened = open_player(str(weak), key, 0.0, (MAX_NEW_TOKENS, MAX_LENGTH))
        with opened as players:
            assert isinstance(players, list)
            for task in order:
                [episode] = play_side_by_side(make, [task], players[:1], MAX_TURNS)
                line = {"player": "model", **msgspec.to_builtins(episode)}
                output.write(json.dumps(line, ensure_ascii=False) + "\n")
                output.flush()
                outcome = "done" if episode.done else episode.complaint
                print(f"{episode.task_key} {episode.variant}: {outcome}", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[1:2] == ["play"]:
        play(arguments[0], arguments[2], float(arguments[3]), int(arguments[4]))
    else:
        compare(arguments[0], arguments[1:])
