"""Which export is served: the champion. A decision or a person promotes an export, a person rolls back; nothing else replaces it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.promotion_report import summary
from agent_pipeline.export.hub import card, push
from agent_pipeline.export.ledger import EXPORT, is_held, last_decision, ledger
from agent_pipeline.export.ollama import check_rendering, create, model_name
from agent_pipeline.export.serving_folder import MODELFILE, partition_folder, reload_preset, write_folder
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry
from agent_pipeline.training.chain import template_used, trained_adapters
from agent_pipeline.training.loading import read_tokenizer

SERVING = "serving"
REGISTERED = (SERVING, "ollama_model")
"""The asset, and what lakes of older versions call it."""


class Served(msgspec.Struct, frozen=True):
    """The export to serve, and why it is this one: it is the champion, or (no champion was ever set) it is served already, or the first."""

    export: Artifact
    because: Literal["champion", "served already", "first export"]


def served(lake: Lake, key: PartitionKey, latest: Artifact) -> Served:
    """The export of a partition to serve. Raises DataError where the champion's files are gone."""
    if champion := lake.champion(EXPORT, key):
        return Served(champion, "champion")
    for asset in REGISTERED:
        identity = lake.pointers(asset, key).latest
        before = lake.find(asset, key, identity) if identity else None
        fit = before and not before.manifest["report"].get("against")  # one that episodes speak against was never served
        if before and fit and (export := lake.find(EXPORT, key, before.manifest["made_from"][EXPORT])):
            return Served(export, "served already")
    return Served(latest, "first export")


class Serving(msgspec.Struct, frozen=True):
    """The artifact of `serving`, the export to serve, its folder, whether that holds it, why it is not put there (empty: it is), what
    speaks against it, and what servers said."""

    artifact: Artifact
    served: Served
    folder: Path
    is_served: bool
    against: list[str]
    unfit: list[str]
    messages: list[str]


def serve(
    lake: Lake, key: PartitionKey, name: str = "", ollama: bool = False, server: str = "", hub: str = "", latest: Artifact | None = None
) -> Serving:
    """Put the export to serve into the folder that servers read, and tell them where that is asked for.

    `name`: the model's in Ollama (empty: the partition's); `ollama`: create it there, if it is the champion; `server`: the URL of a running
    llama-server that reads the folder's preset; `hub`: a repository of the Hugging Face hub to push it to, if it is the champion.

    Without a champion, a model is not served that its episodes speak against, that was rejected, or that a person holds back. A champion
    is served: a person promoted it, or it was no worse than the one before.

    Raises:
        ExportError: Ollama refused it, or renders other prompts than it was trained on; the hub refused it.
        DataError: the champion's files are gone. Others as `serving_folder.served_form`.
    """
    folder = partition_folder(lake, key)
    # Two that serve at once, such as a run and a person who rolls back: the later one serves what the champion is by then.
    with lake.fs.lock(lake.root.joinpath(".locks", *key, "serving.lock")):
        choice = served(lake, key, latest or lake.latest(EXPORT, key))
        export, short, spoken = choice.export, choice.export.identity[:16], unfit(lake, key, choice.export)
        against = [] if choice.because == "champion" else list(spoken)
        if choice.because == "first export" and is_held(lake, key, export.identity):
            against.append("a person holds it back")
        adapters = trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
        if not against:
            messages = [f"{folder} serves {short} as {write_folder(lake, key, export, adapters[-1] if adapters else None)}."]
            messages.append(reload_preset(server))
        is_served = any(short in path.name for path in folder.glob("*.gguf"))
        if against:
            still = "goes on being served by" if is_served else "is not served by"
            messages = [f"{key} {still} {short}, which is not fit to act: {'; '.join(against)}."]
            messages += ["It was put there before that was known: promote another export."] if is_served else []
        made_from = {EXPORT: export.identity, "name": name}
        identity = sha256_of(made_from)
        report = {"name": name, "against": against}
        artifact = lake.finish(SERVING, key, identity, lake.building(SERVING, key, identity), made_from, report, parents=[export.identity])
        if not against:
            messages += _register(lake, key, choice, adapters, folder, name, ollama, hub)
    return Serving(artifact, choice, folder, is_served, against, spoken, messages)


def _register(
    lake: Lake, key: PartitionKey, choice: Served, adapters: Sequence[Artifact], folder: Path, name: str, ollama: bool, hub: str
) -> Iterator[str]:
    """Give a champion to Ollama and to the hub, where that is asked for; what came of it."""
    if choice.because != "champion":
        if ollama or hub:
            yield f"Ollama and the hub are given champions only: `agent-pipeline promote {key}` makes this one the champion."
        return
    if ollama and not (folder / MODELFILE).is_file():
        yield "Ollama is not given it: it takes no adapter since 0.34.1; leave lora out of gguf_export.outtypes."
    elif ollama:
        created = create(name or model_name(*key), folder / MODELFILE)
        yield created.text
        if created.created and adapters:
            yield check_rendering(created.name, read_tokenizer(adapters[-1].path))
    if hub:
        export, identity = choice.export, choice.export.identity
        told = own_episodes(lake, key, identity), unfit(lake, key, export)
        yield push(hub, folder, export, card(export, last_decision(lake, key, identity), template_used(adapters), *told))


def serve_champion(lake: Lake, key: PartitionKey, **settings: Any) -> list[str]:
    """Serve a partition's champion now, without a run; `settings` and errors are those of `serve`. Returns what there is to say."""
    serving = serve(lake, key, **settings)
    lake.set_latest(serving.artifact, why="the champion moved")
    return serving.messages


def unfit(lake: Lake, key: PartitionKey, export: Artifact) -> list[str]:
    """What its episodes and the last decision on it speak against an export."""
    played = own_episodes(lake, key, export.identity)
    against = list(played.manifest["report"]["against"]) if played else []
    decisions = [record.decision for record in ledger(lake, key).records() if record.candidate == export.identity]
    # What a person holds back may have been rejected before: holding it does not make it fit.
    measured = [decision for decision in decisions if all(reason.kind != "held" for reason in decision.reasons)]
    return against + [summary(decision) for decision in measured[-1:] if decision.outcome in ("reject", "roll back")]


def own_episodes(lake: Lake, key: PartitionKey, export: str) -> Artifact | None:
    """The last episodes that the very export with this identity played, whatever other exports played since."""
    identities = dict.fromkeys(entry.latest for entry in reversed(lake.history("episodes", key)) if entry.latest)
    played = (lake.find("episodes", key, identity) for identity in identities)
    return next((each for each in played if each and each.manifest["made_from"].get(EXPORT) == export), None)


def promote(lake: Lake, key: PartitionKey, identity: str = "", why: str = "") -> Entry:
    """Make an export the champion: the latest, or the one whose identity, or whose adapter's, begins with `identity`.

    Raises:
        DataError: there is no such export, or more than one; or the pointers moved meanwhile.
    """
    seen = lake.pointers(EXPORT, key)
    return lake.set_champion(export_named(lake, key, identity) if identity else lake.latest(EXPORT, key), why=why, expected=seen.generation)


def rollback(lake: Lake, key: PartitionKey, to: int | None = None, why: str = "") -> Entry:
    """Make an earlier champion the champion again: the one before, or the one of the history's entry `to`.

    What was taken back is not what was before: a second rollback, of somebody who does not know of the first, goes further back.

    Raises:
        DataError: there was none, or its files are gone.
    """
    history = lake.history(EXPORT, key)
    now = history[-1] if history else Entry()
    if to is None:
        stands: list[str] = []
        for champion in (entry.champion for entry in history if entry.champion):
            stands = [*stands[: stands.index(champion) if champion in stands else None], champion]
        before = stands[-2] if len(stands) > 1 else None
    else:
        before = next((entry.champion for entry in history if entry.generation == to), None)
    if before is None:
        which = "before the one of now" if to is None else f"in entry {to} of its history"
        raise DataError(f"{key} had no champion {which}: `agent-pipeline champions {key}` shows the history, --to names an entry.")
    return lake.set_champion(export_named(lake, key, before), why=why or "rolled back", expected=now.generation)


def champions(lake: Lake) -> Iterator[tuple[PartitionKey, Entry]]:
    """The pointers of each partition that has an export."""
    for key in lake.partitions("models", EXPORT):
        yield key, lake.pointers(EXPORT, key)


def export_named(lake: Lake, key: PartitionKey, identity: str) -> Artifact:
    """The export whose identity, or whose adapter's, begins with `identity`. Raises DataError where there is none, or more than one."""
    every = lake.finished(EXPORT, key)
    matching = [
        export for export in every if export.identity.startswith(identity) or export.manifest["made_from"]["adapter"].startswith(identity)
    ]
    if len(matching) != 1:
        known = ", ".join(export.identity[:16] for export in every) or "none"
        raise DataError(f"{len(matching) or 'No'} exports of {key} that passed their check match {identity!r}: there are {known}.")
    return matching[0]
