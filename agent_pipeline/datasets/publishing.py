"""The files that are published for a dataset's table: JSONL files and a Hugging Face folder.

    <lake>/jsonl/<asset>/project=<p>/agent=<a>/<split>.jsonl
    <lake>/huggingface/<asset>/project=<p>/agent=<a>/README.md         the card
    <lake>/huggingface/<asset>/project=<p>/agent=<a>/data/<split>-00000-of-00001.parquet
    <lake>/published/<asset>/project=<p>/agent=<a>/publication.json    how, and from which table

All files are made from the table in the lake. The same code can therefore make the files again, for
example after a session was forgotten. The files of `sft_dataset` also have the rows of
`heldout_dataset`, so that they have all splits. `datasets.load_dataset(folder)` reads the splits.
The text of the card does not belong here (`cards`), nor does the form of the rows (`formats`).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field
from upath import UPath

from agent_pipeline.datasets.cards import Publication, SplitLine, render_card
from agent_pipeline.datasets.formats import (
    FORMS,
    NO_FORM_REASONS,
    Format,
    FormattedRow,
    convert_rows,
)
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.sft_tables import (
    SFT_TABLE,
    filter_splits,
    list_sft_tables,
    read_sft_rows,
)
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.errors import MissingError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.options import Options
from agent_pipeline.sessions.tables import read_batches, to_batches, to_rows
from agent_pipeline.storage.lake import Lake, put_file, remove, sha256_file, sync
from agent_pipeline.structs import decode_json

PUBLICATIONS = "published"
"""Kind of lake file that stores the publication record of a dataset."""


class FileOptions(Options):
    """Options that define which files are written in addition to the table."""

    jsonl: bool = Field(
        default=True,
        description="Whether the dataset is also written as JSONL files, one file per split.",
    )
    huggingface: bool = Field(
        default=False,
        description=(
            "Whether the dataset is also written as a Hugging Face dataset folder with a dataset "
            "card."
        ),
    )
    license: str = Field(
        default="other",
        description=(
            "License on the dataset card, as an identifier of the Hugging Face hub, such as mit "
            "or cc-by-4.0."
        ),
    )
    push_to: str = Field(
        default="",
        description=(
            "Dataset on the Hugging Face hub (owner/name) to which the folder is pushed. If this "
            "setting is empty, nothing is pushed."
        ),
    )
    push_public: bool = Field(
        default=False,
        description=(
            "Whether the dataset on the hub is public. This setting matters only when the "
            "dataset is pushed for the first time."
        ),
    )


class ConversationFileOptions(FileOptions):
    """Options of the files that are written in addition to a table of conversations."""

    format: Format = Field(
        default="conversational",
        description=(
            "Format of the JSONL files and of the Hugging Face folder. conversational has "
            "messages and tools. openai is the fine-tuning format of OpenAI. prompt_completion "
            "has texts. prompt_completion_messages has prompt and completion as messages, as in "
            "TRL. The table itself is always conversational."
        ),
    )


_UNPUBLISHED_COLUMNS = {"split", "score", "created_at"}
"""Columns that are not published. The split is in the file's name, and only selection uses the
score and the time.

The JSON reader of `datasets` would interpret the times as local times.
"""


def encode_trainer_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[bytes]:
    """Yield the rows of a split as lines of a JSONL file for trainers.

    Keys without a value are left out, except `tools`, because LLaMA-Factory needs this key in every
    row of a file with tools. JSON columns may be `msgspec.Raw`.
    """
    for row in rows:
        published = {
            name: value
            for name, value in row.items()
            if name == "tools" or (name not in _UNPUBLISHED_COLUMNS and value is not None)
        }
        yield msgspec.json.encode(published) + b"\n"


def publish(lake: Lake, publication: Publication) -> Counter[str]:
    """Write the files of a table, and remove the files of an earlier publication.

    Each file appears only when it is complete, and the record of the publication is written last.

    Returns:
        The number of rows that cannot have the form of the files, by reason. It is empty if the
        table has only one form.

    Raises:
        DataError: There is no table, or there are no curated sessions for the card.
    """
    rows_without_form: Counter[str] = Counter()
    for split in SPLITS:
        rows: Iterable[FormattedRow] = ()
        if publication.jsonl:
            rows = _read_rows(lake, publication, split, rows_without_form)
        path = lake.folder("jsonl", publication.asset, publication.key) / f"{split}.jsonl"
        lake.replace(path, encode_trainer_lines(rows))
    if publication.huggingface:
        # Rows are counted once, although both kinds of files read them.
        counts = Counter[str]() if publication.jsonl else rows_without_form
        _write_folder(lake, publication, counts)
    else:
        _remove_files(lake, lake.folder("huggingface", publication.asset, publication.key))
    record = lake.folder(PUBLICATIONS, publication.asset, publication.key) / "publication.json"
    lake.replace(record, [msgspec.json.format(msgspec.json.encode(publication), indent=1)])
    if not _has_forms(lake, publication):
        return Counter()
    return Counter({reason: rows_without_form[reason] for reason in NO_FORM_REASONS})


def unpublish(lake: Lake, asset: str, key: PartitionKey | None) -> list[UPath]:
    """Remove all published files of a table, and return the paths of the files.

    Args:
        lake: The lake that has the files.
        asset: The table's asset.
        key: The table's partition. `None` means a dataset of several agents.
    """
    removed: list[UPath] = []
    for kind in ("jsonl", "huggingface", PUBLICATIONS):
        removed += _remove_files(lake, lake.folder(kind, asset, key))
    return removed


def republish(lake: Lake, asset: str, key: PartitionKey | None) -> list[UPath]:
    """Write the files of a table again if the table has changed.

    Return the paths of the changed files.

    Files that cannot be written again are removed. This happens if the record of the publication,
    the table, or the curated sessions for the card are missing.

    Args:
        lake: The lake that has the table.
        asset: The table's asset.
        key: The table's partition. `None` means a dataset of several agents.
    """
    publication = read_publication(lake, asset, key)
    if publication is None or not lake.has(asset, key):
        return unpublish(lake, asset, key)
    if publication.huggingface:
        for agent in publication.agents:
            if not lake.has("curated_sessions", parse_key(agent)):
                return unpublish(lake, asset, key)
    table_sha256 = hash_tables(lake, asset, key)
    if table_sha256 == publication.table_sha256:
        return []
    try:
        publish(lake, msgspec.structs.replace(publication, table_sha256=table_sha256))
    except MissingError:  # heldout_dataset was deleted
        return unpublish(lake, asset, key)
    changed: list[UPath] = []
    for kind in ("jsonl", "huggingface"):
        changed += lake.fs.files(lake.folder(kind, asset, key))
    return changed


def list_published_tables(lake: Lake, asset: str, key: PartitionKey | None) -> list[str]:
    """Return the tables whose rows are in the published files of a dataset."""
    return list_sft_tables(lake, key) if asset == SFT_TABLE else [asset]


def hash_tables(lake: Lake, asset: str, key: PartitionKey | None) -> str:
    """Return a sha256 that changes if any of the tables behind a dataset's files changes.

    If there is only one table, the result is the sha256 of that table.
    """
    digests = []
    for table in list_published_tables(lake, asset, key):
        digests.append(sha256_file(lake.table(table, key)))
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def read_publication(lake: Lake, asset: str, key: PartitionKey | None) -> Publication | None:
    """Return the publication record of a table, or `None` if there is no readable record.

    Args:
        lake: The lake that has the record.
        asset: The table's asset.
        key: The table's partition. `None` means a dataset of several agents.
    """
    path = lake.folder(PUBLICATIONS, asset, key) / "publication.json"
    try:
        return decode_json(path.read_bytes(), Publication)
    except (msgspec.MsgspecError, UnicodeError, OSError):
        return None


def _remove_files(lake: Lake, folder: UPath) -> list[UPath]:
    files = lake.fs.files(folder)
    for path in files:
        remove(path)
    return files


def _has_forms(lake: Lake, publication: Publication) -> bool:
    """Return whether the table has the columns of `SFT`.

    Such a table can be written in every form.
    """
    table = lake.open(publication.asset, publication.key).schema_arrow
    return set(SFT.names) <= set(table.names)


def _read_rows(
    lake: Lake, publication: Publication, split: str, counts: Counter[str]
) -> Iterator[FormattedRow]:
    """Return the rows of one split of the table, in the publication's export format.

    JSON columns that stay unchanged are `msgspec.Raw`.
    """
    is_unchanged = publication.format == "conversational" or not _has_forms(lake, publication)
    rows: Iterator[FormattedRow]
    if publication.asset == SFT_TABLE:
        rows = read_sft_rows(lake, publication.key, [split], raw=is_unchanged)
    else:
        file = lake.open(publication.asset, publication.key)
        rows = to_rows(filter_splits(read_batches(file), [split]), raw=is_unchanged)
    return rows if is_unchanged else convert_rows(rows, publication.format, counts)


def _write_folder(lake: Lake, publication: Publication, counts: Counter[str]) -> None:
    """Write the dataset's Hugging Face folder.

    The folder has one Parquet file per split with rows. The card is written last.
    """
    schema = lake.open(publication.asset, publication.key).schema_arrow.remove_metadata()
    if _has_forms(lake, publication):
        schema = FORMS[publication.format].make_schema(schema)
    target = lake.folder("huggingface", publication.asset, publication.key)
    lines: list[SplitLine] = []
    for split in SPLITS:
        path = target / "data" / f"{split}-00000-of-00001.parquet"
        with lake.fs.staging(path) as file:
            rows = _read_rows(lake, publication, split, counts)
            line = _write_split(file, split, rows, schema)
            sync(file)
        lines.append(line)
        if line.rows:
            put_file(file, path)
        else:
            file.unlink()
            remove(path)
    lake.replace(target / "README.md", [render_card(lake, publication, lines).encode("utf-8")])


def _write_split(
    file: Path, split: str, rows: Iterable[FormattedRow], schema: pa.Schema
) -> SplitLine:
    """Write the rows of a split to a Parquet file, and return the split's line for the card."""
    has_tasks = "task_key" in schema.names
    tasks: set[str] = set()
    row_count = 0
    with pq.ParquetWriter(file, schema, compression="zstd", compression_level=3) as writer:
        for batch in to_batches(rows, schema):
            row_count += batch.num_rows
            if has_tasks:
                tasks.update(batch["task_key"].to_pylist())
            writer.write_batch(batch)
    return SplitLine(split, row_count, len(tasks) if has_tasks else "–")
