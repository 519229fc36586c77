"""The dataset card of a Hugging Face folder, and pushing the folder to the hub."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
{% for line in splits %}| {{ line[0] }} | {{ line[1] }} | {{ line[2] }} |
{% endfor %}
A task is in one split, with all its trials, and stays there. Every row names its session, task and content hash where its format
has a place for them.
{% for heading, text in sections %}
## {{ heading }}

{{ text }}
{% endfor %}"""


class Publication(msgspec.Struct, kw_only=True):
    """How a data set is published: everything that its files depend on beside the lake's tables.

    `agents` are the partitions that the rows are from; a data set of several agents has no `partition` (`None`). `task` is a task category
    of the hub; `counts` and `filters` are shown by the card. `table_sha256` is the version of the table that the files were made from.
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
        return parse_key(self.partition) if self.partition else None

    @property
    def title(self) -> str:
        return f"{self.partition} {self.asset}" if self.partition else self.asset


def card(lake: Lake, publication: Publication, lines: Sequence[tuple[str, int, Any]]) -> str:
    """The card's text; `lines` are (split, rows, tasks).

    Sources, drop reasons and limits are those of the curated sessions, which every row is from. The card names no data files: their names
    say the splits, and with a list of them `load_dataset` would keep its cache of another folder of the same name (datasets 5.2 hashes the
    list, not the files).

    Raises:
        DataError: there are no curated sessions.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    columns = ["source", "tools_origin", "drop_reason", "created_at"]
    table = pa.concat_tables(
        lake.open("curated_sessions", parse_key(each)).read(columns) for each in publication.agents
    )
    dropped = Counter(table["drop_reason"].drop_null().to_pylist())
    times = sorted(time for time in table["created_at"].to_pylist() if time is not None)
    span = f", from {times[0]:%Y-%m-%d} to {times[-1]:%Y-%m-%d}" if times else ""
    agents = publication.agents
    data = DatasetCardData(
        license=publication.license,
        pretty_name=publication.title,
        task_categories=[publication.task],
        size_categories=[_size(sum(line[1] for line in lines))],
        tags=["agents", "tool-use"],
    )
    named = f"the agent{'s' if len(agents) > 1 else ''} {', '.join(f'`{each}`' for each in agents)}"
    sections = {
        "Counts": [
            f"{name.replace('_', ' ')}: {count:,}"
            for name, count in sorted(publication.counts.items())
        ],
        "Sources": [
            f"{name}: {count:,} sessions{span}"
            for name, count in sorted(Counter(table["source"].to_pylist()).items())
        ],
        "Filters": [
            *(f"{reason}: {count:,} sessions dropped" for reason, count in sorted(dropped.items())),
            *publication.filters,
        ],
        "Known limits": _limits(len(agents), table["tools_origin"].to_pylist().count("inferred")),
    }
    texts = {
        heading: "\n".join(f"- {sentence}" for sentence in sentences) or "- none"
        for heading, sentences in sections.items()
    }
    return str(
        DatasetCard.from_template(
            data,
            template_str=_TEMPLATE,
            title=publication.title,
            description=f"{publication.description} Made from the session traces of {named} by agent-pipeline.",
            splits=lines,
            sections=[*texts.items(), ("Licence", _licence(publication.license))],
        )
    )


def _limits(agents: int, inferred: int) -> list[str]:
    limits = [
        f"sessions of {'one agent on its' if agents == 1 else 'these agents on their'} own tasks: they show what was asked, not what "
        "could be asked",
        "verdicts are those that judged_sessions was configured to take, with the mistakes of whoever gave them",
        "private data is replaced by placeholders where a detector found it; no detector finds all of it",
    ]
    if inferred:
        limits.append(
            f"the tool schemas of {inferred:,} sessions are inferred from their calls: names and types, no descriptions"
        )
    return limits


def _licence(license: str) -> str:
    if license == "other":
        return "None was named: the sessions belong to the owner of the store that they were read from. Name one before sharing this."
    return f"`{license}`, as named by the maker of this data set."


def _size(rows: int) -> str:
    """The hub's category of a number of rows."""
    for limit, name in (
        (1000, "n<1K"),
        (10_000, "1K<n<10K"),
        (100_000, "10K<n<100K"),
        (1_000_000, "100K<n<1M"),
    ):
        if rows < limit:
            return name
    return "1M<n<10M"


def push(folder: UPath, repository: str, private: bool = True) -> str:
    """Upload a folder to the Hugging Face hub, as the user who is logged in there; the address of the commit.

    Raises:
        ExportError: the hub cannot be reached, or refuses.
    """
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    hub = HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        with TemporaryDirectory(prefix="agent-pipeline-") as here:
            for file in folder.fs.find(
                folder.path
            ):  # `get` would read the folder's name as a pattern
                copy = Path(here + file[len(folder.path.rstrip("/")) :])
                copy.parent.mkdir(parents=True, exist_ok=True)
                folder.fs.get_file(file, str(copy))
            return str(
                hub.upload_folder(
                    repo_id=repository,
                    folder_path=here,
                    repo_type="dataset",
                    commit_message="Update the data set",
                )
            )
    except (HTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ExportError(
            f"The data set cannot be pushed to {repository} ({first_line(error)}): log in with 'hf auth login', or leave push_to "
            "empty; the folder is complete where it is."
        ) from error
