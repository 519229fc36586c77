"""Which export is served: the champion. A decision or a person promotes an export, a person rolls back; nothing else replaces it."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.promotion_report import summary
from agent_pipeline.export.ledger import EXPORT, is_held, ledger
from agent_pipeline.export.ollama import OllamaResult, create
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry

REGISTERED = "ollama_model"


class Served(msgspec.Struct, frozen=True):
    """The export to serve, and why it is this one: it is the champion, or (no champion was ever set) it is served already, or the first."""

    export: Artifact
    because: Literal["champion", "served already", "first"]


def served(lake: Lake, key: PartitionKey, latest: Artifact) -> Served:
    """The export of a partition to serve. Raises DataError where the champion's files are gone."""
    if champion := lake.champion(EXPORT, key):
        return Served(champion, "champion")
    if registered := lake.pointers(REGISTERED, key).latest:
        before = lake.find(REGISTERED, key, registered)
        fit = before and not before.manifest["report"].get("against")  # one that episodes speak against was never registered
        if before and fit and (export := lake.find(EXPORT, key, before.manifest["made_from"][EXPORT])):
            return Served(export, "served already")
    return Served(latest, "first")


class Registration(msgspec.Struct, frozen=True):
    """The artifact of `ollama_model`, the export that it serves, what Ollama said, and what the export's episodes speak against it."""

    artifact: Artifact
    served: Served
    ollama: OllamaResult
    against: list[str]


def register(lake: Lake, key: PartitionKey, latest: Artifact, name: str) -> Registration:
    """Write the Modelfile of the export to serve, and create the model `name` in Ollama, where there is one.

    A model whose episodes speak against it is not registered. Without a champion, neither is one that was rejected, nor a first one that a
    person holds back.

    Raises:
        ExportError: Ollama refused it.
        DataError: the champion's files are gone.
    """
    choice = served(lake, key, latest)
    export, against = choice.export, unfit(lake, key, choice.export)
    decisions = [record.decision for record in ledger(lake, key).records() if record.candidate == export.identity]
    if choice.because == "first" and is_held(lake, key, export.identity):
        against.append("a person holds it back")
    # What a person holds back may have been rejected before: holding it does not make it fit.
    measured = [decision for decision in decisions if all(reason.kind != "held" for reason in decision.reasons)]
    if choice.because != "champion" and measured and measured[-1].outcome == "reject":
        against.append(summary(measured[-1]))
    made_from = {EXPORT: export.identity, "name": name}
    identity = sha256_of(made_from)
    building = lake.building(REGISTERED, key, identity)
    text = (export.path / "Modelfile").read_text(encoding="utf-8")
    # The export's own Modelfile names the GGUF beside it; this one works from anywhere on this machine.
    (building / "Modelfile").write_text(text.replace("FROM ./", f"FROM {export.path.resolve()}/", 1), encoding="utf-8")
    report = {"name": name, "against": against}
    artifact = lake.finish(REGISTERED, key, identity, building, made_from, report, parents=[export.identity])
    if against:
        result = OllamaResult(name, False, f"{name} was not registered, since it is not fit to act: {'; '.join(against)}.")
    else:
        result = create(name, artifact.path / "Modelfile")
    return Registration(artifact, choice, result, against)


def unfit(lake: Lake, key: PartitionKey, export: Artifact) -> list[str]:
    """What the episodes of an export speak against it; nothing where it played none."""
    played = own_episodes(lake, key, export)
    return list(played.manifest["report"]["against"]) if played else []


def own_episodes(lake: Lake, key: PartitionKey, export: Artifact) -> Artifact | None:
    """The latest episodes, if this very export played them, or its adapter in memory."""
    identity = lake.pointers("episodes", key).latest
    played = lake.find("episodes", key, identity) if identity else None
    if played is None:
        return None
    made_from = played.manifest["made_from"]
    is_own = made_from[EXPORT] == export.identity if made_from[EXPORT] else made_from["adapter"] == export.manifest["made_from"]["adapter"]
    return played if is_own else None


def promote(lake: Lake, key: PartitionKey, identity: str = "", why: str = "") -> Entry:
    """Make an export the champion: the latest, or the one whose identity, or whose adapter's, begins with `identity`.

    Raises:
        DataError: there is no such export, or more than one; or the pointers moved meanwhile.
    """
    seen = lake.pointers(EXPORT, key)
    return lake.set_champion(export_named(lake, key, identity) if identity else lake.latest(EXPORT, key), why=why, expected=seen.generation)


def rollback(lake: Lake, key: PartitionKey, to: int | None = None, why: str = "") -> Entry:
    """Make an earlier champion the champion again: the one before, or the one of the history's entry `to`.

    Raises:
        DataError: there was none, or its files are gone.
    """
    history = lake.history(EXPORT, key)
    now = history[-1] if history else Entry()
    if to is None:
        before = next((entry.champion for entry in reversed(history) if entry.champion not in (None, now.champion)), None)
    else:
        before = next((entry.champion for entry in history if entry.generation == to), None)
    if before is None:
        which = "before the one of now" if to is None else f"in entry {to} of its history"
        raise DataError(f"{key} had no champion {which}: `agent-pipeline champions {key}` shows the history.")
    return lake.set_champion(export_named(lake, key, before), why=why or "rolled back", expected=now.generation)


def champions(lake: Lake) -> Iterator[tuple[PartitionKey, Entry]]:
    """The pointers of each partition that has an export."""
    root = lake.folder("models", EXPORT, None)
    for folder in sorted(root.glob("project=*/agent=*"), key=str):
        key = parse_key("/".join(part.partition("=")[2] for part in folder.parts[-2:]))
        yield key, lake.pointers(EXPORT, key)


def export_named(lake: Lake, key: PartitionKey, identity: str) -> Artifact:
    """The export whose identity, or whose adapter's, begins with `identity`. Raises DataError where there is none, or more than one."""
    every = lake.with_prefix(EXPORT, key, "")
    matching = [
        export for export in every if export.identity.startswith(identity) or export.manifest["made_from"]["adapter"].startswith(identity)
    ]
    if len(matching) != 1:
        known = ", ".join(export.identity[:16] for export in every) or "none"
        raise DataError(f"{len(matching) or 'No'} exports of {key} that passed their check match {identity!r}: there are {known}.")
    return matching[0]
