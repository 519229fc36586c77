"""Forgetting of sessions, which removes them from all files of the lake.

- Tables are rewritten without the rows of the sessions.
- Files that are made from tables (JSONL, Hugging Face folders) are made again by the code that made
  them.
- Caches are deleted, and so are measurements of the base model.
- In the rows of other sessions (the parent of a side chain, the original of a duplicate) and in the
  manifests of models, an alias takes the place of the id.

The block list comes first, so that no later reading brings a session back. The table `sessions`
comes last. Each file is replaced in one step. If a run is killed, a second run with the same ids
completes the work.

The sessions stay in the weights of models, so the models that were trained on them are listed and
have to be trained again. The store, and what people keep themselves (labels, review files,
Dagster's record of runs), is not changed here.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from upath import UPath

from agent_pipeline.datasets.ledger import LEDGER_TABLE, remove_tasks
from agent_pipeline.datasets.publishing import PUBLICATIONS, read_publication, republish, unpublish
from agent_pipeline.datasets.requests import (
    REQUESTS_FILE,
    Request,
    TrainedRequests,
    forget_rows,
    read_request,
)
from agent_pipeline.datasets.sft_tables import SFT_TABLE
from agent_pipeline.errors import DamageError, DataError, name_asset_to_select
from agent_pipeline.evaluation.base_measurements import BASE_MEASUREMENTS
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
from agent_pipeline.ingestion.block_list import (
    ALIAS_PREFIX,
    FORGOTTEN_TABLE,
    BlockList,
    make_alias,
)
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE
from agent_pipeline.judging.llm_client import AnswerCache
from agent_pipeline.judging.repetitions import hash_without_call_ids
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import rewrite_served_texts
from agent_pipeline.selection.tables import BUFFER
from agent_pipeline.selection.vectors import OLD_SPACE, VECTORS
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.storage.artifacts import Manifest, manifest_text, with_checksum
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, read_manifest, remove
from agent_pipeline.structs import decode_json
from agent_pipeline.training.chain import name_adapter_asset

_CACHES = (OLD_SPACE, VECTORS, SEEN_TABLE)
"""Tables that the next run rebuilds."""

_COPIES = ("jsonl", "huggingface")
"""Kinds of lake files that are copies of table data."""
_TRANSCRIPTS = (".jsonl", ".md", ".html", ".eval")
"""Suffixes of artifact files that contain conversations."""


class Change(msgspec.Struct, kw_only=True):
    """A file that was changed to remove sessions.

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
    """The report on the removal of sessions.

    Attributes:
        session_ids: Ids of the sessions.
        aliases: Alias that replaces each id, in the order of the ids.
        partitions: Partitions in which the sessions are blocked; `*` for all partitions.
        unknown: Ids that are not in the lake; for these ids, nothing was changed.
        changes: Files that changed.
        judge_answers: Number of answers about the sessions that were removed from the judge's
            cache.
        unclear_answers: Number of answers in the judge's cache that do not name their session,
            because an older version wrote them.
        same_content: Ids of sessions that have the same conversation as a forgotten session, and
            that were not removed.
        side_chains: Ids of sessions that a forgotten session started, and that were not removed.
        models: Artifacts that were made from the sessions.
        messages: Sentences about served files that were deleted and that no run makes again by
            itself.
    """

    session_ids: list[str]
    aliases: list[str]
    partitions: list[str]
    unknown: list[str] = []
    changes: list[Change] = []
    judge_answers: int = 0
    unclear_answers: int = 0
    same_content: list[str] = []
    side_chains: list[str] = []
    models: list[ModelUse] = []
    messages: list[str] = []

    @property
    def to_retrain(self) -> list[ModelUse]:
        """Models that were trained on the removed sessions, and artifacts made from them."""
        return [model for model in self.models if {TRAINED, FOLLOWS} & set(model.roles)]


@dataclass(frozen=True)
class Survey:
    """Information about the sessions that is read from the tables before the removal.

    Attributes:
        tasks: tasks that are only the text or the id of one of the sessions.
        partitions: the partitions that have rows of the sessions.
    """

    tasks: set[str]
    partitions: set[PartitionKey | None]


def forget(
    lake: Lake, session_id: str, key: PartitionKey | None = None, judge_cache: Path | None = None
) -> Forgotten:
    """Remove one session (see `forget_sessions`)."""
    return forget_sessions(lake, [session_id], key, judge_cache)


def forget_sessions(
    lake: Lake,
    session_ids: Sequence[str],
    key: PartitionKey | None = None,
    judge_cache: Path | None = None,
) -> Forgotten:
    """Remove sessions from one or all partitions, and prevent runs from reading them again.

    The lake is read and written once, however many sessions there are. An id that nothing names is
    in the report, and changes nothing.

    Args:
        lake: the lake.
        session_ids: the sessions, at least one.
        key: the partition; without one, every partition.
        judge_cache: the file with the answers of the language model that judges.

    Raises:
        UnknownSessionError: nothing names any of the sessions; nothing was changed.
        DataError: a run is working on a partition of the sessions, or trains on them; or a table is
            damaged.
        DamageError: the manifest of an artifact cannot be read, so that a session may be in the
            artifact; nothing was changed.
    """
    lake.sweep()
    removal = _Removal(lake, list(dict.fromkeys(session_ids)), key)
    removal.refuse_unreadable(held=[])
    blocked = BlockList.read(lake)
    named = removal.named_ids()
    is_known = {
        session_id: blocked.has(session_id, key) or session_id in named
        for session_id in removal.ids
    }
    known_ids = [session_id for session_id in removal.ids if is_known[session_id]]
    unknown_ids = [session_id for session_id in removal.ids if not is_known[session_id]]
    if not known_ids:
        raise UnknownSessionError(
            unknown_ids[0], f"{lake.root}" if key is None else f"{key}", removal.nearest()
        )
    removal = _Removal(lake, known_ids, key)
    removal.report.unknown = unknown_ids
    with ExitStack() as held:
        partitions = removal.partitions()
        for partition in partitions:
            held.enter_context(lake.run_of(partition))
        removal.list_files()  # runs may have written until their partition was held
        removal.refuse_unreadable(partitions)
        report = removal.report
        blocked = BlockList.add(lake, known_ids, key)
        report.partitions = sorted(
            {name for known_id in known_ids for name in blocked.list_partitions(known_id)}
        )
        if judge_cache is not None and judge_cache.exists():
            answers = AnswerCache(judge_cache)
            for alias in report.aliases:
                forgotten = answers.forget(alias)
                report.judge_answers += forgotten.removed
                report.unclear_answers = forgotten.unnamed
            answers.close()
        removal.run()
        report.models = models_of(lake, *known_ids)
        for file in removal.tables():
            if removal.has_own_rows(file):
                raise DataError(
                    f"{removal.describe()} was written to {file.path} again while it was being "
                    "forgotten: wait until that run ends, then try again."
                )
        return report


class _KnownRequest(NamedTuple):
    """The request of a row that the lake still has.

    Attributes:
        created_at: The time at which the session began.
        session_id: The session of the row.
        request: The request.
    """

    created_at: datetime | None
    session_id: str
    request: Request


class _Removal:
    """The removal of sessions, file by file."""

    def __init__(self, lake: Lake, ids: list[str], key: PartitionKey | None) -> None:
        self.lake, self.ids, self.key = lake, ids, key
        self._aliases = {session_id: make_alias(session_id) for session_id in ids}
        self._names = {*self._aliases, *self._aliases.values()}
        self.report = Forgotten(
            session_ids=ids, aliases=list(self._aliases.values()), partitions=[]
        )
        self._known_requests: dict[PartitionKey | None, list[_KnownRequest]] = {}
        self.list_files()

    def describe(self) -> str:
        """Return the id of the session, or a phrase if there are several sessions."""
        return repr(self.ids[0]) if len(self.ids) == 1 else f"one of the {len(self.ids)} sessions"

    def list_files(self) -> None:
        """List the files in the lake that may contain the sessions."""
        every = self.lake.files()
        self._files = [file for file in every if self.key is None or file.key in (None, self.key)]

    def refuse_unreadable(self, held: Sequence[PartitionKey | None]) -> None:
        """Refuse to forget sessions if an artifact's manifest is unreadable and may name them.

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
                f"{artifact.path} is {artifact.reason}, so it is unknown whether "
                f"{self.describe()} is in the {artifact.asset} {artifact.name} of {artifact.key}, "
                "and nothing was forgotten: restore the file from a backup, or delete the folder "
                f"{artifact.path.parent}, then try again.",
                artifact.path,
            )

    def tables(self) -> list[LakeFile]:
        """Return the tables that exist in the lake.

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
        """Return the partitions that have rows made from the sessions.

        `None` stands for tables of several agents.
        """
        return list(dict.fromkeys(file.key for file in self.tables() if self.has_own_rows(file)))

    def named_ids(self) -> set[str]:
        """Return those of the ids that occur in a table or in a model's manifest."""
        names: set[str] = set()
        for _, manifest in self.lake.manifests(self._files):
            for ids in sessions_in(manifest).values():
                names.update(ids)
        for file in self.tables():
            table = self._open(file)
            for group, masks in groups_naming(table, self.ids, self._key_within(file)):
                rows = table.read_row_group(group, columns=list(masks))
                for column, mask in masks.items():
                    values = rows[column].cast(pa.string()).filter(mask).to_pylist()
                    if column in TASK_COLUMNS:
                        values = [value.removeprefix("session:") for value in values]
                    names.update(values)
        return names & set(self.ids)

    def nearest(self) -> list[str]:
        """Return the ids in the lake that are most similar to the first of the given ids."""
        ids: set[str] = set()
        for file in self.tables():
            if file.asset == "sessions":
                ids.update(self._open(file).read(["session_id"])["session_id"].to_pylist())
        return difflib.get_close_matches(self.ids[0], ids, n=3)

    def run(self) -> None:
        """Change all files, in an order that keeps the lake consistent if the process is killed."""
        survey = self._survey()
        # Caches come first: the rows of the session in other tables tell which caches may hold its
        # text.
        for file in self.tables():
            if file.asset in _CACHES and file.key in survey.partitions:
                self._delete(file.path)
        self._delete_unfinished()
        trained_keys = set()
        for file, manifest in self.lake.manifests(self._files):
            if self._scrub_model(file, manifest) and file.asset == name_adapter_asset("sft"):
                trained_keys.add(file.key)
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
        for key in trained_keys:
            if key is not None:
                self._rewrite_served_texts(key)

    # Tables

    def _open(self, file: LakeFile) -> pq.ParquetFile:
        try:
            return self.lake.open(file.asset, file.key)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file.path} is damaged ({error}): materialize "
                f"`{name_asset_to_select(file.asset)}` again, or delete the file, then try again."
            ) from error

    def _key_within(self, file: LakeFile) -> PartitionKey | None:
        """Return the partition that a row must name, or None if the table's folder names it."""
        return self.key if file.key is None else None

    def has_own_rows(self, file: LakeFile) -> bool:
        """Return whether a table has rows that were made from the sessions."""
        for _, masks in groups_naming(self._open(file), self.ids, self._key_within(file)):
            for name, mask in masks.items():
                if is_own(name) and pc.any(mask).as_py():
                    return True
        return False

    def _survey(self) -> Survey:
        """Read all information that the removal needs before it changes any file.

        Add the other sessions that are near to the report.
        """
        survey = Survey(set(), set())
        for file in self.tables():
            if self.has_own_rows(file):
                survey.partitions.add(file.key)
            if file.asset != "sessions":
                continue
            columns = ["session_id", "parent_session_id", "task_key"]
            rows = self._open(file).read(columns)
            is_own_row = _is_one_of(rows["session_id"], self.ids)
            own_rows = rows.filter(is_own_row)
            for task in own_rows["task_key"].to_pylist():
                if task.startswith(("text:", "session:")):
                    survey.tasks.add(task)
            is_side_chain = pc.and_(
                _is_one_of(rows["parent_session_id"], self.ids), pc.invert(is_own_row)
            )
            if len(own_rows):
                self.report.same_content += self._find_same_conversations(file)
            self.report.side_chains += rows.filter(is_side_chain)["session_id"].to_pylist()
        return survey

    def _find_same_conversations(self, file: LakeFile) -> list[str]:
        """Return the other sessions of a table that have the conversation of a forgotten session.

        Curation drops such a session as a duplicate, and trains it after its original is forgotten.
        """
        batches = read_batches(self._open(file), ["session_id", "messages", "tools"])
        hashes = {
            row["session_id"]: hash_without_call_ids(row["messages"], row["tools"])
            for row in to_rows(batches)
        }
        own_hashes = {hashes[session] for session in self.ids if session in hashes}
        return [
            session
            for session, conversation in hashes.items()
            if conversation in own_hashes and session not in self.ids
        ]

    def _scrub_table(self, file: LakeFile) -> None:
        """Rewrite a table without the sessions' rows. Rows that mention a session get its alias.

        One row group is in memory at a time.
        """
        table, change = self._open(file), Change(path=str(file.path))
        if not any(groups_naming(table, self.ids, self._key_within(file))):
            return

        def scrubbed_batches() -> Iterator[pa.RecordBatch]:
            for group in range(table.num_row_groups):
                rows = self._scrub_rows(table.read_row_group(group), file, change)
                yield from rows.combine_chunks().to_batches()

        staged = self.lake.stage(file.asset, file.key, scrubbed_batches(), table.schema_arrow)
        self.report.changes.append(change)
        staged.commit()

    def _scrub_rows(self, rows: pa.Table, file: LakeFile, change: Change) -> pa.Table:
        """Return rows without the rows of the sessions, and count the removed rows in `change`."""
        masks = naming(rows, self.ids, self._key_within(file))
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
        """Return rows in which each session id in a column is replaced by its alias.

        Only rows for which the mask is true change.
        """
        index = rows.schema.get_field_index(name)
        aliases: Mapping[str, str] = self._aliases
        if name in TASK_COLUMNS:
            aliases = {f"session:{key}": f"session:{alias}" for key, alias in aliases.items()}
        values = [
            aliases[value] if is_named else value
            for value, is_named in zip(rows[name].to_pylist(), mask.to_pylist(), strict=True)
        ]
        column = pa.array(values, rows[name].type)
        return rows.set_column(index, rows.schema.field(index), column)

    def _scrub_ledger(self, file: LakeFile, tasks: set[str]) -> None:
        """Remove tasks whose key consists only of the text or the id of one of the sessions.

        Tasks that other sessions have too stay.
        """
        if not tasks or file.key is None:
            return
        of_others = self._tasks_of_other_sessions(file.key)
        renamed = {}
        for session_id, alias in self._aliases.items():
            name, known_as = f"session:{session_id}", f"session:{alias}"
            if {name, known_as} & of_others:
                renamed[name] = known_as
        removed = remove_tasks(self.lake, file.key, tasks - of_others - set(renamed), renamed)
        if removed or renamed:
            change = Change(path=str(file.path), rows=removed, mentions=len(renamed))
            self.report.changes.append(change)

    def _tasks_of_other_sessions(self, key: PartitionKey) -> set[str]:
        """Return the tasks that also occur in rows of other sessions in a partition's tables."""
        tasks: set[str] = set()
        for file in self.tables():
            table = self._open(file)
            columns = naming_columns(table.schema_arrow)
            if file.key != key or "task_key" not in columns or not any(map(is_own, columns)):
                continue
            rows = table.read(columns)
            masks = naming(rows, self.ids)
            is_own_row = reduce(pc.or_, (mask for name, mask in masks.items() if is_own(name)))
            tasks.update(filtered(rows, pc.invert(is_own_row))["task_key"].to_pylist())
        return tasks

    # Copies of tables

    def _rebuild_copies(self, record: LakeFile) -> None:
        """Write the published files of a table again if the table has changed."""
        for path in republish(self.lake, record.asset, record.key):
            is_there = path.exists()
            change = Change(path=str(path), rebuilt=is_there, deleted=not is_there)
            self.report.changes.append(change)

    def _delete_unrecorded_copies(self) -> None:
        """Delete copies that may contain a session and that cannot be rebuilt from a record.

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
                if (table and self.has_own_rows(table)) or found_in(file, self.ids):
                    for path in unpublish(self.lake, file.asset, file.key):
                        self.report.changes.append(Change(path=str(path), deleted=True))

    def _delete(self, path: UPath) -> None:
        remove(path)
        self.report.changes.append(Change(path=str(path), deleted=True))

    # Models

    def _delete_unfinished(self) -> None:
        """Delete the folders of killed training runs and exports that contain a session.

        A folder whose manifest cannot be read may hold a session.
        """
        for folder in self.lake.unfinished():
            manifest = read_manifest(UPath(folder / MANIFEST))
            if manifest and not any(
                self._aliases.keys() & set(ids) for ids in sessions_in(manifest).values()
            ):
                continue
            if self.key not in (None, self.lake.asset_and_key(folder)[1]):
                continue
            try:
                with FileLock(f"{folder}.lock", timeout=0):
                    self.lake.delete_unfinished(folder)
            except Timeout as error:
                raise DataError(
                    f"{folder}, which a run is making, contains {self.describe()}: cancel that "
                    "run or wait until it ends, then try again."
                ) from error
            self.report.changes.append(Change(path=str(folder), deleted=True))

    def _scrub_model(self, file: LakeFile, manifest: Manifest) -> bool:
        """Remove the sessions from the files of an artifact. Return whether it was made from them.

        A measurement of the base model is deleted as a whole. Of any other artifact, transcripts,
        pages and logs are deleted first. The manifest is replaced before the JSON files, so that a
        repeated call finds the files that a killed call did not replace.
        """
        if not any(self._names & set(ids) for ids in sessions_in(manifest).values()):
            return False
        if file.asset == BASE_MEASUREMENTS:
            self._delete_artifact(file)
            return True
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
            path = folder / name
            if name.endswith(_TRANSCRIPTS) or (name == REQUESTS_FILE and not path.exists()):
                del scrubbed["files"][name]
                if path.exists():
                    self._delete(path)
                continue
            if not name.endswith(".json") or not path.exists():
                continue
            old_content = path.read_bytes()
            if name == REQUESTS_FILE:
                content = self._scrub_requests(old_content, file.key, manifest)
            else:
                content = self._scrub_json(old_content)
            # A killed call replaced the manifest, and not yet the file.
            contents = [old_content] if content is None else [old_content, content]
            is_sound = entry["sha256"] in {hashlib.sha256(text).hexdigest() for text in contents}
            if content is None or not is_sound:
                # A damaged file may hold a session under a damaged id. Its entry stays in the
                # manifest, because a new checksum would make damage look sound.
                self._delete(path)
                # A killed call may have replaced the manifest before the tables changed, so that
                # the record now gets another checksum. The adapter works without its record.
                if name == REQUESTS_FILE:
                    del scrubbed["files"][name]
            elif content != old_content:
                files[name] = content
                sha256 = hashlib.sha256(content).hexdigest()
                scrubbed["files"][name] = {"sha256": sha256, "bytes": len(content)}
        if scrubbed == manifest and not files:
            return True
        text = manifest_text(with_checksum(scrubbed)).encode()
        for name, content in ((MANIFEST, text), *sorted(files.items())):
            self.lake.replace(folder / name, [content])
            self.report.changes.append(Change(path=str(folder / name), mentions=1))
        return True

    def _scrub_requests(
        self, content: bytes, key: PartitionKey | None, manifest: Manifest
    ) -> bytes | None:
        """Return an adapter's record of its requests without what only the sessions may have said.

        Without the record, nobody would notice that the agent's requests changed.

        Args:
            content: The record.
            key: The partition of the adapter.
            manifest: The manifest of the adapter, which names its sessions.

        Returns:
            The record, or `None` if it cannot be read or nothing of it may stay.
        """
        try:
            requests = decode_json(content, TrainedRequests)
        except msgspec.MsgspecError:
            return None
        session_ids = set(manifest["made_from"].get("sessions", []))
        # A session may have several rows. Its rows are not counted after it was forgotten.
        row_ids = map(self._rename_row, manifest["report"].get("row_ids", []))
        forgotten_rows = sum(row_id.startswith(ALIAS_PREFIX) for row_id in row_ids)
        forgotten_ids = {
            name for name in session_ids if name in self._names or name.startswith(ALIAS_PREFIX)
        }
        if not forgotten_ids:
            return content
        remaining = [
            known.request
            for known in self._read_known_requests(key)
            if known.session_id in session_ids - forgotten_ids
        ]
        kept = forget_rows(requests, max(forgotten_rows, len(forgotten_ids)), remaining)
        if kept is None:
            return None
        return content if kept == requests else msgspec.json.encode(kept)

    def _read_known_requests(self, key: PartitionKey | None) -> list[_KnownRequest]:
        """Return the requests of the training rows in a partition's tables, the newest last."""
        if key in self._known_requests:
            return self._known_requests[key]
        columns = ["session_id", "created_at", "messages", "tools"]
        requests: dict[str, Request] = {}
        rows = []
        for file in self.tables():
            if file.asset not in (SFT_TABLE, BUFFER) or file.key != key:
                continue
            table = self._open(file)
            if not set(columns) <= set(table.schema_arrow.names):
                continue
            for row in to_rows(read_batches(table, columns)):
                request = read_request(row["messages"], row["tools"] or [])
                # Most rows have the same request, which memory holds once.
                request = requests.setdefault(hash_json(request), request)
                rows.append(_KnownRequest(row["created_at"], row["session_id"], request))
        oldest = datetime.min.replace(tzinfo=UTC)
        rows.sort(key=lambda row: (row.created_at or oldest, row.session_id))
        self._known_requests[key] = rows
        return rows

    def _rewrite_served_texts(self, key: PartitionKey) -> None:
        """Write the texts of a served model again if its record of requests has changed."""
        rewritten = rewrite_served_texts(self.lake, key)
        if rewritten.message:
            self.report.messages.append(rewritten.message)
        for path in rewritten.files:
            is_there = path.exists()
            change = Change(path=str(path), rebuilt=is_there, deleted=not is_there)
            self.report.changes.append(change)

    def _delete_artifact(self, file: LakeFile) -> None:
        """Delete an artifact that the next run makes again without the sessions."""
        folder = file.path.parent
        self.lake.start_deletion(folder)
        for deletion in list(self.lake.find_deletions()):
            if (deletion.asset, deletion.key) == (file.asset, file.key):
                self.lake.complete_deletion(deletion)
        self.report.changes.append(Change(path=str(folder), deleted=True))

    def _scrub_json(self, content: bytes) -> bytes | None:
        """Return the new content of a JSON file of an artifact, or `None` if it is damaged."""
        try:
            value = json.loads(content)
        except ValueError:
            return None
        scrubbed = self._scrub(value)
        if scrubbed == value:
            return content
        return f"{json.dumps(scrubbed, indent=1, ensure_ascii=False)}\n".encode()

    def _scrub(self, value: object, name: str = "") -> Any:
        """Return a JSON value without the objects that belong to the sessions.

        The alias takes the place of an id in lists of sessions and of rows.

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
        """Return whether a JSON value is an object that belongs to one of the sessions."""
        if not isinstance(value, dict):
            return False
        return any(
            is_own(key) and isinstance(item, str) and item in self._aliases
            for key, item in value.items()
        )

    def _rename_row(self, row_id: str) -> str:
        """Return the id of a row, with the alias in it if the row belongs to one of the sessions.

        The id of a row is that of its session, perhaps with `#` and the turns that are not trained.
        """
        end = len(row_id)
        while end > 0:
            session_id = row_id[:end]
            if session_id in self._aliases:
                return self._aliases[session_id] + row_id[end:]
            end = row_id.rfind("#", 0, end)
        return row_id


def _is_one_of(column: pa.ChunkedArray, ids: Sequence[str]) -> pa.ChunkedArray:
    """Return which values of a column are among the given ids."""
    return pc.is_in(column.cast(pa.string()), value_set=pa.array(ids, pa.string()))
