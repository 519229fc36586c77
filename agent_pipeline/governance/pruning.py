"""Which model directories nothing names any more, and their deletion.

Kept of a partition: what the pointers of each asset name, the exports of the history's last changes with the episodes that they played, and
every artifact that one of these was made from. Everything else only costs disk: a night that needs it makes it again. So does what a killed
run left half made, once it is a week old: until then, the same run goes on from it.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from agent_pipeline.governance.lineage import parents
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import own_episodes
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.storage.lake import Lake, remove
from agent_pipeline.storage.paths import LakeFile

Found = dict[str, tuple[LakeFile, dict[str, Any]]]
UNFINISHED_DAYS = 7
"""How long what a killed run left can still be gone on with."""


class Unnamed(msgspec.Struct, frozen=True):
    """An artifact that nothing names, or what is left of one that was never finished. Its files' `bytes` are what its deletion frees, but
    for those that `serving` links to."""

    partition: str
    asset: str
    identity: str
    bytes: int


class Pruned(msgspec.Struct, frozen=True):
    """What nothing names, by partition and asset, and how many artifacts are kept; `deleted` is whether the former are gone."""

    unnamed: list[Unnamed]
    kept: int
    deleted: bool


def prune(lake: Lake, keep: int, key: PartitionKey | None = None, delete: bool = False) -> Pruned:
    """Find what nothing names, of one partition or of all, and delete it if `delete` is set.

    `keep` is how many exports of the history stay beside the champion and the latest: those of its last changes, so that they can be rolled
    back to or promoted.

    Raises:
        DataError: a run is working on a partition from which something is to be deleted.
    """
    unnamed, kept = [], 0
    for partition, found in sorted(_artifacts(lake, key).items()):
        gone = _unnamed(lake, partition, found, keep)
        if delete and gone:
            with lake.run_of(partition):
                # A run may have made, since it was listed, what names some of it; and people promote while no run goes on.
                found = _artifacts(lake, partition)[partition]
                gone = lake.fs.in_turn(
                    lake.folder("models", EXPORT, partition) / "pointers",
                    partial(_take, lake, partition, found, keep),
                )
                for file, manifest in gone:
                    _delete(lake, file, manifest)
        kept += len(found) - len(gone)
        unnamed += [
            Unnamed(
                str(partition),
                file.asset,
                manifest["identity"],
                sum(each["bytes"] for each in manifest["files"].values()),
            )
            for file, manifest in gone
        ]
    for folder in lake.unfinished():
        asset, *names = (unquote(part.partition("=")[2] or part) for part in folder.parts[-4:-1])
        size = _left(folder)
        if size is not None and key in (None, partition := PartitionKey(*names)):
            if delete:
                with lake.run_of(partition):
                    if _left(folder) is None:  # a run went on from it meanwhile
                        continue
                    shutil.rmtree(folder)
            unnamed.append(Unnamed(str(partition), asset, folder.name, size))
    return Pruned(
        sorted(unnamed, key=lambda each: (each.partition, each.asset, each.identity)), kept, delete
    )


def _artifacts(lake: Lake, key: PartitionKey | None) -> defaultdict[PartitionKey, Found]:
    """Every finished artifact by its identity, of one partition or of all."""
    models, artifacts = lake.root / "models", defaultdict[PartitionKey, Found](dict)
    assets = [unquote(each.name) for each in models.iterdir()] if models.exists() else []
    folders = [lake.folder("models", asset, key) for asset in assets]
    for file, manifest in lake.manifests(file for folder in folders for file in lake.files(folder)):
        if file.key is not None:
            artifacts[file.key][manifest["identity"]] = (file, manifest)
    return artifacts


def _left(folder: Path) -> int | None:
    """The bytes of what a killed run left, where no run will go on from it."""
    stats = [path.stat() for path in (folder, *folder.rglob("*")) if path.exists()]
    is_old = stats and time.time() - max(each.st_mtime for each in stats) > UNFINISHED_DAYS * 86_400
    return sum(each.st_size for each in stats) if is_old else None


def _unnamed(
    lake: Lake, key: PartitionKey, found: Found, keep: int
) -> list[tuple[LakeFile, dict[str, Any]]]:
    stays = _named(lake, key, found, keep)
    return [found[identity] for identity in found if identity not in stays]


def _take(
    lake: Lake, key: PartitionKey, found: Found, keep: int
) -> list[tuple[LakeFile, dict[str, Any]]]:
    """Make what nothing names no artifact any more: a directory without a manifest is none, and cannot be promoted."""
    gone = _unnamed(lake, key, found, keep)
    for file, _ in gone:
        remove(file.path)
    return gone


def _named(lake: Lake, key: PartitionKey, found: Found, keep: int) -> set[str]:
    """The identities that stay: what pointers and history name, and all that those were made from."""
    waiting = [
        identity
        for asset in {file.asset for file, _ in found.values()}
        for identity in _roots(lake, key, asset, keep)
    ]
    stays: set[str] = set()
    while waiting:
        if (identity := waiting.pop()) in stays:
            continue
        stays.add(identity)
        if identity in found:
            file, manifest = found[identity]
            waiting += parents(manifest)
            # What a champion, or one that may be champion again, played says whether it is fit to act.
            played = own_episodes(lake, key, identity) if file.asset == EXPORT else None
            waiting += [played.identity] if played else []
    return stays


def _roots(lake: Lake, key: PartitionKey, asset: str, keep: int) -> Iterator[str]:
    now, history = lake.pointers(asset, key), lake.history(asset, key)
    yield from filter(None, (now.latest, now.champion))
    if asset == EXPORT:
        # The champion before this one may lie many nights back, and is what a rollback goes to.
        for named in (("champion",), ("champion", "latest")):
            earlier = dict.fromkeys(
                getattr(entry, name) for entry in reversed(history) for name in named
            )
            yield from [each for each in earlier if each not in (None, now.latest, now.champion)][
                :keep
            ]


def _delete(lake: Lake, file: LakeFile, manifest: dict[str, Any]) -> None:
    folder = file.path.parent
    for name in manifest["files"]:
        remove(folder / name)
    lake.drop_copy(file, manifest["identity"])
    if lake.is_local:
        shutil.rmtree(lake.fs.local(folder), ignore_errors=True)
