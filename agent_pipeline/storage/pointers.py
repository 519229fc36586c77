"""Pointers to the latest artifact of a partition and to its champion, as an append-only history.

An entry is a file `<root>/models/<asset>/project=<p>/agent=<a>/pointers/00000007.json`. It holds
the whole state after one change: `latest`, `champion`, who changed it, when, why, and the replaced
artifact. The entry with the highest number counts.

*Latest* moves with every materialization. *Champion* is the artifact that is served; it is moved by
a decision or by a person. The rules of that decision do not belong here.
"""

import getpass
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec

from agent_pipeline.errors import DataError, name_asset_to_select
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.artifacts import MANIFEST, Artifact, Artifacts, read_manifest
from agent_pipeline.storage.logs import Log, Record

_OLD_POINTER = "current.json"
"""Name of the pointer file in lakes that were written before pointers had a history. It is read as
the pointer to the latest artifact.
"""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a partition's pointers after a change.

    Attributes:
        generation: the number of the entry, or 0 if nothing was ever materialized.
        latest: the identity of the latest artifact.
        champion: the identity of the champion.
        moved: the pointer that changed, or an empty text.
        against: the previous identity of the pointer, or `None`.
        who: the person or the run that moved the pointer.
        when: the time in UTC.
        why: the reason.
        command: the command with which a person moved the champion, such as `rollback`. It is empty
            if a run moved it.
    """

    generation: int = 0
    latest: str | None = None
    champion: str | None = None
    moved: str = "latest"
    against: str | None = None
    who: str = ""
    when: str = ""
    why: str = ""
    command: str = ""


@dataclass(frozen=True)
class Move:
    """A change of a pointer, without the state after the change.

    `expected` is the generation on which the decision was based.
    """

    pointer: Literal["latest", "champion"]
    why: str
    who: str
    expected: int | None = None
    command: str = ""


class Pointers(Artifacts):
    """The pointers and the logs of all partitions in a lake."""

    def history(self, asset: str, key: PartitionKey) -> list[Entry]:
        """Return all changes of a partition's pointers, oldest first.

        Raises:
            DamageError: an entry is damaged or missing.
        """
        entries = self._entries(asset, key).records()
        if not entries:
            old = read_manifest(self.folder("models", asset, key) / _OLD_POINTER)
            if old:
                reason = "written before there was a history"
                entries = [Entry(latest=old["identity"], why=reason)]
        return entries

    def pointers(self, asset: str, key: PartitionKey) -> Entry:
        """Return the current state of a partition's pointers.

        Raises:
            DamageError: the last entry is damaged, or an entry is missing.
        """
        last = self._entries(asset, key).last()
        if last is not None:
            return last
        history = self.history(asset, key)
        return history[0] if history else Entry()

    def latest(self, asset: str, key: PartitionKey) -> Artifact:
        """Return the artifact of the partition's last materialization.

        Raises:
            DataError: there is no such artifact, or its files are missing.
        """
        identity = self.pointers(asset, key).latest
        if identity is None:
            raise DataError(
                f"There is no `{asset}` of {key} in {self.root}: materialize "
                f"`{name_asset_to_select(asset)}` first."
            )
        return self._find_named(asset, key, identity)

    def champion(self, asset: str, key: PartitionKey) -> Artifact | None:
        """Return the partition's champion, or `None` if no champion was set.

        Raises:
            DataError: the files of the champion are missing.
        """
        identity = self.pointers(asset, key).champion
        return None if identity is None else self._find_named(asset, key, identity)

    def set_latest(self, artifact: Artifact, why: str = "materialized", who: str = "") -> Entry:
        """Make an artifact its partition's latest.

        Nothing is written if it already is the latest.

        Returns:
            The new state, with an empty `moved` if nothing was written.

        Raises:
            DataError: the artifact failed its check.
        """
        return self._move(artifact, Move("latest", why, who))

    def set_champion(
        self,
        artifact: Artifact,
        why: str = "",
        who: str = "",
        expected: int | None = None,
        command: str = "",
    ) -> Entry:
        """Make an artifact its partition's champion.

        Nothing is written if it already is the champion.

        Args:
            artifact: the artifact.
            why: the reason.
            who: the person or the run that moves the pointer. An empty text means the user of this
                process.
            expected: the generation on which the decision was based.
            command: the command that a person ran.

        Returns:
            The new state, with an empty `moved` if nothing was written.

        Raises:
            DataError: the artifact failed its check, or the pointers have moved since `expected`.
            DamageError: a file of the artifact is damaged.
        """
        return self._move(artifact, Move("champion", why, who, expected, command))

    def log(self, asset: str, key: PartitionKey, name: str, kind: type[Record]) -> Log[Record]:
        """Return the append-only log with a given name, next to a partition's artifacts."""
        return Log(self.fs, self.folder("models", asset, key) / name, kind)

    def _entries(self, asset: str, key: PartitionKey) -> Log[Entry]:
        return self.log(asset, key, "pointers", Entry)

    def _move(self, artifact: Artifact, move: Move) -> Entry:
        """Append a change to the history, unless the pointer already names the artifact."""
        asset, key, identity = artifact.asset, artifact.key, artifact.identity
        if not artifact.passed:
            raise DataError(
                f"The {asset} {identity[:16]} of {key} failed its check, so it cannot be used: "
                f"materialize `{name_asset_to_select(asset)}` again."
            )
        if move.pointer == "champion":
            self.verify(artifact)

        def make_entry(number: int) -> Entry | None:
            before = self.pointers(asset, key)
            if move.expected not in (None, before.generation):
                raise DataError(
                    f"The pointers of {asset} of {key} were changed by {before.who} at "
                    f"{before.when}: look at the new state, then try again."
                )
            against = before.champion if move.pointer == "champion" else before.latest
            if against == identity and before.generation:
                return None
            if read_manifest(self.artifact_folder(asset, key, identity) / MANIFEST) is None:
                raise DataError(
                    f"The {asset} {identity[:16]} of {key} was deleted in the meantime: "
                    f"materialize `{name_asset_to_select(asset)}` again."
                )
            return Entry(
                generation=number,
                latest=identity if move.pointer == "latest" else before.latest,
                champion=identity if move.pointer == "champion" else before.champion,
                moved=move.pointer,
                against=against,
                who=move.who or user_name(),
                when=now(),
                why=move.why,
                command=move.command,
            )

        written = self._entries(asset, key).append(make_entry)
        if written is not None:
            return written
        return msgspec.structs.replace(self.pointers(asset, key), moved="")

    def _find_named(self, asset: str, key: PartitionKey, identity: str) -> Artifact:
        """Return the artifact whose identity a pointer contains."""
        artifact = self.find(asset, key, identity)
        if artifact is None:
            folder = self.artifact_folder(asset, key, identity)
            raise DataError(
                f"The {asset} of {key} at {folder} is missing or incomplete, or failed its check: "
                f"materialize `{name_asset_to_select(asset)}` again."
            )
        return artifact


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user_name() -> str:
    """Return the name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return "unknown"
