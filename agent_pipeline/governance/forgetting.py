"""Forgetting a session: removing it from everything that the lake holds.

- Tables are rewritten without the rows of the session.
- Files that are made from tables (JSONL, Hugging Face folders) are made again by the code that made
  them.
- Caches are deleted.
- In the rows of other sessions (the parent of a side chain, the original of a duplicate) and in the
  manifests of models, an alias takes the place of the id.

The block list comes first, so that no later reading brings the session back. The table `sessions`
comes last. Each file is replaced in one step. A killed run leaves enough behind to be run again,
and the second run completes it.

The session stays in the weights of models, so the models that were trained on it are listed and
have to be trained again. The store, and what people keep themselves (labels, review files,
Dagster's record of runs), is not changed here.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from agent_pipeline.errors import DamageError, DataError, name_asset_to_select
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
from agent_pipeline.judging.llm_client import AnswerCache
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.vectors import OLD_SPACE, VECTORS
from agent_pipeline.storage.artifacts import FileEntry, Manifest, manifest_text, with_checksum
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, read_manifest, remove

_CACHES = (OLD_SPACE, VECTORS, SEEN_TABLE)
"""Tables that the next run makes again."""

_COPIES = ("jsonl", "huggingface")
"""The kinds of files that are made from tables."""
_TRANSCRIPTS = (".jsonl", ".md", ".html", ".eval")
"""The endings of files of artifacts that show conversations."""


class Change(msgspec.Struct, kw_only=True):
    """A file that changed.

    Attributes:
        path: Path of the file.
        rows: Number of removed rows of a table, or of removed entries.
        mentions: Number of other rows or entries that now have an alias instead of the session's
            id.
        rebuilt: Whether the file was made again from its table.
        deleted: Whether the file was deleted. The next run makes the file again.
    """

    path: str
    rows: int = 0
    mentions: int = 0
    rebuilt: bool = False
    deleted: bool = False


class Forgotten(msgspec.Struct, kw_only=True):
    """The report on a session that was forgotten.

    Attributes:
        session_id: The session's id.
        alias: Alias that replaces the session's id.
        partitions: Partitions in which the session is blocked; `*` for all partitions.
        changes: Files that changed.
        judge_answers: Number of answers about the session that were removed from the judge's cache.
        unclear_answers: Number of answers of an older version that do not name their session.
        same_content: Ids of other sessions with the same conversation, which stay.
        side_chains: Ids of other sessions that the session started, which stay.
        models: Artifacts that were made from the session.
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
        """The models that were trained on the session, and what was made from them."""
        return [model for model in self.models if {TRAINED, FOLLOWS} & set(model.roles)]


@dataclass(frozen=True)
class Survey:
    """What the tables tell of a session before it is removed.

    Attributes:
        tasks: its tasks that are only its text or its id.
        partitions: the partitions that have its rows.
    """

    tasks: set[str]
    partitions: set[PartitionKey | None]


def forget(
    lake: Lake, session_id: str, key: PartitionKey | None = None, judge_cache: Path | None = None
) -> Forgotten:
    """Remove a session from a partition or from all partitions, and keep it out.

    Args:
        lake: the lake.
        session_id: the session.
        key: the partition; without one, every partition.
        judge_cache: the file with the answers of the language model that judges.

    Raises:
        UnknownSessionError: nothing names the session; nothing was changed.
        DataError: a run is working on a partition of the session, or trains on it; or a table is
            damaged.
        DamageError: the manifest of an artifact cannot be read, so that the session may be in the
            artifact; nothing was changed.
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
        removal.list_files()  # runs may have written until their partition was held
        removal.refuse_unreadable(partitions)
        report = removal.report
        report.partitions = BlockList.add(lake, session_id, key).list_partitions(session_id)
        if judge_cache is not None and judge_cache.exists():
            answers = AnswerCache(judge_cache)
            forgotten = answers.forget(make_alias(session_id))
            report.judge_answers = forgotten.removed
            report.unclear_answers = forgotten.unnamed
            answers.close()
        removal.run()
        report.models = models_of(lake, session_id)
        for file in removal.tables():
            if removal.has_own_rows(file):
                raise DataError(
                    f"{session_id!r} was written again while it was being forgotten, to "
                    f"{file.path}: let "
                    "that run end, and repeat."
                )
        return report


class _Removal:
    """The removal of one session, file by file."""

    def __init__(self, lake: Lake, session_id: str, key: PartitionKey | None) -> None:
        self.lake, self.id, self.key, self.alias = lake, session_id, key, make_alias(session_id)
        self.report = Forgotten(session_id=session_id, alias=self.alias, partitions=[])
        self.list_files()

    def list_files(self) -> None:
        """List the files of the lake that may hold the session."""
        every = self.lake.files()
        self._files = [file for file in every if self.key is None or file.key in (None, self.key)]

    def refuse_unreadable(self, held: Sequence[PartitionKey | None]) -> None:
        """Refuse to forget if a manifest does not tell whether the session is in its artifact.

        Another machine may be uploading an artifact, with the manifest last, to a partition that is
        not among the `held` ones.

        Raises:
            DamageError: a manifest is damaged, or missing.
        """
        for artifact in self.lake.find_unreadable(self._files):
            may_be_uploading = not self.lake.is_local and artifact.key not in held
            if artifact.is_missing and (may_be_uploading or not artifact.bytes):
                continue
            raise DamageError(
                f"{artifact.path} is {artifact.reason}, so it is unknown whether {self.id!r} is "
                "in the "
                f"{artifact.asset} {artifact.name} of {artifact.key}, and nothing was forgotten: "
                "put a copy "
                f"of the file back, or delete the folder {artifact.path.parent}, and repeat.",
                artifact.path,
            )

    def tables(self) -> list[LakeFile]:
        """Return the tables that are there.

        `sessions`, from which the others are made, comes last.
        """
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
        """Return the partitions with rows of the session; `None` stands for pooled tables."""
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
        """Return ids of the lake that are most like the session's."""
        ids: set[str] = set()
        for file in self.tables():
            if file.asset == "sessions":
                ids.update(self._open(file).read(["session_id"])["session_id"].to_pylist())
        return difflib.get_close_matches(self.id, ids, n=3)

    def run(self) -> None:
        """Change every file, in an order in which a kill does no harm."""
        survey = self._survey()
        # Caches come first: the rows of the session in other tables tell which caches may hold its
        # text.
        for file in self.tables():
            if file.asset in _CACHES and file.key in survey.partitions:
                self._delete(file.path)
        self._delete_unfinished()
        for file, manifest in self.lake.manifests(self._files):
            self._scrub_model(file, manifest)
        self._delete_unrecorded_copies()
        for file in self.tables():
            if file.asset == LEDGER_TABLE:
                self._scrub_ledger(file, survey.tasks)
            elif file.asset not in (*_CACHES, "sessions"):
                self._scrub_table(file)
        for file in self._files:
            if file.kind == PUBLICATIONS:
                self._rebuild_copies(file)
        for file in self.tables():
            if file.asset == "sessions":
                self._scrub_table(file)

    # Tables

    def _open(self, file: LakeFile) -> pq.ParquetFile:
        try:
            return self.lake.open(file.asset, file.key)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file.path} is damaged ({error}): materialize "
                f"{name_asset_to_select(file.asset)} again, or delete it, "
                "and repeat."
            ) from error

    def _key_within(self, file: LakeFile) -> PartitionKey | None:
        """Return the partition that a row must name. If the folder names it, rows need not."""
        return self.key if file.key is None else None

    def has_own_rows(self, file: LakeFile) -> bool:
        """Whether a table has rows of the session itself."""
        for _, masks in groups_naming(self._open(file), [self.id], self._key_within(file)):
            for name, mask in masks.items():
                if is_own(name) and pc.any(mask).as_py():
                    return True
        return False

    def _survey(self) -> Survey:
        """Read what the removal needs before it begins.

        Add the sessions that are near to the report.
        """
        survey = Survey(set(), set())
        for file in self.tables():
            if self.has_own_rows(file):
                survey.partitions.add(file.key)
            if file.asset != "sessions":
                continue
            columns = ["session_id", "content_sha256", "parent_session_id", "task_key"]
            rows = self._open(file).read(columns)
            is_own_row = pc.equal(rows["session_id"], self.id)
            own_rows = rows.filter(is_own_row)
            for task in own_rows["task_key"].to_pylist():
                if task.startswith(("text:", "session:")):
                    survey.tasks.add(task)
            contents = own_rows["content_sha256"].combine_chunks()
            has_same_content = pc.and_(
                pc.is_in(rows["content_sha256"], contents), pc.invert(is_own_row)
            )
            is_side_chain = pc.equal(rows["parent_session_id"], self.id)
            self.report.same_content += rows.filter(has_same_content)["session_id"].to_pylist()
            self.report.side_chains += rows.filter(is_side_chain)["session_id"].to_pylist()
        return survey

    def _scrub_table(self, file: LakeFile) -> None:
        """Write a table again without the session's rows, and with an alias in rows that name it.

        One row group is in memory at a time.
        """
        table, change = self._open(file), Change(path=str(file.path))
        if not any(groups_naming(table, [self.id], self._key_within(file))):
            return

        def scrubbed_batches() -> Iterator[pa.RecordBatch]:
            for group in range(table.num_row_groups):
                rows = self._scrub_rows(table.read_row_group(group), file, change)
                yield from rows.combine_chunks().to_batches()

        staged = self.lake.stage(file.asset, file.key, scrubbed_batches(), table.schema_arrow)
        self.report.changes.append(change)
        staged.commit()

    def _scrub_rows(self, rows: pa.Table, file: LakeFile, change: Change) -> pa.Table:
        """Return rows without the session, and count what was removed in `change`."""
        masks = naming(rows, [self.id], self._key_within(file))
        for name, mask in masks.items():
            if not is_own(name) and pc.any(mask).as_py():
                rows = self._with_alias(rows, name, mask)
                change.mentions += pc.sum(mask).as_py()
        own_masks = [mask for name, mask in masks.items() if is_own(name)]
        if not own_masks:
            return rows
        is_own_row = reduce(pc.or_, own_masks)
        change.rows += pc.sum(is_own_row).as_py() or 0
        return filtered(rows, pc.invert(is_own_row))

    def _with_alias(self, rows: pa.Table, name: str, mask: pa.ChunkedArray) -> pa.Table:
        """Return rows with the alias for the id in a column.

        Only rows for which the mask is true change.
        """
        index = rows.schema.get_field_index(name)
        alias = f"session:{self.alias}" if name in TASK_COLUMNS else self.alias
        values = [
            alias if is_named else value
            for value, is_named in zip(rows[name].to_pylist(), mask.to_pylist(), strict=True)
        ]
        column = pa.array(values, rows[name].type)
        return rows.set_column(index, rows.schema.field(index), column)

    def _scrub_ledger(self, file: LakeFile, tasks: set[str]) -> None:
        """Remove the tasks that are only the session's text or id.

        Tasks that other sessions have too stay.
        """
        if not tasks or file.key is None:
            return
        of_others = self._tasks_of_other_sessions(file.key)
        name, known_as = f"session:{self.id}", f"session:{self.alias}"
        renamed = {name: known_as} if {name, known_as} & of_others else {}
        removed = remove_tasks(self.lake, file.key, tasks - of_others - set(renamed), renamed)
        if removed or renamed:
            change = Change(path=str(file.path), rows=removed, mentions=len(renamed))
            self.report.changes.append(change)

    def _tasks_of_other_sessions(self, key: PartitionKey) -> set[str]:
        """Return the tasks that rows of other sessions have in the tables of a partition."""
        tasks: set[str] = set()
        for file in self.tables():
            table = self._open(file)
            columns = naming_columns(table.schema_arrow)
            if file.key != key or "task_key" not in columns or not any(map(is_own, columns)):
                continue
            rows = table.read(columns)
            masks = naming(rows, [self.id])
            is_own_row = reduce(pc.or_, (mask for name, mask in masks.items() if is_own(name)))
            tasks.update(filtered(rows, pc.invert(is_own_row))["task_key"].to_pylist())
        return tasks

    # Copies of tables

    def _rebuild_copies(self, record: LakeFile) -> None:
        """Make the published files of a table again if the table changed."""
        for path in republish(self.lake, record.asset, record.key):
            is_there = path.exists()
            change = Change(path=str(path), rebuilt=is_there, deleted=not is_there)
            self.report.changes.append(change)

    def _delete_unrecorded_copies(self) -> None:
        """Delete copies that may hold the session, and that no record can make again.

        An older version wrote such copies, and a kill leaves them.
        """
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

    def _delete_unfinished(self) -> None:
        """Delete the folders of killed training runs and exports that hold the session.

        A folder whose manifest cannot be read may hold the session.
        """
        for folder in self.lake.unfinished():
            manifest = read_manifest(UPath(folder / MANIFEST))
            if manifest and not any(self.id in ids for ids in sessions_in(manifest).values()):
                continue
            if self.key not in (None, self.lake.asset_and_key(folder)[1]):
                continue
            try:
                with FileLock(f"{folder}.lock", timeout=0):
                    self.lake.delete_unfinished(folder)
            except Timeout as error:
                raise DataError(
                    f"What is being made in {folder} has {self.id!r} in it: cancel that run, or "
                    "wait for "
                    "its end, and repeat."
                ) from error
            self.report.changes.append(Change(path=str(folder), deleted=True))

    def _scrub_model(self, file: LakeFile, manifest: Manifest) -> None:
        """Remove the session from the files of an artifact.

        Transcripts, pages and logs are deleted first. The manifest is replaced before the JSON
        files, so that a repeated call finds the files that a killed call did not replace.
        """
        if not any({self.id, self.alias} & set(ids) for ids in sessions_in(manifest).values()):
            return
        # A kill after the last file was replaced must not leave the copy on this machine.
        self.lake.drop_copy(file, manifest["identity"])
        folder = file.path.parent
        scrubbed: Manifest = self._scrub(manifest)
        if "examples" in scrubbed["report"]:
            # The examples of an older version do not name their session.
            examples = scrubbed["report"]["examples"]
            scrubbed["report"]["examples"] = [
                example for example in examples if "session_id" in example
            ]
        files: dict[str, bytes] = {}
        for name, entry in manifest["files"].items():
            if name.endswith(_TRANSCRIPTS):
                del scrubbed["files"][name]
                if (folder / name).exists():
                    self._delete(folder / name)
            elif name.endswith(".json") and (folder / name).exists():
                content = self._scrub_json_file(folder / name, entry)
                if content is not None:
                    files[name] = content
                    sha256 = hashlib.sha256(content).hexdigest()
                    scrubbed["files"][name] = {"sha256": sha256, "bytes": len(content)}
        if scrubbed == manifest and not files:
            return
        text = manifest_text(with_checksum(scrubbed)).encode()
        for name, content in ((MANIFEST, text), *sorted(files.items())):
            self.lake.replace(folder / name, [content])
            self.report.changes.append(Change(path=str(folder / name), mentions=1))

    def _scrub_json_file(self, path: UPath, entry: FileEntry) -> bytes | None:
        """Return the new content of a JSON file of an artifact, or `None` if there is none.

        A damaged file may hold the session under a damaged id, so it is deleted. Its entry stays in
        the manifest, so that the artifact stays damaged. A new checksum would make damage look
        sound.
        """
        old_content = path.read_bytes()
        try:
            value = json.loads(old_content)
        except ValueError:
            self._delete(path)
            return None
        scrubbed = self._scrub(value)
        new_content = f"{json.dumps(scrubbed, indent=1, ensure_ascii=False)}\n".encode()
        # A killed call replaced the manifest, and not yet the file.
        sound = {hashlib.sha256(content).hexdigest() for content in (old_content, new_content)}
        if entry["sha256"] not in sound:
            self._delete(path)
            return None
        return new_content if scrubbed != value else None

    def _scrub(self, value: object, name: str = "") -> Any:
        """Return JSON without the objects of the session.

        The alias takes the place of the id in lists of sessions and of rows.

        Args:
            value: a JSON value.
            name: the key of the value, if it is in an object.
        """
        if isinstance(value, dict):
            return {key: self._scrub(item, key) for key, item in value.items()}
        if not isinstance(value, list):
            return value
        if name in ("sessions", "row_ids"):
            return [self._rename_row(row_id) for row_id in value]
        return [self._scrub(item) for item in value if not self._is_own_object(item)]

    def _is_own_object(self, value: object) -> bool:
        """Whether a JSON value is an object that belongs to the session."""
        if not isinstance(value, dict):
            return False
        return any(is_own(key) and item == self.id for key, item in value.items())

    def _rename_row(self, row_id: str) -> str:
        """Return the id of a row with the alias, if the row is the session's.

        The id of a row is that of its session, perhaps with `#` and the turns that are not trained.
        """
        if row_id == self.id or row_id.startswith(f"{self.id}#"):
            return self.alias + row_id.removeprefix(self.id)
        return row_id
