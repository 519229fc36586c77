"""What the lake holds of a partition, in a few lines for a terminal."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.episode_report import ROWS, shown
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Artifact, Lake

if TYPE_CHECKING:
    from agent_pipeline.governance.forgetting import Forgotten
    from agent_pipeline.governance.lineage import ModelLineage, ModelUse, SessionLineage

MODEL_ASSETS = ("sft_adapter", "evaluation", "gguf_export", "ollama_model", "episodes")


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
        return lake.latest(asset, key)
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
    """Tasks done and harm; sessions in, kept, dropped and why; rows; loss and tool-call accuracy; where the files are."""
    for key in keys:
        counts, splits = reasons(lake, key), rows_by_split(lake, key)
        dropped = ", ".join(f"{name} {count}" for name, count in counts.most_common() if name != "kept")
        console.print(f"\n[bold]{key}[/bold]")
        if played := latest(lake, "episodes", key):
            for line in _episodes(played.manifest["report"]):
                console.print(f"  {line}")
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


def _episodes(report: dict[str, Any]) -> list[str]:
    """Tasks done and harm, the base and the recorded agent beside the model; in red where the model is not fit to act."""
    model, *others = report["players"]
    colour = "red" if report["against"] else "green"
    lines = []
    for name, label in ROWS.items():
        beside = ", ".join(f"{other} {shown(report['players'][other][name])}" for other in others)
        lines.append(f"[{colour}]{label}: {shown(report['players'][model][name])}[/{colour}] ({beside})")
    if report["against"]:
        lines.append(f"[bold red]This model is not fit to act: {'; '.join(report['against'])}.[/bold red]")
    return lines


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


def print_session_lineage(console: Console, found: "SessionLineage") -> None:
    """Where a session is, a line a row that names it, and the models that it reached."""
    if found.forgotten_in:
        where = "all partitions" if found.forgotten_in == ["*"] else ", ".join(found.forgotten_in)
        _say(console, f"{found.session_id} was forgotten in {where}: it is not read from the store any more.")
    table = Table(title=escape(f"{found.session_id}: rows that name it"), title_justify="left")
    for column in ("table", "partition", "as", "what the table says"):
        table.add_column(column, overflow="fold")
    for row in found.rows:
        told = ", ".join(f"{name} {_short(value)}" for name, value in row.facts.items() if name != "row_id")
        table.add_row(*map(escape, (row.asset, row.partition or "all", row.role, told)))
    if found.rows:
        console.print(table)
    else:
        _say(console, f"No table names {found.session_id}.")
    for path in found.files:
        _say(console, f"its rows are copied in {path}")
    _print_uses(console, found.models)


def print_model_lineage(console: Console, found: "ModelLineage", indent: str = "") -> None:
    """What a model was made of, and below it what that was made of."""
    _say(console, f"{indent}{found.asset} {found.identity[:16]} of {found.partition}{' (current)' if found.current else ''}: {found.path}")
    indent += "  "
    if found.base_model:
        _say(console, f"{indent}base model  {found.base_model} at {found.base_revision}")
    for name, values in (("settings", found.settings), ("code", found.code), ("tables", found.tables)):
        if values:
            _say(console, f"{indent}{name:<11} " + ", ".join(f"{key} {_short(value)}" for key, value in values.items()))
    if found.rows is not None:
        same = {True: "the lake has the same rows", False: "the lake has other rows of them now", None: "the lake has not all of them"}
        told = [f"{found.rows} rows of {len(found.sessions) + found.forgotten} sessions", same[found.rows_unchanged]]
        told += [f"{count} {what}" for count, what in ((found.forgotten, "forgotten since"), (found.gone, "gone from the lake")) if count]
        _say(console, f"{indent}made of     {', '.join(told)}")
    for name, counts in found.sessions_by.items():
        _say(console, f"{indent}by {name:<10} " + ", ".join(f"{key} {count}" for key, count in counts.items()))
    if found.sessions:
        shown = ", ".join(found.sessions[:10])
        _say(
            console,
            f"{indent}sessions    {shown}{f' and {len(found.sessions) - 10} more (--json has all)' if len(found.sessions) > 10 else ''}",
        )
    for each in found.made_from:
        _say(console, f"{indent}made from")
        print_model_lineage(console, each, indent + "  ")


def print_forgotten(console: Console, found: "Forgotten") -> None:
    """What was taken out of which file, what else to know, and which models to train again."""
    rows, mentions = sum(change.rows for change in found.changes), sum(change.mentions for change in found.changes)
    for change in found.changes:
        counted = [f"{count} {what}" for count, what in ((change.rows, "rows removed"), (change.mentions, "mentions replaced")) if count]
        _say(console, f"{change.path}: {'deleted, to be made again' if change.deleted else ', '.join(counted)}")
    where = "all partitions" if found.partitions == ["*"] else ", ".join(found.partitions)
    _say(
        console, f"{found.session_id} is forgotten: {rows} rows and {mentions} mentions in {len(found.changes)} files; kept out of {where}."
    )
    if found.judge_answers:
        _say(console, f"{found.judge_answers} answers of the language model about it left the judge's cache.")
    if found.unclear_answers:
        _say(
            console, f"{found.unclear_answers} answers in the judge's cache do not say whom they are about: delete judge.sqlite to be sure."
        )
    if found.same_content:
        _say(
            console, f"The same conversation is that of {', '.join(found.same_content)} too: forget those as well if it is what should go."
        )
    if found.side_chains:
        _say(console, f"It began {', '.join(found.side_chains)}: forget those as well if its side chains should go.")
    if found.to_retrain:
        _say(console, "It cannot be taken out of what learnt from it: train, evaluate and export these again, and delete their folders:")
    _print_uses(console, found.models)


def _print_uses(console: Console, models: "list[ModelUse]") -> None:
    for each in models:
        current = ", current" if each.current else ""
        _say(console, f"{each.asset} {each.identity[:16]} of {each.partition} ({', '.join(each.roles)} it{current}): {each.path}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _short(value: Any) -> str:
    """A value in a line: hashes by their first digits."""
    text = str(value)
    return text[:12] if len(text) == 64 and not set(text) - set("0123456789abcdef") else text
