"""A data set on its way into the lake: staged, checked, put into its place, published.

Nothing is replaced before the rows are proved to be in one split each, and nothing is published before the table is in its place.
"""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.datasets.cards import Publication, push
from agent_pipeline.datasets.curated import Curated
from agent_pipeline.datasets.kto import KTO, labelled_rows
from agent_pipeline.datasets.ledger import Ledger
from agent_pipeline.datasets.preferences import PREFERENCES, Pairing, length_ratio, rows_of_cases
from agent_pipeline.datasets.publishing import ConversationFileOptions, FileOptions, publish
from agent_pipeline.datasets.sft import SFT, sft_rows
from agent_pipeline.datasets.sharegpt import SHAREGPT, sharegpt_rows
from agent_pipeline.datasets.splits import ROW, SplitSizes, overlaps
from agent_pipeline.datasets.verdicts import judges_of, verdict_counts
from agent_pipeline.errors import DataError, PrivateDataError
from agent_pipeline.ingestion.derived import scan_derived
from agent_pipeline.judging.turns import check_facts
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

Row = dict[str, Any]

FIRST_ROWS = 5


class SplitError(DataError):
    """Something is in more than one split; `overlaps` names it by kind. The table that was there before is still there."""

    def __init__(self, asset: str, overlaps: dict[str, list[str]]) -> None:
        self.overlaps = overlaps
        what = "; ".join(
            f"{kind} {', '.join(names[:3])}" for kind, names in overlaps.items() if names
        )
        super().__init__(
            f"{asset} was not replaced, because something is in more than one split ({what}): give trials of one task the same task id "
            "(task_pattern), or drop one of two equal sessions."
        )


DEFAULT_FILES = FileOptions()


class Kind(NamedTuple):
    """What a data set is: its asset, schema, and the column that its rows are about; what its card says, and the hub's task category."""

    asset: str
    schema: pa.Schema
    text: str
    description: str
    task: str


_SFT = Kind(
    "sft_dataset", SFT, "messages", "Conversations of an agent, to imitate.", "text-generation"
)
_PAIRS = Kind(
    "preference_dataset",
    PREFERENCES,
    "prompt",
    "A good and a bad answer of an agent to one prompt.",
    "reinforcement-learning",
)
_KTO = Kind(
    "kto_dataset",
    KTO,
    "completion",
    "Answers, each with a label: good or bad.",
    "reinforcement-learning",
)
_SHAREGPT = Kind(
    "sharegpt_dataset",
    SHAREGPT,
    "conversations",
    "Conversations in ShareGPT's form.",
    "text-generation",
)


@dataclass
class Built:
    """A data set that is in its place, and what a person wants to know of it.

    `lengths` are the bytes of JSON of each row's text column; `ratios` the length of each chosen answer by that of the rejected one;
    `turn_classes` the assistant's turns of each class, by split; `formless` the rows that the published form has no place for, by reason;
    `in_two_splits` the proof that nothing is; `verdicts` who judged the rows (`verdicts.verdict_counts`).
    """

    kind: Kind
    table: StagedTable
    counts: Counter[str]
    splits: Counter[str]
    tasks: int
    lengths: "array[int]"
    first: list[Row]
    in_two_splits: dict[str, list[str]]
    formless: Counter[str]
    ratios: "array[float]" = field(default_factory=lambda: array("d"))
    turn_classes: dict[str, Counter[str]] = field(default_factory=dict)
    tasks_in_an_older_split: int | None = None
    verdicts: dict[str, Any] = field(default_factory=dict)
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
) -> Built:
    """Build `sft_dataset`: conversations to imitate, with what was thought before each message if `thoughts`. Turns with one of the facts
    (`judging.turns.TurnFacts`) are not trained.

    Raises:
        DataError: there are no curated sessions, or they or the ledger are damaged.
        SettingsError: one is not a fact about a turn.
        SplitError: something is in two splits.
        ExportError: the hub refuses.
    """
    check_facts(untrained_facts)
    counts, curated = Counter[str](), Curated.open(lake, key, sizes)
    classes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def rows() -> Iterator[Row]:
        for row in sft_rows(curated.kept(), curated.ledger, counts, untrained_facts, thoughts):
            classes[row["split"]].update(each or "nothing" for each in row["turn_classes"])
            yield row

    filters = [
        f"turns with the fact {each} have weight 0: they are not trained"
        for each in untrained_facts
    ]
    built = build(lake, key, _SFT, rows(), counts, filters, files, ledger=curated.ledger)
    built.turn_classes = dict(classes)
    return built


def build_preferences(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    pairing: Pairing | None = None,
    files: FileOptions = DEFAULT_FILES,
    thoughts: bool = False,
) -> Built:
    """Build `preference_dataset`: pairs for DPO. `thoughts` and errors are as in `build_sft`."""
    counts, curated = Counter[str](), Curated.open(lake, key, sizes, thoughts)
    pairing, ratios = pairing or Pairing(), array("d")

    def rows() -> Iterator[Row]:
        for row in curated.with_verdicts(
            rows_of_cases(curated.cases(counts), curated.ledger, counts, pairing)
        ):
            ratios.append(length_ratio(row))
            yield row

    filters = [
        f"pairs by the strategy {pairing.strategy}, scores apart by {pairing.min_margin} or more, equal ones never"
    ]
    built = build(lake, key, _PAIRS, rows(), counts, filters, files, ledger=curated.ledger)
    built.ratios = ratios
    return built


def build_kto(
    lake: Lake,
    key: PartitionKey,
    sizes: SplitSizes,
    all_sessions: bool = False,
    files: FileOptions = DEFAULT_FILES,
    thoughts: bool = False,
) -> Built:
    """Build `kto_dataset`: labelled answers, of the sessions in no preference pair unless `all_sessions`. `thoughts` and errors are as in
    `build_sft`."""
    counts, curated = Counter[str](), Curated.open(lake, key, sizes, thoughts)
    paired = (
        () if all_sessions else lake.open("preference_dataset", key).read(_SESSION_COLUMNS).columns
    )
    rows = labelled_rows(
        curated.labelled(),
        curated.ledger,
        {name for column in paired for name in column.to_pylist()},
        counts,
    )
    filters = (
        [] if all_sessions else ["sessions that are in a preference pair are not repeated here"]
    )
    return build(
        lake, key, _KTO, curated.with_verdicts(rows), counts, filters, files, ledger=curated.ledger
    )


def build_sharegpt(
    lake: Lake, key: PartitionKey, alternating: bool = True, files: FileOptions = DEFAULT_FILES
) -> Built:
    """Build `sharegpt_dataset` from `sft_dataset`. Raises as `build_sft`."""
    counts: Counter[str] = Counter()
    rows = sharegpt_rows(to_rows(read_batches(lake.open("sft_dataset", key))), counts, alternating)
    filters = ["conversations whose turns do not alternate are left out"] if alternating else []
    return build(lake, key, _SHAREGPT, rows, counts, filters, files)


def build(
    lake: Lake,
    key: PartitionKey | None,
    kind: Kind,
    rows: Iterable[Row],
    counts: Counter[str],
    filters: list[str],
    files: FileOptions = DEFAULT_FILES,
    agents: Sequence[PartitionKey] = (),
    crossing: Callable[[pq.ParquetFile], dict[str, list[str]]] | None = None,
    ledger: Ledger | None = None,
) -> Built:
    """Stage rows, a batch in memory at a time; check that nothing is in two splits; commit; publish. `push_built` pushes.

    Without a key the rows are of `agents`; `crossing` names what else of the staged table is in two splits. Raises as `build_sft`.
    """
    asset, schema, text, description, task = kind
    splits, judges, lengths, first = Counter[str](), Counter[str](), array("q"), list[Row]()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in to_batches(rows, schema):
            splits.update(batch["split"].to_pylist())
            judges.update(judges_of(batch))
            lengths.extend(pc.binary_length(batch[text].storage).to_pylist())
            first.extend(to_rows([batch.slice(0, FIRST_ROWS - len(first))]))
            yield batch

    table = lake.stage(asset, key, counted(), schema)
    with pq.ParquetFile(table.file) as file:
        found = in_two_splits(file) | (crossing(file) if crossing else {})
        tasks = pc.count_distinct(file.read(["task_key"])["task_key"]).as_py()
    if any(found.values()):
        table.file.unlink()
        raise SplitError(asset, found)
    table.commit()
    publication = Publication(
        asset=asset,
        partition=str(key) if key else None,
        agents=[str(each) for each in ([key] if key else agents)],
        description=description,
        task=task,
        jsonl=files.jsonl,
        huggingface=files.huggingface or bool(files.push_to),
        format=files.format if isinstance(files, ConversationFileOptions) else "conversational",
        license=files.license,
        counts=dict(counts),
        filters=filters,
        table_sha256=table.sha256,
    )
    built = Built(
        kind, table, counts, splits, tasks, lengths, first, found, publish(lake, publication)
    )
    built.verdicts = verdict_counts(judges)
    built.tasks_in_an_older_split = ledger.older_than_the_sizes if ledger else None
    built.jsonl = lake.folder("jsonl", asset, key) if publication.jsonl else None
    built.huggingface = lake.folder("huggingface", asset, key) if publication.huggingface else None
    return built


def push_built(
    lake: Lake, key: PartitionKey | None, built: Built, files: FileOptions, redactor: Redactor
) -> None:
    """Push a data set to the hub if the settings say so, and if nothing private is in its table or its card.

    Raises:
        PrivateDataError: something private was found; nothing is pushed.
        ExportError: the hub cannot be reached, or refuses.
    """
    if not (files.push_to and built.huggingface):
        return
    asset = built.kind.asset
    found = {f"the table {asset}": scan_derived(lake, asset, key, redactor).kinds}
    card = (built.huggingface / "README.md").read_text(encoding="utf-8")
    found["README.md"] = kinds_in_texts([card], redactor)
    if any(found.values()):
        kinds = {name: counts for name, counts in found.items() if counts}
        raise PrivateDataError(f"The data set for {files.push_to}", kinds)
    built.pushed_to = push(built.huggingface, files.push_to, not files.push_public)


_SESSION_COLUMNS = ["session_id", "rejected_session_id"]
_PLACES = pa.schema(
    [
        *map(ROW.__getitem__, (1, 3, 4)),
        *define_required(pa.binary(), content_sha256="sha256 of the texts"),
    ]
)


def in_two_splits(file: pq.ParquetFile) -> dict[str, list[str]]:
    """The sessions, tasks and exact texts of a data set that are in more than one split."""
    places = (
        {
            "session_id": _session_name(row, name),
            "task_key": row["task_key"],
            "content_sha256": _text_sha256(row),
            "split": row["split"],
        }
        for row in to_rows(read_batches(file), raw=True)
        for name in _SESSION_COLUMNS
        if name in row
    )
    found = overlaps(to_table(places, _PLACES))
    return found | {"content_sha256": [each.hex() for each in found["content_sha256"]]}


def _session_name(row: Row, column: str) -> str:
    """A session's id; in a table of several agents with its agent before it."""
    return f"{row['project']}/{row['agent']}:{row[column]}" if "agent" in row else str(row[column])


def _text_sha256(row: Row) -> bytes:
    """sha256 of a row's JSON columns, not of its session: two sessions may differ only in what was cut off their end."""
    return hashlib.sha256(
        b"\n".join(bytes(value) for value in row.values() if type(value) is msgspec.Raw)
    ).digest()
