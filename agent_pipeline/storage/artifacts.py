"""Model directories: built beside their place, renamed when they are complete, and known by the identity in their manifest."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from upath import UPath

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.filesystem import Filesystem, put_file, sha256_file, sha256_files
from agent_pipeline.storage.paths import LakeFile, Paths

MANIFEST = "manifest.json"
CHECKSUM = "manifest_sha256"
_AT_ONCE = 100


@dataclass(frozen=True)
class Artifact:
    """A model directory that is complete: `path` on this machine, `manifest` as written."""

    asset: str
    key: PartitionKey
    identity: str
    path: Path
    manifest: dict[str, Any]

    @property
    def reference(self) -> dict[str, str]:
        """What names it to another process."""
        return {"asset": self.asset, "identity": self.identity}

    @property
    def passed(self) -> bool:
        """Whether it passed its own check; one that failed is never reused, and is never its partition's latest or champion."""
        return passed(self.manifest)


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
        if final.exists():
            replaced = building.with_name(f".building-{identity[:16]}-replaced")
            shutil.rmtree(replaced, ignore_errors=True)  # what a kill between the next lines left
            final.replace(replaced)
            building.replace(final)
            shutil.rmtree(replaced)
        else:
            building.replace(final)
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
            DataError: a file is damaged.
        """
        damaged = self.damaged_files(artifact)
        if damaged and not self.fs.is_local:
            for name in damaged:
                (artifact.path / name).unlink(missing_ok=True)
            fetched = self.find(artifact.asset, artifact.key, artifact.identity)
            damaged = self.damaged_files(fetched) if fetched else damaged
        if damaged:
            raise DataError(
                f"The {artifact.asset} {artifact.identity[:16]} of {artifact.key} is damaged: the sha256 of {', '.join(damaged)} in "
                f"{artifact.path} does not match its manifest. Put a copy back, or materialize {artifact.asset} again."
            )
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

    def manifests(
        self, files: Iterable[LakeFile] | None = None
    ) -> Iterator[tuple[LakeFile, dict[str, Any]]]:
        """The manifest of every finished artifact of every partition, or of those among `files`; of a bucket many are fetched at once."""
        every = self.files() if files is None else files
        names = (
            file
            for file in every
            if file.kind == "models"
            and file.path.name == MANIFEST
            and not file.name.startswith(".")
        )
        while some := list(islice(names, _AT_ONCE)):
            for file, content in zip(
                some, self.fs.read_all([file.path for file in some]), strict=True
            ):
                if (manifest := _parsed(content)) is not None:
                    yield file, manifest


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
