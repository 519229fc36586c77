"""What the lake holds of a partition, in a few lines for a terminal."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from agent_pipeline.errors import DataError
from agent_pipeline.lake import Artifact, Lake
from agent_pipeline.traces.partitions import PartitionKey

MODEL_ASSETS = ("sft_adapter", "evaluation", "gguf_export", "ollama_model")


def reasons(lake: Lake, key: PartitionKey) -> Counter[str]:
    """How many sessions were kept, and dropped by reason; empty where nothing was curated yet."""
    if not lake.has("curated_sessions", key):
        return Counter()
    column = lake.open("curated_sessions", key).read(["drop_reason"])["drop_reason"].to_pylist()
    return Counter("kept" if reason is None else reason for reason in column)


def rows_by_split(lake: Lake, key: PartitionKey) -> Counter[str]:
    """SFT rows on each side of the split."""
    if not lake.has("sft_dataset", key):
        return Counter()
    return Counter(lake.open("sft_dataset", key).read(["split"])["split"].to_pylist())


def latest(lake: Lake, asset: str, key: PartitionKey) -> Artifact | None:
    """The current artifact, if there is a whole one."""
    try:
        return lake.current(asset, key)
    except DataError:
        return None


def status_table(lake: Lake, keys: list[PartitionKey]) -> Table:
    """A line a partition: sessions, kept, rows, and what models there are."""
    table = Table(title=str(lake.root), title_justify="left")
    for column in ("partition", "sessions", "kept", "train", "select", "test", "pairs", "models"):
        table.add_column(column, justify="left" if column in ("partition", "models") else "right", no_wrap=column == "partition")
    for key in keys:
        counts, splits = reasons(lake, key), rows_by_split(lake, key)
        pairs = lake.open("preference_dataset", key).metadata.num_rows if lake.has("preference_dataset", key) else 0
        models = ", ".join(asset for asset in MODEL_ASSETS if latest(lake, asset, key)) or "none"
        numbers = [counts.total(), counts["kept"], *(splits[name] for name in ("train", "select", "test")), pairs]
        table.add_row(str(key), *map(str, numbers), models)
    return table


def print_report(console: Console, lake: Lake, keys: list[PartitionKey]) -> None:
    """Sessions in, kept, dropped and why; rows; loss and tool-call accuracy of base and adapter; where the files are."""
    for key in keys:
        counts, splits = reasons(lake, key), rows_by_split(lake, key)
        dropped = ", ".join(f"{name} {count}" for name, count in counts.most_common() if name != "kept")
        console.print(f"\n[bold]{key}[/bold]")
        console.print(f"  sessions   {counts.total()} in = {counts['kept']} kept + {counts.total() - counts['kept']} dropped ({dropped})")
        console.print(f"  SFT rows   {splits.total()}: " + ", ".join(f"{splits[name]} {name}" for name in ("train", "select", "test")))
        if adapter := latest(lake, "sft_adapter", key):
            report = adapter.manifest["report"]
            console.print(f"  training   {_training(report)}")
        if evaluated := latest(lake, "evaluation", key):
            for line in _comparison(evaluated.manifest["report"]):
                console.print(f"  {line}")
        for asset in MODEL_ASSETS:
            if artifact := latest(lake, asset, key):
                console.print(f"  {asset:<12} [dim]{artifact.path}[/dim]", soft_wrap=True, highlight=False)


def _training(report: dict[str, Any]) -> str:
    return f"loss {report['loss_first']:.3f} → {report['loss_last']:.3f} over {report['steps']} steps, {_rows(report['rows'])}"


def _rows(rows: dict[str, int]) -> str:
    """How many rows were trained, and what was done to the others."""
    others = [f"{count} {name.replace('_', ' ')}" for name, count in rows.items() if name not in ("in", "trained") and count]
    return f"{rows['trained']} of {rows['in']} rows" + (f" ({', '.join(others)})" if others else "")


def _comparison(report: dict[str, Any]) -> list[str]:
    lines = []
    for name, label in (("heldout_loss", "held-out loss"), ("exact_call_accuracy", "exact tool calls (name and arguments)")):
        difference, base, adapter = report["differences"][name], report["base"][name], report["adapter"][name]
        if difference is None:
            continue
        form = ".3f" if name == "heldout_loss" else ".1%"
        text = f"{label}: base {base:{form}} → adapter {adapter:{form}}"
        if difference["low"] is not None:
            text += f", difference {difference['difference']:+{form}} [{difference['low']:+{form}}, {difference['high']:+{form}}] (95 %)"
        lines.append(f"{text}, {difference['samples']} {'rows' if name == 'heldout_loss' else 'turns'} of {difference['tasks']} tasks")
    return lines
