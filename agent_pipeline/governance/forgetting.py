"""Forgetting a session: removing it from everything that the lake holds.

Tables are rewritten without its rows. What is made from tables (JSONL files, Hugging Face folders) is made again by the code that made it;
caches are deleted. In the rows of other sessions (a side chain's parent, a duplicate's original) and in the manifests of models, an alias
takes the place of the id.

The block list comes first, so that no later reading brings the session back; the table `sessions` comes last. Each file is replaced in one
step. A run that is killed leaves enough behind to be run again, and then it completes.

Nothing takes a session out of a model's weights: the models that were trained on it are named, to be trained again. The store, and what
people keep of their own (labels, review files, Dagster's record of runs), is theirs.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from upath import UPath

from agent_pipeline.datasets.ledger import LEDGER_TABLE, remove_tasks
from agent_pipeline.datasets.publishing import PUBLICATIONS, read_publication, republish, unpublish
from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.governance.lineage import (
    FOLLOWS,
    TABLE,
    TASK_COLUMNS,
    TRAINED,
    ModelUse,
    UnknownSessionError,
    filtered,
    groups_naming,
    is_own,
    models_of,
    naming,
    naming_columns,
    sessions_in,
)
from agent_pipeline.governance.scanning import found_in
from agent_pipeline.ingestion.block_list import FORGOTTEN_TABLE, BlockList, make_alias
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE
from agent_pipeline.judging.client import AnswerCache
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.vectors import OLD_SPACE, VECTORS
from agent_pipeline.storage.artifacts import manifest_text, with_checksum
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, read_manifest, remove

_CACHES = (OLD_SPACE, VECTORS, SEEN_TABLE)
"""Tables that the next run makes again."""

_COPIES = ("jsonl", "huggingface")


class Change(msgspec.Struct, kw_only=True):
    """A file that changed: `rows` (of a table, entries) were removed, in `mentions` others an alias stands now.

    A file that was `rebuilt` was made again from its table; one that was `deleted` is made again by the next run.
    """

    path: str
    rows: int = 0
    mentions: int = 0
    rebuilt: bool = False
    deleted: bool = False


class Forgotten(msgspec.Struct, kw_only=True):
    """What came of forgetting a session. `partitions` is where it is blocked from now on (`*`: everywhere).

    `judge_answers` of the language model about it left the judge's cache; `unclear_answers` of an older version do not say whom they are
    about. `same_content` (with the same conversation) and `side_chains` (begun by it) are other sessions, which stay.
    """

    session_id: str
    alias: str
    partitions: list[str]
    changes: list[Change] = []
    judge_answers: int = 0
    unclear_answers: int = 0
    same_content: list[str] = []
    side_chains: list[str] = []
    models: list[ModelUse] = []

    @property
    def to_retrain(self) -> list[ModelUse]:
        """The models that were trained on it, and what was made from them."""
        return [each for each in self.models if {TRAINED, FOLLOWS} & set(each.roles)]


def forget(
    lake: Lake, session_id: str, key: PartitionKey | None = None, judge_cache: Path | None = None
) -> Forgotten:
    """Remove a session from a partition, or (without one) from all, and keep it out.

    Raises:
        UnknownSessionError: nothing names it; nothing was changed.
        DataError: a run is working on one of its partitions, or trains on it, now; or a table is damaged.
        DamageError: the manifest of an artifact cannot be read, so that the session may be in it; nothing was changed.
    """
    lake.sweep()
    removal = _Removal(lake, session_id, key)
    removal.refuse_unreadable(held=[])
    if not BlockList.read(lake).has(session_id, key) and not removal.is_known():
        raise UnknownSessionError(
            session_id, f"{lake.root}" if key is None else f"{key}", removal.nearest()
        )
    with ExitStack() as held:
        partitions = removal.partitions()
        for partition in partitions:
            held.enter_context(lake.run_of(partition))
        removal.look()  # what runs wrote until their partition was held
        removal.refuse_unreadable(partitions)
        report = removal.report
        report.partitions = BlockList.add(lake, session_id, key).list_partitions(session_id)
        if judge_cache is not None and judge_cache.exists():
            answers = AnswerCache(judge_cache)
            report.judge_answers, report.unclear_answers = answers.forget(make_alias(session_id))
            answers.close()
        removal.run()
        report.models = models_of(lake, session_id)
        if left := [str(file.path) for file in removal.tables() if removal.has_own_rows(file)]:
            raise DataError(
                f"{session_id!r} was written again while it was being forgotten, to {left[0]}: let that run end, and repeat."
            )
        return report


class _Removal:
    """One session's removal, file by file."""

    def __init__(self, lake: Lake, session_id: str, key: PartitionKey | None) -> None:
        self.lake, self.id, self.key, self.alias = lake, session_id, key, make_alias(session_id)
        self.report = Forgotten(session_id=session_id, alias=self.alias, partitions=[])
        self.look()

    def look(self) -> None:
        self._files = [
            file for file in self.lake.files() if self.key is None or file.key in (None, self.key)
        ]

    def refuse_unreadable(self, held: Sequence[PartitionKey | None]) -> None:
        """Refuse to forget if the manifest of an artifact does not tell whether the session is in the artifact.

        Another machine may be uploading an artifact, with the manifest last, to a partition that is not among the `held` ones.

        Raises:
            DamageError: a manifest is damaged, or missing.
        """
        for artifact in self.lake.unreadable(self._files):
            if artifact.is_missing and not self.lake.is_local and artifact.key not in held:
                continue
            raise DamageError(
                f"{artifact.path} is {artifact.reason}, so it is unknown whether {self.id!r} is in the {artifact.asset} "
                f"{artifact.name} of {artifact.key}, and nothing was forgotten: put a copy of the file back, or delete the folder "
                f"{artifact.path.parent}, and repeat.",
                artifact.path,
            )

    def tables(self) -> list[LakeFile]:
        """The tables that are there, the one that the others are made from last."""
        tables = [
            file
            for file in self._files
            if file.kind == "tables" and file.name == TABLE and file.path.exists()
        ]
        return sorted(
            (file for file in tables if file.asset != FORGOTTEN_TABLE),
            key=lambda file: file.asset == "sessions",
        )

    def partitions(self) -> list[PartitionKey | None]:
        """The partitions that have rows of the session's own in a table; `None` is what pools all agents."""
        return list(dict.fromkeys(file.key for file in self.tables() if self.has_own_rows(file)))

    def is_known(self) -> bool:
        """Whether a table, or a model's manifest, names the session."""
        manifests = self.lake.manifests(self._files)
        return any(
            self.id in ids for _, manifest in manifests for ids in sessions_in(manifest).values()
        ) or any(
            any(groups_naming(self._open(file), [self.id], self._key_within(file)))
            for file in self.tables()
        )

    def nearest(self) -> list[str]:
        """Ids of the lake that are most like the session's."""
        read = (
            self._open(file).read(["session_id"])["session_id"]
            for file in self.tables()
            if file.asset == "sessions"
        )
        return difflib.get_close_matches(
            self.id, {each for column in read for each in column.to_pylist()}, n=3
        )

    def run(self) -> None:
        """Change every file, in an order in which a kill does no harm."""
        tasks, caches = self._survey()
        # Caches come first: the rows of the session in other tables tell which caches may hold its text.
        for file in self.tables():
            if file.asset in _CACHES and file.key in caches:
                self._delete(file.path)
        self._unfinished()
        for file, manifest in self.lake.manifests(self._files):
            self._model(file, manifest)
        self._unrecorded_copies()
        for file in self.tables():
            if file.asset in _CACHES:
                continue
            if file.asset == LEDGER_TABLE:
                self._ledger(file, tasks)
            elif file.asset != "sessions":
                self._table(file)
        for file in self._files:
            if file.kind == PUBLICATIONS:
                changed = republish(self.lake, file.asset, file.key)
                self.report.changes += [
                    Change(path=str(path), rebuilt=path.exists(), deleted=not path.exists())
                    for path in changed
                ]
        for file in self.tables():
            if file.asset == "sessions":
                self._table(file)

    # Tables

    def _open(self, file: LakeFile) -> pq.ParquetFile:
        try:
            return self.lake.open(file.asset, file.key)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file.path} is damaged ({error}): materialize {file.asset} again, or delete it, and repeat."
            ) from error

    def _key_within(self, file: LakeFile) -> PartitionKey | None:
        """The partition that rows must say they are of; where the folder says it, they need not."""
        return self.key if file.key is None else None

    def has_own_rows(self, file: LakeFile) -> bool:
        """Whether rows of a table are the session's own."""
        groups = groups_naming(self._open(file), [self.id], self._key_within(file))
        return any(
            pc.any(mask).as_py()
            for _, masks in groups
            for name, mask in masks.items()
            if is_own(name)
        )

    def _survey(self) -> tuple[set[str], set[PartitionKey | None]]:
        """The session's tasks that are nothing but its text or id, and its partitions; the report gets the sessions that are near to it."""
        tasks: set[str] = set()
        keys: set[PartitionKey | None] = set()
        for file in self.tables():
            table = self._open(file)
            if self.has_own_rows(file):
                keys.add(file.key)
            if file.asset != "sessions":
                continue
            rows = table.read(["session_id", "content_sha256", "parent_session_id", "task_key"])
            own = pc.equal(rows["session_id"], self.id)
            mine = rows.filter(own)
            tasks.update(
                task
                for task in mine["task_key"].to_pylist()
                if task.startswith(("text:", "session:"))
            )
            same = pc.and_(
                pc.is_in(rows["content_sha256"], mine["content_sha256"].combine_chunks()),
                pc.invert(own),
            )
            begun = pc.equal(rows["parent_session_id"], self.id)
            self.report.same_content += rows.filter(same)["session_id"].to_pylist()
            self.report.side_chains += rows.filter(begun)["session_id"].to_pylist()
        return tasks, keys

    def _table(self, file: LakeFile) -> None:
        """Write a table again, a row group in memory at a time: without the session's rows, and with an alias where others name it."""
        table, change = self._open(file), Change(path=str(file.path))
        if not any(groups_naming(table, [self.id], self._key_within(file))):
            return

        def without() -> Iterator[pa.RecordBatch]:
            for number in range(table.num_row_groups):
                rows = table.read_row_group(number)
                masks = naming(rows, [self.id], self._key_within(file))
                for name, mask in masks.items():
                    if not is_own(name) and pc.any(mask).as_py():
                        rows = self._with_alias(rows, name, mask)
                        change.mentions += pc.sum(mask).as_py()
                if own := [mask for name, mask in masks.items() if is_own(name)]:
                    mine = reduce(pc.or_, own)
                    change.rows += pc.sum(mine).as_py() or 0
                    rows = filtered(rows, pc.invert(mine))
                yield from rows.combine_chunks().to_batches()

        staged = self.lake.stage(file.asset, file.key, without(), table.schema_arrow)
        self.report.changes.append(change)
        staged.commit()

    def _with_alias(self, rows: pa.Table, name: str, mask: Any) -> pa.Table:
        """Rows with the alias for the id in a column, where the mask says that another session's row names it."""
        at = rows.schema.get_field_index(name)
        values = zip(rows[name].to_pylist(), mask.to_pylist(), strict=True)
        name_of_it = f"session:{self.alias}" if name in TASK_COLUMNS else self.alias
        renamed = [name_of_it if named else value for value, named in values]
        return rows.set_column(at, rows.schema.field(at), pa.array(renamed, rows[name].type))

    def _ledger(self, file: LakeFile, tasks: set[str]) -> None:
        """Tasks that are nothing but the session's text or id leave the ledger with it, unless other sessions have them too."""
        if not tasks or file.key is None:
            return
        held: set[str] = set()
        for other in self.tables():
            columns = naming_columns(self._open(other).schema_arrow)
            if other.key == file.key and "task_key" in columns and any(map(is_own, columns)):
                rows = self._open(other).read(columns)
                own = reduce(
                    pc.or_, (mask for name, mask in naming(rows, [self.id]).items() if is_own(name))
                )
                held.update(filtered(rows, pc.invert(own))["task_key"].to_pylist())
        mine, known_as = f"session:{self.id}", f"session:{self.alias}"
        renamed = {mine: known_as} if {mine, known_as} & held else {}
        gone = remove_tasks(self.lake, file.key, tasks - held - set(renamed), renamed)
        if gone or renamed:
            self.report.changes.append(
                Change(path=str(file.path), rows=gone, mentions=len(renamed))
            )

    # Copies of tables

    def _unrecorded_copies(self) -> None:
        """Copies that no record can make again (of an older version of this code, or left by a kill) go, if the session may be in them."""
        tables = {(file.asset, file.key): file for file in self.tables()}
        for file in self._files:
            if file.kind not in (*_COPIES, "tables") or not file.path.exists():
                continue
            if any(part.startswith((".building-", ".rows-")) for part in file.path.parts):
                self._delete(file.path)
            elif file.kind in _COPIES and read_publication(self.lake, file.asset, file.key) is None:
                table = tables.get((file.asset, file.key))
                if (table and self.has_own_rows(table)) or found_in(file, [self.id]):
                    for path in unpublish(self.lake, file.asset, file.key):
                        self.report.changes.append(Change(path=str(path), deleted=True))

    def _delete(self, path: UPath) -> None:
        remove(path)
        self.report.changes.append(Change(path=str(path), deleted=True))

    # Models

    def _unfinished(self) -> None:
        """Trainings and exports that were killed, with the session in them, cannot go on: their folders go."""
        for folder in self.lake.unfinished():
            manifest = read_manifest(UPath(folder / MANIFEST))
            others = manifest is not None and not any(
                self.id in ids for ids in sessions_in(manifest).values()
            )
            if others or self.key not in (None, self.lake.asset_and_key(folder)[1]):
                continue
            try:
                with FileLock(f"{folder}.lock", timeout=0):
                    self.lake.delete_unfinished(folder)
            except Timeout as error:
                raise DataError(
                    f"What is being made in {folder} has {self.id!r} in it: cancel that run, or wait for its end, and repeat."
                ) from error
            self.report.changes.append(Change(path=str(folder), deleted=True))

    def _model(self, place: LakeFile, manifest: dict[str, Any]) -> None:
        """The JSON files of an artifact; its transcripts, pages and logs, which are deleted first. The manifest comes before the rest."""
        if not any({self.id, self.alias} & set(ids) for ids in sessions_in(manifest).values()):
            return
        # A kill after the last file was replaced must not leave the copy on this machine.
        self.lake.drop_copy(place, manifest["identity"])
        folder, new = place.path.parent, self._scrubbed(manifest)
        if (
            "examples" in new["report"]
        ):  # an older version's examples do not say of which session they are
            new["report"]["examples"] = [
                each for each in new["report"]["examples"] if "session_id" in each
            ]
        files: dict[str, bytes] = {}
        for name in sorted(
            name
            for name in manifest["files"]
            if name.endswith(".json") and (folder / name).exists()
        ):
            before = json.loads((folder / name).read_bytes())
            if (after := self._scrubbed(before)) != before:
                files[name] = (json.dumps(after, indent=1, ensure_ascii=False) + "\n").encode(
                    "utf-8"
                )
                new["files"][name] = {
                    "sha256": hashlib.sha256(files[name]).hexdigest(),
                    "bytes": len(files[name]),
                }
        transcripts = [
            name for name in manifest["files"] if name.endswith((".jsonl", ".md", ".html", ".eval"))
        ]
        for name in transcripts:
            del new["files"][name]
            if (folder / name).exists():
                self._delete(folder / name)
        if new == manifest and not files:
            return
        for name, data in ((MANIFEST, manifest_text(with_checksum(new)).encode()), *files.items()):
            self.lake.replace(folder / name, [data])
            self.report.changes.append(Change(path=str(folder / name), mentions=1))

    def _scrubbed(self, value: Any, name: str = "") -> Any:
        """JSON without the objects that are the session's own, and with the alias for its id in lists of sessions and of rows."""
        if isinstance(value, dict):
            return {key: self._scrubbed(each, key) for key, each in value.items()}
        if not isinstance(value, list):
            return value
        if name in ("sessions", "row_ids"):
            return [self._row_id(each) for each in value]
        own = [
            isinstance(each, dict)
            and any(is_own(key) and of == self.id for key, of in each.items())
            for each in value
        ]
        return [
            self._scrubbed(each)
            for each, is_its_own in zip(value, own, strict=True)
            if not is_its_own
        ]

    def _row_id(self, row_id: str) -> str:
        """A row's id (the session's, perhaps with `#` and the turns that are not trained) with the alias, if the row is the session's."""
        return (
            self.alias + row_id.removeprefix(self.id)
            if row_id == self.id or row_id.startswith(f"{self.id}#")
            else row_id
        )
