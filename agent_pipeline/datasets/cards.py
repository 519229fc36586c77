"""A data set as a folder of the Hugging Face hub: a Parquet file a split and a card that says what is in them.

    README.md                                the card: counts, sides, sources, filters, licences, known limits
    data/<split>-00000-of-00001.parquet

`datasets.load_dataset(folder)` gives the splits; so does the hub, if the folder is pushed, which happens only when it is asked for.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.errors import ExportError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import to_batches
from agent_pipeline.storage.lake import Lake, put_file, sync

_TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

{{ description }}

| split | rows | tasks |
|---|---:|---:|
{% for line in splits %}| {{ line[0] }} | {{ line[1] }} | {{ line[2] }} |
{% endfor %}
A task is on one side of the split for ever, with all its trials. Every row names its session, task and content hash where its format
has a place for them.

## Counts

{{ counts }}

## Sources

{{ sources }}

## Filters

{{ filters }}

## Licence

{{ licence }}

## Known limits

{{ limits }}
"""


@dataclass
class Facts:
    """What a card says beside the rows: Markdown lists are made of the mappings and lists.

    `task` is a task category of the hub. `sources`, `filters` and `limits` are sentences.
    """

    title: str
    description: str
    license: str = "other"
    task: str = "text-generation"
    counts: Mapping[str, int] = field(default_factory=dict)
    sources: Iterable[str] = ()
    filters: Iterable[str] = ()
    limits: Iterable[str] = ()


def facts_of(
    lake: Lake,
    key: PartitionKey | None,
    asset: str,
    description: str,
    task: str,
    license: str,
    counts: Mapping[str, int],
    filters: Iterable[str],
    agents: Sequence[PartitionKey] = (),
) -> Facts:
    """The facts of a data set of a partition: sources, drop reasons and limits are those of its curated sessions, which every row is from.

    One of several agents has no partition (null), and names the `agents`.

    Raises:
        DataError: there are no curated sessions.
    """
    agents = agents or [key] if key else agents
    columns = ["source", "tools_origin", "drop_reason", "created_at"]
    table = pa.concat_tables(lake.open("curated_sessions", each).read(columns) for each in agents)
    dropped = Counter(table["drop_reason"].drop_null().to_pylist())
    times = sorted(time for time in table["created_at"].to_pylist() if time is not None)
    span = f", from {times[0]:%Y-%m-%d} to {times[-1]:%Y-%m-%d}" if times else ""
    inferred = table["tools_origin"].to_pylist().count("inferred")
    named = f"the agent{'s' if len(agents) > 1 else ''} {', '.join(f'`{each}`' for each in agents)}"
    limits = [
        f"sessions of {'one agent on its' if len(agents) == 1 else 'these agents on their'} own tasks: they show what was asked, not what "
        "could be asked",
        "verdicts are those that judged_sessions was told to take, with the mistakes of whoever gave them",
        "private data is replaced by placeholders where a detector found it; no detector finds all of it",
    ]
    if inferred:
        limits.append(f"the tool schemas of {inferred:,} sessions are inferred from their calls: names and types, no descriptions")
    return Facts(
        title=f"{key} {asset}" if key else asset,
        description=f"{description} Made from the session traces of {named} by agent-pipeline.",
        license=license,
        task=task,
        counts=counts,
        sources=[f"{name}: {count:,} sessions{span}" for name, count in sorted(Counter(table["source"].to_pylist()).items())],
        filters=[*(f"{reason}: {count:,} sessions dropped" for reason, count in sorted(dropped.items())), *filters],
        limits=limits,
    )


Reader = Callable[[str], Iterator[dict[str, Any]]]
"""The rows of a split, as often as they are asked for."""


def write_folder(folder: Path, rows_of: Reader, schema: pa.Schema, facts: Facts) -> dict[str, int]:
    """Write the folder; the number of rows by split. A split without rows has no file and stands in the card with 0."""
    lines, tasks = [], set[str]()
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        tasks.clear()

        def noting(split: str = split) -> Iterator[dict[str, Any]]:
            for row in rows_of(split):
                tasks.add(row.get("task_key", ""))
                yield {name: row.get(name) for name in schema.names}

        name = _file(split)
        with pq.ParquetWriter(folder / name, schema, compression="zstd", compression_level=3) as writer:
            rows = 0
            for batch in to_batches(noting(), schema):
                rows += batch.num_rows
                writer.write_batch(batch)
        if not rows:
            (folder / name).unlink()
        lines.append((split, rows, len(tasks - {""}) if "task_key" in schema.names else "–"))
    (folder / "README.md").write_text(card(facts, lines), encoding="utf-8")
    return {split: rows for split, rows, _ in lines}


def put_folder(lake: Lake, key: PartitionKey | None, asset: str, rows_of: Reader, schema: pa.Schema, facts: Facts) -> Path | UPath:
    """Write the folder into the lake, at `huggingface/<asset>/project=<p>/agent=<a>`, or `huggingface/<asset>`; where it is.

    Each file appears whole, the card last; a file of an earlier one that this one lacks goes.
    """
    target = lake.root / "huggingface" / lake.jsonl(asset, key).relative_to(lake.root / "jsonl")
    if lake.is_local:
        Path(target.path).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".building-", dir=target.path if lake.is_local else None) as building:
        folder = Path(building)
        rows = write_folder(folder, rows_of, schema, facts)
        for path in [*sorted((folder / "data").iterdir()), folder / "README.md"]:
            place = target / path.relative_to(folder).as_posix()
            if lake.is_local:
                Path(place.parent.path).mkdir(exist_ok=True)
            sync(path)
            put_file(path, place)
    for split in SPLITS:
        if not rows[split] and (stale := target / _file(split)).exists():
            stale.unlink()
    return target


def _file(split: str) -> str:
    return f"data/{split}-00000-of-00001.parquet"


def card(facts: Facts, lines: Sequence[tuple[str, int, Any]]) -> str:
    """The card's text; `lines` are (split, rows, tasks).

    It names no data files: their names say the splits, and with a list of them `load_dataset` would keep its cache of a folder of the same
    name, another agent's or an older one's (datasets 5.2 hashes the list then, not the files).
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    rows = sum(line[1] for line in lines)
    data = DatasetCardData(
        license=facts.license,
        pretty_name=facts.title,
        task_categories=[facts.task],
        size_categories=[_size(rows)],
        tags=["agents", "tool-use"],
    )
    made = DatasetCard.from_template(
        data,
        template_str=_TEMPLATE,
        title=facts.title,
        description=facts.description,
        splits=lines,
        counts=_list(f"{name.replace('_', ' ')}: {count:,}" for name, count in sorted(facts.counts.items())),
        sources=_list(facts.sources),
        filters=_list(facts.filters),
        licence=_licence(facts.license),
        limits=_list(facts.limits),
    )
    return str(made)


def with_counts(card: str, split: str, rows: int, tasks: Any) -> str:
    """A card's text with other numbers of a split's rows and tasks."""
    return re.sub(rf"(?m)^\| {split} \| .*$", f"| {split} | {rows} | {tasks} |", card)


def push(folder: Path | UPath, repository: str, private: bool = True) -> str:
    """Put a folder on the Hugging Face hub, as the user that is logged in there; the address of the commit.

    Raises:
        ExportError: the hub cannot be reached, or does not let this user.
    """
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    hub = HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        with TemporaryDirectory(prefix="agent-pipeline-") as here:
            UPath(folder).fs.get(UPath(folder).path + "/", here, recursive=True)
            return str(hub.upload_folder(repo_id=repository, folder_path=here, repo_type="dataset", commit_message="Update the data set"))
    except (HTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(
            f"The data set cannot be pushed to {repository} ({reason}): log in with 'hf auth login', or leave push_to empty; the folder "
            "is complete where it is."
        ) from error


def _licence(license: str) -> str:
    if license == "other":
        return "None was named: the sessions belong to whoever owns the store that they were read from. Name one before sharing this."
    return f"`{license}`, as named by who made this data set."


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences) or "- none"


def _size(rows: int) -> str:
    """The hub's category of a number of rows."""
    for limit, name in ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M")):
        if rows < limit:
            return name
    return "1M<n<10M"
