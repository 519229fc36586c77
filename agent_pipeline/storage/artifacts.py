"""Artifacts: model directories that have a manifest.

An artifact is built next to its final place, and renamed when it is complete. An artifact is found
by the identity in its manifest. The manifest lists the size and the sha256 of every file. A
directory with an unreadable manifest is not an artifact; `find_unreadable` reports it. The choice
of the artifact to use belongs to `agent_pipeline.storage.pointers`.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import NotRequired, TypedDict, TypeVar, cast
from urllib.parse import unquote

import msgspec
from filelock import FileLock
from upath import UPath

from agent_pipeline.errors import DamageError, DataError, name_asset_to_select
from agent_pipeline.json_types import JsonObject
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
"""Key of the manifest's own checksum."""
_MANIFESTS_PER_REQUEST = 100
_DELETING = ".deleting-"
"""Prefix of the name of a model directory that is being deleted. In a bucket, prefix of the name of
a marker next to the directory.
"""
_FOLDER_NAME = re.compile(r"[0-9a-f]{16}")
"""Pattern of the name of an artifact's directory, which is the beginning of the artifact's
identity.
"""


class FileEntry(TypedDict):
    """The entry of a file in a manifest."""

    sha256: str
    bytes: int


class Manifest(TypedDict):
    """The content of an artifact's `manifest.json`.

    Manifests of older versions lack `parents`, `passed`, `fresh` and the checksum.

    Attributes:
        asset: the asset of the artifact.
        partition: its partition.
        identity: the hash of `made_from`, which names the artifact.
        made_from: the inputs of the artifact. Each asset has its own fields.
        parents: the identities of the artifacts that it was made from.
        tables: the versions (sha256) of the tables that it was made from.
        made_by: the version of this package.
        passed: whether the artifact passed its own check.
        fresh: the run that requested a new build, or an empty text.
        report: the measurements of the build. Each asset has its own fields.
        files: every file by its name.
        manifest_sha256: the checksum of the other fields.
    """

    asset: str
    partition: str
    identity: str
    made_from: JsonObject
    parents: NotRequired[list[str]]
    tables: dict[str, str]
    made_by: dict[str, str]
    passed: NotRequired[bool]
    fresh: NotRequired[str]
    report: JsonObject
    files: dict[str, FileEntry]
    manifest_sha256: NotRequired[str]


Report = TypeVar("Report")


@dataclass(frozen=True)
class Artifact:
    """A complete model directory.

    Attributes:
        asset: the asset of the artifact.
        key: its partition.
        identity: the hash of its inputs.
        path: the directory on this machine.
        manifest: the content of its manifest.
    """

    asset: str
    key: PartitionKey
    identity: str
    path: Path
    manifest: Manifest

    def read_report(self, parse: Callable[[Mapping[str, object]], Report]) -> Report:
        """Return the report in the manifest.

        Args:
            parse: Returns a report from its JSON form, and raises `msgspec.ValidationError` if the
                JSON has another form.

        Raises:
            DataError: the report is of an older version and cannot be read.
        """
        try:
            return parse(self.manifest["report"])
        except msgspec.ValidationError as error:
            raise DataError(
                f"The report of the {self.asset} {self.identity[:16]} of {self.key} cannot be "
                f"read ({error}): an older version of agent-pipeline wrote it. Materialize "
                f"{name_asset_to_select(self.asset)} again."
            ) from error

    def read(self, name: str) -> bytes:
        """Return the content of a file of the artifact, after a check of its sha256.

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
        """Return the error for damaged files of the artifact."""
        return DamageError(
            f"The {self.asset} {self.identity[:16]} of {self.key} is damaged: the sha256 of "
            f"{', '.join(names)} in {self.path} does not match its manifest. Restore it from a "
            f"backup, or materialize `{name_asset_to_select(self.asset)}` again.",
            self.path / names[0],
        )

    @property
    def reference(self) -> dict[str, str]:
        """Return the fields that identify the artifact in another process."""
        return {"asset": self.asset, "identity": self.identity}

    @property
    def passed(self) -> bool:
        """True if the artifact passed its own check.

        An artifact that failed is never reused, and never becomes its partition's latest or
        champion.
        """
        return has_passed(self.manifest)


@dataclass(frozen=True)
class Deletion:
    """A deletion of a model directory that has begun.

    The process that deletes the directory may have been killed.

    Attributes:
        asset: the asset of the directory.
        key: the partition of the directory.
        name: the original name of the directory.
        path: the rest of the directory on this machine, or the deletion marker in a bucket.
        bytes: the size of the remaining files.
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
        is_missing: whether the manifest is missing. Otherwise, it is damaged or belongs to another
            artifact.
    """

    asset: str
    key: PartitionKey
    name: str
    path: UPath
    bytes: int
    is_missing: bool

    @property
    def reason(self) -> str:
        """Return the problem with the manifest: `missing` or `damaged`."""
        return "missing" if self.is_missing else "damaged"


@dataclass(frozen=True, kw_only=True)
class ArtifactDetails:
    """Further fields for the manifest of a new artifact.

    Attributes:
        tables: The versions (sha256) of the tables that it was made from.
        parents: The identities of the artifacts that it was made from.
        passed: Whether the artifact passed its own check.
        fresh: The run that requested a new build, or an empty text.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    parents: Sequence[str] = ()
    passed: bool = True
    fresh: str = ""


class Artifacts(Paths):
    """The artifacts in a lake."""

    def artifact_folder(self, asset: str, key: PartitionKey, identity: str) -> UPath:
        """Return the path of an artifact's directory in the lake."""
        return self.folder("models", asset, key) / identity[:16]

    def building(self, asset: str, key: PartitionKey, identity: str) -> Path:
        """Return the local folder in which an artifact is built.

        The folder is created if it is missing. It survives if the process is killed, so that the
        next run can resume from it.
        """
        path = self.fs.local(self.folder("models", asset, key)) / f".building-{identity[:16]}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def unfinished(self) -> Iterator[Path]:
        """Yield the local folders of unfinished artifacts, from running and from killed runs."""
        models = self.fs.local(self.root / "models")
        yield from sorted(path for path in models.glob("*/*/*/.building-*") if path.is_dir())

    def finish(
        self,
        asset: str,
        key: PartitionKey,
        identity: str,
        building: Path,
        made_from: JsonObject,
        report: JsonObject,
        details: ArtifactDetails | None = None,
    ) -> Artifact:
        """Write the manifest of a built artifact, and move its folder to the final place.

        Args:
            asset: the asset of the artifact.
            key: its partition.
            identity: the hash of its inputs.
            building: the folder that `building` returned, with the files of the artifact.
            made_from: its inputs.
            report: the measurements of the build.
            details: further fields for the manifest. By default, the artifact passed its check.
        """
        details = details or ArtifactDetails()
        files = sorted(
            path for path in building.rglob("*") if path.is_file() and path.name != MANIFEST
        )
        manifest: Manifest = {
            "asset": asset,
            "partition": str(key),
            "identity": identity,
            "made_from": made_from,
            "parents": list(details.parents),
            "tables": dict(details.tables),
            "made_by": code_version(),
            "passed": details.passed,
            "fresh": details.fresh,
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
        """Return the artifact with the given identity, or None.

        The artifact must have passed its check, and each file must have its recorded size. An
        artifact in a bucket is downloaded to this machine.
        """
        folder = self.artifact_folder(asset, key, identity)
        manifest = read_manifest(folder / MANIFEST)
        if manifest is None or manifest["identity"] != identity or not has_passed(manifest):
            return None
        if not self.fs.is_local:
            self._fetch(folder, manifest)
        for name, entry in manifest["files"].items():
            if not _has_size(self.fs.local(folder / name), entry):
                return None
        return Artifact(asset, key, identity, self.fs.local(folder), manifest)

    def find_undamaged(self, asset: str, key: PartitionKey, identity: str) -> Artifact | None:
        """Return the artifact with this identity, or `None` if it was deleted or failed its check.

        `find` also returns `None` for a damaged artifact. Decisions must not treat a damaged
        artifact as if it had never existed.

        Raises:
            DamageError: the manifest is damaged or missing, or a file is missing or has another
                size.
        """
        artifact = self.find(asset, key, identity)
        if artifact is not None:
            return artifact
        folder = self.artifact_folder(asset, key, identity)
        reason = "the manifest cannot be read"
        manifest = read_manifest(folder / MANIFEST)
        if manifest is not None and manifest["identity"] == identity:
            if not has_passed(manifest):
                return None
            reason = "one of its files is missing or incomplete"
        is_deleted = not self.fs.files(folder)
        is_deleting = (folder.parent / f"{_DELETING}{folder.name}").exists()
        if is_deleted or is_deleting:
            return None
        raise DamageError(
            f"The {asset} {identity[:16]} of {key} in {folder} is damaged ({reason}): restore it "
            f"from a backup, or materialize `{name_asset_to_select(asset)}` again.",
            folder,
        )

    def damaged_files(self, artifact: Artifact) -> list[str]:
        """Return the names of an artifact's files whose sha256 does not match the manifest.

        In contrast, `find` compares only the sizes of the files.
        """
        damaged = []
        for name, entry in artifact.manifest["files"].items():
            path = artifact.path / name
            if not _has_size(path, entry) or sha256_file(path) != entry["sha256"]:
                damaged.append(name)
        return damaged

    def verify(self, artifact: Artifact) -> Artifact:
        """Check the sha256 of every file of an artifact before it is used, and return the artifact.

        An artifact is verified before it is promoted, served, exported or trained further. If this
        machine's copy of an artifact in a bucket is damaged, it is downloaded again.

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

    def _fetch(self, folder: UPath, manifest: Manifest) -> None:
        """Update this machine's copy of a remote artifact.

        Another machine may have built the artifact again with files of the same sizes, so the copy
        has its own manifest. A file that does not match the manifest is removed. This can happen if
        two machines build the artifact at the same time.
        """
        copy = self.fs.local(folder)
        manifest_of_copy = read_manifest(UPath(copy / MANIFEST))
        entries_of_copy = manifest_of_copy["files"] if manifest_of_copy else {}
        is_stale = False
        for name, entry in manifest["files"].items():
            if entries_of_copy.get(name) == entry and _has_size(copy / name, entry):
                continue
            is_stale = True
            with suppress(FileNotFoundError):
                if sha256_file(self.fs.fetch(folder / name)) != entry["sha256"]:
                    (copy / name).unlink()
        if is_stale:
            copy.mkdir(parents=True, exist_ok=True)
            (copy / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")

    def finished(self, asset: str, key: PartitionKey) -> list[Artifact]:
        """Return all complete artifacts of a partition, ordered by identity."""
        artifacts = []
        for _, manifest in self.manifests(self.files(self.folder("models", asset, key))):
            artifact = self.find(asset, key, manifest["identity"])
            if artifact is not None:
                artifacts.append(artifact)
        return artifacts

    def drop_copy(self, file: LakeFile, identity: str) -> None:
        """Remove this machine's copy of a remote artifact.

        `file` is any file of the artifact. The next `find` downloads the artifact again.
        """
        if not self.fs.is_local and file.key is not None:
            shutil.rmtree(
                self.fs.local(self.artifact_folder(file.asset, file.key, identity)),
                ignore_errors=True,
            )

    def start_deletion(self, folder: UPath) -> None:
        """Mark a model directory as deleted, in one step.

        `complete_deletion` deletes its files. If the process is killed before that,
        `find_deletions` finds the remaining files.
        """
        if self.is_local:
            with _renaming(Path(folder.path)):
                _set_aside(Path(folder.path))
        else:
            self.fs.write(folder.parent / f"{_DELETING}{folder.name}", b"")
            remove(folder / MANIFEST)

    def delete_unfinished(self, folder: Path) -> None:
        """Delete a local folder that `unfinished` returned.

        No run can resume from the folder afterwards, even if this process is killed during the
        deletion.
        """
        with _renaming(folder):
            shutil.rmtree(_set_aside(folder))

    def complete_deletion(self, deletion: Deletion) -> None:
        """Delete the remaining files of a model directory.

        The caller must hold the partition. If the marker was written but the manifest was not
        removed, the artifact stays.
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

    def find_deletions(self) -> Iterator[Deletion]:
        """Yield the deletions that have begun but are not complete.

        The function searches the lake. For a bucket, the copies on this machine are searched
        too.
        """
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
        """Return the asset and the partition that the path of a model directory contains."""
        asset, project, agent = folder.parts[-4:-1]
        key = PartitionKey(*(unquote(part.partition("=")[2]) for part in (project, agent)))
        return unquote(asset), key

    def manifests(
        self, files: Iterable[LakeFile] | None = None
    ) -> Iterator[tuple[LakeFile, Manifest]]:
        """Yield the manifest of every finished artifact, or of the artifacts among `files`.

        Many manifests of a bucket are downloaded at the same time. Manifests that cannot be read
        are skipped; `find_unreadable` yields them.
        """
        for file, manifest in self._read_manifests(self.files() if files is None else files):
            if manifest is not None:
                yield file, manifest

    def find_unreadable(self, files: Iterable[LakeFile]) -> Iterator[UnreadableArtifact]:
        """Yield the artifacts among `files` whose manifest is missing or damaged."""
        files = list(files)
        deleting = {file.path for file in files if file.path.name.startswith(_DELETING)}
        folders = self._empty_folders(files)
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

    def _empty_folders(self, files: Sequence[LakeFile]) -> dict[UPath, LakeFile]:
        """Return the empty directories of artifacts, each with a file of its partition.

        The directories are searched in the partitions of `files`. An artifact that consists only of
        its manifest leaves an empty directory if the manifest is lost.
        """
        if not self.is_local:
            return {}
        file_by_partition = {
            self.folder("models", file.asset, file.key): file
            for file in files
            if file.kind == "models" and file.key
        }
        empty: dict[UPath, LakeFile] = {}
        for partition, file in file_by_partition.items():
            for folder in partition.iterdir():
                if _FOLDER_NAME.fullmatch(folder.name) and not any(folder.iterdir()):
                    empty[folder] = file
        return empty

    def _unreadable(self, file: LakeFile, manifest: UPath, is_missing: bool) -> UnreadableArtifact:
        assert file.key is not None, "models have partitions"
        folder = manifest.parent
        size = sum(path.stat().st_size for path in self.fs.files(folder))
        return UnreadableArtifact(file.asset, file.key, folder.name, manifest, size, is_missing)

    def _read_manifests(
        self, files: Iterable[LakeFile]
    ) -> Iterator[tuple[LakeFile, Manifest | None]]:
        """Yield every manifest file among `files`, with its manifest.

        The manifest is `None` if it is damaged or belongs to another artifact.
        """
        manifest_files = (
            file
            for file in files
            if file.kind == "models"
            and file.key is not None
            and file.name.count("/") == 1
            and file.path.name == MANIFEST
            and not file.name.startswith(".")
        )
        while some := list(islice(manifest_files, _MANIFESTS_PER_REQUEST)):
            contents = self.fs.read_all([file.path for file in some])
            for file, content in zip(some, contents, strict=True):
                manifest = _parse_manifest(content)
                yield file, manifest if manifest and _belongs_to(manifest, file) else None


def has_passed(manifest: Manifest) -> bool:
    """Return whether an artifact passed its own check.

    In manifests of older versions, only the report contains this fact.
    """
    return bool(manifest.get("passed", manifest.get("report", {}).get("ok", True)))


def with_checksum(manifest: Manifest) -> Manifest:
    """Return a manifest with the checksum of its own content."""
    content: Manifest = json.loads(json.dumps(manifest))
    content.pop("manifest_sha256", None)
    content["manifest_sha256"] = _checksum(content)
    return content


def manifest_text(manifest: Mapping[str, object]) -> str:
    """Return a manifest as the text of its file."""
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False)


def _checksum(manifest: Mapping[str, object]) -> str:
    content = {name: value for name, value in manifest.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(path: UPath) -> Manifest | None:
    """Return the manifest in a file, or `None` if the file is missing, cut off or damaged."""
    try:
        return _parse_manifest(Filesystem.read(path))
    except FileNotFoundError:
        return None


def _parse_manifest(content: bytes) -> Manifest | None:
    try:
        manifest = json.loads(content)
    except ValueError:
        return None
    if not isinstance(manifest, dict) or "identity" not in manifest:
        return None
    # Older versions wrote no checksum.
    if CHECKSUM in manifest and manifest[CHECKSUM] != _checksum(manifest):
        return None
    return cast(Manifest, manifest)


def _belongs_to(manifest: Manifest, file: LakeFile) -> bool:
    """Return whether a manifest is in the directory of its own artifact.

    If two manifests were exchanged, the result is false.
    """
    where = (manifest.get("asset"), manifest.get("partition"), manifest["identity"][:16])
    return where == (file.asset, str(file.key), file.path.parent.name)


def _renaming(folder: Path) -> FileLock:
    """Return the lock for renaming a model directory on this machine.

    A directory that was already renamed has the same lock.
    """
    return FileLock(folder.with_name(".lock"))


def _set_aside(folder: Path) -> Path:
    """Rename a model directory so that it is no longer found, and return its new path."""
    aside = folder.with_name(f"{_DELETING}{folder.name.removeprefix('.')}")
    if aside.exists():  # left by a killed deletion
        shutil.rmtree(aside)
    return folder.replace(aside)


def _complete_replacement(final: Path) -> None:
    """Complete a `finish` that was killed while it replaced an artifact.

    The folder with the new build is renamed to its final name if the build is complete.
    """
    building = final.with_name(f".building-{final.name}")
    manifest = read_manifest(UPath(building / MANIFEST))
    files = manifest.get("files") if manifest else None
    if files is None or final.exists():
        return
    if all(_has_size(building / name, entry) for name, entry in files.items()):
        building.replace(final)


@cache
def code_version() -> dict[str, str]:
    """Return the version of the package, and the sha256 of its Python files.

    The sha256 identifies an edited checkout, which keeps the name of its version.
    """
    package = Path(__file__).parents[1]
    code = {"code_sha256": sha256_files(package, package.rglob("*.py"))}
    try:
        return {"version": version("agent-pipeline")} | code
    except PackageNotFoundError:  # the package is on the path, but not installed
        return code


def _has_size(path: Path, entry: FileEntry) -> bool:
    """Return whether a file exists and has the size that a manifest records."""
    return path.is_file() and path.stat().st_size == entry["bytes"]
