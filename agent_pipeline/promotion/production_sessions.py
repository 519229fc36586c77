"""The sessions that were logged in production, each with the model that answered and its outcome.

A session belongs to the champion, to the previous champion, to the agent that they replace (a model
that is not from this lake), or to another model of this lake. Which names servers give to the
lake's models belongs to `own_models`, and what follows from the sessions to `production`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

import msgspec

from agent_pipeline.evaluation.episodes import PLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.own_models import OwnModels, find_identities
from agent_pipeline.sessions.cost import TokenUsage, read_tokens
from agent_pipeline.sessions.session import (
    ANSWERING_MODELS,
    CHOSEN_MODEL,
    list_answering_models,
)
from agent_pipeline.sessions.tables import JUDGED, read_batches, to_rows
from agent_pipeline.storage.lake import Lake

TABLE = "judged_sessions"
NOT_JUDGED = (None, "policy", "unverified")
"""Values of `verdict_by` with which nobody judged the session."""

Server = Literal["champion", "previous champion", "agent", "other"]
"""The model that served a session. `other` is a model of this lake that is neither champion."""


class ServedSession(msgspec.Struct, frozen=True, gc=False):
    """A session of production.

    Attributes:
        session_id: The session.
        task_key: The task of the session.
        created_at: The time when the session began.
        server: The model that served the session.
        model: The name of this model in the session.
        has_help: Whether a model that is not from this lake answered too.
        is_good: The verdict; None if nobody judged the session.
        by_person: Whether a person gave the verdict.
        failed: Whether the infrastructure failed.
        turns: The number of the agent's messages.
        tokens: The tokens according to the store.
        cost_usd: The cost according to the store.
    """

    session_id: str
    task_key: str
    created_at: datetime
    server: Server
    model: str
    has_help: bool
    is_good: bool | None
    by_person: bool
    failed: bool
    turns: int
    tokens: TokenUsage
    cost_usd: float | None

    @property
    def week(self) -> date:
        """Return the Monday of the week in which the session began (UTC)."""
        day = self.created_at.date()
        return day - timedelta(days=day.weekday())


@dataclass(frozen=True)
class ServedTime:
    """A time from which an export was the champion.

    Attributes:
        since: The time.
        champion: The identity of the export.
    """

    since: datetime
    champion: str


class ChampionTimes:
    """The champions of a partition, and the times at which they were served.

    Attributes:
        champion: The identity of the champion; an empty text if there is none.
        previous: The identity of the champion before it; an empty text if there is none.
        promoted: The time at which the champion was promoted; None if there is none.
    """

    def __init__(self, lake: Lake, key: PartitionKey) -> None:
        """Read the history of the partition's pointers.

        Raises:
            DamageError: The history is damaged.
        """
        moves = [entry for entry in lake.history(EXPORT, key) if entry.moved == "champion"]
        self._times = [
            ServedTime(datetime.fromisoformat(entry.when), entry.champion)
            for entry in moves
            if entry.champion
        ]
        self.champion = (moves[-1].champion or "") if moves else ""
        self.previous = (moves[-1].against or "") if moves else ""
        self.promoted = self._times[-1].since if self._times else None
        self._exports_by_identity = {time.champion[:16]: time.champion for time in self._times}
        for _, manifest in lake.manifests(lake.files(lake.folder("models", EXPORT, key))):
            for name in (manifest["identity"], str(manifest["made_from"].get("adapter", ""))):
                self._exports_by_identity[name[:16]] = manifest["identity"]

    def find_export(self, row: Mapping[str, Any]) -> str:
        """Return the identity of the export that answered in a session of this partition's model.

        The name of a model may contain the identity of an export or of its adapter. Otherwise the
        export answered that was the champion when the session began. The text is empty if there was
        no champion, or if the export was deleted.
        """
        named = [
            identity for model in list_answering_models(row) for identity in find_identities(model)
        ]
        if named:
            exports = (self._exports_by_identity.get(identity, "") for identity in named)
            return next(filter(None, exports), "")
        earlier = [time for time in self._times if time.since <= row["created_at"]]
        return earlier[-1].champion if earlier else ""

    def name_server(self, export: str) -> Server:
        """Return whether an export is the champion, the champion before it, or another export."""
        if export and export == self.champion:
            return "champion"
        return "previous champion" if export and export == self.previous else "other"


@dataclass
class ProductionSessions:
    """The sessions of production of one agent.

    Attributes:
        sessions: The sessions.
        without_time: The number of sessions that are left out, because they have no time.
        without_model: The number of sessions that are left out, because they name no model.
    """

    sessions: list[ServedSession]
    without_time: int = 0
    without_model: int = 0


_COLUMNS = [
    "session_id",
    "task_key",
    "created_at",
    "archived",
    "model_id",
    "context",
    "verdict",
    "verdict_by",
    "error",
    "turns",
    "usage",
    "cost_usd",
]


def read_sessions(
    lake: Lake, key: PartitionKey, times: ChampionTimes, own_models: OwnModels
) -> ProductionSessions:
    """Read the sessions of production from `judged_sessions`.

    Archived sessions, and episodes of `agent-pipeline play`, are not from production.

    Args:
        lake: The lake.
        key: The partition.
        times: The champions of the partition.
        own_models: The names of the lake's models.

    Raises:
        DataError: There is no such table, or it is damaged or from an older version.
    """
    production = ProductionSessions([])
    for stored_row in _read_rows(lake, key):
        row = _add_chosen_model(stored_row)
        models = list_answering_models(row)
        if row["archived"] or row["session_id"].startswith(PLAYED):
            continue
        if row["created_at"] is None:
            production.without_time += 1
            continue
        if not models:
            production.without_model += 1
            continue
        server: Server = "agent"
        if owner := own_models.find_partition(row):
            server = times.name_server(times.find_export(row)) if owner == key else "other"
        production.sessions.append(_make_session(row, server, own_models))
    return production


def _read_rows(lake: Lake, key: PartitionKey) -> Iterator[Mapping[str, Any]]:
    with lake.open(TABLE, key, JUDGED) as file:
        yield from to_rows(read_batches(file, _COLUMNS))


def _add_chosen_model(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let the model that a gateway chose for a session count as a model that answered.

    The checks of the gateway refuse a turn where the model fails. Without this, a session in which
    they refused every turn of the champion would count for the agent.
    """
    context = row["context"] if isinstance(row["context"], dict) else {}
    chosen = context.get(CHOSEN_MODEL)
    if not isinstance(chosen, str) or not chosen:
        return row
    return {
        **row,
        "model_id": chosen,
        "context": {**context, ANSWERING_MODELS: list_answering_models(row)},
    }


def _make_session(row: Mapping[str, Any], server: Server, own_models: OwnModels) -> ServedSession:
    """Return the session of a row whose server is known."""
    is_judged = row["verdict"] is not None and row["verdict_by"] not in NOT_JUDGED
    return ServedSession(
        session_id=row["session_id"],
        task_key=row["task_key"],
        created_at=row["created_at"],
        server=server,
        model=row["model_id"] or list_answering_models(row)[0],
        has_help=server != "agent" and own_models.has_other_models(row),
        is_good=row["verdict"] == "acceptable" if is_judged else None,
        by_person=is_judged and row["verdict_by"] == "label",
        failed=row["error"] is not None,
        turns=len(row["turns"] or ()),
        tokens=read_tokens(row["usage"] or {}),
        cost_usd=row["cost_usd"],
    )
