"""Lineage by record: where a session went, and what a model was made of.

Both are answered from the lake alone. Tables name sessions in their columns, models in their manifests, and an artifact that was made from
another names its identity: an export leads to its adapter, to its rows, to the sessions. Nothing here tells a conversation's words.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.forgotten import ALIAS, BlockList, alias
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, read_manifest

if TYPE_CHECKING:
    import numpy as np

TABLE = "part-0.parquet"
OWN, CHOSEN, REJECTED = "session", "chosen", "rejected"
TRAINED, MEASURED, COMPARED, FOLLOWS = "trained on", "measured on", "compared on", "made from"

_GROUPS = 64
"""Row groups of which the columns that name sessions are read at once."""

AGENT = r"[a-z0-9._-]+/[a-z0-9._-]+:"
"""What stands before the id of a row in a table of several agents."""

_MENTIONS = {
    "parent_session_id": "parent",
    "duplicate_of": "original",
    "continued_by": "continuation",
    "task_key": "task",
    "case_id": "task",
}
"""Columns in which a row of another session may name one, and as what."""

_FACTS = (
    "row_id",
    "content_sha256",
    "task_key",
    "split",
    "kept",
    "use",
    "drop_reason",
    "drop_detail",
    "duplicate_of",
    "continued_by",
    "verdict",
    "verdict_by",
    "label",
    "margin",
)
_INDEX_FACTS = ("chosen", "rank", "score", "reason", "duplicate_of", "similarity")


class TableRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row that names a session. `role`: `session` where the row is its own, `chosen` or `rejected` in a pair, and `parent`, `original`
    (of a duplicate) or `task` where another session's row names it. `facts` are what the table's asset decided on the row."""

    asset: str
    partition: str | None
    role: str
    facts: dict[str, Any] = {}


class ModelUse(msgspec.Struct, kw_only=True):
    """An artifact that a session reached. `roles`: it was `trained on`, `measured on` or `compared on` it, or `made from` an artifact that
    was trained on it."""

    asset: str
    partition: str
    identity: str
    path: str
    roles: list[str]
    current: bool


class SessionLineage(msgspec.Struct, kw_only=True):
    """Everything that a session reached; `files` are those that hold copies of its rows: JSONL, Hugging Face folders."""

    session_id: str
    forgotten_in: list[str] = []
    rows: list[TableRow] = []
    files: list[str] = []
    models: list[ModelUse] = []


class ModelLineage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an artifact was made of, as its manifest says, and what became of its sessions, as the lake says now.

    `tables` are the versions (sha256) of the tables that it was made from, `code` the version of this package. `sessions` are ids; of those
    forgotten since, `forgotten` is the number, and `gone` of others that the lake has no more. `sessions_by` counts the rest by source,
    verdict, and who gave it. `rows_unchanged` is whether the lake's rows of these sessions are still the same (null: some are not there).
    """

    asset: str
    partition: str
    identity: str
    path: str
    current: bool = False
    base_model: str | None = None
    base_revision: str | None = None
    code: dict[str, str] = {}
    settings: dict[str, Any] = {}
    tables: dict[str, str] = {}
    rows: int | None = None
    rows_unchanged: bool | None = None
    sessions: list[str] = []
    forgotten: int = 0
    gone: int = 0
    sessions_by: dict[str, dict[str, int]] = {}
    made_from: list["ModelLineage"] = []


def session_lineage(lake: Lake, session_id: str) -> SessionLineage:
    """Every table, file and model of the lake that a session reached, over all partitions; of a forgotten one, what names its alias.

    Raises:
        DataError: a table is damaged.
    """
    found = SessionLineage(session_id=session_id, forgotten_in=BlockList.read(lake).where(session_id))
    files = list(lake.files())
    sides: set[tuple[str, PartitionKey | None, str]] = set()
    for file in files:
        if file.kind == "tables" and file.name == TABLE:
            for row in _rows_naming(lake, file, session_id):
                found.rows.append(row)
                if row.role in (OWN, CHOSEN, REJECTED):
                    sides.add((file.asset, file.key, str(row.facts.get("split"))))
    for file in files:
        side = re.match(r"(?:data/)?(\w+)[.-]", file.name)
        if file.kind in ("jsonl", "huggingface") and side and (file.asset, file.key, side[1]) in sides:
            found.files.append(str(file.path))
    found.models = models_of(lake, session_id)
    return found


def _rows_naming(lake: Lake, file: LakeFile, session_id: str) -> Iterator[TableRow]:
    table = lake.open(file.asset, file.key)
    schema = table.schema_arrow
    facts = [*_FACTS, *(_INDEX_FACTS if _is_index(schema) else ())]
    for group, _, named in named_groups(table, [session_id, alias(session_id)]):
        rows = table.read_row_group(group, columns=[*{*named, *(name for name in facts if name in schema.names)}])
        for name, mask in named.items():
            for row in kept(rows, mask).to_pylist():
                told = {fact: row[fact] for fact in facts if row.get(fact) is not None}
                yield TableRow(asset=file.asset, partition=str(file.key) if file.key else None, role=_role(name, schema), facts=told)


def _is_index(schema: pa.Schema) -> bool:
    return "chosen" in schema.names and pa.types.is_boolean(schema.field("chosen").type)


def _role(column: str, schema: pa.Schema) -> str:
    if column == "session_id":
        return CHOSEN if "rejected_session_id" in schema.names else OWN
    return _MENTIONS.get(column) or column.removesuffix("_session_id")


def is_own(column: str) -> bool:
    """Whether a row is (in part) of the session that this column of it names."""
    return column.endswith("session_id") and column not in _MENTIONS


def naming_columns(schema: pa.Schema) -> list[str]:
    """The columns of a table that may name a session, and those that say of which partition a row is."""
    texts = [field.name for field in schema if _is_text(field.type)]
    naming = [name for name in texts if is_own(name) or name in _MENTIONS]
    return [*naming, *(name for name in ("project", "agent") if name in texts)] if naming else []


def named_groups(
    table: pq.ParquetFile, ids: Sequence[str], key: PartitionKey | None = None
) -> "Iterator[tuple[int, pa.Table, dict[str, np.ndarray]]]":
    """The row groups that name one of these ids: their number, their columns that name sessions, and `names` of them."""
    columns = naming_columns(table.schema_arrow)
    for first in range(0, table.num_row_groups if columns else 0, _GROUPS):
        groups = range(first, min(first + _GROUPS, table.num_row_groups))
        rows, at = table.read_row_groups(list(groups), columns=columns), 0
        named = names(rows, ids, key)
        for group in groups if any(mask.any() for mask in named.values()) else ():
            end = at + table.metadata.row_group(group).num_rows
            here = {name: mask[at:end] for name, mask in named.items()}
            if any(mask.any() for mask in here.values()):
                yield group, rows.slice(at, end - at), here
            at = end


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def names(rows: pa.Table, ids: Sequence[str], key: PartitionKey | None = None) -> "dict[str, np.ndarray]":
    """By column, which rows name one of these ids: booleans (n,). With a key, only rows of that partition, where the rows say of which."""
    found: dict[str, np.ndarray] = {}
    for name in rows.column_names:
        column = rows[name].cast(pa.string())  # another library's table may have another kind of text
        if is_own(name) or name in ("parent_session_id", "duplicate_of", "continued_by"):
            mask = pc.is_in(column, value_set=pa.array(ids))
        elif name in ("task_key", "case_id"):
            mask = pc.is_in(column, value_set=pa.array([f"session:{each}" for each in ids]))
        else:
            continue
        found[name] = pc.fill_null(mask, False).to_numpy()
    if key is not None and {"project", "agent"} <= set(rows.column_names):
        project, agent = (pc.equal(rows[name].cast(pa.string()), part) for name, part in zip(("project", "agent"), key, strict=True))
        here = pc.fill_null(pc.and_(project, agent), False).to_numpy()
        found = {name: mask & here for name, mask in found.items()}
    if own := [mask for name, mask in found.items() if is_own(name)]:
        others = ~reduce(or_, own)  # what a row says of its own session is no mention
        found = {name: mask if is_own(name) else mask & others for name, mask in found.items()}
    return found


def kept(rows: pa.Table, mask: "np.ndarray") -> pa.Table:
    """The rows for which a mask is true. (Arrow can't choose among texts of Polars' kind, string views: those are others meanwhile.)"""
    plain = pa.schema([field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in rows.schema])
    return rows.cast(plain).filter(pa.array(mask)).cast(rows.schema)


# Models


def models_of(lake: Lake, session_id: str) -> list[ModelUse]:
    """The artifacts that a session (or its alias) reached, and those that were made from them."""
    both = {session_id, alias(session_id)}
    manifests = list(lake.manifests())
    roles = {manifest["identity"]: [role for role, ids in sessions_in(manifest).items() if both & set(ids)] for _, manifest in manifests}
    again = True
    while again:
        again = False
        for _, manifest in manifests:
            mine = roles[manifest["identity"]]
            if not {TRAINED, FOLLOWS} & set(mine) and any({TRAINED, FOLLOWS} & set(roles.get(each, ())) for each in parents(manifest)):
                mine.append(FOLLOWS)
                again = True
    return [
        ModelUse(
            asset=manifest["asset"],
            partition=manifest["partition"],
            identity=manifest["identity"],
            path=str(file.path.parent),
            roles=roles[manifest["identity"]],
            current=_is_current(lake, manifest),
        )
        for file, manifest in manifests
        if roles[manifest["identity"]]
    ]


def sessions_in(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """The sessions that a manifest names, by what they were to its artifact."""
    made_from = manifest["made_from"]
    parts = {
        MEASURED if "adapter" in made_from else TRAINED: made_from,
        TRAINED if "adapter_made_from" in made_from else "": made_from.get("adapter_made_from"),
        COMPARED: made_from.get("compared"),
    }
    return {role: part["sessions"] for role, part in parts.items() if part and "sessions" in part}


def parents(manifest: Mapping[str, Any]) -> list[str]:
    """The identities of the artifacts that one was made from."""
    return [value for value in manifest["made_from"].values() if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16,64}", value)]


def made_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of an artifact's making, without the names of sessions: what an asset's metadata shows."""
    made_from = manifest["made_from"]
    trained = made_from.get("adapter_made_from", made_from)
    told = {
        "base_model": trained.get("base_model"),
        "base_revision": trained.get("base_revision"),
        "settings": made_from.get("config"),
        "rows": trained.get("rows"),
        "sessions": len(trained["sessions"]) if "sessions" in trained else None,
        "tables": manifest.get("tables"),
        "code": manifest.get("made_by"),
    }
    return {name: value for name, value in told.items() if value is not None}


def model_lineage(lake: Lake, model: str) -> ModelLineage:
    """What a model was made of: `model` is its folder, a file in it, or its identity (eight or more of its first digits).

    Raises:
        DataError: there is no such model, or it has no manifest; or more than one has an identity that begins so.
    """
    place = UPath(model)
    known = {manifest["identity"]: (file.path.parent, manifest) for file, manifest in lake.manifests()}
    if place.exists():
        folder = next((each for each in (place, *place.parents) if (each / MANIFEST).exists()), None)
        manifest = read_manifest(folder / MANIFEST) if folder else None
        if folder is None or manifest is None:
            raise DataError(
                f"{model} has no {MANIFEST} beside it, so nothing says what it was made of: name a model of {lake.root}/models."
            )
        return _model(lake, folder, manifest, known)
    begin = [identity for identity in known if len(model) >= 8 and identity.startswith(model)]
    if len(begin) != 1:
        what = f"{len(begin)} models" if begin else "No model"
        raise DataError(
            f"{what} of {lake.root} {'have' if begin else 'has'} an identity that begins with {model!r}, and there is no such path: give a "
            "model's folder, a file in it, or eight or more digits of its identity."
        )
    return _model(lake, *known[begin[0]], known)


def _model(lake: Lake, folder: UPath, manifest: Mapping[str, Any], known: Mapping[str, tuple[UPath, Mapping[str, Any]]]) -> ModelLineage:
    made_from = manifest["made_from"]
    trained = made_from.get("adapter_made_from", made_from)
    named = [each for each in trained.get("sessions", ()) if not each.startswith(ALIAS)]
    told = {name: value for name, value in made_of(manifest).items() if name != "sessions"}
    found = ModelLineage(
        asset=manifest["asset"],
        partition=manifest["partition"],
        identity=manifest["identity"],
        path=str(folder),
        current=_is_current(lake, manifest),
        sessions=named,
        forgotten=len(trained.get("sessions", ())) - len(named),
        made_from=[_model(lake, *known[each], known) for each in parents(manifest) if each in known],
        **told,
    )
    if named:
        _look_up(lake, found, trained.get("rows_sha256"))
    return found


def _look_up(lake: Lake, found: ModelLineage, rows_sha256: str | None) -> None:
    """Add what the lake knows now of a model's sessions."""
    key, ids = parse_key(found.partition), pa.array(found.sessions)
    there: set[str] = set()
    if lake.has("curated_sessions", key):
        rows = lake.open("curated_sessions", key).read(["session_id", "source", "verdict", "verdict_by"])
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=ids))
        there = set(rows["session_id"].to_pylist())
        for name in ("source", "verdict", "verdict_by"):
            found.sessions_by[name] = dict(Counter(str(value or "none") for value in rows[name].to_pylist()).most_common())
    found.gone = len(found.sessions) - len(there)
    if lake.has("sft_dataset", key) and not found.forgotten:
        rows = lake.open("sft_dataset", key).read(["session_id", "row_id", "content_sha256"])
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=ids))
        if rows.num_rows == found.rows:
            pairs = zip(rows["row_id"].to_pylist(), rows["content_sha256"].to_pylist(), strict=True)
            found.rows_unchanged = sha256_of(sorted(pairs)) == rows_sha256


def _is_current(lake: Lake, manifest: Mapping[str, Any]) -> bool:
    return lake.pointers(manifest["asset"], parse_key(manifest["partition"])).latest == manifest["identity"]
