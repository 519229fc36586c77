"""Assets of the stage `datasets`: curated sessions in the forms that trainers read."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from agent_pipeline.datasets.cards import facts_of, push, put_folder
from agent_pipeline.datasets.formats import Format, form, in_form
from agent_pipeline.datasets.kto import KTO, kto_rows
from agent_pipeline.datasets.ledger import Ledger, settle
from agent_pipeline.datasets.near import Near, near_duplicates
from agent_pipeline.datasets.preferences import PREFERENCES, Pairing, Strategy, length_ratios, preference_rows
from agent_pipeline.datasets.sft import SFT, sft_rows
from agent_pipeline.datasets.sharegpt import SHAREGPT, sharegpt_rows
from agent_pipeline.datasets.splits import SPLITS, SplitSizes, empty_sides, overlaps, root_tasks
from agent_pipeline.defs.metadata import counts_table, histogram, preview
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.failures import user_errors
from agent_pipeline.lake import StagedTable
from agent_pipeline.traces.curation import is_bad_answer
from agent_pipeline.traces.judging import parse_measures
from agent_pipeline.traces.session import Session, sha256_of
from agent_pipeline.traces.tables import row_session, to_batches, to_rows

Row = dict[str, Any]


class DatasetConfig(dg.Config):
    """What is written beside the table."""

    jsonl: bool = Field(default=True, description="Write a JSONL file a split beside the table.")
    huggingface: bool = Field(default=False, description="Write a Hugging Face dataset folder with a dataset card beside the table.")
    license: str = Field(default="other", description="Licence that the dataset card names, by the hub's identifier (mit, cc-by-4.0).")
    push_to: str = Field(default="", description="Push the folder to this data set of the Hugging Face hub (owner/name); empty: never.")
    push_public: bool = Field(default=False, description="Make a data set that is pushed for the first time public.")


class SftConfig(DatasetConfig):
    """The supervised rows."""

    format: Format = Field(
        default="conversational",
        description="Form of the JSONL and of the folder: conversational (messages, tools), openai (its fine-tuning file), "
        "prompt_completion (texts), prompt_completion_messages (TRL's conversational one). The table is conversational always.",
    )
    learn_turns_that: list[str] = Field(
        default=[],
        description="Measures to take of each of the agent's turns (its words, calls and their results): only turns that pass them all are "
        "learnt, the others stay as context. Written as for judged_sessions: no_tool_errors, arguments_match_schema.",
    )


class PreferenceConfig(DatasetConfig):
    """How good and bad trials are paired."""

    strategy: Strategy = Field(
        default="margin",
        description="margin: the widest difference of scores first, each session once. best_worst: one pair a case. all_pairs: every pair. "
        "nearest_length: the most alike in length first, each session once.",
    )
    min_margin: float = Field(default=0.0, ge=0, le=1, description="Scores of a pair must differ by so much; equal ones never pair.")
    max_pairs_per_case: int = Field(default=8, ge=0, description="At most so many pairs of a task; 0 is no limit.")


class KtoConfig(DatasetConfig):
    """Which judged sessions are labelled on their own."""

    all_sessions: bool = Field(default=False, description="Also the sessions that stand in a preference pair, not only those without.")


class ShareGptConfig(DatasetConfig):
    """Which conversations are written."""

    alternating: bool = Field(
        default=True,
        description="Only conversations in which what the agent is told and what it says take turns: LLaMA-Factory throws others away.",
    )


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def sft_dataset(
    context: dg.AssetExecutionContext, curated_sessions: pa.RecordBatchReader, config: SftConfig, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """Conversations to imitate (`messages`, `tools`), one a kept session, each on the side that its task belongs to for ever."""
    with user_errors():
        counts: Counter[str] = Counter()
        measures = parse_measures(config.learn_turns_that)
        curated = _Curated.read(context, workspace)
        kept = (curated.session(row) for row in curated.in_order(curated_sessions) if row["kept"])
        rows = sft_rows(kept, curated.ledger, counts, measures)
        output = _Output("sft_dataset", SFT, "messages", "Conversations of an agent, to imitate.", "text-generation", config)
        filters = [f"only turns that pass {each.name} are learnt; the others have weight 0" for each in measures]
        return output.written(context, workspace, rows, counts, curated.ledger, filters, config.format)


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def preference_dataset(
    context: dg.AssetExecutionContext,
    curated_sessions: pa.RecordBatchReader,
    config: PreferenceConfig,
    workspace: dg.ResourceParam[Workspace],
) -> dg.MaterializeResult:
    """Pairs of a good and a bad trial of one task from one prompt (`prompt`, `chosen`, `rejected`, `tools`), for DPO."""
    with user_errors():
        counts: Counter[str] = Counter()
        curated = _Curated.read(context, workspace)
        good, bad = curated.good_and_bad(curated_sessions)
        pairing = Pairing(config.strategy, config.min_margin, config.max_pairs_per_case)
        rows = list(preference_rows(good, bad, curated.ledger, counts, pairing))
        description = "A good and a bad answer of an agent to one prompt."
        output = _Output("preference_dataset", PREFERENCES, "prompt", description, "reinforcement-learning", config)
        filters = [f"pairs by the strategy {config.strategy}, scores apart by {config.min_margin} or more, equal ones never"]
        return output.written(context, workspace, rows, counts, curated.ledger, filters, more=_lengths(rows))


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def kto_dataset(
    context: dg.AssetExecutionContext,
    curated_sessions: pa.RecordBatchReader,
    preference_dataset: pa.Table,
    config: KtoConfig,
    workspace: dg.ResourceParam[Workspace],
) -> dg.MaterializeResult:
    """Judged sessions as `prompt`, `completion` and `label`, for KTO: those that found no partner for a pair, or all of them."""
    with user_errors():
        counts: Counter[str] = Counter()
        curated = _Curated.read(context, workspace)
        good, bad = curated.good_and_bad(curated_sessions)
        paired = () if config.all_sessions else {each for name in _SIDES for each in preference_dataset[name].to_pylist()}
        rows = list(kto_rows(good, bad, curated.ledger, paired, counts))
        output = _Output("kto_dataset", KTO, "completion", "Answers, each with a label: good or bad.", "reinforcement-learning", config)
        filters = [] if config.all_sessions else ["sessions that stand in a preference pair are not repeated here"]
        return output.written(context, workspace, rows, counts, curated.ledger, filters)


@dg.asset(**asset_options("datasets", {"parquet", "dataset"}))
def sharegpt_dataset(
    context: dg.AssetExecutionContext, sft_dataset: pa.RecordBatchReader, config: ShareGptConfig, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """The SFT rows as ShareGPT conversations, calls as `function_call` and results as `observation`."""
    with user_errors():
        counts: Counter[str] = Counter()
        rows = sharegpt_rows(to_rows(sft_dataset), counts, config.alternating)
        output = _Output("sharegpt_dataset", SHAREGPT, "conversations", "Conversations in ShareGPT's form.", "text-generation", config)
        filters = ["conversations whose turns do not alternate are left out"] if config.alternating else []
        return output.written(context, workspace, rows, counts, None, filters)


_SIDES = ("session_id", "rejected_session_id")


@dataclass
class _Curated:
    """What must be known of all curated sessions before the first row is made: their order, their tasks' sides, whose they are."""

    ledger: Ledger
    roots: dict[str, str]
    sorted: bool

    @classmethod
    def read(cls, context: dg.AssetExecutionContext, workspace: Workspace) -> "_Curated":
        lake, key = workspace.open_lake(), agent_key(context)
        rows = lake.open("curated_sessions", key).read(["session_id", "parent_session_id", "task_key"]).to_pylist()
        roots = root_tasks(rows)
        tasks = sorted({roots.get(row["session_id"], row["task_key"]) for row in rows})
        ids = [row["session_id"] for row in rows]
        return cls(settle(lake, key, tasks, _sizes(workspace)), roots, ids == sorted(ids))

    def in_order(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
        """The rows by session id: as they come, one batch in memory, where the source kept to that order, as all of ours do."""
        rows = to_rows(batches)
        return rows if self.sorted else iter(sorted(rows, key=lambda row: row["session_id"]))

    def session(self, row: Row) -> Session:
        """The session of a row, as a trial of the task that it belongs to."""
        session = row_session(row)
        session.task_key = self.roots.get(session.session_id, session.task_key)
        return session

    def good_and_bad(self, batches: Iterable[pa.RecordBatch]) -> tuple[list[Session], list[Session]]:
        """The sessions that were kept, and those that were dropped for what the agent did."""
        good: list[Session] = []
        bad: list[Session] = []
        for row in to_rows(batches):
            if row["kept"] or is_bad_answer(row["drop_reason"]):
                (good if row["kept"] else bad).append(self.session(row))
        return good, bad


@dataclass
class _Output:
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
        more: Mapping[str, Any] | None = None,
    ) -> dg.MaterializeResult:
        """Stage the table, a batch in memory at a time; write the other files from it; say what is in them."""
        lake, key = workspace.open_lake(), agent_key(context)
        seen = _Seen(self.text)
        staged = lake.stage(self.asset, key, to_batches(seen.passing(rows), self.schema), self.schema)
        metadata: dict[str, Any] = {
            "rows": staged.rows,
            "counts": counts_table(counts, "what"),
            "splits": counts_table(seen.splits, "split"),
            "tasks": len(seen.tasks),
            "preview": preview(seen.first, self.text),
            "lengths": histogram(seen.lengths, f"{self.asset}: text of a row", "characters"),
            **(more or {}),
        }
        if ledger is not None:
            metadata["tasks_on_an_older_side_than_the_settings"] = ledger.older_than_the_sizes
        formed: dict[str, Counter[str]] = {}

        def rows_of(split: str) -> Iterator[Row]:
            found = _staged_rows(staged, split)
            formed[split] = Counter()
            return in_form(found, format, formed[split]) if self.schema is SFT else found

        for split in SPLITS:
            lake.write_jsonl(self.asset, key, split, _plain(rows_of(split)) if self.config.jsonl else ())
        if self.config.jsonl:
            metadata["jsonl"] = dg.MetadataValue.path(str(lake.jsonl(self.asset, key)))
        if self.config.huggingface or self.config.push_to:
            facts = facts_of(lake, key, self.asset, self.description, self.task, self.config.license, counts, filters)
            schema = form(format).schema if self.schema is SFT else self.schema
            folder = put_folder(lake, key, self.asset, rows_of, schema, facts)
            metadata["huggingface"] = dg.MetadataValue.path(str(folder))
            if self.config.push_to:
                metadata["pushed_to"] = dg.MetadataValue.url(push(folder, self.config.push_to, not self.config.push_public))
        if self.schema is SFT and formed:
            metadata["rows_without_an_answer"] = sum(each["rows_without_an_answer"] for each in formed.values())
        return dg.MaterializeResult(value=staged, data_version=version(staged.sha256), metadata=metadata)


class _Seen:
    """What a person wants to know of rows that pass by once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.splits: Counter[str] = Counter()
        self.tasks: set[str] = set()
        self.lengths: list[int] = []
        self.first: list[Row] = []

    def passing(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.splits[row["split"]] += 1
            self.tasks.add(row["task_key"])
            self.lengths.append(sum(len(message.get("content") or message.get("value") or "") for message in row[self._text]))
            if len(self.first) < 5:
                self.first.append(row)
            yield row


def _staged_rows(staged: StagedTable, split: str) -> Iterator[Row]:
    """The rows of a split of a table that is not in its place yet."""
    with pq.ParquetFile(staged.file) as file:
        for batch in file.iter_batches(batch_size=1000):
            yield from to_rows([batch.filter(pc.equal(batch["split"], split))])


def _plain(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows without what a file name says already, and without keys that have no value."""
    for row in rows:
        yield {name: value for name, value in row.items() if name != "split" and value is not None}


def _lengths(rows: list[Row]) -> dict[str, Any]:
    """How long the chosen sides are beside the rejected ones."""
    ratios = length_ratios(rows)
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
    """The text of a row, not of its session: two sessions may differ only in what was cut off their end."""
    return sha256_of([row[name] for name in ("messages", "prompt", "completion", "chosen", "rejected", "tools") if name in row])


def _on_two_sides(context: dg.AssetCheckExecutionContext, workspace: Workspace, asset: str) -> dg.AssetCheckResult:
    """Whether a session, a task or an exact text of a data set is in more than one of train, select and test."""
    with user_errors():
        rows = to_rows(workspace.open_lake().open(asset, agent_key(context)).iter_batches(batch_size=1000))
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
    with user_errors():
        file = workspace.open_lake().open("sft_dataset", agent_key(context))
        found = near_duplicates(to_rows(file.iter_batches(batch_size=1000, columns=["session_id", "split", "messages"])), NEAR)
    return dg.AssetCheckResult(
        passed=not found,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"near_duplicates": len(found), "rows": file.metadata.num_rows, "examples": _examples(found)},
    )


def _examples(found: Sequence[Near]) -> dg.MetadataValue:
    """The first near-duplicates by id; their words stay in the lake."""
    lines = ["| session | split | is nearly | split | similarity |", "|---|---|---|---|---:|"]
    lines += [f"| `{a}` | {side} | `{b}` | {other} | {alike:.2f} |" for a, side, b, other, alike in found[:20]]
    return dg.MetadataValue.md("\n".join(lines))
