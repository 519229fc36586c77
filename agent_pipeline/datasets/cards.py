"""The dataset card of a Hugging Face folder, and the upload of the folder to the hub.

The files of the folder belong to `publishing`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import pyarrow as pa
from upath import UPath

from agent_pipeline.datasets.formats import Format
from agent_pipeline.errors import ExportError, first_line
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.storage.lake import Lake

_TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

{{ description }}

| split | rows | tasks |
|---|---:|---:|
{% for line in splits %}| {{ line.split }} | {{ line.rows }} | {{ line.tasks }} |
{% endfor %}
All sessions of a task are in the same split, which never changes. If the format has fields for \
them, every row contains the ids of its session and task, and a hash of its content.
{% for heading, text in sections %}
## {{ heading }}

{{ text }}
{% endfor %}"""


class Publication(msgspec.Struct, kw_only=True):
    """A record of how a dataset is published, with all facts on which its files depend.

    Attributes:
        asset: The dataset's asset.
        partition: The dataset's partition. `None` means a dataset of several agents.
        agents: The partitions that the rows come from.
        description: A sentence for the card that describes a row.
        task: A task category of the Hugging Face hub.
        jsonl: Whether JSONL files are written.
        huggingface: Whether a Hugging Face folder is written.
        format: The form of the rows in the files.
        license: The license that the card names.
        counts: Counts for the card, by name.
        filters: Sentences for the card about rows that were left out.
        table_sha256: The version of the table that the files were made from.
    """

    asset: str
    partition: str | None
    agents: list[str]
    description: str
    task: str
    jsonl: bool = True
    huggingface: bool = False
    format: Format = "conversational"
    license: str = "other"
    counts: dict[str, int] = {}
    filters: list[str] = []
    table_sha256: str = ""

    @property
    def key(self) -> PartitionKey | None:
        """Return the partition key of the dataset, or None."""
        return parse_key(self.partition) if self.partition else None

    @property
    def title(self) -> str:
        """Return the title of the dataset card."""
        return f"{self.partition} {self.asset}" if self.partition else self.asset


@dataclass(frozen=True)
class SplitLine:
    """A line in the dataset card's table of splits.

    `tasks` is a dash if the form has no task column.
    """

    split: str
    rows: int
    tasks: int | Literal["–"]


def render_card(lake: Lake, publication: Publication, split_lines: Sequence[SplitLine]) -> str:
    """Return the text of a dataset card.

    Sources, drop reasons and limits come from the curated sessions of the rows. The card does not
    list data files, because their names already show the splits. With such a list, `load_dataset`
    could use the cache of another folder with the same name (datasets 5.2 hashes the list, not the
    files).

    Args:
        lake: The lake that has the curated sessions.
        publication: The record of how the dataset is published.
        split_lines: The lines of the table of splits.

    Raises:
        DataError: The lake has no curated sessions of one of the agents.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    row_count = sum(line.rows for line in split_lines)
    card_data = DatasetCardData(
        license=publication.license,
        pretty_name=publication.title,
        task_categories=[publication.task],
        size_categories=[_find_size_category(row_count)],
        tags=["agents", "tool-use"],
    )
    agents = ", ".join(f"`{agent}`" for agent in publication.agents)
    named_agents = f"the agent{'s' if len(publication.agents) > 1 else ''} {agents}"
    return str(
        DatasetCard.from_template(
            card_data,
            template_str=_TEMPLATE,
            title=publication.title,
            description=f"{publication.description} Made from the session traces of "
            f"{named_agents} by agent-pipeline.",
            splits=split_lines,
            sections=_write_sections(lake, publication),
        )
    )


def _write_sections(lake: Lake, publication: Publication) -> list[tuple[str, str]]:
    """Return the headings and texts of the card sections that follow the table of splits."""
    columns = ["source", "tools_origin", "drop_reason", "created_at"]
    sessions = pa.concat_tables(
        lake.open("curated_sessions", parse_key(agent)).read(columns)
        for agent in publication.agents
    )
    dropped = Counter(sessions["drop_reason"].drop_null().to_pylist())
    sources = Counter(sessions["source"].to_pylist())
    times = sorted(sessions["created_at"].drop_null().to_pylist())
    span = f", from {times[0]:%Y-%m-%d} to {times[-1]:%Y-%m-%d}" if times else ""
    inferred_count = sessions["tools_origin"].to_pylist().count("inferred")
    sentences = {
        "Counts": [
            f"{name.replace('_', ' ')}: {count:,}"
            for name, count in sorted(publication.counts.items())
        ],
        "Sources": [
            f"{source}: {count:,} sessions{span}" for source, count in sorted(sources.items())
        ],
        "Filters": [
            f"{reason}: {count:,} sessions dropped" for reason, count in sorted(dropped.items())
        ]
        + publication.filters,
        "Known limits": _list_limits(len(publication.agents), inferred_count),
    }
    sections = []
    for heading, lines in sentences.items():
        sections.append((heading, "\n".join(f"- {line}" for line in lines) or "- none"))
    return [*sections, ("Licence", _describe_licence(publication.license))]


def _list_limits(agent_count: int, inferred_count: int) -> list[str]:
    agents = "one agent on its" if agent_count == 1 else "these agents on their"
    limits = [
        f"the rows are sessions of {agents} own tasks, so other tasks are not covered",
        "verdicts come from the judges in the setting decided_by, and may be wrong",
        "private data is replaced by placeholders if a detector found it; no detector finds all "
        "private data",
    ]
    if inferred_count:
        limits.append(
            f"the tool schemas of {inferred_count:,} sessions are inferred from their calls, "
            "so they have names and types, but no descriptions"
        )
    return limits


def _describe_licence(license_name: str) -> str:
    if license_name == "other":
        return (
            "No license was set. The sessions belong to the owner of the store from which they "
            "were read. Set a license before you share the dataset."
        )
    return f"`{license_name}`, as named by the maker of this data set."


def _find_size_category(row_count: int) -> str:
    """Return the Hugging Face hub's size category for a number of rows."""
    categories = {
        1000: "n<1K",
        10_000: "1K<n<10K",
        100_000: "10K<n<100K",
        1_000_000: "100K<n<1M",
    }
    for limit, category in categories.items():
        if row_count < limit:
            return category
    return "1M<n<10M"


def push_folder(folder: UPath, repository: str, private: bool = True) -> str:
    """Upload a folder to the Hugging Face hub.

    The upload uses the account that is logged in on this machine.

    Args:
        folder: The folder in the lake.
        repository: The dataset on the hub, `owner/name`. It is created if it does not exist.
        private: Whether a dataset that is created is private.

    Returns:
        The URL of the commit.

    Raises:
        ExportError: The hub cannot be reached, or refuses the upload.
    """
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    hub = HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        with TemporaryDirectory(prefix="agent-pipeline-") as local_folder:
            _download_folder(folder, Path(local_folder))
            return str(
                hub.upload_folder(
                    repo_id=repository,
                    folder_path=local_folder,
                    repo_type="dataset",
                    commit_message="Update the data set",
                )
            )
    except (HTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ExportError(
            f"The data set cannot be pushed to {repository} ({first_line(error)}): log in with "
            "`hf auth login`, or leave `push_to` empty. The local folder is complete."
        ) from error


def _download_folder(folder: UPath, target: Path) -> None:
    """Copy all files of a folder of the lake.

    `get` of fsspec is not used, because it would read the folder's name as a pattern.
    """
    for file in folder.fs.find(folder.path):
        copy = target / file[len(folder.path.rstrip("/")) :].lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        folder.fs.get_file(file, str(copy))
