"""Building of a dataset in the lake: stage its rows, check and commit the table, and publish files.

A table replaces the last one only after a check that each row is in a single split. Files are
published only after the table is committed. Making rows from sessions belongs to `sft`,
`preferences`, `kto` and `sharegpt`.
"""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.datasets.cards import Publication, push_folder
from agent_pipeline.datasets.curated import CuratedSessions
from agent_pipeline.datasets.kto import KTO, make_kto_rows
from agent_pipeline.datasets.ledger import Ledger
from agent_pipeline.datasets.preferences import (
    DEFAULT_PAIRING,
    PREFERENCES,
    Pairing,
    PreferenceRow,
    compute_length_ratio,
    pair_trials,
)
from agent_pipeline.datasets.publishing import (
    ConversationFileOptions,
    FileOptions,
    hash_tables,
    list_published_tables,
    publish,
)
from agent_pipeline.datasets.sft import SFT, SftRow, make_sft_rows
from agent_pipeline.datasets.sft_tables import (
    HELDOUT_SPLITS,
    HELDOUT_TABLE,
    SEEN_IN_TRAINING,
    SFT_TABLE,
    SPLITS_SEEN_IN_TRAINING,
    filter_splits,
    read_sft_rows,
)
from agent_pipeline.datasets.sharegpt import SHAREGPT, make_sharegpt_rows
from agent_pipeline.datasets.splits import LINEAGE_COLUMNS, Split, SplitSizes, find_overlaps
from agent_pipeline.datasets.verdicts import VerdictCounts, count_verdicts, list_judges
from agent_pipeline.errors import DataError, PrivateDataError
from agent_pipeline.ingestion.derived import scan_derived
from agent_pipeline.judging.turn_facts import check_facts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.redaction.files import kinds_in_texts
from agent_pipeline.sessions.tables import (
    define_required,
    read_batches,
    to_batches,
    to_rows,
    to_table,
)
from agent_pipeline.storage.lake import Lake, StagedTable

StoredRow = dict[str, Any]
"""A stored row of a dataset's table, for the preview."""

FindOverlaps = Callable[[pq.ParquetFile], dict[str, list[str]]]
"""Function that finds sessions, tasks and texts of a staged table that are in more than one split.
"""

PREVIEW_ROWS = 5

DEFAULT_FILES = FileOptions()


class SplitError(DataError):
    """Raised if a session, a task or a text is in more than one split.

    The last table stays in place.

    Attributes:
        asset: The dataset that was not replaced.
        overlaps: The names of the items that are in more than one split, by kind.
    """

    def __init__(self, asset: str, overlaps: dict[str, list[str]]) -> None:
        self.overlaps = overlaps
        examples = "; ".join(
            f"{kind} {', '.join(names[:3])}" for kind, names in overlaps.items() if names
        )
        super().__init__(
            f"{asset} was not replaced, because a session, task or text is in more than one split "
            f"({examples}): give all trials of a task the same task id (`task_pattern`). If two "
            "sessions are equal, remove one of them from the store.",
            asset=asset,
        )


@dataclass(frozen=True)
class DatasetKind:
    """A kind of dataset.

    Attributes:
        asset: The dataset's asset.
        schema: The columns of the table.
        text: The column with the texts of the rows.
        description: A sentence for the card that describes a row.
        task: A task category of the Hugging Face hub.
    """

    asset: str
    schema: pa.Schema
    text: str
    description: str
    task: str


_SFT = DatasetKind(
    asset=SFT_TABLE,
    schema=SEEN_IN_TRAINING,
    text="messages",
    description="Conversations of an agent that a model learns to imitate.",
    task="text-generation",
)
_HELDOUT = replace(_SFT, asset=HELDOUT_TABLE, schema=SFT)
_PREFERENCES = DatasetKind(
    asset="preference_dataset",
    schema=PREFERENCES,
    text="prompt",
    description="Prompts of an agent, each with a good and a bad answer.",
    task="reinforcement-learning",
)
_KTO = DatasetKind(
    asset="kto_dataset",
    schema=KTO,
    text="completion",
    description="Answers of an agent, each with the label good or bad.",
    task="reinforcement-learning",
)
_SHAREGPT = DatasetKind(
    asset="sharegpt_dataset",
    schema=SHAREGPT,
    text="conversations",
    description="Conversations of an agent in the ShareGPT format.",
    task="text-generation",
)


@dataclass
class BuiltDataset:
    """A committed dataset, with facts about it for users.

    Attributes:
        kind: The kind of dataset.
        table: The committed table.
        counts: Counts of the sessions by outcome.
        splits: Number of rows by split.
        task_count: The number of tasks.
        lengths: The length of each row's text column, in bytes of JSON.
        first_rows: A few rows for a preview.
        overlaps: The items that are in more than one split, by kind. The lists are empty, which
            proves that there are none.
        rows_without_form: Number of rows that cannot be published in the form of the files, by
            reason.
        length_ratios: For preference pairs, the length of the chosen answer divided by the length
            of the rejected answer.
        turn_classes: For SFT rows, the number of the agent's turns of each class, by split.
        heldout: For SFT rows, the dataset `heldout_dataset`, which is built together with them.
        moved_tasks: Number of tasks that are in a different split than the current sizes would give
            them, or `None` if the dataset has no ledger.
        verdicts: Counts of verified and unverified verdicts.
        served_rows: The number of rows in whose session a model of this lake answered.
        jsonl: The folder of the JSONL files.
        huggingface: The Hugging Face folder.
        pushed_to: The URL of the commit on the Hugging Face hub.
    """

    kind: DatasetKind
    table: StagedTable
    counts: Counter[str]
    splits: Counter[str]
    task_count: int
    lengths: "array[int]"
    first_rows: list[StoredRow]
    overlaps: dict[str, list[str]]
    rows_without_form: Counter[str]
    verdicts: VerdictCounts
    served_rows: int = 0
    length_ratios: "array[float]" = field(default_factory=lambda: array("d"))
    turn_classes: dict[str, Counter[str]] = field(default_factory=dict)
    heldout: "BuiltDataset | None" = None
    moved_tasks: int | None = None
    jsonl: UPath | None = None
    huggingface: UPath | None = None
    pushed_to: str | None = None


def build_sft(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    untrained_facts: Sequence[str] = (),
    files: FileOptions = DEFAULT_FILES,
    thoughts: bool = False,
) -> BuiltDataset:
    """Build `sft_dataset` and `heldout_dataset`: conversations for training and for evaluation.

    Both tables are split from one staged table, in which nothing may be in more than one split. If
    that check fails, neither table is replaced. The files of both tables are published under
    `sft_dataset`.

    Args:
        lake: The lake that has the curated sessions.
        key: The partition.
        sizes: The sizes of the split.
        untrained_facts: Names of `judging.turn_facts.TurnFacts`. Turns with one of these facts are
            not trained.
        files: The options of the published files.
        thoughts: Whether messages include the recorded thoughts.

    Raises:
        DataError: There are no curated sessions, or the sessions or the ledger are damaged.
        SettingsError: One of `untrained_facts` is not a fact about a turn.
        SplitError: Something is in more than one split.
        ExportError: The hub refuses the folder.
    """
    check_facts(untrained_facts)
    curated = CuratedSessions.open(lake, key, sizes)
    counts: Counter[str] = Counter()
    turn_classes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def make_rows() -> Iterator[SftRow]:
        sessions = curated.read_kept()
        for row in make_sft_rows(sessions, curated.ledger, counts, untrained_facts, thoughts):
            classes = [turn_class or "nothing" for turn_class in row["turn_classes"]]
            turn_classes[row["split"]].update(classes)
            yield row

    filters = [
        f"turns with the fact {fact} have weight 0, so a model is not trained on them"
        for fact in untrained_facts
    ]
    staged = stage_rows(lake, key, replace(_SFT, schema=SFT), make_rows())
    try:
        overlaps = check_splits(staged)
        # The held-out table comes first. If the run is killed between the two commits, a lake of an
        # earlier version still has its test rows.
        heldout = _split_off(lake, key, _HELDOUT, staged, HELDOUT_SPLITS)
        trained = _split_off(lake, key, _SFT, staged, SPLITS_SEEN_IN_TRAINING)
    finally:
        staged.table.file.unlink(missing_ok=True)
    heldout.table.commit()
    trained.table.commit()
    facts = CardFacts(counts, filters, ledger=curated.ledger)
    built = _publish(lake, key, trained, overlaps, facts, files)
    built.heldout = _describe_table(heldout, overlaps)
    built.turn_classes = dict(turn_classes)
    return built


def _split_off(
    lake: Lake,
    key: PartitionKey,
    kind: DatasetKind,
    staged: "StagedRows",
    splits: Sequence[Split],
) -> "StagedRows":
    """Copy the rows of some splits of a staged table into a separate staged table."""
    with pq.ParquetFile(staged.table.file) as file:
        return stage_batches(lake, key, kind, filter_splits(read_batches(file), splits))


def build_preferences(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    pairing: Pairing = DEFAULT_PAIRING,
    files: FileOptions = DEFAULT_FILES,
    thoughts: bool = False,
) -> BuiltDataset:
    """Build `preference_dataset`: pairs of a good and a bad answer for DPO.

    Args:
        lake: The lake that has the curated sessions.
        key: The partition.
        sizes: The sizes of the split.
        pairing: The rules of pairing.
        files: The options of the published files.
        thoughts: Whether messages include the recorded thoughts.

    Raises:
        DataError, SplitError, ExportError: As in `build_sft`.
    """
    curated = CuratedSessions.open(lake, key, sizes, thoughts)
    counts: Counter[str] = Counter()
    length_ratios = array("d")

    def make_rows() -> Iterator[PreferenceRow]:
        trials = curated.read_trials(counts)
        rows = pair_trials(trials, curated.ledger, counts, pairing)
        for row in curated.add_judges(rows):
            length_ratios.append(compute_length_ratio(row))
            yield row

    filters = [
        f"the strategy {pairing.strategy} chose the pairs; the two scores of a pair differ by at "
        f"least {pairing.min_margin}, and are never equal"
    ]
    facts = CardFacts(counts, filters, ledger=curated.ledger)
    built = build_dataset(lake, key, _PREFERENCES, make_rows(), facts, files)
    built.length_ratios = length_ratios
    return built


def build_kto(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    all_sessions: bool = False,
    files: FileOptions = DEFAULT_FILES,
    thoughts: bool = False,
) -> BuiltDataset:
    """Build `kto_dataset`: answers with a label, good or bad.

    Args:
        lake: The lake that has the curated sessions and, unless `all_sessions` is true, the
            preference dataset.
        key: The partition.
        sizes: The sizes of the split.
        all_sessions: Whether sessions that are in a preference pair also get rows.
        files: The options of the published files.
        thoughts: Whether messages include the recorded thoughts.

    Raises:
        DataError, SplitError, ExportError: As in `build_sft`.
    """
    curated = CuratedSessions.open(lake, key, sizes, thoughts)
    counts: Counter[str] = Counter()
    paired_ids: set[str] = set()
    filters: list[str] = []
    if not all_sessions:
        pairs = lake.open("preference_dataset", key).read(_SESSION_COLUMNS)
        for column in pairs.columns:
            paired_ids.update(column.to_pylist())
        filters.append("sessions that are in a preference pair are left out")
    labelled = curated.read_labelled()
    rows = curated.add_judges(make_kto_rows(labelled, curated.ledger, paired_ids, counts))
    facts = CardFacts(counts, filters, ledger=curated.ledger)
    return build_dataset(lake, key, _KTO, rows, facts, files)


def build_sharegpt(
    lake: Lake, key: PartitionKey, alternating: bool = True, files: FileOptions = DEFAULT_FILES
) -> BuiltDataset:
    """Build `sharegpt_dataset` from the rows of `sft_dataset` and `heldout_dataset`.

    Args:
        lake: The lake that has the SFT dataset.
        key: The partition.
        alternating: Whether conversations are left out whose turns do not alternate, or in which a
            turn is not to be trained.
        files: The options of the published files.

    Raises:
        DataError, SplitError, ExportError: As in `build_sft`.
    """
    counts: Counter[str] = Counter()
    rows = make_sharegpt_rows(read_sft_rows(lake, key), counts, alternating)
    filters = []
    if alternating:
        filters = [
            "conversations are left out if their turns do not alternate, or if a message has "
            "weight 0"
        ]
    return build_dataset(lake, key, _SHAREGPT, rows, CardFacts(counts, filters), files)


@dataclass(frozen=True)
class CardFacts:
    """Facts on a dataset's card that cannot be derived from the dataset's rows.

    Attributes:
        counts: Counts of the sessions by outcome. They are complete after all rows have been read.
        filters: Sentences about rows that were left out.
        agents: The partitions that the rows come from, if the dataset combines several agents.
        ledger: The ledger that gave the rows their splits.
    """

    counts: Counter[str]
    filters: list[str]
    agents: Sequence[PartitionKey] = ()
    ledger: Ledger | None = None


def build_dataset(
    lake: Lake,
    key: PartitionKey | None,
    kind: DatasetKind,
    rows: Iterable[Mapping[str, object]],
    facts: CardFacts,
    files: FileOptions = DEFAULT_FILES,
    find_more_overlaps: FindOverlaps | None = None,
) -> BuiltDataset:
    """Stage rows, check the splits, commit the table, and publish its files.

    The check fails if anything is in two splits. Memory holds one batch of rows at a time.
    `push_dataset` pushes the files to the hub.

    Args:
        lake: The lake to which the dataset is written.
        key: The partition. `None` means a dataset of several agents.
        kind: The kind of dataset.
        rows: The rows. They are read only once.
        facts: Facts for the card.
        files: The options of the published files.
        find_more_overlaps: Finds other items that are in two splits of the staged table.

    Raises:
        DataError, SplitError, ExportError: As in `build_sft`.
    """
    staged = stage_rows(lake, key, kind, rows)
    overlaps = check_splits(staged, find_more_overlaps)
    staged.table.commit()
    return _publish(lake, key, staged, overlaps, facts, files)


@dataclass
class StagedRows:
    """The rows of a dataset in a staged table, with facts about the rows.

    Attributes:
        kind: The kind of dataset.
        table: The staged table.
        splits: Number of rows by split.
        judges: Number of verdicts on rows by judge.
        lengths: The length of each row's text column, in bytes of JSON.
        first_rows: A few rows for a preview.
        task_count: The number of tasks.
        served_rows: The number of rows in whose session a model of this lake answered.
    """

    kind: DatasetKind
    table: StagedTable
    splits: Counter[str]
    judges: Counter[str]
    lengths: "array[int]"
    first_rows: list[StoredRow]
    task_count: int
    served_rows: int


def stage_rows(
    lake: Lake, key: PartitionKey | None, kind: DatasetKind, rows: Iterable[Mapping[str, object]]
) -> StagedRows:
    """Stage dataset rows as a table.

    Memory holds one batch at a time.
    """
    batches = to_batches(rows, kind.schema)
    return stage_batches(lake, key, kind, batches)


def stage_batches(
    lake: Lake, key: PartitionKey | None, kind: DatasetKind, batches: Iterable[pa.RecordBatch]
) -> StagedRows:
    """Stage batches as a table, and collect facts about their rows."""
    splits: Counter[str] = Counter()
    judges: Counter[str] = Counter()
    lengths = array("q")
    first_rows: list[StoredRow] = []

    def collect_facts() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            splits.update(batch["split"].to_pylist())
            judges.update(list_judges(batch))
            lengths.extend(pc.binary_length(batch[kind.text].storage).to_pylist())
            first_rows.extend(to_rows([batch.slice(0, PREVIEW_ROWS - len(first_rows))]))
            yield batch

    table = lake.stage(kind.asset, key, collect_facts(), kind.schema)
    with pq.ParquetFile(table.file) as file:
        columns = file.read(["task_key", "served_model"])
    task_count = pc.count_distinct(columns["task_key"]).as_py()
    served_rows = pc.sum(columns["served_model"], min_count=0).as_py()
    return StagedRows(kind, table, splits, judges, lengths, first_rows, task_count, served_rows)


def check_splits(
    staged: StagedRows, find_more_overlaps: FindOverlaps | None = None
) -> dict[str, list[str]]:
    """Check that no session, task or text of a staged table is in more than one split.

    If the check fails, the staged table is deleted.

    Returns:
        Empty lists by kind, as proof that nothing is in two splits.

    Raises:
        SplitError: Something is in more than one split.
    """
    with pq.ParquetFile(staged.table.file) as file:
        overlaps = find_row_overlaps(file)
        if find_more_overlaps:
            overlaps |= find_more_overlaps(file)
    if any(overlaps.values()):
        staged.table.file.unlink()
        raise SplitError(staged.kind.asset, overlaps)
    return overlaps


def _describe_table(staged: StagedRows, overlaps: dict[str, list[str]]) -> BuiltDataset:
    """Describe a committed table as a dataset without published files."""
    return BuiltDataset(
        kind=staged.kind,
        table=staged.table,
        counts=Counter(),
        splits=staged.splits,
        task_count=staged.task_count,
        lengths=staged.lengths,
        first_rows=staged.first_rows,
        overlaps=overlaps,
        rows_without_form=Counter(),
        verdicts=count_verdicts(staged.judges),
        served_rows=staged.served_rows,
    )


def _publish(
    lake: Lake,
    key: PartitionKey | None,
    staged: StagedRows,
    overlaps: dict[str, list[str]],
    facts: CardFacts,
    files: FileOptions,
) -> BuiltDataset:
    """Publish the files of a committed table, and return the dataset.

    Args:
        lake: The lake that has the table.
        key: The partition. `None` means a dataset of several agents.
        staged: The committed table.
        overlaps: The proof that nothing is in two splits.
        facts: Facts for the card.
        files: The options of the published files.
    """
    kind = staged.kind
    publication = Publication(
        asset=kind.asset,
        partition=str(key) if key else None,
        agents=[str(agent) for agent in ([key] if key else facts.agents)],
        description=kind.description,
        task=kind.task,
        jsonl=files.jsonl,
        huggingface=files.huggingface or bool(files.push_to),
        format=files.format if isinstance(files, ConversationFileOptions) else "conversational",
        license=files.license,
        counts=dict(facts.counts),
        filters=facts.filters,
        table_sha256=hash_tables(lake, kind.asset, key),
    )
    built = _describe_table(staged, overlaps)
    built.counts = facts.counts
    built.rows_without_form = publish(lake, publication)
    built.moved_tasks = facts.ledger.count_moved_tasks() if facts.ledger else None
    if publication.jsonl:
        built.jsonl = lake.folder("jsonl", kind.asset, key)
    if publication.huggingface:
        built.huggingface = lake.folder("huggingface", kind.asset, key)
    return built


def push_dataset(
    lake: Lake,
    key: PartitionKey | None,
    built: BuiltDataset,
    files: FileOptions,
    redactor: Redactor,
) -> None:
    """Push a dataset to the hub if the settings name a repository.

    `built.pushed_to` is set to the URL of the commit.

    Args:
        lake: The lake that has the dataset.
        key: The dataset's partition. `None` means a dataset of several agents.
        built: The dataset.
        files: The settings, which name the repository.
        redactor: Searches the table and the card for private data.

    Raises:
        PrivateDataError: The table or the card has private data. Nothing is pushed.
        ExportError: The hub cannot be reached, or refuses the upload.
    """
    if not (files.push_to and built.huggingface):
        return
    asset = built.kind.asset
    card = (built.huggingface / "README.md").read_text(encoding="utf-8")
    kinds_by_source: dict[str, Counter[str]] = {}
    for table in list_published_tables(lake, asset, key):
        kinds_by_source[f"the table {table}"] = scan_derived(lake, table, key, redactor).kinds
    kinds_by_source["README.md"] = kinds_in_texts([card], redactor)
    private = {source: kinds for source, kinds in kinds_by_source.items() if kinds}
    if private:
        raise PrivateDataError(f"The data set for {files.push_to}", private)
    built.pushed_to = push_folder(built.huggingface, files.push_to, not files.push_public)


_SESSION_COLUMNS = ["session_id", "rejected_session_id"]

_OVERLAP_COLUMNS = pa.schema(
    [column for column in LINEAGE_COLUMNS if column.name in ("session_id", "task_key", "split")]
    + define_required(pa.binary(), content_sha256="sha256 of the texts")
)


def find_row_overlaps(file: pq.ParquetFile) -> dict[str, list[str]]:
    """Return the sessions, tasks and exact texts of a table that are in more than one split."""
    overlaps = find_overlaps(to_table(_list_split_facts(file), _OVERLAP_COLUMNS))
    hashes = [content_sha256.hex() for content_sha256 in overlaps["content_sha256"]]
    return {**overlaps, "content_sha256": hashes}


def _list_split_facts(file: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    """Yield one row with `_OVERLAP_COLUMNS` for each session that a table row was made from."""
    for row in to_rows(read_batches(file), raw=True):
        for column in _SESSION_COLUMNS:
            if column in row:
                yield {
                    "session_id": _name_session(row, column),
                    "task_key": row["task_key"],
                    "content_sha256": _hash_texts(row),
                    "split": row["split"],
                }


def _name_session(row: Mapping[str, object], column: str) -> str:
    """Return the id of a session.

    In a table of several agents, the agent's name is put in front.
    """
    session_id = str(row[column])
    return f"{row['project']}/{row['agent']}:{session_id}" if "agent" in row else session_id


def _hash_texts(row: Mapping[str, object]) -> bytes:
    """Return the sha256 of the JSON columns of a row.

    The hash of the session is not enough, because two different sessions may have equal rows after
    messages at the end were cut off.
    """
    texts = [bytes(value) for value in row.values() if type(value) is msgspec.Raw]
    return hashlib.sha256(b"\n".join(texts)).digest()
