"""Model directories: built beside their place, renamed when they are complete, and known by the identity in their manifest."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from filelock import FileLock
from upath import UPath

from agent_pipeline.errors import DamageError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.filesystem import (
    Filesystem,
    put_file,
    remove,
    sha256_file,
    sha256_files,
)
from agent_pipeline.storage.paths import LakeFile, Paths
from agent_pipeline.storage.roots import LOCAL

MANIFEST = "manifest.json"
CHECKSUM = "manifest_sha256"
_AT_ONCE = 100
_DELETING = ".deleting-"
"""What the name of a model directory that is being deleted begins with, or of a marker next to one in a bucket."""
_FOLDER_NAME = re.compile(r"[0-9a-f]{16}")
"""The name of an artifact's directory, which is the beginning of the artifact's identity."""


@dataclass(frozen=True)
class Artifact:
    """A model directory that is complete: `path` on this machine, `manifest` as written."""

    asset: str
    key: PartitionKey
    identity: str
    path: Path
    manifest: dict[str, Any]

    def read(self, name: str) -> bytes:
        """Return the content of a file of the artifact.

        Raises:
            FileNotFoundError: the artifact has no such file.
            DamageError: the sha256 of the file does not match the manifest.
        """
        path, recorded = self.path / name, self.manifest["files"].get(name)
        if recorded is None:
            raise FileNotFoundError(path)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != recorded["sha256"]:
            raise self.damage([name])
        return content

    def damage(self, names: Sequence[str]) -> DamageError:
        """Return the error that these files of the artifact are damaged."""
        return DamageError(
            f"The {self.asset} {self.identity[:16]} of {self.key} is damaged: the sha256 of {', '.join(names)} in {self.path} does not "
            f"match its manifest. Put a copy back, or materialize {self.asset} again.",
            self.path / names[0],
        )

    @property
    def reference(self) -> dict[str, str]:
        """What names it to another process."""
        return {"asset": self.asset, "identity": self.identity}

    @property
    def passed(self) -> bool:
        """Whether it passed its own check; one that failed is never reused, and is never its partition's latest or champion."""
        return passed(self.manifest)


@dataclass(frozen=True)
class Deletion:
    """A model directory whose deletion has begun. A kill may have ended the process that deletes it.

    Attributes:
        asset: the asset of the directory.
        key: the partition of the directory.
        name: the name that the directory had.
        path: what is left of the directory on this machine; the marker of the deletion in a bucket.
        bytes: the size of what is left.
    """

    asset: str
    key: PartitionKey
    name: str
    path: UPath
    bytes: int


@dataclass(frozen=True)
class UnreadableArtifact:
    """A directory of an artifact whose manifest cannot be read.

    Attributes:
        asset: the asset of the directory.
        key: the partition of the directory.
        name: the name of the directory, which is the beginning of the artifact's identity.
        path: the path of the manifest.
        bytes: the size of the directory's files.
        is_missing: whether the manifest is missing; otherwise it is damaged, or of another artifact.
    """

    asset: str
    key: PartitionKey
    name: str
    path: UPath
    bytes: int
    is_missing: bool

    @property
    def reason(self) -> str:
        """What is wrong with the manifest, in words."""
        return "missing" if self.is_missing else "damaged"


class Artifacts(Paths):
    def artifact_folder(self, asset: str, key: PartitionKey, identity: str) -> UPath:
        return self.folder("models", asset, key) / identity[:16]

    def building(self, asset: str, key: PartitionKey, identity: str) -> Path:
        """The local folder in which an artifact is built. It survives a kill, so that the next run can resume from it."""
        path = self.fs.local(self.folder("models", asset, key)) / f".building-{identity[:16]}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def unfinished(self) -> Iterator[Path]:
        """The local folders of artifacts that are being built, or whose building was killed."""
        models = self.fs.local(self.root / "models")
        yield from sorted(path for path in models.glob("*/*/*/.building-*") if path.is_dir())

    def finish(
        self,
        asset: str,
        key: PartitionKey,
        identity: str,
        building: Path,
        made_from: dict[str, Any],
        report: dict[str, Any],
        tables: Mapping[str, str] | None = None,
        parents: Sequence[str] = (),
        passed: bool = True,
        fresh: str = "",
    ) -> Artifact:
        """Write the manifest and rename the directory into place.

        The manifest names each file's sha256 and size, what the artifact was made from, the versions of the tables, the identities of
        the artifacts that it was made from (`parents`), the code, whether it passed its own check, and which run asked for it to be made
        anew (`fresh`).
        """
        files = sorted(
            path for path in building.rglob("*") if path.is_file() and path.name != MANIFEST
        )
        manifest: dict[str, Any] = {
            "asset": asset,
            "partition": str(key),
            "identity": identity,
            "made_from": made_from,
            "parents": list(parents),
            "tables": dict(tables or {}),
            "made_by": code_version(),
            "passed": passed,
            "fresh": fresh,
            "report": report,
            "files": {
                path.relative_to(building).as_posix(): {
                    "sha256": sha256_file(path),
                    "bytes": path.stat().st_size,
                }
                for path in files
            },
        }
        manifest = with_checksum(manifest)
        (building / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")
        final = building.with_name(identity[:16])
        with _renaming(final):
            replaced = _set_aside(final) if final.exists() else None
            building.replace(final)
            if replaced:
                shutil.rmtree(replaced)
        if not self.fs.is_local:
            remote = self.artifact_folder(asset, key, identity)
            for name in [*manifest["files"], MANIFEST]:
                put_file(final / name, remote / name, move=False)
        return Artifact(asset, key, identity, final, manifest)

    def find(self, asset: str, key: PartitionKey, identity: str) -> Artifact | None:
        """The artifact with this identity, if it passed its check and each file has the size that its manifest says."""
        folder = self.artifact_folder(asset, key, identity)
        manifest = read_manifest(folder / MANIFEST)
        if manifest is None or manifest["identity"] != identity or not passed(manifest):
            return None
        if not self.fs.is_local:
            self._fetch(folder, manifest)
        if not all(
            _is_whole(self.fs.local(folder / name), file)
            for name, file in manifest["files"].items()
        ):
            return None
        return Artifact(asset, key, identity, self.fs.local(folder), manifest)

    def find_undamaged(self, asset: str, key: PartitionKey, identity: str) -> Artifact | None:
        """Return the artifact with this identity, or `None` if it was deleted or failed its check.

        `find` also returns `None` for a damaged artifact. A decision must not be made as if a damaged artifact had never existed.

        Raises:
            DamageError: the manifest is damaged or missing, or a file is missing or has another size.
        """
        if artifact := self.find(asset, key, identity):
            return artifact
        folder = self.artifact_folder(asset, key, identity)
        manifest = read_manifest(folder / MANIFEST)
        is_sound = manifest is not None and manifest["identity"] == identity
        if is_sound and not passed(manifest or {}):
            return None
        if not self.fs.files(folder) or (folder.parent / f"{_DELETING}{folder.name}").exists():
            return None
        what = "a file of it is missing or cut off" if is_sound else "its manifest cannot be read"
        raise DamageError(
            f"The {asset} {identity[:16]} of {key} in {folder} is damaged ({what}): put a copy back, or materialize {asset} again.",
            folder,
        )

    def damaged_files(self, artifact: Artifact) -> list[str]:
        """Return the names of an artifact's files whose sha256 does not match the manifest. `find` compares their sizes only."""
        files = artifact.manifest["files"].items()
        return [
            name
            for name, file in files
            if not _is_whole(artifact.path / name, file)
            or sha256_file(artifact.path / name) != file["sha256"]
        ]

    def verified(self, artifact: Artifact) -> Artifact:
        """Return an artifact whose files all match their sha256. It is read before it is promoted, served, exported or trained on.

        A damaged copy of an artifact in a bucket is fetched again.

        Raises:
            DamageError: a file is damaged.
        """
        damaged = self.damaged_files(artifact)
        if damaged and not self.fs.is_local:
            for name in damaged:
                (artifact.path / name).unlink(missing_ok=True)
            fetched = self.find(artifact.asset, artifact.key, artifact.identity)
            damaged = self.damaged_files(fetched) if fetched else damaged
        if damaged:
            raise artifact.damage(damaged)
        return artifact

    def _fetch(self, folder: UPath, manifest: dict[str, Any]) -> None:
        """Bring this machine's copy of a remote artifact up to date.

        Another machine may have made the artifact anew, with files of the same sizes, so the copy has its own manifest. A file that is not
        the manifest's (two machines made the artifact at once, or one makes it anew now) does not stay.
        """
        copy = self.fs.local(folder)
        before = (read_manifest(UPath(copy / MANIFEST)) or {"files": {}})["files"]
        stale = [
            name
            for name, file in manifest["files"].items()
            if before.get(name) != file or not _is_whole(copy / name, file)
        ]
        for name in stale:
            with suppress(FileNotFoundError):
                if sha256_file(self.fs.fetch(folder / name)) != manifest["files"][name]["sha256"]:
                    (copy / name).unlink()
        if stale:
            copy.mkdir(parents=True, exist_ok=True)
            (copy / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")

    def finished(self, asset: str, key: PartitionKey) -> list[Artifact]:
        """The complete artifacts of a partition, in the order of their identities."""
        manifests = self.manifests(self.files(self.folder("models", asset, key)))
        return [
            artifact
            for _, manifest in manifests
            if (artifact := self.find(asset, key, manifest["identity"]))
        ]

    def drop_copy(self, file: LakeFile, identity: str) -> None:
        """Remove this machine's copy of a remote artifact, of which `file` is one: the next `find` fetches it again."""
        if not self.fs.is_local and file.key is not None:
            shutil.rmtree(
                self.fs.local(self.artifact_folder(file.asset, file.key, identity)),
                ignore_errors=True,
            )

    def start_deletion(self, folder: UPath) -> None:
        """Make a model directory no artifact any more, in one step. `complete_deletion` deletes what it holds.

        If the process is killed before `complete_deletion` has ended, `deletions` finds the rest.
        """
        if self.is_local:
            with _renaming(Path(folder.path)):
                _set_aside(Path(folder.path))
        else:
            self.fs.write(folder.parent / f"{_DELETING}{folder.name}", b"")
            remove(folder / MANIFEST)

    def delete_unfinished(self, folder: Path) -> None:
        """Delete a local folder that `unfinished` found. A run does not resume from it, even if the process is killed meanwhile."""
        with _renaming(folder):
            shutil.rmtree(_set_aside(folder))

    def complete_deletion(self, deletion: Deletion) -> None:
        """Delete what is left of a model directory. The caller holds the partition.

        If the marker was written and the manifest was not removed, the artifact stays.
        """
        if deletion.path.protocol in LOCAL:
            aside = Path(deletion.path.path)
            with _renaming(aside):
                if aside.exists():
                    _complete_replacement(aside.with_name(deletion.name))
                    shutil.rmtree(aside)
            return
        folder = deletion.path.parent / deletion.name
        if not (folder / MANIFEST).exists():
            for path in self.fs.files(folder):
                remove(path)
            shutil.rmtree(self.fs.local(folder), ignore_errors=True)
        remove(deletion.path)

    def deletions(self) -> Iterator[Deletion]:
        """Yield the deletions that have begun and were not completed, in the lake and among the copies on this machine."""
        models = self.root / "models"
        for path in sorted(self.fs.local(models).glob(f"*/*/*/{_DELETING}*")):
            if path.is_dir():
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                yield self._deletion(UPath(path), size)
        if not self.is_local:
            for path in self.fs.files(models):
                if path.name.startswith(_DELETING):
                    left = self.fs.files(path.parent / path.name.removeprefix(_DELETING))
                    yield self._deletion(path, sum(file.stat().st_size for file in left))

    def _deletion(self, path: UPath, size: int) -> Deletion:
        asset, key = self.asset_and_key(path)
        return Deletion(asset, key, path.name.removeprefix(_DELETING), path, size)

    def asset_and_key(self, folder: Path | UPath) -> tuple[str, PartitionKey]:
        """Return the asset and the partition of a model directory, which its path names."""
        asset, project, agent = folder.parts[-4:-1]
        key = PartitionKey(*(unquote(part.partition("=")[2]) for part in (project, agent)))
        return unquote(asset), key

    def manifests(
        self, files: Iterable[LakeFile] | None = None
    ) -> Iterator[tuple[LakeFile, dict[str, Any]]]:
        """Yield the manifest of every finished artifact of every partition, or of those among `files`.

        The manifests of a bucket are fetched many at once. Manifests that cannot be read are skipped; `unreadable` yields them.
        """
        for file, manifest in self._read_manifests(self.files() if files is None else files):
            if manifest is not None:
                yield file, manifest

    def unreadable(self, files: Iterable[LakeFile]) -> Iterator[UnreadableArtifact]:
        """Yield the artifacts among `files` whose manifest is missing or damaged."""
        files = list(files)
        deleting = {file.path for file in files if file.path.name.startswith(_DELETING)}
        folders: dict[UPath, LakeFile] = {}
        for file in files:
            name = file.name.partition("/")[0]
            if file.kind == "models" and file.key and _FOLDER_NAME.fullmatch(name):
                folder = self.folder("models", file.asset, file.key) / name
                if folder.parent / f"{_DELETING}{name}" not in deleting:
                    folders[folder] = file
        for file, manifest in self._read_manifests(files):
            folders.pop(file.path.parent, None)
            if manifest is None and file.key and file.path.exists():
                yield self._unreadable(file, file.path, is_missing=False)
        for folder, file in folders.items():
            yield self._unreadable(file, folder / MANIFEST, is_missing=True)

    def _unreadable(self, file: LakeFile, manifest: UPath, is_missing: bool) -> UnreadableArtifact:
        assert file.key is not None, "models have partitions"
        folder = manifest.parent
        size = sum(path.stat().st_size for path in self.fs.files(folder))
        return UnreadableArtifact(file.asset, file.key, folder.name, manifest, size, is_missing)

    def _read_manifests(
        self, files: Iterable[LakeFile]
    ) -> Iterator[tuple[LakeFile, dict[str, Any] | None]]:
        """Yield every file of a manifest among `files`, and the manifest; `None` for a manifest that is damaged or of another artifact."""
        manifest_files = (
            file
            for file in files
            if file.kind == "models"
            and file.key is not None
            and file.name.count("/") == 1
            and file.path.name == MANIFEST
            and not file.name.startswith(".")
        )
        while some := list(islice(manifest_files, _AT_ONCE)):
            contents = self.fs.read_all([file.path for file in some])
            for file, content in zip(some, contents, strict=True):
                manifest = _parsed(content)
                yield file, manifest if manifest and _belongs_to(manifest, file) else None


def passed(manifest: Mapping[str, Any]) -> bool:
    """Whether an artifact passed its own check, by its manifest; older ones say it in their report only."""
    return bool(manifest.get("passed", manifest.get("report", {}).get("ok", True)))


def with_checksum(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with the checksum of its own content."""
    plain: dict[str, Any] = json.loads(json.dumps(manifest))
    plain.pop(CHECKSUM, None)
    return plain | {CHECKSUM: _checksum(plain)}


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return the content of a manifest's file."""
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False)


def _checksum(manifest: Mapping[str, Any]) -> str:
    content = {name: value for name, value in manifest.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(path: UPath) -> dict[str, Any] | None:
    """The manifest in a file; `None` where there is none, or only a part of one."""
    try:
        return _parsed(Filesystem.read(path))
    except FileNotFoundError:
        return None


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if not isinstance(value, dict) or "identity" not in value:
        return None
    # Older versions wrote none. A manifest whose checksum does not match is damaged, and so it is none.
    return None if CHECKSUM in value and value[CHECKSUM] != _checksum(value) else value


def _belongs_to(manifest: Mapping[str, Any], file: LakeFile) -> bool:
    """Whether a manifest lies in the directory of its own artifact. Two manifests that were exchanged do not."""
    where = (manifest.get("asset"), manifest.get("partition"), manifest["identity"][:16])
    return where == (file.asset, str(file.key), file.path.parent.name)


def _renaming(folder: Path) -> FileLock:
    """Return the lock for renaming a model directory, or what was renamed, on this machine."""
    return FileLock(folder.with_name(".lock"))


def _set_aside(folder: Path) -> Path:
    """Rename a model directory, so that nothing finds it. Return its new path."""
    aside = folder.with_name(f"{_DELETING}{folder.name.removeprefix('.')}")
    if aside.exists():  # what a killed deletion left
        shutil.rmtree(aside)
    return folder.replace(aside)


def _complete_replacement(final: Path) -> None:
    """Rename the folder in which an artifact was built again, if `finish` was killed before it did and the artifact is complete."""
    building = final.with_name(f".building-{final.name}")
    manifest = read_manifest(UPath(building / MANIFEST))
    files = manifest.get("files") if manifest else None
    if files is None or final.exists():
        return
    if all(_is_whole(building / name, file) for name, file in files.items()):
        building.replace(final)


@cache
def code_version() -> dict[str, str]:
    """The package's version, and the sha256 of its Python files: an edited checkout still has its version's name."""
    package = Path(__file__).parents[1]
    code = {"code_sha256": sha256_files(package, package.rglob("*.py"))}
    try:
        return {"version": version("agent-pipeline")} | code
    except PackageNotFoundError:  # on the path, not installed
        return code


def _is_whole(path: Path, file: Mapping[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["bytes"]
