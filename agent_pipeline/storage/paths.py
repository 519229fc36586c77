"""Where each thing lies under the lake's root."""

from collections.abc import Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from upath import UPath

from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.storage.filesystem import Filesystem


class LakeFile(NamedTuple):
    """A file of the lake: its kind (`tables`, `jsonl`, `models`, …), its asset and partition, and its name beneath that."""

    path: UPath
    kind: str
    asset: str
    key: PartitionKey | None
    name: str


class Paths:
    """The places of tables, JSONL files and models; `fs` reads and writes there."""

    def __init__(
        self, root: str | UPath, cache: Path | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.fs = Filesystem(root, cache, options)

    @property
    def root(self) -> UPath:
        return self.fs.root

    @property
    def is_local(self) -> bool:
        return self.fs.is_local

    def table(self, asset: str, key: PartitionKey | None) -> UPath:
        """The Parquet file of an asset's partition (`None`: the one file of an asset without partitions)."""
        return self.folder("tables", asset, key) / "part-0.parquet"

    def folder(self, kind: str, asset: str, key: PartitionKey | None) -> UPath:
        """The folder of an asset's partition in one of the lake's kinds."""
        folder = self.root / kind / quote(asset, safe="")
        return (
            folder
            if key is None
            else folder
            / f"project={quote(key.project, safe='')}"
            / f"agent={quote(key.agent, safe='')}"
        )

    def partitions(self, kind: str, asset: str) -> list[PartitionKey]:
        """The partitions that have a folder of an asset in one of the lake's kinds."""
        folder = self.folder(kind, asset, None)
        found = sorted(folder.fs.glob(f"{escape(folder.path)}/project=*/agent=*"))
        return [
            parse_key("/".join(unquote(part.partition("=")[2]) for part in path.split("/")[-2:]))
            for path in found
        ]

    def files(self, folder: UPath | None = None) -> Iterator[LakeFile]:
        """Every file under a folder of the lake, or under its root, in the order of their paths, those that are being written included."""
        for path in self.fs.files(folder or self.root):
            parts = [*path.relative_to(self.root).parts, ""]
            kind, asset = parts.pop(0), parts.pop(0)
            named = [
                part.partition("=")[2]
                for part in parts[:2]
                if part.startswith(("project=", "agent="))
            ]
            key = PartitionKey(*map(unquote, named)) if len(named) == 2 else None
            yield LakeFile(
                path, kind, unquote(asset), key, "/".join(parts[2 if key else 0 :]).strip("/")
            )
