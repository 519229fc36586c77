"""Lineage by record: where a session went, and what a model was made of.

The lake alone answers both. Tables name sessions in their columns, models in their manifests, and an artifact that was made from another
names its identity: an export leads to its adapter, to its rows, to the sessions. No answer holds a word of a conversation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.ingestion.block_list import ALIAS_PREFIX, BlockList, make_alias
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, read_manifest, sha256_file

TABLE = "part-0.parquet"
OWN, CHOSEN, REJECTED = OF_THE_SESSION = "session", "chosen", "rejected"
TRAINED, MEASURED, COMPARED, FOLLOWS = "trained on", "measured on", "compared on", "made from"

_MENTIONS = {
    "parent_session_id": "parent",
    "duplicate_of": "original",
    "continued_by": "continuation",
    "task_key": "task",
    "case_id": "task",
}
"""Columns in which a row of another session may name one, and as what."""

TASK_COLUMNS = [name for name, role in _MENTIONS.items() if role == "task"]
"""Columns that name a session as `session:<id>`, the task of a session of which nothing else is known."""

_FACTS = (
    *(
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
    ),
    *("verdict", "verdict_by", "label", "margin", "similarity"),
)
_INDEX_FACTS = ("chosen", "rank", "score", "reason")

Masks = dict[str, pa.BooleanArray]
"""By column, which rows name a session: booleans (n,)."""


class UnknownSessionError(DataError):
    """The lake has no such session; `nearest` are the ids of it that are most like the one that was given."""

    def __init__(self, session_id: str, where: str, nearest: list[str]) -> None:
        self.nearest = nearest
        meant = (
            f": did you mean {', '.join(map(repr, nearest))}?"
            if nearest
            else ": 'agent-pipeline lineage session ID' shows where one is."
        )
        super().__init__(
            f"No table and no model of {where} has a session {session_id!r}, and nothing was changed{meant}"
        )


class TableRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row that names a session.

    `role`: `session` where the row is its own, `chosen` or `rejected` in a pair; `parent`, `original` (of a duplicate), `continuation` or
    `task` where another session's row names it. `facts` are what the table's asset decided on the row.
    """

    asset: str
    partition: str | None
    role: str
    facts: dict[str, Any] = {}


class ModelUse(msgspec.Struct, kw_only=True):
    """An artifact that a session reached.

    `roles`: it was `trained on`, `measured on` or `compared on` the session, or `made from` an artifact that was trained on it.
    """

    asset: str
    partition: str
    identity: str
    path: str
    roles: list[str]
    latest: bool


class SessionLineage(msgspec.Struct, kw_only=True):
    """Everything that a session reached; `files` hold copies of its rows: JSONL, Hugging Face folders."""

    session_id: str
    forgotten_in: list[str] = []
    rows: list[TableRow] = []
    files: list[str] = []
    models: list[ModelUse] = []


class ModelLineage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an artifact was made of, as its manifest says, and what the lake knows of its sessions now.

    `tables` are the versions (sha256) of the tables that it was made from, `code` the version of this package. `sessions` are ids;
    `forgotten` counts those forgotten since, `gone` others that the lake has no more, `sessions_by` the rest by source, verdict and judge.
    `rows_unchanged` says whether the lake's rows of these sessions are still the same (`None`: some are missing).
    """

    asset: str
    partition: str
    identity: str
    path: str
    latest: bool = False
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
    """Every table, file and model that a session reached, over all partitions; for a forgotten one, what names its alias.

    Raises:
        DataError: a table is damaged.
    """
    lineage = SessionLineage(
        session_id=session_id, forgotten_in=BlockList.read(lake).list_partitions(session_id)
    )
    files = list(lake.files())
    splits: set[tuple[str, PartitionKey | None, str]] = set()
    for file in files:
        if file.kind == "tables" and file.name == TABLE:
            rows = list(rows_naming(lake, file, session_id))
            lineage.rows += rows
            splits |= {
                (file.asset, file.key, str(row.facts.get("split")))
                for row in rows
                if row.role in OF_THE_SESSION
            }
    for file in files:
        split = file.path.name.partition(".")[0].partition("-")[0]
        if file.kind in ("jsonl", "huggingface") and (file.asset, file.key, split) in splits:
            lineage.files.append(str(file.path))
    lineage.models = models_of(lake, session_id)
    return lineage


def rows_naming(lake: Lake, file: LakeFile, session_id: str) -> Iterator[TableRow]:
    """The rows of a table that name a session, or its alias."""
    table = lake.open(file.asset, file.key)
    schema = table.schema_arrow
    is_index = "chosen" in schema.names and pa.types.is_boolean(schema.field("chosen").type)
    facts = [
        name for name in (*_FACTS, *(_INDEX_FACTS if is_index else ())) if name in schema.names
    ]
    for group, masks in groups_naming(table, [session_id, make_alias(session_id)]):
        rows = table.read_row_group(group, columns=[*{*masks, *facts}])
        for column, mask in masks.items():
            for row in filtered(rows, mask).to_pylist():
                known = {fact: row[fact] for fact in facts if row[fact] is not None}
                yield TableRow(
                    asset=file.asset,
                    partition=str(file.key) if file.key else None,
                    role=_role(column, schema),
                    facts=known,
                )


def _role(column: str, schema: pa.Schema) -> str:
    if column == "session_id":
        return CHOSEN if "rejected_session_id" in schema.names else OWN
    return _MENTIONS.get(column) or column.removesuffix("_session_id")


def is_own(column: str) -> bool:
    """Whether a row belongs (in part) to the session that this column names."""
    return column.endswith("session_id") and column not in _MENTIONS


def naming_columns(schema: pa.Schema) -> list[str]:
    """The columns of a table that may name a session, and those that say to which partition a row belongs."""
    texts = [field.name for field in schema if _is_text(field.type)]
    naming = [name for name in texts if is_own(name) or name in _MENTIONS]
    return [*naming, *(name for name in ("project", "agent") if name in texts)] if naming else []


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def groups_naming(
    table: pq.ParquetFile, ids: Sequence[str], key: PartitionKey | None = None
) -> Iterator[tuple[int, Masks]]:
    """The row groups that name one of these ids: their number, and which rows do. Only the columns that name sessions are read."""
    columns = naming_columns(table.schema_arrow)
    for group in range(table.num_row_groups if columns else 0):
        masks = naming(table.read_row_group(group, columns=columns), ids, key)
        if any(pc.any(mask).as_py() for mask in masks.values()):
            yield group, masks


def naming(rows: pa.Table, ids: Sequence[str], key: PartitionKey | None = None) -> Masks:
    """By column, which rows name one of these ids. With a key, only rows of that partition, where the rows say of which they are."""
    columns = naming_columns(rows.schema)
    masks = {
        name: _equal(rows[name], name, ids) for name in columns if name not in ("project", "agent")
    }
    if key is not None and {"project", "agent"} <= set(columns):
        project, agent = (
            pc.equal(rows[name].cast(pa.string()), part)
            for name, part in zip(("project", "agent"), key, strict=True)
        )
        here = pc.fill_null(pc.and_(project, agent), False)
        masks = {name: pc.and_(mask, here) for name, mask in masks.items()}
    if own := [mask for name, mask in masks.items() if is_own(name)]:
        others = pc.invert(
            reduce(pc.or_, own)
        )  # what a row says of its own session is not a mention
        masks = {
            name: mask if is_own(name) else pc.and_(mask, others) for name, mask in masks.items()
        }
    return masks


def _equal(column: pa.ChunkedArray, name: str, ids: Sequence[str]) -> pa.ChunkedArray:
    texts = column.cast(pa.string())  # another library's table may have another kind of text
    wanted = [f"session:{each}" for each in ids] if name in TASK_COLUMNS else ids
    return pc.fill_null(pc.is_in(texts, value_set=pa.array(wanted, pa.string())), False)


def filtered(rows: pa.Table, mask: Any) -> pa.Table:
    """The rows for which a mask is true. (Arrow cannot filter string views, Polars' kind of text: they are cast for it.)"""
    plain = pa.schema(
        [
            field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
            for field in rows.schema
        ]
    )
    return rows.cast(plain).filter(mask).cast(rows.schema)


def models_of(lake: Lake, session_id: str) -> list[ModelUse]:
    """Return the artifacts that a session (or its alias) reached, and the artifacts that were made from them.

    Raises:
        DamageError: the manifest of an artifact is damaged or missing, so that the session may have reached the artifact.
    """
    both = {session_id, make_alias(session_id)}
    files = list(lake.files())
    for artifact in lake.unreadable(files):
        is_uploading = artifact.is_missing and not lake.is_local
        if not is_uploading:
            raise DamageError(
                f"{artifact.path} is {artifact.reason}, so it is unknown whether {session_id!r} reached the {artifact.asset} {artifact.name} of "
                f"{artifact.key}: put a copy of the file back, or materialize {artifact.asset} again.",
                artifact.path,
            )
    manifests = list(lake.manifests(files))
    roles = {
        manifest["identity"]: [
            role for role, ids in sessions_in(manifest).items() if both & set(ids)
        ]
        for _, manifest in manifests
    }
    trained = {identity for identity, its in roles.items() if TRAINED in its}
    while new := [
        each["identity"]
        for _, each in manifests
        if each["identity"] not in trained and trained & set(parents(each))
    ]:
        trained.update(new)
        for identity in new:
            roles[identity].append(FOLLOWS)
    return [
        ModelUse(
            asset=manifest["asset"],
            partition=manifest["partition"],
            identity=manifest["identity"],
            path=str(file.path.parent),
            roles=roles[manifest["identity"]],
            latest=_is_latest(lake, manifest),
        )
        for file, manifest in manifests
        if roles[manifest["identity"]]
    ]


def sessions_in(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """The sessions that a manifest names, by what they were to its artifact; those in a prompt or an importance matrix are compared on."""
    made_from = manifest["made_from"]
    found: dict[str, set[str]] = defaultdict(set)
    for name, part in {"": made_from, **made_from}.items():
        if (
            isinstance(part, Mapping) and "sessions" in part and name != "replay"
        ):  # replayed rows are among the trained ones
            trained = name == "adapter_made_from" or not (name or "adapter" in made_from)
            found[TRAINED if trained else COMPARED if name else MEASURED].update(part["sessions"])
    return {role: sorted(ids) for role, ids in found.items()}


def parents(manifest: Mapping[str, Any]) -> list[str]:
    """The identities of the artifacts that one was made from."""
    named = (
        manifest["made_from"].get(name) for name in ("adapter", "reference", "gguf_export")
    )  # older ones name no parents
    return list(
        dict.fromkeys(
            each for each in (*manifest.get("parents", ()), *named) if isinstance(each, str)
        )
    )


def made_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What an artifact was made of, without the ids of sessions: what an asset's metadata shows."""
    made_from = manifest["made_from"]
    trained = made_from.get("adapter_made_from", made_from)
    facts = {
        "base_model": trained.get("base_model"),
        "base_revision": trained.get("base_revision"),
        "settings": made_from.get("config"),
        "rows": trained.get("rows"),
        "sessions": len(trained["sessions"]) if "sessions" in trained else None,
        "tables": manifest.get("tables"),
        "code": manifest.get("made_by"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def model_lineage(lake: Lake, model: str) -> ModelLineage:
    """What a model was made of: `model` is its folder, a file in it or a copy of one, or the first eight or more digits of its identity.

    Raises:
        DataError: the lake has no such model, or more than one with an identity that begins so.
    """
    place = UPath(model)
    known = {
        manifest["identity"]: (file.path.parent, manifest) for file, manifest in lake.manifests()
    }
    if place.exists():
        folder = next(
            (each for each in (place, *place.parents) if (each / MANIFEST).exists()), None
        )
        manifest = read_manifest(folder / MANIFEST) if folder else None
        if folder is None or manifest is None:
            folder, manifest = _with_weights(lake, place, known.values())
        return _model(lake, folder, manifest, known)
    begin = [identity for identity in known if len(model) >= 8 and identity.startswith(model)]
    if len(begin) != 1:
        what = f"{len(begin)} models" if begin else "No model"
        raise DataError(
            f"{what} of {lake.root} {'have' if begin else 'has'} an identity that begins with {model!r}, and there is no such path: give a "
            "model's folder, a file in it, or eight or more digits of its identity."
        )
    return _model(lake, *known[begin[0]], known)


def _with_weights(
    lake: Lake, copy: UPath, known: Iterable[tuple[UPath, dict[str, Any]]]
) -> tuple[UPath, dict[str, Any]]:
    """The model whose weights a file is a copy of. (Other files, such as a tokenizer, are the same in several models.)"""
    sha256 = sha256_file(Path(copy.path)) if copy.suffix in (".gguf", ".safetensors") else ""
    found = next(
        (
            each
            for each in known
            if any(file["sha256"] == sha256 for file in each[1]["files"].values())
        ),
        None,
    )
    if found is None:
        raise DataError(
            f"{copy} has no {MANIFEST}, and is not a copy of the weights of a model of {lake.root}: give a model's identity."
        )
    return found


def _model(
    lake: Lake,
    folder: UPath,
    manifest: Mapping[str, Any],
    known: Mapping[str, tuple[UPath, Mapping[str, Any]]],
) -> ModelLineage:
    made_from = manifest["made_from"]
    trained = made_from.get("adapter_made_from", made_from)
    named = [each for each in trained.get("sessions", ()) if not each.startswith(ALIAS_PREFIX)]
    lineage = ModelLineage(
        asset=manifest["asset"],
        partition=manifest["partition"],
        identity=manifest["identity"],
        path=str(folder),
        latest=_is_latest(lake, manifest),
        sessions=named,
        forgotten=len(trained.get("sessions", ())) - len(named),
        made_from=[
            _model(lake, *known[each], known) for each in parents(manifest) if each in known
        ],
        **{name: value for name, value in made_of(manifest).items() if name != "sessions"},
    )
    if named:
        _look_up_sessions(lake, lineage, trained.get("rows_sha256"))
    return lineage


def _look_up_sessions(lake: Lake, lineage: ModelLineage, rows_sha256: str | None) -> None:
    """Add what the lake knows now of a model's sessions."""
    key, ids = parse_key(lineage.partition), pa.array(lineage.sessions)
    known: set[str] = set()
    if lake.has("curated_sessions", key):
        rows = lake.open("curated_sessions", key).read(
            ["session_id", "source", "verdict", "verdict_by"]
        )
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=ids))
        known = set(rows["session_id"].to_pylist())
        for name in ("source", "verdict", "verdict_by"):
            lineage.sessions_by[name] = dict(
                Counter(str(value or "none") for value in rows[name].to_pylist()).most_common()
            )
    lineage.gone = len(lineage.sessions) - len(known)
    if lake.has("sft_dataset", key) and not lineage.forgotten:
        rows = lake.open("sft_dataset", key).read(["session_id", "row_id", "content_sha256"])
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=ids))
        if rows.num_rows == lineage.rows:
            pairs = zip(rows["row_id"].to_pylist(), rows["content_sha256"].to_pylist(), strict=True)
            lineage.rows_unchanged = hash_json(sorted(pairs)) == rows_sha256


def _is_latest(lake: Lake, manifest: Mapping[str, Any]) -> bool:
    return (
        lake.pointers(manifest["asset"], parse_key(manifest["partition"])).latest
        == manifest["identity"]
    )
