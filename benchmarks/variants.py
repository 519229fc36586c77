"""`python -m benchmarks.variants PARTITION [TASKS] [SEED] [MODEL] [VARIANTS]`: does the model read its request?

New tasks are played as they are, and once more in each variant of the agent's world: the tools in
another order, a tool that nobody needs, a renamed tool, and what the world itself offers (in the
sample another rule, other words, and a second request). The tasks are in no session. MODEL is a
model as `agent-pipeline play` names it; the default is `gguf`, the latest export, which plays in
llama.cpp. VARIANTS are names with commas between them; by default, all variants are played. The lake
is that of the settings.

Example: `AGENT_PIPELINE_LAKE=lake python -m benchmarks.variants shop/support 100 5001`
"""

import sys
from collections import Counter

from agent_pipeline.cli.players import open_player
from agent_pipeline.compute.playing import play_all, tasks_to_play
from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.variants import EVERY_VARIANT, choose_variants, vary_tasks
from agent_pipeline.keys import parse_key
from agent_pipeline.reports.episode_report import Share

MAX_NEW_TOKENS, MAX_LENGTH, MAX_TURNS = 192, 2048, 16
SEED_OF_TASKS = 5001
MOST_COMPLAINTS = 6


def main(
    partition: str,
    tasks: int = 100,
    seed: int = SEED_OF_TASKS,
    model: str = "gguf",
    variants: str = EVERY_VARIANT,
) -> None:
    """Play the tasks, and print a table with a row per variant and the most frequent complaints."""
    key, settings = parse_key(partition), load_settings()
    world = settings.world(key)
    assert world, f"{key} has no world"
    plain = tasks_to_play(world, [], 0, tasks, seed, like=f"{key.agent}-")
    player = open_player(model, key, 0.0, (MAX_NEW_TOKENS, MAX_LENGTH))
    varied = vary_tasks(plain, choose_variants(variants.split(","), world), tasks)
    report, played = play_all(world, [*plain, *varied], {"model": player}, {}, MAX_TURNS, 1)
    print("| variant | done | must act | must not act | harm | acted early | wrong answer |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rows = {"as they are": report.model}
    rows |= {name: figures.varied for name, figures in report.variants.items()}
    for name, figures in rows.items():
        shares: list[Share | None] = [
            figures.done,
            figures.must_act,
            figures.must_not,
            figures.harm,
            figures.acted_early,
            figures.said_wrong,
        ]
        print(f"| {name} | {' | '.join(str(share or '-') for share in shares)} |")
    for name in rows:
        variant = "" if name == "as they are" else name
        complaints = Counter(
            episode.complaint
            for episode in played["model"]
            if episode.variant == variant and not episode.done
        )
        for complaint, count in complaints.most_common(MOST_COMPLAINTS):
            print(f"{name}: {count} x {complaint}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(arguments[0], *map(int, arguments[1:3]), *arguments[3:])
