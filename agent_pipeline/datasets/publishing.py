"""What is published of a data set's table: JSONL files and a Hugging Face folder.

    <lake>/jsonl/<asset>/project=<p>/agent=<a>/<split>.jsonl
    <lake>/huggingface/<asset>/project=<p>/agent=<a>/README.md                            the card
    <lake>/huggingface/<asset>/project=<p>/agent=<a>/data/<split>-00000-of-00001.parquet
    <lake>/published/<asset>/project=<p>/agent=<a>/publication.json                       how, and of which version of the table

Everything is made from the table as it lies in the lake, so it can be made again by the same code: when a session is forgotten, say.
`datasets.load_dataset(folder)` reads the splits.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field
from upath import UPath

from agent_pipeline.datasets.cards import Publication, card
from agent_pipeline.datasets.formats import FORMS, NO_FORM, Format, in_form
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.options import Options
from agent_pipeline.sessions.tables import make_scalar, read_batches, to_batches, to_rows
from agent_pipeline.storage.lake import Lake, put_file, remove, sha256_file, sync

RECORDS = "published"
"""The kind of lake file that holds the records of publications."""


class FileOptions(Options):
    """What is written beside the table."""

    jsonl: bool = Field(default=True, description="Write a JSONL file a split beside the table.")
    huggingface: bool = Field(
        default=False,
        description="Write a Hugging Face dataset folder with a dataset card beside the table.",
    )
    license: str = Field(
        default="other",
        description="Licence that the dataset card names, by the hub's identifier (mit, cc-by-4.0).",
    )
    push_to: str = Field(
        default="",
        description="Push the folder to this data set of the Hugging Face hub (owner/name); empty: never.",
    )
    push_public: bool = Field(
        default=False, description="Make a data set that is pushed for the first time public."
    )


class ConversationFileOptions(FileOptions):
    """The form of what is written beside a table of conversations."""

    format: Format = Field(
        default="conversational",
        description="Form of the JSONL and of the folder: conversational (messages, tools), openai (its fine-tuning file), "
        "prompt_completion (texts), prompt_completion_messages (TRL's conversational one). The table is conversational always.",
    )


_OF_THE_TABLE = {"split", "score", "created_at"}


def trainers_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Rows of a split as lines of the file that trainers read; JSON columns may be `msgspec.Raw`.

    The split (the file's name says it), what only selection uses (the JSON reader of `datasets` takes times for local ones) and keys
    without a value are left out; `tools` stays, because LLaMA-Factory needs the key in every row of a file with tools.
    """
    for row in rows:
        kept = {
            name: value
            for name, value in row.items()
            if name == "tools" or (name not in _OF_THE_TABLE and value is not None)
        }
        yield msgspec.json.encode(kept) + b"\n"


def publish(lake: Lake, publication: Publication) -> Counter[str]:
    """Write the files from the table, and remove those of an earlier publication that this one does not have.

    Each file appears whole; the record comes last. Returns how many rows have no such form, by reason.

    Raises:
        DataError: there is no table, or no curated sessions for the card.
    """
    formless: Counter[str] = Counter()
    for split in SPLITS:
        rows = _rows(lake, publication, split, formless) if publication.jsonl else ()
        lake.replace(
            lake.folder("jsonl", publication.asset, publication.key) / f"{split}.jsonl",
            trainers_lines(rows),
        )
    if publication.huggingface:
        _write_folder(lake, publication, formless if not publication.jsonl else Counter())
    else:
        _remove(lake, lake.folder("huggingface", publication.asset, publication.key))
    record = lake.folder(RECORDS, publication.asset, publication.key) / "publication.json"
    lake.replace(record, [msgspec.json.format(msgspec.json.encode(publication), indent=1)])
    return (
        Counter({reason: formless[reason] for reason in NO_FORM})
        if _has_forms(lake, publication)
        else Counter()
    )


def unpublish(lake: Lake, asset: str, key: PartitionKey | None) -> list[UPath]:
    """Remove everything that is published of a table; the files that were there."""
    return [
        path
        for kind in ("jsonl", "huggingface", RECORDS)
        for path in _remove(lake, lake.folder(kind, asset, key))
    ]


def publish_again(lake: Lake, asset: str, key: PartitionKey | None) -> list[UPath]:
    """Make the files of a table again if they are not of the version that lies in the lake; returns the files that changed.

    Files that cannot be made again (there is no record of how, or no table) are removed.
    """
    publication = record_of(lake, asset, key)
    agents = (
        publication.agents if publication and publication.huggingface else ()
    )  # the card tells of their curated sessions
    if not (
        publication
        and lake.has(asset, key)
        and all(lake.has("curated_sessions", parse_key(each)) for each in agents)
    ):
        return unpublish(lake, asset, key)
    sha256 = sha256_file(lake.table(asset, key))
    if sha256 == publication.table_sha256:
        return []
    publish(lake, msgspec.structs.replace(publication, table_sha256=sha256))
    return [
        path
        for kind in ("jsonl", "huggingface")
        for path in lake.fs.files(lake.folder(kind, asset, key))
    ]


def record_of(lake: Lake, asset: str, key: PartitionKey | None) -> Publication | None:
    """The record of how a table is published, if there is one."""
    try:
        return msgspec.json.decode(
            (lake.folder(RECORDS, asset, key) / "publication.json").read_bytes(), type=Publication
        )
    except (msgspec.MsgspecError, OSError):
        return None


def _remove(lake: Lake, folder: UPath) -> list[UPath]:
    files = lake.fs.files(folder)
    for path in files:
        remove(path)
    return files


def _has_forms(lake: Lake, publication: Publication) -> bool:
    return set(SFT.names) <= set(lake.open(publication.asset, publication.key).schema_arrow.names)


def _rows(
    lake: Lake, publication: Publication, split: str, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The rows of a split of the table, in the publication's form; JSON columns that stay as they are, as `msgspec.Raw`."""
    plain = publication.format == "conversational" or not _has_forms(lake, publication)
    file = lake.open(publication.asset, publication.key)
    wanted = make_scalar(split, pa.string())
    batches = (batch.filter(pc.equal(batch["split"], wanted)) for batch in read_batches(file))
    rows = to_rows(batches, raw=plain)
    return rows if plain else in_form(rows, publication.format, counts)


def _write_folder(lake: Lake, publication: Publication, counts: Counter[str]) -> None:
    table = lake.open(publication.asset, publication.key).schema_arrow
    schema = FORMS[publication.format].columns(table) if _has_forms(lake, publication) else table
    target = lake.folder("huggingface", publication.asset, publication.key)
    lines = []
    for split in SPLITS:
        tasks: set[str] = set()
        rows, count = _rows(lake, publication, split, counts), 0
        place = target / "data" / f"{split}-00000-of-00001.parquet"
        with lake.fs.staging(place) as file:
            with pq.ParquetWriter(file, schema, compression="zstd", compression_level=3) as writer:
                for batch in to_batches(rows, schema):
                    count += batch.num_rows
                    tasks.update(
                        batch["task_key"].to_pylist() if "task_key" in schema.names else ()
                    )
                    writer.write_batch(batch)
            sync(file)
        lines.append((split, count, len(tasks) if "task_key" in schema.names else "–"))
        if count:
            put_file(file, place)
        else:
            file.unlink()
            remove(place)
    lake.replace(target / "README.md", [card(lake, publication, lines).encode("utf-8")])
