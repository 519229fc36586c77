"""Forgetting a session: taking it out of everything that the lake holds, in seconds, without making anything anew.

The block list comes first, so that no later reading brings it back; then copies that have no id to be found by, caches and manifests; then
tables, those last from which the others were made: a run that is killed leaves enough behind to be run again, and then it completes. Each
file is replaced in one step. In a table only the row groups are decoded that name the session; in the rows of other sessions (a side
chain's parent, a duplicate's original) and in the manifests of models an alias takes the place of the id.

What was trained on it cannot be unlearnt: those models are named, to be trained again. The store, and what people keep of their own
(labels, review files, Dagster's record of runs), is theirs.
"""

import hashlib
import json
import mmap
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from upath import UPath

from agent_pipeline.datasets.cards import with_counts
from agent_pipeline.datasets.formats import form
from agent_pipeline.datasets.ledger import LEDGER, unsettle
from agent_pipeline.errors import DataError
from agent_pipeline.governance.lineage import (
    AGENT,
    FOLLOWS,
    TABLE,
    TRAINED,
    ModelUse,
    is_own,
    kept,
    models_of,
    named_groups,
    names,
    naming_columns,
    sessions_in,
)
from agent_pipeline.ingestion.forgotten import FORGOTTEN, BlockList, alias
from agent_pipeline.ingestion.ingestion import SEEN
from agent_pipeline.judging.client import AnswerCache
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.vectors import SPACE, VECTORS
from agent_pipeline.sessions.session import Message, json_bytes
from agent_pipeline.sessions.tables import to_rows
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, StagedTable, read_manifest, sha256_file

if TYPE_CHECKING:
    import numpy as np

Named = dict[str, "np.ndarray"]
"""By column, which rows name the session: booleans (n,)."""

_LAST = (SEEN, "sessions")
_CHUNK = 8 << 20


class Change(msgspec.Struct, kw_only=True):
    """A file that was rewritten: `rows` (of a table, lines, entries) went, in `mentions` others an alias stands now. A file that was
    `deleted` whole is made again by the next run."""

    path: str
    rows: int = 0
    mentions: int = 0
    deleted: bool = False


class Forgotten(msgspec.Struct, kw_only=True):
    """What came of forgetting a session. `partitions` is where it is blocked from now on (`*`: everywhere).

    `judge_answers` of the language model about it left the judge's cache; `unclear_answers` are there of an older version that did not note
    whom they are about. `same_content` and `side_chains` are other sessions, which stay: with the same conversation, and begun by it.
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
        """The models that learnt from it, and what was made from them."""
        return [each for each in self.models if {TRAINED, FOLLOWS} & set(each.roles)]


def forget(lake: Lake, session_id: str, key: PartitionKey | None = None, judge_cache: Path | None = None) -> Forgotten:
    """Take a session out of a partition, or (without one) out of all, and keep it out.

    Raises:
        DataError: something is being written, or trained on it, now; or a file is damaged.
    """
    lake.sweep()
    blocked = BlockList.read(lake).with_session(session_id, key)
    blocked.write(lake)
    run = _Forgetting(lake, session_id, key)
    run.found.partitions = blocked.where(session_id)
    if judge_cache is not None and judge_cache.exists():
        answers = AnswerCache(judge_cache)
        run.found.judge_answers, run.found.unclear_answers = answers.forget(alias(session_id))
        answers.close()
    run.everywhere()
    run.found.models = models_of(lake, session_id)
    if left := [str(file.path) for file in run.tables() if any(run.own_groups(file))]:
        raise DataError(f"{session_id} was written again while it was being forgotten, to {left[0]}: let that run end, and repeat.")
    return run.found


class _Forgetting:
    """One session's removal, file by file."""

    def __init__(self, lake: Lake, session_id: str, key: PartitionKey | None) -> None:
        self.lake, self.id, self.key, self.alias = lake, session_id, key, alias(session_id)
        self.found = Forgotten(session_id=session_id, alias=self.alias, partitions=[])
        self._files = [file for file in lake.files() if key is None or file.key in (None, key)]
        self._keys: set[PartitionKey | None] = set()
        self._tasks: set[str] = set()

    def files(self, kind: str) -> list[LakeFile]:
        """The files of a kind that are there."""
        return [file for file in self._files if file.kind == kind and file.path.exists()]

    def tables(self) -> list[LakeFile]:
        """The tables, those that the others are made from last."""
        found = [file for file in self.files("tables") if file.name == TABLE and file.asset != FORGOTTEN]
        return sorted(found, key=lambda file: file.asset in _LAST)

    def everywhere(self) -> None:
        """Look at all tables, then change every file, in the order that a kill in the middle does no harm to."""
        self._survey()
        for file in self.files("jsonl"):
            self._lines(file)
        self._folders()
        self._unfinished()
        for place, manifest in self.lake.manifests():
            if place in self._files:
                self._model(place, manifest)
        for file in self.tables():
            if file.asset in (SPACE, VECTORS):
                if file.key in self._keys:  # a cache that the next coreset makes again
                    self._delete(file)
            elif file.asset == LEDGER:
                self._ledger(file)
            elif file.asset not in _LAST and (staged := self._without(file)) is not None:
                staged.commit()
        for key in {file.key for file in self.tables() if file.asset in _LAST}:
            self._sessions(key)

    # Tables

    def own_groups(self, file: LakeFile) -> Iterator[tuple[int, pa.Table]]:
        """The session's own rows in each row group that has some: only the columns that name sessions."""
        for number, rows, named in self._named_groups(file, self._open(file)):
            own = _own(named)
            if own is not None and own.any():
                yield number, kept(rows, own)

    def _own_rows(self, file: LakeFile) -> Iterator[dict[str, Any]]:
        """The session's own rows, whole."""
        table = self._open(file)
        for number, _, named in self._named_groups(file, table):
            if (own := _own(named)) is not None:
                yield from to_rows(kept(table.read_row_group(number), own))

    def _open(self, file: LakeFile) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(file.path.path if self.lake.is_local else file.path.fs.open(file.path.path))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file.path} is damaged ({error}): materialize {file.asset} again, or delete it, and repeat.") from error

    def _named_groups(self, file: LakeFile, table: pq.ParquetFile) -> Iterator[tuple[int, pa.Table, Named]]:
        # Where the folder says of which partition rows are, they need not.
        return named_groups(table, [self.id], self.key if file.key is None else None)

    def _survey(self) -> None:
        """Note where the session is, which tasks it had, and which other sessions are near to it, while all of that is still there."""
        near: dict[str, set[str]] = {"same_content": set(), "side_chains": set()}
        for file in self.tables():
            contents: set[str] = set()
            for _, mine in self.own_groups(file):
                self._keys.add(file.key)
                if "task_key" in mine.column_names:
                    self._tasks.update(task for task in mine["task_key"].to_pylist() if task.startswith(("text:", "session:")))
            if file.asset == "sessions":
                rows = self._open(file).read(["session_id", "content_sha256", "parent_session_id"])
                contents.update(rows.filter(pc.equal(rows["session_id"], self.id))["content_sha256"].to_pylist())
                same = pc.and_(pc.is_in(rows["content_sha256"], pa.array(contents, pa.string())), pc.not_equal(rows["session_id"], self.id))
                near["same_content"].update(rows.filter(same)["session_id"].to_pylist())
                near["side_chains"].update(rows.filter(pc.equal(rows["parent_session_id"], self.id))["session_id"].to_pylist())
        self.found.same_content, self.found.side_chains = (sorted(near[name]) for name in ("same_content", "side_chains"))

    def _without(self, file: LakeFile) -> StagedTable | None:
        """A Parquet file without the session's rows, and with an alias where others name it; null where it says nothing of it."""
        table = self._open(file)
        groups: dict[int, pa.Table] = {}
        change = Change(path=str(file.path))
        for number, _, named in self._named_groups(file, table):
            rows = table.read_row_group(number)
            for name, mask in named.items():
                if not is_own(name) and mask.any():
                    rows = self._renamed(rows, name, mask)
                    change.mentions += int(mask.sum())
            if (own := _own(named)) is not None:
                rows = kept(rows, ~own)
                change.rows += int(own.sum())
            groups[number] = rows
        if not groups:
            return None
        self.found.changes.append(change)
        return self.lake.restage(file.path, groups)

    def _renamed(self, rows: pa.Table, name: str, mask: "np.ndarray") -> pa.Table:
        """Rows with an alias in a column where the mask says that another session's row names this one."""
        column, place = rows[name], rows.schema.get_field_index(name)
        values = column.to_pylist()
        for at in mask.nonzero()[0].tolist():
            values[at] = values[at].removesuffix(self.id) + self.alias
        return rows.set_column(place, rows.schema.field(place), pa.array(values, column.type))

    def _sessions(self, key: PartitionKey | None) -> None:
        """The table `sessions`, and before it what the next run copies from it by, which names the table's hash."""
        file, seen = (LakeFile(self.lake.table(asset, key), "tables", asset, key, TABLE) for asset in ("sessions", SEEN))
        staged = self._without(file) if file.path.exists() else None
        if seen.path.exists() and (without := self._without(seen)) is not None:
            table = pq.ParquetFile(without.file)
            before = sha256_file(Path(file.path.path)).encode() if staged and self.lake.is_local else b""
            after = staged.sha256.encode() if staged else before
            metadata = {name: after if value == before else value for name, value in (table.schema_arrow.metadata or {}).items()}
            schema = table.schema_arrow.with_metadata(metadata)
            batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in table.iter_batches())
            self.lake.stage(SEEN, key, batches, schema).commit()
            without.file.unlink()
        if staged is not None:
            staged.commit()

    def _ledger(self, file: LakeFile) -> None:
        """Tasks that are no more than the session's text or id leave the ledger with it, unless other sessions have them too."""
        if not self._tasks or file.key is None:
            return
        held: set[str] = set()
        for other in self.tables():
            columns = naming_columns(self._open(other).schema_arrow)
            if other.key == file.key and "task_key" in columns and any(map(is_own, columns)):
                rows = self._open(other).read(columns)
                named = names(rows, [self.id])
                others = ~reduce(or_, (mask for name, mask in named.items() if is_own(name)))
                held.update(kept(rows, others)["task_key"].to_pylist())
        mine, known_as = f"session:{self.id}", f"session:{self.alias}"
        renamed = {mine: known_as} if {mine, known_as} & held else {}
        gone = unsettle(self.lake, file.key, self._tasks - held - set(renamed), renamed)
        if gone or renamed:
            self.found.changes.append(Change(path=str(file.path), rows=gone, mentions=len(renamed)))

    def _delete(self, file: LakeFile) -> None:
        file.path.unlink()
        self.found.changes.append(Change(path=str(file.path), deleted=True))

    # Copies of tables

    def _copied(self, file: LakeFile) -> list[dict[str, Any]]:
        """The session's rows in the table that a file is a copy of, on the side that the file's name says."""
        table = file._replace(path=self.lake.table(file.asset, file.key))
        side = re.match(r"(?:data/)?(\w+)[.-]", file.name)
        rows = self._own_rows(table) if side and table.path.exists() else ()
        return [row for row in rows if side and row.get("split") == side[1]]

    def _lines(self, file: LakeFile) -> None:
        """A file of one JSON object a line."""
        with _mapped(file.path, self.lake.is_local) as text:
            end = text.find(b"\n")
            named = end > 0 and any(map(is_own, msgspec.json.decode(text[:end], type=dict[str, msgspec.Raw])))
            if named:
                cuts = _cuts(text, _spellings(self.id), partial(self._edited, key=self.key if file.key is None else None))
            else:  # OpenAI's form has no place for an id: a line is known by what it says
                said = _said(self._copied(file))
                needles = {each for messages in said for each in _spellings(_longest(messages))}
                cuts = _cuts(text, needles, lambda line: None if line.get("messages") in said else line)
            if cuts:
                gone = sum(not new for _, _, new in cuts)
                self.found.changes.append(Change(path=str(file.path), rows=gone, mentions=len(cuts) - gone))
                self.lake.replace(file.path, _parts(text, cuts))
        if not named and said and not cuts:  # it was made by another run than the table: what is where cannot be told
            self._delete(file)

    def _edited(self, row: dict[str, Any], key: PartitionKey | None) -> dict[str, Any] | None:
        """A row without mentions of the session; null where it is the session's own."""
        table = pa.table({name: [value] for name, value in row.items() if isinstance(value, str)})
        named = {name for name, mask in names(table, [self.id], key).items() if mask.any()}
        if any(map(is_own, named)):
            return None
        return row | {name: row[name].removesuffix(self.id) + self.alias for name in named}

    def _folders(self) -> None:
        """Hugging Face folders: a Parquet file a split, and the card that counts their rows."""
        for file in self.files("huggingface"):
            if file.name.startswith("."):  # left behind by a process that was killed
                self._delete(file)
            elif file.path.suffix == ".parquet" and self._is_named(file):
                if (staged := self._without(file)) is not None:
                    self._count_again(file, staged)
                    staged.commit()
            elif file.path.suffix == ".parquet" and (said := _said(self._copied(file))):
                self._without_ids(file, said)

    def _is_named(self, file: LakeFile) -> bool:
        return any(map(is_own, naming_columns(self._open(file).schema_arrow)))

    def _without_ids(self, file: LakeFile, said: Sequence[list[Message]]) -> None:
        """A Parquet file of OpenAI's form: what says the same as a row of the session goes."""
        table = self._open(file)
        texts = pa.array([json_bytes(messages).decode() for messages in said], pa.string())
        groups = {}
        gone = 0
        for number in range(table.num_row_groups):
            messages = pa.concat_arrays([chunk.storage for chunk in table.read_row_group(number, ["messages"])["messages"].chunks])
            mine = pc.is_in(messages, texts)
            if count := pc.sum(mine).as_py():
                groups[number] = table.read_row_group(number).filter(pc.invert(mine))
                gone += count
        if not groups:
            return self._delete(file)
        self.found.changes.append(Change(path=str(file.path), rows=gone))
        staged = self.lake.restage(file.path, groups)
        self._count_again(file, staged)
        return staged.commit()

    def _count_again(self, file: LakeFile, staged: StagedTable) -> None:
        """Put a split's rows and tasks into the card, before the split itself."""
        card = file.path.parent.parent / "README.md"
        if card.exists():
            named = "task_key" in staged.schema.names
            tasks = len(pc.unique(pq.read_table(staged.file, columns=["task_key"])["task_key"])) if named else "–"
            text = with_counts(card.read_text(encoding="utf-8"), file.path.name.partition("-")[0], staged.rows, tasks)
            self.lake.replace(card, [text.encode("utf-8")])

    # Models

    def _unfinished(self) -> None:
        """Trainings and exports that were killed: what has the session in it cannot go on."""
        for folder in self.lake.unfinished():
            manifest = read_manifest(UPath(folder / MANIFEST))
            others = manifest is not None and not any(self.id in ids for ids in sessions_in(manifest).values())
            if others or (manifest and self.key and manifest["partition"] != str(self.key)):
                continue
            try:
                with FileLock(f"{folder}.lock", timeout=0):
                    shutil.rmtree(folder)
            except Timeout as error:
                raise DataError(
                    f"What is being made in {folder} has {self.id} in it: cancel that run, or wait for its end, and repeat."
                ) from error
            self.found.changes.append(Change(path=str(folder), deleted=True))

    def _model(self, place: LakeFile, manifest: dict[str, Any]) -> None:
        """The JSON files of an artifact: the manifest first, which has the sizes of the others, for those of now it would call damaged."""
        if not any({self.id, self.alias} & set(ids) for ids in sessions_in(manifest).values()):
            return
        folder = place.path.parent
        made: dict[str, bytes] = {}
        dropped: list[dict[str, Any]] = []
        for name in sorted(manifest["files"]):
            text = (folder / name).read_bytes() if name.endswith(".json") and (folder / name).exists() else b""
            if any(each in text for each in _spellings(self.id)):
                before = json.loads(text)
                after = self._scrubbed(before, dropped)
                if after != before:
                    made[name] = (json.dumps(after, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
        new = self._scrubbed(manifest, dropped)
        said = [(entry.get("prompt_tail"), entry.get("expected")) for entry in dropped]
        if "examples" in new["report"]:
            examples = new["report"]["examples"]
            new["report"]["examples"] = [each for each in examples if (each.get("prompt_tail"), each.get("expected")) not in said]
        for name, data in made.items():
            new["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        if new == manifest and not made:
            return
        text = json.dumps(new, indent=2, sort_keys=True, ensure_ascii=False)
        for name, data in ((MANIFEST, text.encode("utf-8")), *made.items()):
            self.lake.replace(folder / name, [data])
            self.found.changes.append(Change(path=str(folder / name), mentions=1))
        self.lake.drop_copy(place, manifest["identity"])

    def _scrubbed(self, value: Any, dropped: list[dict[str, Any]], name: str = "") -> Any:
        """JSON without the objects that are the session's, which join `dropped`, and with an alias for its id in lists of ids."""
        if isinstance(value, dict):
            return {key: self._scrubbed(each, dropped, key) for key, each in value.items()}
        if not isinstance(value, list):
            return value
        kept = []
        for each in value:
            if isinstance(each, dict) and any(is_own(key) and of == self.id for key, of in each.items()):
                dropped.append(each)
            elif isinstance(each, str) and name in ("sessions", "row_ids"):
                kept.append(self._row_id(each))
            else:
                kept.append(self._scrubbed(each, dropped))
        return kept

    def _row_id(self, row_id: str) -> str:
        """A row's id with the alias, if the row is the session's: `id`, `id#turns that are not learnt`, `chosen|rejected`, and these with
        `project/agent:` before them."""
        agent = re.match(AGENT, row_id)
        if agent and (known := self._row_id(row_id[agent.end() :])) != row_id[agent.end() :]:
            return agent[0] + known
        if row_id == self.id or row_id.startswith((f"{self.id}#", f"{self.id}|")):
            return self.alias + row_id.removeprefix(self.id)
        return row_id.removesuffix(self.id) + self.alias if row_id.endswith(f"|{self.id}") else row_id


def _own(named: Named) -> "np.ndarray | None":
    """Which rows are the session's own; null where the table has no column for that."""
    masks = [mask for name, mask in named.items() if is_own(name)]
    return reduce(or_, masks) if masks else None


# Lines


def _spellings(text: str) -> set[bytes]:
    """A text as JSON may hold it, without the quotes: beyond ASCII as it is, or escaped."""
    return {msgspec.json.encode(text)[1:-1], *(json.dumps(text, ensure_ascii=ascii)[1:-1].encode() for ascii in (False, True))}


def _said(rows: Iterable[dict[str, Any]]) -> list[list[Message]]:
    """What rows say in OpenAI's form, those that it takes."""
    made = [form("openai").convert(row) for row in rows]
    return [row["messages"] for row in made if not isinstance(row, str)]


def _longest(messages: list[Message]) -> str:
    return max((message.get("content") or "" for message in messages), key=len)


@contextmanager
def _mapped(path: UPath, local: bool) -> Iterator[mmap.mmap | bytes]:
    """A file's bytes, not read before they are looked at where the file is local."""
    if not local or not path.stat().st_size:
        yield path.read_bytes()
        return
    with Path(path.path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped


Edit = Callable[[dict[str, Any]], dict[str, Any] | None]


def _cuts(text: mmap.mmap | bytes, needles: Iterable[bytes], edit: Edit) -> list[tuple[int, int, bytes]]:
    """Lines with one of the needles that `edit` changes: where they begin and end, and what stands there instead, or nothing."""
    found = {}
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at) + 1 or len(text)
            before = msgspec.json.decode(text[start:end])
            after = edit(before)
            if after != before:
                found[start] = (start, end, msgspec.json.encode(after) + b"\n" if after is not None else b"")
            at = text.find(needle, end)
    return sorted(found.values())


def _parts(text: mmap.mmap | bytes, cuts: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
    """A text with its cuts, piece by piece."""
    at = 0
    for start, end, new in (*cuts, (len(text), len(text), b"")):
        for begin in range(at, start, _CHUNK):
            yield text[begin : min(begin + _CHUNK, start)]
        yield new
        at = end


# Proof


def scan(lake: Lake, needles: Iterable[str]) -> dict[str, list[str]]:
    """Every file of the lake read to its end, and what of `needles` is in it: `{path: [needle, …]}`. Parquet columns are looked at as they
    are when decoded, nested ones too; everything else byte by byte, as it is and as JSON writes it.

    Raises:
        DataError: a table is damaged.
    """
    wanted = {needle: {needle.encode("utf-8"), *_spellings(needle)} for needle in needles}
    longest = max(len(each) for spellings in wanted.values() for each in spellings)
    found: dict[str, list[str]] = {}
    for file in lake.files():
        hits: set[str] = set()
        for part in _contents(file, longest):
            hits.update(needle for needle, each in wanted.items() if needle not in hits and any(one in part for one in each))
        if hits:
            found[str(file.path)] = sorted(hits)
    return found


def _contents(file: LakeFile, longest: int) -> Iterator[bytes]:
    """What a file holds, in pieces; so that nothing is cut apart, each begins with the end of the one before."""
    if file.path.suffix == ".parquet":
        with file.path.open("rb") as opened:
            table = pq.ParquetFile(opened)
            for number in range(table.num_row_groups):
                for column in table.read_row_group(number).columns:
                    for chunk in column.chunks:
                        plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
                        yield from (buffer.to_pybytes() for buffer in plain.buffers() if buffer is not None)
    with file.path.open("rb") as opened:
        end = b""
        while part := opened.read(_CHUNK):
            yield end + part
            end = part[-longest:]
