"""Pruning: find model directories that nothing refers to any more, and delete them.

A partition keeps these artifacts:

- the artifacts that the pointers of each asset name;
- the exports of the last changes of the history, with the episodes that these exports played and
  the pages of the decisions that compared these episodes, for the last 10 decisions per export;
- the proofs of the recordings as they are now;
- every artifact that one of the kept artifacts was made from.

A run that needs another artifact makes it again. The folder that a killed run left is deleted after
a week, because the same run resumes from it until then. What is served and which sessions an
artifact was trained on do not belong here.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from urllib.parse import unquote

import msgspec

from agent_pipeline.errors import DamageError, DataError, name_asset_to_select
from agent_pipeline.evaluation.replay_proof import TAPE_PROOF, list_examined_tables
from agent_pipeline.governance.lineage import parents
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.episodes_in_force import (
    NO_WORLD,
    find_last_episodes,
    find_seen_episodes,
)
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.storage.artifacts import Deletion, Manifest, UnreadableArtifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.paths import LakeFile

UNFINISHED_DAYS = 7
"""Number of days during which a run can resume from the folder that a killed run left behind."""
_SECONDS_PER_DAY = 86_400


class Unnamed(msgspec.Struct, frozen=True):
    """An artifact, or the remains of an artifact, to which nothing refers.

    An artifact that was never finished, or whose deletion was killed, leaves a folder.

    Attributes:
        partition: Partition of the artifact.
        asset: Asset of the artifact.
        identity: Identity of the artifact.
        bytes: Number of bytes that the deletion frees, except for files that the serving folder
            links to.
    """

    partition: str
    asset: str
    identity: str
    bytes: int


class Pruned(msgspec.Struct, frozen=True):
    """The unused artifacts, and the number of artifacts that are kept.

    Attributes:
        unnamed: The artifacts that are no longer used.
        kept: Number of artifacts that are kept.
        deleted: Whether the artifacts that are no longer used were deleted.
    """

    unnamed: list[Unnamed]
    kept: int
    deleted: bool


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact in the lake, given by its manifest and the manifest's file."""

    file: LakeFile
    manifest: Manifest

    @property
    def identity(self) -> str:
        """Return the identity of the artifact."""
        return self.manifest["identity"]


class UnnamedArtifacts(msgspec.Struct, frozen=True):
    """The artifacts of a partition to which nothing refers.

    Attributes:
        artifacts: the artifacts whose manifest can be read, in the order in which they can be
            deleted.
        unreadable: the other artifacts.
    """

    artifacts: list[StoredArtifact]
    unreadable: list[UnreadableArtifact]

    @property
    def count(self) -> int:
        """Return the number of unused artifacts."""
        return len(self.artifacts) + len(self.unreadable)

    def describe(self, partition: PartitionKey) -> Iterator[Unnamed]:
        """Yield the information about each artifact for a report."""
        for stored in self.artifacts:
            size = sum(file["bytes"] for file in stored.manifest["files"].values())
            yield Unnamed(str(partition), stored.file.asset, stored.identity, size)
        for artifact in self.unreadable:
            yield Unnamed(str(partition), artifact.asset, artifact.name, artifact.bytes)


class PartitionArtifacts(msgspec.Struct, frozen=True):
    """All artifacts of a partition.

    Attributes:
        key: the partition.
        by_identity: the artifacts whose manifest can be read.
        unreadable: the other artifacts.
    """

    key: PartitionKey
    by_identity: dict[str, StoredArtifact]
    unreadable: list[UnreadableArtifact]


def prune(lake: Lake, keep: int, key: PartitionKey | None = None, delete: bool = False) -> Pruned:
    """Find unused artifacts in one or all partitions, and delete them if `delete` is set.

    A deletion that was killed is completed by the next call with `delete`.

    Args:
        lake: the lake.
        keep: how many exports of the history stay in addition to the champion and the latest: those
            of the last changes, so that they can be rolled back to or promoted.
        key: the partition; without one, every partition.
        delete: whether to delete; otherwise the lake stays as it is.

    Raises:
        DataError: a run is working on a partition from which something is to be deleted, or a log
            is damaged.
        DamageError: the manifest of an artifact that stays cannot be read, so what the artifact was
            made from is unknown.
    """
    unnamed = [*_interrupted_deletions(lake, key, delete), *_old_unfinished(lake, key, delete)]
    kept = 0
    for partition in _partitions(lake, key):
        stored = _read_partition(lake, partition)
        to_delete = _unnamed(lake, stored, keep)
        if delete and to_delete.count:
            with lake.run_of(partition):
                # Another run may have made artifacts after the first look. A person may promote
                # while the partition is held.
                stored = _read_partition(lake, partition)
                to_delete = lake.fs.in_turn(
                    lake.folder("models", EXPORT, partition) / "pointers",
                    partial(_start_deletions, lake, stored, keep),
                )
                for deletion in list(lake.find_deletions()):
                    if deletion.key == partition:
                        lake.complete_deletion(deletion)
        kept += len(stored.by_identity) - len(to_delete.artifacts)
        unnamed += to_delete.describe(partition)
    unnamed.sort(key=lambda item: (item.partition, item.asset, item.identity))
    return Pruned(unnamed, kept, delete)


def _partitions(lake: Lake, key: PartitionKey | None) -> list[PartitionKey]:
    """Return the partition `key`. Without a key, return all partitions that have model folders."""
    if key is not None:
        return [key]
    models = lake.root / "models"
    assets = [unquote(folder.name) for folder in models.iterdir()] if models.exists() else []
    return sorted({partition for asset in assets for partition in lake.partitions("models", asset)})


def _read_partition(lake: Lake, key: PartitionKey) -> PartitionArtifacts:
    """Read the manifests of all artifacts of a partition."""
    models = lake.root / "models"
    assets = [unquote(folder.name) for folder in models.iterdir()] if models.exists() else []
    files = [file for asset in assets for file in lake.files(lake.folder("models", asset, key))]
    artifacts = [StoredArtifact(file, manifest) for file, manifest in lake.manifests(files)]
    return PartitionArtifacts(
        key,
        {artifact.identity: artifact for artifact in artifacts},
        list(lake.find_unreadable(files)),
    )


def _interrupted_deletions(lake: Lake, key: PartitionKey | None, delete: bool) -> Iterator[Unnamed]:
    """Yield the remains of interrupted deletions, and delete them if `delete` is set."""
    for deletion in list(lake.find_deletions()):
        if key in (None, deletion.key):
            if delete:
                with lake.run_of(deletion.key):
                    lake.complete_deletion(deletion)
            yield _left_over(deletion)


def _left_over(deletion: Deletion) -> Unnamed:
    return Unnamed(str(deletion.key), deletion.asset, deletion.name, deletion.bytes)


def _old_unfinished(lake: Lake, key: PartitionKey | None, delete: bool) -> Iterator[Unnamed]:
    """Yield the folders that killed runs left behind, and delete them if `delete` is set.

    Folders that a run may still resume from are left out.
    """
    for folder in list(lake.unfinished()):
        asset, partition = lake.asset_and_key(folder)
        size = _size_if_old(folder)
        if size is None or key not in (None, partition):
            continue
        if delete:
            with lake.run_of(partition):
                if _size_if_old(folder) is None:  # a run resumed from it after the first look
                    continue
                lake.delete_unfinished(folder)
        yield Unnamed(str(partition), asset, folder.name, size)


def _size_if_old(folder: Path) -> int | None:
    """Return the size of an unfinished folder, or `None` if a run may still resume from it."""
    stats = [path.stat() for path in (folder, *folder.rglob("*")) if path.exists()]
    if not stats:
        return None
    age = time.time() - max(status.st_mtime for status in stats)
    return (
        sum(status.st_size for status in stats)
        if age > UNFINISHED_DAYS * _SECONDS_PER_DAY
        else None
    )


def _unnamed(lake: Lake, stored: PartitionArtifacts, keep: int) -> UnnamedArtifacts:
    """Return the artifacts to which nothing refers.

    Exports come first, because only an export can be promoted. Every other artifact comes before
    the artifacts that it was made from. If the deletion is killed, no export is left without its
    adapter or without its episodes, which may show harm.
    """
    named = _named(lake, stored, keep)
    unnamed = {name: item for name, item in stored.by_identity.items() if name not in named}
    parents_first = TopologicalSorter(
        {
            name: [parent for parent in parents(item.manifest) if parent in unnamed]
            for name, item in unnamed.items()
        }
    ).static_order()
    children_first = [unnamed[name] for name in reversed(list(parents_first))]
    return UnnamedArtifacts(
        sorted(children_first, key=lambda item: item.file.asset != EXPORT), stored.unreadable
    )


def _start_deletions(lake: Lake, stored: PartitionArtifacts, keep: int) -> UnnamedArtifacts:
    """Start the deletion of all artifacts to which nothing refers, and return the deletions.

    None of them can be promoted afterwards.
    """
    unnamed = _unnamed(lake, stored, keep)
    for stored_artifact in unnamed.artifacts:
        lake.start_deletion(stored_artifact.file.path.parent)
    for unreadable in unnamed.unreadable:
        lake.start_deletion(unreadable.path.parent)
    return unnamed


def _named(lake: Lake, stored: PartitionArtifacts, keep: int) -> set[str]:
    """Return the identities of the artifacts that must be kept.

    Pointers and history name them, or one of them was made from them.

    Raises:
        DamageError: the manifest of one of them cannot be read.
    """
    assets = {artifact.file.asset for artifact in stored.by_identity.values()}
    assets |= {artifact.asset for artifact in stored.unreadable}
    unreadable = {artifact.name: artifact for artifact in stored.unreadable}
    waiting = [name for asset in sorted(assets) for name in _roots(lake, stored.key, asset, keep)]
    waiting += _list_current_proofs(lake, stored)
    named: set[str] = set()
    pages: set[str] = set()
    while waiting:
        identity = waiting.pop()
        if identity in named:
            continue
        named.add(identity)
        if damaged := unreadable.get(identity[:16]):
            raise DamageError(
                f"{damaged.path} is {damaged.reason}, so the inputs of the {damaged.asset} "
                f"{damaged.name} of {damaged.key} are unknown, and nothing was deleted: restore "
                f"the file from a backup, or materialize `{name_asset_to_select(damaged.asset)}` "
                "again.",
                damaged.path,
            )
        if artifact := stored.by_identity.get(identity):
            waiting += parents(artifact.manifest)
            # The episodes of a champion, or of an export that may be champion again, tell whether
            # it is fit to act. The decisions' pages name the episodes that it played as the
            # champion. What else a page shows is not kept.
            if artifact.file.asset == EXPORT:
                if played := find_last_episodes(lake, stored.key, identity, NO_WORLD).played:
                    waiting.append(played.identity)
                seen = find_seen_episodes(lake, stored.key, identity, NO_WORLD)
                waiting += [last.played.identity for last in seen.episodes if last.played]
                pages.update(seen.pages)
    return named | pages


def _list_current_proofs(lake: Lake, stored: PartitionArtifacts) -> Iterator[str]:
    """Yield the identities of the proofs of today's recordings, which no pointer names.

    Without the proof, the champion loses the threshold for its writes, until somebody makes
    the proof again.
    If a table is damaged, every proof is kept.
    """
    proofs = [item for item in stored.by_identity.values() if item.file.asset == TAPE_PROOF]
    try:
        tables = list_examined_tables(lake, stored.key) if proofs else {}
    except DataError:
        yield from (proof.identity for proof in proofs)
        return
    for proof in proofs:
        if proof.manifest["made_from"].get("tables") == tables:
            yield proof.identity


def _roots(lake: Lake, key: PartitionKey, asset: str, keep: int) -> Iterator[str]:
    """Yield the identities of all artifacts to which an asset's pointers refer.

    For exports, yield also the identities of the last changes of the history.
    """
    pointers, history = lake.pointers(asset, key), lake.history(asset, key)
    now_named = {pointers.latest, pointers.champion, None}
    yield from (identity for identity in (pointers.latest, pointers.champion) if identity)
    if asset != EXPORT:
        return
    champions = [entry.champion for entry in reversed(history)]
    both = [name for entry in reversed(history) for name in (entry.champion, entry.latest)]
    # The champion before this one may lie many changes back, and a rollback needs it.
    for identities in (champions, both):
        earlier = [name for name in dict.fromkeys(identities) if name and name not in now_named]
        yield from earlier[:keep]
