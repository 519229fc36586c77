"""Assets of the stage `datasets`: curated sessions in the forms that trainers read."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import dagster as dg
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.config.assets import DatasetConfig, KtoConfig, PreferenceConfig, SftConfig, ShareGptConfig
from agent_pipeline.datasets.cards import facts_of, push, put_folder
from agent_pipeline.datasets.curated import Curated
from agent_pipeline.datasets.formats import NO_FORM, Format, form, in_form
from agent_pipeline.datasets.jsonl import trainers_lines
from agent_pipeline.datasets.kto import KTO, labelled_rows
from agent_pipeline.datasets.ledger import Ledger
from agent_pipeline.datasets.preferences import PREFERENCES, Pairing, length_ratios, rows_of_cases
from agent_pipeline.datasets.sft import SFT, sft_rows_of_table
from agent_pipeline.datasets.sharegpt import SHAREGPT, sharegpt_rows
from agent_pipeline.datasets.splits import SPLITS, SplitSizes, empty_sides, overlaps
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import PREVIEW_ROWS, counts_table, histogram, preview
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.judging import parse_measures
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.duplicates import NearAcrossSplit, near_across_splits
from agent_pipeline.sessions.tables import stored_batches, to_batches, to_rows
from agent_pipeline.storage.lake import StagedTable

Row = dict[str, Any]


# The assets read the columns and rows that they need themselves, in the order in which they need them.
@dg.asset(**asset_options("datasets", {"parquet", "dataset"}, options=SftConfig), deps=["curated_sessions"])
def sft_dataset(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Conversations to imitate (`messages`, `tools`), one a kept session, each on the side that its task belongs to for ever."""
    with user_errors():
        config = in_force(context, workspace, SftConfig)
        counts: Counter[str] = Counter()
        measures = parse_measures(config.learn_turns_that)
        curated = _curated(context, workspace)
        rows = sft_rows_of_table(curated.kept(), curated.ledger, counts, measures)
        output = Output("sft_dataset", SFT, "messages", "Conversations of an agent, to imitate.", "text-generation", config)
        filters = [f"only turns that pass {each.name} are learnt; the others have weight 0" for each in measures]
        return output.written(context, workspace, rows, counts, curated.ledger, filters, config.format)


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}, options=PreferenceConfig), deps=["curated_sessions"])
def preference_dataset(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Pairs of a good and a bad trial of one task from one prompt (`prompt`, `chosen`, `rejected`, `tools`), for DPO."""
    with user_errors():
        config = in_force(context, workspace, PreferenceConfig)
        counts: Counter[str] = Counter()
        curated = _curated(context, workspace)
        pairing = Pairing(config.strategy, config.min_margin, config.max_pairs_per_case)
        ratios = array("d")
        rows = _noting_lengths(rows_of_cases(curated.cases(counts), curated.ledger, counts, pairing), ratios)
        description = "A good and a bad answer of an agent to one prompt."
        output = Output("preference_dataset", PREFERENCES, "prompt", description, "reinforcement-learning", config)
        filters = [f"pairs by the strategy {config.strategy}, scores apart by {config.min_margin} or more, equal ones never"]
        return output.written(context, workspace, rows, counts, curated.ledger, filters, more=lambda: _lengths(ratios))


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}, options=KtoConfig), deps=["curated_sessions", preference_dataset])
def kto_dataset(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """Judged sessions as `prompt`, `completion` and `label`, for KTO: those that found no partner for a pair, or all of them."""
    with user_errors():
        config = in_force(context, workspace, KtoConfig)
        counts: Counter[str] = Counter()
        curated = _curated(context, workspace)
        paired: set[str] = set()
        if not config.all_sessions:
            pairs = curated.lake.open("preference_dataset", curated.key).read(_SIDES)
            paired = {each for side in pairs.columns for each in side.to_pylist()}
        rows = labelled_rows(curated.labelled(), curated.ledger, paired, counts)
        output = Output("kto_dataset", KTO, "completion", "Answers, each with a label: good or bad.", "reinforcement-learning", config)
        filters = [] if config.all_sessions else ["sessions that stand in a preference pair are not repeated here"]
        return output.written(context, workspace, rows, counts, curated.ledger, filters)


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}, options=ShareGptConfig))
def sharegpt_dataset(
    context: dg.AssetExecutionContext, sft_dataset: pa.RecordBatchReader, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """The SFT rows as ShareGPT conversations, calls as `function_call` and results as `observation`."""
    with user_errors():
        config = in_force(context, workspace, ShareGptConfig)
        counts: Counter[str] = Counter()
        rows = sharegpt_rows(to_rows(sft_dataset), counts, config.alternating)
        output = Output("sharegpt_dataset", SHAREGPT, "conversations", "Conversations in ShareGPT's form.", "text-generation", config)
        filters = ["conversations whose turns do not alternate are left out"] if config.alternating else []
        return output.written(context, workspace, rows, counts, None, filters)


_SIDES = ["session_id", "rejected_session_id"]


def _curated(context: dg.AssetExecutionContext, workspace: Workspace) -> Curated:
    return Curated.open(workspace.open_lake(), agent_key(context), _sizes(workspace))


@dataclass
class Output:
    """A data set on its way into the lake: the table, and what is written beside it."""

    asset: str
    schema: pa.Schema
    text: str
    description: str
    task: str
    config: DatasetConfig

    def written(
        self,
        context: dg.AssetExecutionContext,
        workspace: Workspace,
        rows: Iterable[Row],
        counts: Counter[str],
        ledger: Ledger | None,
        filters: Sequence[str],
        format: Format = "conversational",
        more: Callable[[], Mapping[str, Any]] = dict,
        agents: Sequence[PartitionKey] = (),
    ) -> dg.MaterializeResult:
        """Stage the table, a batch in memory at a time; write the other files from it; say what is in them.

        Without a partition, `agents` are those that the rows are from.
        """
        lake, key = workspace.open_lake(), agent_key(context) if context.has_partition_key else None
        seen = _Seen(self.text)
        staged = lake.stage(self.asset, key, seen.passing(to_batches(rows, self.schema)), self.schema)
        metadata: dict[str, Any] = {
            "rows": staged.rows,
            "counts": counts_table(counts, "what"),
            "splits": counts_table(seen.splits, "split"),
            "tasks": len(seen.tasks),
            "preview": preview(seen.first, self.text),
            "lengths": histogram(seen.lengths, f"{self.asset}: {self.text} of a row", "bytes of JSON"),
            **more(),
        }
        if ledger is not None:
            metadata["tasks_on_an_older_side_than_the_settings"] = ledger.older_than_the_sizes
        formed: dict[str, Counter[str]] = {}
        has_forms = set(SFT.names) <= set(self.schema.names)

        def rows_of(split: str) -> Iterator[Row]:
            if not has_forms:
                return _staged_rows(staged, split)
            formed[split] = Counter()
            return in_form(_staged_rows(staged, split, raw=format == "conversational"), format, formed[split])

        for split in SPLITS:
            lake.write_jsonl(self.asset, key, split, trainers_lines(rows_of(split)) if self.config.jsonl else ())
        if self.config.jsonl:
            metadata["jsonl"] = dg.MetadataValue.path(str(lake.jsonl(self.asset, key)))
        if self.config.huggingface or self.config.push_to:
            facts = facts_of(lake, key, self.asset, self.description, self.task, self.config.license, counts, filters, agents)
            schema = form(format, self.schema).schema if has_forms else self.schema
            folder = put_folder(lake, key, self.asset, rows_of, schema, facts)
            metadata["huggingface"] = dg.MetadataValue.path(str(folder))
            if self.config.push_to:
                metadata["pushed_to"] = dg.MetadataValue.url(push(folder, self.config.push_to, not self.config.push_public))
        if formed:
            metadata |= {reason: sum(each[reason] for each in formed.values()) for reason in NO_FORM}
        return dg.MaterializeResult(value=staged, data_version=version(staged.sha256), metadata=metadata)


class _Seen:
    """What a person wants to know of rows that pass by once, a batch at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.splits: Counter[str] = Counter()
        self.tasks: set[str] = set()
        self.lengths = array("q")
        self.first: list[Row] = []

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.splits.update(batch["split"].to_pylist())
            self.tasks.update(pc.unique(batch["task_key"]).to_pylist())
            self.lengths.extend(pc.binary_length(batch[self._text].storage).to_pylist())
            self.first = self.first or list(to_rows([batch.slice(0, PREVIEW_ROWS)]))
            yield batch


def _staged_rows(staged: StagedTable, split: str, raw: bool = True) -> Iterator[Row]:
    """The rows of a split of a table that is not in its place yet."""
    with pq.ParquetFile(staged.file) as file:
        for batch in stored_batches(file):
            yield from to_rows([batch.filter(pc.equal(batch["split"], split))], raw)


def _noting_lengths(rows: Iterable[Row], ratios: "array[float]") -> Iterator[Row]:
    for row in rows:
        ratios.extend(length_ratios([row]))
        yield row


def _lengths(ratios: Sequence[float]) -> dict[str, Any]:
    """How long the chosen sides are beside the rejected ones."""
    if not ratios:
        return {}
    return {
        "chosen_length_by_rejected_length_median": round(median(ratios), 3),
        "chosen_is_longer_in": round(sum(ratio > 1 for ratio in ratios) / len(ratios), 3),
        "length_ratio": histogram(ratios, "length of chosen / length of rejected", "ratio of the agent's characters"),
    }


def _sizes(workspace: Workspace) -> SplitSizes:
    split = workspace.settings().split
    return SplitSizes(test=split.test, select=split.select).checked()


def _text_identity(row: Row) -> str:
    """sha256 (hex) of a row's JSON columns, not of its session: two sessions may differ only in what was cut off their end."""
    return hashlib.sha256(b"\n".join(bytes(value) for value in row.values() if type(value) is msgspec.Raw)).hexdigest()


def _on_two_sides(context: dg.AssetCheckExecutionContext, workspace: Workspace, asset: str) -> dg.AssetCheckResult:
    """Whether a session, a task or an exact text of a data set is in more than one of train, select and test."""
    with user_errors():
        rows = to_rows(stored_batches(workspace.open_lake().open(asset, agent_key(context))), raw=True)
        found = overlaps(
            {"session_id": row[name], "task_key": row["task_key"], "content_sha256": _text_identity(row), "split": row["split"]}
            for row in rows
            for name in _SIDES
            if name in row
        )
    return dg.AssetCheckResult(
        passed=not any(found.values()), metadata={name: ", ".join(values[:20]) or "none" for name, values in found.items()}
    )


@dg.asset_check(asset=sft_dataset, partitions_def=AGENTS, blocking=True)
def nothing_stands_on_two_sides_of_the_split(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """No session, no task and no exact text is in more than one of train, select and test."""
    return _on_two_sides(context, workspace, "sft_dataset")


@dg.asset_check(asset=preference_dataset, partitions_def=AGENTS, blocking=True)
def no_pair_stands_on_two_sides_of_the_split(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """No session (chosen or rejected), no task and no exact text of a pair is in more than one of train, select and test."""
    return _on_two_sides(context, workspace, "preference_dataset")


@dg.asset_check(asset=kto_dataset, partitions_def=AGENTS, blocking=True)
def no_label_stands_on_two_sides_of_the_split(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """No session, no task and no exact text of a labelled answer is in more than one of train, select and test."""
    return _on_two_sides(context, workspace, "kto_dataset")


@dg.asset_check(asset=sft_dataset, partitions_def=AGENTS)
def every_side_of_the_split_has_rows(context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
    """Each side that the settings want has rows; else how many tasks it takes. No other side's rows ever stand in."""
    with user_errors():
        sides = workspace.open_lake().open("sft_dataset", agent_key(context)).read(["split", "task_key"]).to_pylist()
        empty = empty_sides(sides, _sizes(workspace))
    return dg.AssetCheckResult(passed=not empty, severity=dg.AssetCheckSeverity.WARN, metadata={"empty_sides": "\n".join(empty) or "none"})


NEAR = 0.8


@dg.asset_check(asset=sft_dataset, partitions_def=AGENTS)
def no_held_out_row_is_nearly_a_training_row(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """No row is nearly the same (four words in five, by MinHash) as a row of a side before its own: train, select, test."""
    return near_check(workspace, "sft_dataset", agent_key(context))


def near_check(workspace: Workspace, asset: str, key: PartitionKey | None) -> dg.AssetCheckResult:
    """Whether a row of a table of conversations is nearly one of a side before its own; a warning, with the ids of the first."""
    with user_errors():
        file = workspace.open_lake().open(asset, key)
        found = near_across_splits(to_rows(stored_batches(file, ["session_id", "split", "messages"])), NEAR)
    return dg.AssetCheckResult(
        passed=not found,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"near_duplicates": len(found), "rows": file.metadata.num_rows, "examples": _examples(found)},
    )


def _examples(found: Sequence[NearAcrossSplit]) -> dg.MetadataValue:
    """The first near-duplicates by id; their words stay in the lake."""
    lines = ["| session | split | is nearly | split | similarity |", "|---|---|---|---|---:|"]
    lines += [f"| `{a}` | {side} | `{b}` | {other} | {alike:.2f} |" for a, side, b, other, alike in found[:20]]
    return dg.MetadataValue.md("\n".join(lines))
