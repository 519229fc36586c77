"""Paths of all files under the root of the lake.

Reading and writing files does not belong here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from urllib.parse import quote, unquote

from upath import UPath

from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.storage.filesystem import Filesystem

_PARTITION_FOLDERS = ("project=", "agent=")
"""Prefixes of the names of a partition's two folders."""


@dataclass(frozen=True)
class LakeFile:
    """A file of the lake, with the parts of its path.

    Attributes:
        path: the path of the file.
        kind: the folder under the root that holds the file (`tables`, `jsonl`, `models`, …).
        asset: the asset of the file.
        key: the partition of the file, or `None` if the asset has no partitions.
        name: the path of the file beneath the folder of its asset and partition.
    """

    path: UPath
    kind: str
    asset: str
    key: PartitionKey | None
    name: str


class Paths:
    """The paths of tables, JSONL files and models.

    `fs` reads and writes the files.

    Args:
        root: a folder, or a URL for fsspec.
        cache: the local folder for copies of files of a bucket.
        options: options for fsspec.
    """

    def __init__(
        self,
        root: str | UPath,
        cache: Path | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.fs = Filesystem(root, cache, options)

    @property
    def root(self) -> UPath:
        """Return the root of the lake, which is a folder or a bucket."""
        return self.fs.root

    @property
    def is_local(self) -> bool:
        """True if the lake is a folder on this machine."""
        return self.fs.is_local

    def table(self, asset: str, key: PartitionKey | None) -> UPath:
        """Return the path of the Parquet file of an asset's partition.

        `key` is `None` for an asset without partitions.
        """
        return self.folder("tables", asset, key) / "part-0.parquet"

    def folder(self, kind: str, asset: str, key: PartitionKey | None) -> UPath:
        """Return the folder of an asset's partition for one kind of lake file.

        If `key` is `None`, the folder of the asset is returned.
        """
        folder = self.root / kind / quote(asset, safe="")
        if key is None:
            return folder
        return (
            folder / f"project={quote(key.project, safe='')}" / f"agent={quote(key.agent, safe='')}"
        )

    def partitions(self, kind: str, asset: str) -> list[PartitionKey]:
        """Return the partitions of an asset that have a folder for one kind of lake file."""
        folder = self.folder(kind, asset, None)
        paths = sorted(folder.fs.glob(f"{escape(folder.path)}/project=*/agent=*"))
        return [_parse_folders(path) for path in paths]

    def files(self, folder: UPath | None = None) -> Iterator[LakeFile]:
        """Yield every file under a folder of the lake, ordered by path.

        If `folder` is `None`, every file of the lake is yielded. Files that are being written are
        included.
        """
        for path in self.fs.files(folder or self.root):
            parts = [*path.relative_to(self.root).parts, ""]
            kind, asset, *rest = parts
            named = [
                part.partition("=")[2] for part in rest[:2] if part.startswith(_PARTITION_FOLDERS)
            ]
            key = PartitionKey(*map(unquote, named)) if len(named) == 2 else None
            name = "/".join(rest[2 if key else 0 :]).strip("/")
            yield LakeFile(path, kind, unquote(asset), key, name)


def _parse_folders(path: str) -> PartitionKey:
    """Return the partition that the last two folders of a path represent."""
    folders = path.split("/")[-2:]
    return parse_key("/".join(unquote(folder.partition("=")[2]) for folder in folders))
