"""Lineage of records: where a session was used, and what a model was made from.

The lake alone answers both questions. Tables name sessions in their columns, and models name them
in their manifests. An artifact that was made from another artifact names its identity, so that an
export leads to its adapter, to its rows and to the sessions. No answer holds a word of a
conversation.

Changing what names a session does not belong here (`agent_pipeline.governance.forgetting`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.datasets.sft_tables import SFT_TABLE, read_sft_columns
from agent_pipeline.errors import DamageError, DataError, name_asset_to_select
from agent_pipeline.ingestion.block_list import ALIAS_PREFIX, BlockList, make_alias
from agent_pipeline.json_types import JsonObject
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Manifest
from agent_pipeline.storage.lake import MANIFEST, Lake, LakeFile, read_manifest, sha256_file

TABLE = "part-0.parquet"
"""File name of a table."""
OWN, CHOSEN, REJECTED = OF_THE_SESSION = "session", "chosen", "rejected"
"""Roles of a session in dataset rows."""
TRAINED, MEASURED, COMPARED, FOLLOWS = "trained on", "measured on", "compared on", "made from"
"""Roles of a session in artifacts."""

_MENTIONS = {
    "parent_session_id": "parent",
    "duplicate_of": "original",
    "continued_by": "continuation",
    "task_key": "task",
    "case_id": "task",
}
"""Columns in which a row may mention another session, with the role of the mentioned session."""

TASK_COLUMNS = [name for name, role in _MENTIONS.items() if role == "task"]
"""Columns that may contain `session:<id>`, which is the task of a session without a named task."""

_PARTITION_COLUMNS = ("project", "agent")
"""Columns that name the partition of a row."""

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
"""Columns that contain the decisions of a table's asset."""
_INDEX_FACTS = ("chosen", "rank", "score", "reason")
"""Columns that contain the decisions of a selection."""

Masks = dict[str, pa.ChunkedArray]
"""Masks of the rows that name a session, by column: boolean arrays of shape (rows,)."""


class UnknownSessionError(DataError):
    """Raised if the lake does not contain a session.

    Attributes:
        session_id: the id that was looked for.
        nearest: the ids of the lake that are most like it.
    """

    def __init__(self, session_id: str, where: str, nearest: list[str]) -> None:
        self.session_id, self.nearest = session_id, nearest
        advice = "to find a session, run 'agent-pipeline sessions show ID --lineage'."
        if nearest:
            advice = f"did you mean {', '.join(map(repr, nearest))}?"
        super().__init__(
            f"No table and no model of {where} has a session {session_id!r}, and nothing was "
            "changed: "
            f"{advice}"
        )


class TableRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A table row that names a session.

    Attributes:
        asset: Asset of the table.
        partition: Partition of the table.
        role: `session` if the row is about the session itself; `chosen` or `rejected` in a pair;
            `parent`, `original` (of a duplicate), `continuation` or `task` if the row is about
            another session that names the session.
        facts: Decisions of the asset about the row.
    """

    asset: str
    partition: str | None
    role: str
    facts: JsonObject = {}


class ModelUse(msgspec.Struct, kw_only=True):
    """An artifact that was made from a session, directly or through other artifacts.

    Attributes:
        asset: Asset of the artifact.
        partition: Partition of the artifact.
        identity: Identity of the artifact.
        path: Directory of the artifact.
        roles: `trained on`, `measured on` or `compared on` the session, or `made from` an artifact
            that was trained on the session.
        latest: Whether the artifact is the latest of its partition.
    """

    asset: str
    partition: str
    identity: str
    path: str
    roles: list[str]
    latest: bool


class SessionLineage(msgspec.Struct, kw_only=True):
    """All tables, files and models that contain data from a session.

    Attributes:
        session_id: The session's id.
        forgotten_in: Partitions in which the session was forgotten; `*` for all partitions.
        rows: Rows of tables that name the session.
        files: Files with copies of the session's rows: JSONL files and Hugging Face folders.
        models: Artifacts that were made from the session.
    """

    session_id: str
    forgotten_in: list[str] = []
    rows: list[TableRow] = []
    files: list[str] = []
    models: list[ModelUse] = []


class ModelLineage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sources of an artifact according to its manifest, and what the lake still holds of them.

    Attributes:
        asset: Asset of the artifact.
        partition: Partition of the artifact.
        identity: Identity of the artifact.
        path: Directory of the artifact.
        latest: Whether the artifact is the latest of its partition.
        base_model: Model from which training started.
        base_revision: Version of the base model.
        code: Versions of the code.
        settings: Settings with which the artifact was made.
        tables: Versions (sha256) of the tables from which the artifact was made.
        rows: Number of training rows.
        rows_unchanged: Whether the lake still has the same training rows; null if rows are missing.
        sessions: Ids of the training sessions, without forgotten sessions.
        forgotten: Number of training sessions that `agent-pipeline forget` removed later.
        gone: Number of other training sessions that are no longer in the lake.
        sessions_by: Number of the remaining training sessions by source, verdict and judge.
        made_from: Artifacts from which the artifact was made, with the same fields.
    """

    asset: str
    partition: str
    identity: str
    path: str
    latest: bool = False
    base_model: str | None = None
    base_revision: str | None = None
    code: dict[str, str] = {}
    settings: JsonObject = {}
    tables: dict[str, str] = {}
    rows: int | None = None
    rows_unchanged: bool | None = None
    sessions: list[str] = []
    forgotten: int = 0
    gone: int = 0
    sessions_by: dict[str, dict[str, int]] = {}
    made_from: list["ModelLineage"] = []


def session_lineage(lake: Lake, session_id: str) -> SessionLineage:
    """Return all tables, files and models that contain data from a session, in all partitions.

    For a forgotten session, the rows and artifacts are those that name its alias.

    Raises:
        DamageError: a table or a manifest is damaged.
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
    """Yield the rows of a table that contain a session's id or its alias."""
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
    """Return whether a row was made, at least in part, from the session in this column."""
    return column.endswith("session_id") and column not in _MENTIONS


def naming_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a table that may name a session, and those that name a partition."""
    texts = [field.name for field in schema if _is_text(field.type)]
    columns = [name for name in texts if is_own(name) or name in _MENTIONS]
    if not columns:
        return []
    return [*columns, *(name for name in _PARTITION_COLUMNS if name in texts)]


def _is_text(column_type: pa.DataType) -> bool:
    """Return whether a column contains texts, possibly with dictionary encoding."""
    plain = column_type.value_type if pa.types.is_dictionary(column_type) else column_type
    text_checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_text(plain) for is_text in text_checks)


def groups_naming(
    table: pq.ParquetFile, ids: Sequence[str], key: PartitionKey | None = None
) -> Iterator[tuple[int, Masks]]:
    """Yield the numbers of the row groups that contain one of the ids, with masks of their rows.

    Only the columns that may name sessions are read.

    Args:
        table: the table.
        ids: the sessions.
        key: only rows of this partition count, if the rows name their partition.
    """
    columns = naming_columns(table.schema_arrow)
    for group in range(table.num_row_groups if columns else 0):
        masks = naming(table.read_row_group(group, columns=columns), ids, key)
        if any(pc.any(mask).as_py() for mask in masks.values()):
            yield group, masks


def naming(rows: pa.Table, ids: Sequence[str], key: PartitionKey | None = None) -> Masks:
    """Return masks of the rows that contain one of the ids, by column.

    The id of the session that a row was made from does not count.

    Args:
        rows: rows of a table, shape (n,).
        ids: the sessions.
        key: only rows of this partition count, if the rows name their partition.

    Returns:
        Booleans of shape (n,) by column.
    """
    columns = naming_columns(rows.schema)
    masks = {
        name: _names_one_of(rows[name], name, ids)
        for name in columns
        if name not in _PARTITION_COLUMNS
    }
    if key is not None and set(_PARTITION_COLUMNS) <= set(columns):
        has_project = pc.equal(rows["project"].cast(pa.string()), key.project)
        has_agent = pc.equal(rows["agent"].cast(pa.string()), key.agent)
        is_of_partition = pc.fill_null(pc.and_(has_project, has_agent), False)
        masks = {name: pc.and_(mask, is_of_partition) for name, mask in masks.items()}
    own_masks = [mask for name, mask in masks.items() if is_own(name)]
    if own_masks:
        is_of_another = pc.invert(reduce(pc.or_, own_masks))
        for name in masks:
            if not is_own(name):
                masks[name] = pc.and_(masks[name], is_of_another)
    return masks


def _names_one_of(column: pa.ChunkedArray, name: str, ids: Sequence[str]) -> pa.ChunkedArray:
    """Return which values of a column name one of the sessions."""
    texts = column.cast(pa.string())  # another library's table may have another type of text
    names = [f"session:{session_id}" for session_id in ids] if name in TASK_COLUMNS else ids
    return pc.fill_null(pc.is_in(texts, value_set=pa.array(names, pa.string())), False)


def filtered(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows whose value in a mask is true.

    Arrow cannot filter string views, which Polars writes, so they are cast meanwhile.
    """
    fields = []
    for field in rows.schema:
        is_view = pa.types.is_string_view(field.type)
        fields.append(field.with_type(pa.string()) if is_view else field)
    return rows.cast(pa.schema(fields)).filter(mask).cast(rows.schema)


def models_of(lake: Lake, *session_ids: str) -> list[ModelUse]:
    """Return the artifacts that were made from sessions, directly or through other artifacts.

    The alias of a forgotten session counts as the session.

    Raises:
        DamageError: the manifest of an artifact is damaged or missing, so that a session may have
            reached the artifact.
    """
    names = {*session_ids, *map(make_alias, session_ids)}
    described = repr(session_ids[0]) if len(session_ids) == 1 else "one of the sessions"
    files = list(lake.files())
    for artifact in lake.find_unreadable(files):
        is_uploading = artifact.is_missing and not lake.is_local
        if not is_uploading:
            raise DamageError(
                f"{artifact.path} is {artifact.reason}, so it is unknown whether the "
                f"{artifact.asset} {artifact.name} of {artifact.key} was made from {described}: "
                "restore the file from a backup, or materialize "
                f"{name_asset_to_select(artifact.asset)} again.",
                artifact.path,
            )
    manifests = [(file.path.parent, manifest) for file, manifest in lake.manifests(files)]
    roles: dict[str, list[str]] = {}
    for _, manifest in manifests:
        ids_by_role = sessions_in(manifest)
        roles[manifest["identity"]] = [
            role for role, ids in ids_by_role.items() if names & set(ids)
        ]
    for identity in _find_followers([manifest for _, manifest in manifests], roles):
        roles[identity].append(FOLLOWS)
    return [
        ModelUse(
            asset=manifest["asset"],
            partition=manifest["partition"],
            identity=manifest["identity"],
            path=str(folder),
            roles=roles[manifest["identity"]],
            latest=_is_latest(lake, manifest),
        )
        for folder, manifest in manifests
        if roles[manifest["identity"]]
    ]


def _find_followers(manifests: Sequence[Manifest], roles: Mapping[str, list[str]]) -> set[str]:
    """Return the artifacts that were made from artifacts that were trained on the sessions.

    Artifacts that were trained on a session themselves are not included.
    """
    trained = {identity for identity, its_roles in roles.items() if TRAINED in its_roles}
    followers: set[str] = set()
    while True:
        reached = trained | followers
        new = {
            manifest["identity"]
            for manifest in manifests
            if manifest["identity"] not in reached and reached & set(parents(manifest))
        }
        if not new:
            return followers
        followers |= new


def sessions_in(manifest: Manifest) -> dict[str, list[str]]:
    """Return the sessions that a manifest names, by their role.

    Sessions in a prompt or in an importance matrix are compared on.
    """
    made_from = manifest["made_from"]
    ids_by_role: dict[str, set[str]] = defaultdict(set)
    for name, part in {"": made_from, **made_from}.items():
        if not isinstance(part, Mapping) or "sessions" not in part:
            continue
        if name == "replay":  # replayed rows are among the trained rows
            continue
        ids_by_role[_role_of_part(name, made_from)].update(part["sessions"])
    return {role: sorted(ids) for role, ids in ids_by_role.items()}


def _role_of_part(name: str, made_from: Mapping[str, object]) -> str:
    """Return the role of the sessions in a part of `made_from`. The part "" is the whole."""
    if name == "adapter_made_from":
        return TRAINED
    if name:
        return COMPARED
    return MEASURED if {"adapter", "measures"} & made_from.keys() else TRAINED


def parents(manifest: Manifest) -> list[str]:
    """Return the identities of the artifacts that an artifact was made from.

    Manifests of older versions have no `parents`.
    """
    made_from = manifest["made_from"]
    named = [made_from.get(name) for name in ("adapter", "reference", "gguf_export")]
    identities = [*manifest.get("parents", []), *named]
    return list(dict.fromkeys(name for name in identities if isinstance(name, str)))


def made_of(manifest: Manifest) -> JsonObject:
    """Return the sources of an artifact without the session ids.

    The metadata of an asset shows it.
    """
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


@dataclass(frozen=True)
class StoredModel:
    """An artifact in the lake, given by its directory and its manifest."""

    folder: UPath
    manifest: Manifest


def model_lineage(lake: Lake, model: str) -> ModelLineage:
    """Return the sources that a model was made from.

    Args:
        lake: the lake.
        model: the folder of the model, a file in it, a copy of a file of its weights, or the first
            eight or more digits of its identity.

    Raises:
        DataError: the lake has no such model, or more than one whose identity begins with these
            digits.
    """
    path = UPath(model)
    models = {
        manifest["identity"]: StoredModel(file.path.parent, manifest)
        for file, manifest in lake.manifests()
    }
    if path.exists():
        return _describe(lake, _find_around(lake, path, models), models)
    matching = [name for name in models if len(model) >= 8 and name.startswith(model)]
    if len(matching) != 1:
        what = f"{len(matching)} models" if matching else "no model"
        raise DataError(
            f"{model!r} is not the name of one model. It is not an existing path, and {what} of "
            f"{lake.root} {'have' if matching else 'has'} an identity that begins with it: give a "
            "model's folder, a file in the folder, or at least eight digits of the model's "
            "identity."
        )
    return _describe(lake, models[matching[0]], models)


def _find_around(lake: Lake, path: UPath, models: Mapping[str, StoredModel]) -> StoredModel:
    """Return the model whose folder contains a path, or whose weights are the file at the path."""
    for folder in (path, *path.parents):
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder / MANIFEST)
            if manifest is not None:
                return StoredModel(folder, manifest)
            break
    return _find_by_weights(lake, path, models.values())


def _find_by_weights(lake: Lake, copy: UPath, models: Iterable[StoredModel]) -> StoredModel:
    """Return the model whose weights are equal to the content of a file.

    Other files, such as a tokenizer, are identical in several models.
    """
    sha256 = sha256_file(Path(copy.path)) if copy.suffix in (".gguf", ".safetensors") else ""
    for model in models:
        if any(entry["sha256"] == sha256 for entry in model.manifest["files"].values()):
            return model
    raise DataError(
        f"{copy} has no {MANIFEST}, and its weights belong to no model of {lake.root}: give the "
        "identity of a model."
    )


def _describe(lake: Lake, model: StoredModel, models: Mapping[str, StoredModel]) -> ModelLineage:
    """Return the lineage of a model, and of the models that it was made from."""
    manifest = model.manifest
    made_from = manifest["made_from"]
    trained = made_from.get("adapter_made_from", made_from)
    trained_on = trained.get("sessions", ())
    sessions = [name for name in trained_on if not name.startswith(ALIAS_PREFIX)]
    facts = {name: value for name, value in made_of(manifest).items() if name != "sessions"}
    lineage = ModelLineage(
        asset=manifest["asset"],
        partition=manifest["partition"],
        identity=manifest["identity"],
        path=str(model.folder),
        latest=_is_latest(lake, manifest),
        sessions=sessions,
        forgotten=len(trained_on) - len(sessions),
        made_from=[
            _describe(lake, models[identity], models)
            for identity in parents(manifest)
            if identity in models
        ],
        **facts,
    )
    if sessions:
        _look_up_sessions(lake, lineage, trained.get("rows_sha256"))
    return lineage


def _look_up_sessions(lake: Lake, lineage: ModelLineage, rows_sha256: str | None) -> None:
    """Add to a lineage the data that the lake still holds of the model's sessions."""
    key, ids = parse_key(lineage.partition), pa.array(lineage.sessions)
    known: set[str] = set()
    if lake.has("curated_sessions", key):
        columns = ["session_id", "source", "verdict", "verdict_by"]
        rows = lake.open("curated_sessions", key).read(columns)
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=ids))
        known = set(rows["session_id"].to_pylist())
        for name in ("source", "verdict", "verdict_by"):
            counts = Counter(str(value or "none") for value in rows[name].to_pylist())
            lineage.sessions_by[name] = dict(counts.most_common())
    lineage.gone = len(lineage.sessions) - len(known)
    if lake.has(SFT_TABLE, key) and not lineage.forgotten:
        rows = read_sft_columns(lake, key, ["session_id", "row_id", "content_sha256"])
        rows = rows.filter(pc.is_in(rows["session_id"], value_set=ids))
        if rows.num_rows == lineage.rows:
            pairs = zip(rows["row_id"].to_pylist(), rows["content_sha256"].to_pylist(), strict=True)
            lineage.rows_unchanged = hash_json(sorted(pairs)) == rows_sha256


def _is_latest(lake: Lake, manifest: Manifest) -> bool:
    """Return whether an artifact is the latest artifact of its partition."""
    pointers = lake.pointers(manifest["asset"], parse_key(manifest["partition"]))
    return pointers.latest == manifest["identity"]
