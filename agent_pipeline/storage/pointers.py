"""Which artifact is a partition's latest, and which its champion: an append-only history of numbered entries.

    <root>/models/<asset>/project=<p>/agent=<a>/pointers/00000007.json

An entry holds the whole state after one change: `latest`, `champion`, who changed it, when, why, and what was replaced. The entry with the
highest number counts.

*Latest* moves with every materialization. *Champion* is moved by a decision or by a person, and is what is served.
"""

import getpass
from datetime import UTC, datetime

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.artifacts import MANIFEST, Artifact, Artifacts, read_manifest
from agent_pipeline.storage.logs import Log, Record

_OLD = "current.json"
"""The pointer of lakes that were written before there was a history; it is read as the latest."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The state after a change. `moved` is the pointer that changed (empty: none did), `against` the identity that it had before
    (`None`: it had none). `command` is what a person ran to move the champion, such as `rollback`; empty if a run moved it."""

    generation: int = 0
    latest: str | None = None
    champion: str | None = None
    moved: str = "latest"
    against: str | None = None
    who: str = ""
    when: str = ""
    why: str = ""
    command: str = ""


class Pointers(Artifacts):
    def history(self, asset: str, key: PartitionKey) -> list[Entry]:
        """Every change of a partition's pointers, oldest first.

        Raises:
            DataError: an entry is damaged.
        """
        entries = self._entries(asset, key).records()
        if not entries and (old := read_manifest(self.folder("models", asset, key) / _OLD)):
            entries = [Entry(latest=old["identity"], why="written before there was a history")]
        return entries

    def pointers(self, asset: str, key: PartitionKey) -> Entry:
        """The state of a partition's pointers; generation 0 where nothing was ever materialized.

        Raises:
            DataError: the last entry is damaged.
        """
        return self._entries(asset, key).last() or next(iter(self.history(asset, key)), Entry())

    def latest(self, asset: str, key: PartitionKey) -> Artifact:
        """The artifact of the partition's last materialization.

        Raises:
            DataError: there is none, or its files are gone.
        """
        identity = self.pointers(asset, key).latest
        if identity is None:
            raise DataError(
                f"There is no {asset} of {key} in {self.root}: materialize {asset} first."
            )
        return self._whole(asset, key, identity)

    def champion(self, asset: str, key: PartitionKey) -> Artifact | None:
        """The partition's champion, or `None` where no one has set one.

        Raises:
            DataError: its files are gone.
        """
        identity = self.pointers(asset, key).champion
        return None if identity is None else self._whole(asset, key, identity)

    def set_latest(self, artifact: Artifact, why: str = "materialized", who: str = "") -> Entry:
        """Make an artifact its partition's latest; without effect where it is already.

        Raises:
            DataError: it failed its check.
        """
        return self._move("latest", artifact, why, who)

    def set_champion(
        self,
        artifact: Artifact,
        why: str = "",
        who: str = "",
        expected: int | None = None,
        command: str = "",
    ) -> Entry:
        """Make an artifact its partition's champion; without effect where it is already. `expected` is the generation that the decision
        was taken on, `command` what a person ran.

        Raises:
            DataError: it failed its check, a file of it is damaged, or the pointers have moved since `expected`.
        """
        return self._move("champion", artifact, why, who, expected, command)

    def log(self, asset: str, key: PartitionKey, name: str, kind: type[Record]) -> Log[Record]:
        """An append-only log beside a partition's artifacts."""
        return Log(self.fs, self.folder("models", asset, key) / name, kind)

    def _entries(self, asset: str, key: PartitionKey) -> Log[Entry]:
        return self.log(asset, key, "pointers", Entry)

    def _move(
        self,
        moved: str,
        artifact: Artifact,
        why: str,
        who: str,
        expected: int | None = None,
        command: str = "",
    ) -> Entry:
        asset, key, identity = artifact.asset, artifact.key, artifact.identity
        if not artifact.passed:
            raise DataError(
                f"The {asset} {identity[:16]} of {key} failed its check, so it cannot be used."
            )
        if moved == "champion":
            self.verified(artifact)

        def entry(number: int) -> Entry | None:
            before = self.pointers(asset, key)
            if expected not in (None, before.generation):
                raise DataError(
                    f"The pointers of {asset} of {key} were moved by {before.who} at {before.when}: look again, and repeat."
                )
            if (against := getattr(before, moved)) == identity and before.generation:
                return None
            if read_manifest(self.artifact_folder(asset, key, identity) / MANIFEST) is None:
                raise DataError(
                    f"The {asset} {identity[:16]} of {key} was deleted meanwhile: materialize {asset} again."
                )
            change = {"generation": number, "moved": moved, moved: identity, "against": against}
            return msgspec.structs.replace(
                before, **change, who=who or user_name(), when=now(), why=why, command=command
            )

        return self._entries(asset, key).append(entry) or msgspec.structs.replace(
            self.pointers(asset, key), moved=""
        )

    def _whole(self, asset: str, key: PartitionKey, identity: str) -> Artifact:
        artifact = self.find(asset, key, identity)
        if artifact is None:
            folder = self.artifact_folder(asset, key, identity)
            raise DataError(
                f"The {asset} of {key} at {folder} is gone or incomplete, or failed its check: materialize {asset} again."
            )
        return artifact


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return "unknown"
