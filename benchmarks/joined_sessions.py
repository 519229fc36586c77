"""`python -m benchmarks.joined_sessions PARTITION TOOL [SHARES] [TASKS]`: does a model learn a second request from joined sessions?

Many agents' sessions hold one request each. Here the training rows of the lake are cut down to such
rows: those that call TOOL, the look-up of the agent, at most once. One adapter is trained per share
of `sft_adapter.joined_sessions`, with the same rows and the same seed, without masked names and extra
tools. The other settings of training are the defaults. Each adapter does new tasks in memory, as they
are and with a second request.

Example: `python -m benchmarks.joined_sessions shop/support find_orders 0,0.3 30`
"""

import sys
import tempfile
from pathlib import Path

from agent_pipeline.compute.playing import memory_player, play_all, tasks_to_play
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.evaluation.variants import choose_variants, vary_tasks
from agent_pipeline.keys import parse_key
from agent_pipeline.models.base_model import EMBEDDED, resolve_base_model
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import list_calls
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.provenance import SftInput
from agent_pipeline.training.sft import train_adapter
from benchmarks.variants import MAX_LENGTH, MAX_NEW_TOKENS, MAX_TURNS, SEED_OF_TASKS

VARIANT = "second_request"
CONFIG = TrainingConfig(
    learning_rate=1.5e-3,
    num_train_epochs=1,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=2,
    max_length=MAX_LENGTH,
    save_steps=10_000,
    masked_names=0,
    extra_tools=0,
)


def main(partition: str, tool: str, shares: str = "0,0.3", tasks: str = "30") -> None:
    """Train an adapter per share, let it play, and print a table with a row per share."""
    key, settings = parse_key(partition), load_settings()
    world = settings.world(key)
    assert world, f"{key} has no world"
    base = resolve_base_model(EMBEDDED, settings.cache_path)
    rows = [
        row
        for row in read_dataset_rows(settings.open_lake(), key, ("train",))
        if count_calls(row, tool) <= 1
    ]
    plain = tasks_to_play(world, [], 0, int(tasks), SEED_OF_TASKS, like=f"{key.agent}-")
    varied = vary_tasks(plain, choose_variants([VARIANT], world), int(tasks))
    print(f"{len(rows)} rows with one request")
    print("| joined_sessions | steps | as they are: done; harm | a second request: done; harm |")
    print("|---:|---:|---:|---:|", flush=True)
    for share in map(float, shares.split(",")):
        with tempfile.TemporaryDirectory() as temporary:
            adapter = Path(temporary)
            sft_input = SftInput(rows, base, CONFIG.changed(joined_sessions=share))
            training = train_adapter(sft_input, adapter)
            player = memory_player(base, adapter, adapter, MAX_NEW_TOKENS, MAX_LENGTH)
            report, _ = play_all(world, [*plain, *varied], {"model": player}, {}, MAX_TURNS, 1)
        second = report.variants[VARIANT].varied
        print(
            f"| {share:g} | {training.steps} | {report.model.done}; {report.model.harm} "
            f"| {second.done}; {second.harm} |",
            flush=True,
        )


def count_calls(row: DatasetRow, tool: str) -> int:
    """Count the calls of a tool in a row."""
    return sum(name == tool for name, _ in list_calls(row["messages"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
