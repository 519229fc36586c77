"""The champion of a partition: how it is served, promoted and rolled back.

A person or a decision moves the champion. Only a person rolls back by hand.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.export.ollama import check_rendering, create, model_name
from agent_pipeline.export.request_files import (
    find_fixed_prompt,
    make_request_files,
    write_system_line,
)
from agent_pipeline.export.serving_folder import (
    MODELFILE,
    PEFT,
    clear_folder,
    delete_texts,
    find_served_export,
    partition_folder,
    read_folder,
    reload_preset,
    rewrite_texts,
    write_folder,
)
from agent_pipeline.gateway.traffic import follow_champion, pause_champion, read_rules
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.chat_renderer import read_renderer
from agent_pipeline.promotion.decision_wording import describe_hold, summarize
from agent_pipeline.promotion.episodes_in_force import (
    NO_WORLD,
    DecidingWorld,
    find_readable_episodes,
    find_seen_episodes,
)
from agent_pipeline.promotion.hub import make_model_card, push_to_hub
from agent_pipeline.promotion.ledger import (
    EXPORT,
    CompletedMove,
    find_last_decision,
    lift_hold,
    open_completed_moves,
    open_ledger,
)
from agent_pipeline.promotion.request_changes import read_trained_requests
from agent_pipeline.redaction import Redactor
from agent_pipeline.redaction.files import refuse_private
from agent_pipeline.reports.episode_report import read_episode_report
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact, ArtifactDetails
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry, now
from agent_pipeline.training.chain import describe_used_template, find_trained_adapters

SERVING = "serving"


class WriteThreshold(msgspec.Struct, frozen=True):
    """The threshold for the writes of an export.

    Attributes:
        confidence: The smallest confidence at which a write counts as sure; `None` if it was not
            measured, or if no write passes.
        why_not: Why the episodes do not give a threshold, if this is known.
    """

    confidence: float | None
    why_not: str = ""


class Serving(msgspec.Struct, frozen=True):
    """The result of serving a champion with `serve`.

    Attributes:
        artifact: The artifact of the asset `serving`.
        champion: The export that is served; `None` if the partition has no champion, so that
            nothing is served.
        folder: The partition's folder, which servers read.
        unfit: Objections to the champion from its episodes and from the last decision on it.
        messages: Messages for a person.
    """

    artifact: Artifact
    champion: Artifact | None
    folder: Path
    unfit: list[str]
    messages: list[str]


class ServingPlaces(msgspec.Struct, frozen=True):
    """The places that get a champion, besides the folder that servers read.

    Attributes:
        name: The model's name in Ollama; empty for the partition's name.
        ollama: Whether to create the champion in Ollama.
        server: The URL of a running llama-server that reads the folder's preset.
        hub: The repository of the Hugging Face hub to which the champion is pushed.
    """

    name: str = ""
    ollama: bool = False
    server: str = ""
    hub: str = ""


ONLY_THE_FOLDER = ServingPlaces()


def serve(
    lake: Lake,
    key: PartitionKey,
    places: ServingPlaces = ONLY_THE_FOLDER,
    redactor: Redactor | None = None,
    deciding_world: DecidingWorld = NO_WORLD,
) -> Serving:
    """Put a partition's champion into the folder that servers read, or empty the folder if there is
    no champion.

    Only a champion is ever served. An export that was held back, rejected or never measured is not
    a champion unless a person promoted it.

    Args:
        lake: The lake.
        key: The partition.
        places: The other places that get the champion.
        redactor: The redactor that finds private values in the texts that are served and pushed.
            With `None`, the texts are not searched.
        deciding_world: The agent's world of today. Episodes of another world give no threshold for
            the writes of the champion.

    Raises:
        PrivateDataError: A text that would be served or pushed contains private data. The model
            that was served before stays served.
        ExportError: Ollama refused the model or renders other prompts than training did, the hub
            refused it, or the base model cannot be converted.
        DataError: The champion's files do not exist anymore.
        ModelError: The base model cannot be loaded.
    """
    folder = partition_folder(lake, key)
    # A run and a person may serve at the same time. The second one waits and then serves the
    # current champion.
    with lake.fs.lock(lake.root.joinpath(".locks", *key, "serving.lock")):
        champion = lake.champion(EXPORT, key)
        if champion is None:
            messages = _serve_nothing(lake, key, places.server)
        else:
            adapters = find_trained_adapters(lake, key, champion.manifest["made_from"]["adapter"])
            for artifact_to_serve in [champion, *adapters[-1:]]:
                lake.verify(artifact_to_serve)
            if redactor:
                _refuse_private_texts(lake, champion, redactor)
            content = read_folder(lake, key)
            pause_champion(lake, key, champion.identity)
            form = write_folder(
                lake,
                key,
                champion,
                adapters[-1] if adapters else None,
                read_trained_requests(adapters),
            )
            messages = [
                f"{name} in the serving folder was damaged, and was written again."
                for name in content.damaged
                if content.identity == champion.identity[:16]
            ]
            messages += [
                f"{folder} serves {champion.identity[:16]} as {form}.",
                reload_preset(places.server),
            ]
        made_from = {EXPORT: champion.identity if champion else None, "name": places.name}
        identity = hash_json(made_from)
        building = lake.building(SERVING, key, identity)
        details = ArtifactDetails(parents=[champion.identity] if champion else [])
        artifact = lake.finish(
            SERVING, key, identity, building, made_from, {"name": places.name}, details
        )
        if champion:
            if places.ollama:
                messages += _give_to_ollama(places.name or model_name(*key), folder, adapters)
            if places.hub:
                card = _write_model_card(lake, champion, adapters, deciding_world)
                if redactor:
                    what = f"The model card for {places.hub}"
                    refuse_private(what, redactor, texts={"README.md": card})
                messages.append(push_to_hub(places.hub, folder, champion, card))
        elif places.ollama or places.hub:
            messages.append("Only a champion is registered with Ollama or pushed to the hub.")
        message = follow_champion(
            lake,
            key,
            champion.identity if champion else "",
            find_write_threshold(lake, key, champion.identity, deciding_world)
            if champion
            else None,
            is_back=champion is not None and _was_champion_before(lake, key, champion.identity),
        )
        messages += [message] if message else []
        rules = read_rules(lake).get(str(key))
        if champion and rules and rules.share and rules.act == "sure" and rules.threshold is None:
            messages.append(
                describe_missing_threshold(lake, key, champion.identity, deciding_world)
            )
    objections = unfit(lake, key, champion, deciding_world) if champion else []
    return Serving(artifact, champion, folder, objections, messages)


class RewrittenTexts(msgspec.Struct, frozen=True):
    """The result of `rewrite_served_texts`.

    Attributes:
        files: The files that changed or were deleted.
        message: Why files were deleted, and how to write them again; empty if they were written.
    """

    files: list[Path]
    message: str = ""


def rewrite_served_texts(lake: Lake, key: PartitionKey) -> RewrittenTexts:
    """Write the texts of a served export again if the record of its training has changed.

    The serving folder counts, and not the champion: if a person promoted another export, the folder
    has the earlier export until the next export is served. If the folder's record, the export or
    its adapter cannot be read, the files that show its requests are deleted.
    """
    with lake.fs.lock(lake.root.joinpath(".locks", *key, "serving.lock")):
        try:
            export = find_served_export(lake, key)
            adapters = find_trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
            files = rewrite_texts(lake, key, export, read_trained_requests(adapters))
        except (DataError, OSError, UnicodeError) as error:
            files = delete_texts(lake, key)
            reason = str(error).rstrip(".")
        else:
            return RewrittenTexts(files)
    if not files:
        return RewrittenTexts([])
    return RewrittenTexts(
        files,
        f"The system prompt and the tools of {key} are not in {partition_folder(lake, key)} any "
        f"more, because it is unknown whether they show a forgotten session ({reason}). When the "
        f"champion is sound, run `agent-pipeline materialize {key} --select serving` to write them "
        "again.",
    )


def _refuse_private_texts(lake: Lake, export: Artifact, redactor: Redactor) -> None:
    adapters = find_trained_adapters(lake, export.key, export.manifest["made_from"]["adapter"])
    what = f"The export {export.identity[:16]} of {export.key}"
    texts = make_request_files(export.key, read_trained_requests(adapters))
    refuse_private(what, redactor, _served_files(export, adapters), texts)


def _served_files(champion: Artifact, adapters: Sequence[Artifact]) -> dict[str, Path]:
    """Return the files of an export and of its adapter that are served or pushed."""
    files = {path.name: path for path in champion.path.glob("*") if path.suffix in (".gguf", "")}
    for name in PEFT if adapters else ():
        files[name] = adapters[-1].path / name
    return {name: path for name, path in sorted(files.items()) if path.is_file()}


def _serve_nothing(lake: Lake, key: PartitionKey, server: str) -> list[str]:
    """Empty the serving folder of a partition that has no champion. Return messages for users."""
    content = read_folder(lake, key)
    messages = [
        f"Nothing is served for {key}, because no export was promoted: {how_to_promote(lake, key)}"
    ]
    pause_champion(lake, key, "")
    if content.files:
        clear_folder(lake, key)
        export = content.identity or "a model"
        again = (
            f"`agent-pipeline promote {key} {content.identity}` serves it again"
            if content.identity
            else "it was removed"
        )
        messages = [
            f"{export} was in {content.folder}, but is not the champion of {key}. It is no longer "
            f"served: {again}."
        ]
        messages.append(reload_preset(server))
    return messages


def how_to_promote(lake: Lake, key: PartitionKey, identity: str = "") -> str:
    """Return a sentence with the last decision on an export (by default the latest export) and the
    command that promotes it.
    """
    latest = lake.pointers(EXPORT, key).latest
    export = identity or latest
    if not export:
        return f"{key} has no export yet. Run `agent-pipeline materialize {key}` first."
    command = f"agent-pipeline promote {key}" + (f" {export[:16]}" if export != latest else "")
    decided = find_last_decision(lake, key, export)
    sentence = (
        f'the decision on {export[:16]} was "{summarize(decided.decision)}"'
        if decided
        else f"there is no decision on {export[:16]} yet"
    )
    if decided and not decided.is_hold_of_person and (hold := describe_hold(lake, key, export)):
        sentence += f", and {hold}"
    return f"{sentence}. To serve this export anyway, run `{command}`."


def _give_to_ollama(name: str, folder: Path, adapters: Sequence[Artifact]) -> list[str]:
    """Create a served model in Ollama, and return messages for users.

    Args:
        name: The model's name in Ollama.
        folder: The served folder.
        adapters: The chain of adapters.
    """
    if not (folder / MODELFILE).is_file():
        return [
            "The champion is not registered with Ollama, because Ollama does not accept adapters "
            "since version 0.34.1: remove lora from `gguf_export.outtypes`."
        ]
    created = create(name, folder / MODELFILE)
    messages = [created.text]
    if created.created and adapters:
        requests = read_trained_requests(adapters)
        system = find_fixed_prompt(requests) if write_system_line(requests) else ""
        messages.append(check_rendering(created.name, read_renderer(adapters[-1].path), system))
    return messages


def _write_model_card(
    lake: Lake, champion: Artifact, adapters: Sequence[Artifact], deciding_world: DecidingWorld
) -> str:
    """Return the model card of a champion for the hub."""
    key, identity = champion.key, champion.identity
    return make_model_card(
        champion,
        find_last_decision(lake, key, identity),
        describe_used_template(adapters),
        find_readable_episodes(lake, key, identity, deciding_world),
        unfit(lake, key, champion, deciding_world),
    )


def serve_champion(
    lake: Lake,
    key: PartitionKey,
    redactor: Redactor | None = None,
    deciding_world: DecidingWorld = NO_WORLD,
    **places: Any,
) -> list[str]:
    """Serve a partition's champion immediately, without a run, and return messages for users.

    `places` are the attributes of `ServingPlaces`. The errors are those of `serve`.
    """
    serving = serve(lake, key, ServingPlaces(**places), redactor, deciding_world)
    lake.set_latest(serving.artifact, why="the champion moved")
    return serving.messages


def unfit(
    lake: Lake, key: PartitionKey, export: Artifact, deciding_world: DecidingWorld
) -> list[str]:
    """Return the reasons against an export that follow from its episodes and from the last decision
    on it.

    Harm that was seen is named even if the episodes are not in force any more, or if the export
    played again without harm. Episodes that cannot be read may show harm, so they are named too.
    A ledger that cannot be read is named too.
    """
    seen = find_seen_episodes(lake, key, export.identity, deciding_world)
    against = []
    unreadable = list(seen.damage)
    for last in seen.episodes:
        try:
            reasons = read_episode_report(last.played).against if last.played else []
        except DataError as error:
            unreadable.append(str(error))
            continue
        why_not = f" (in episodes that do not count now, because {last.why_not})"
        against += [f"{reason}{why_not if last.why_not else ''}" for reason in reasons]
    against += [
        f"it is not known what some of its episodes show ({sentence.rstrip('.')})"
        for sentence in unreadable
    ]
    against = list(dict.fromkeys(against))
    try:
        records = open_ledger(lake, key).records()
    except DamageError as error:
        # The champion is served in any case, also after a rollback.
        return [*against, f"it is not known how it was decided on ({str(error).rstrip('.')})"]
    decisions = [record.decision for record in records if record.candidate == export.identity]
    # An export that a person holds back may have been rejected before. Holding it back does not
    # make it fit.
    measured = [
        decision
        for decision in decisions
        if all(reason.kind != "held" for reason in decision.reasons)
    ]
    return against + [
        summarize(decision)
        for decision in measured[-1:]
        if decision.outcome in ("reject", "roll back")
    ]


def find_write_threshold(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> float | None:
    """Return the confidence from which the writes of an export count as sure, or None.

    The rules are those of `measure_write_threshold`, and so are the arguments.
    """
    return measure_write_threshold(lake, key, export, deciding_world).confidence


def measure_write_threshold(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> WriteThreshold:
    """Return the smallest confidence at which no write was wrong in any episodes of an export.

    All episodes in force count, and the strictest of their thresholds is the result. A night
    without a wrong write therefore does not lower the threshold of an earlier night. If some
    episodes cannot be read, nobody knows the strictest threshold, so there is none.

    Args:
        lake: The lake.
        key: The partition.
        export: The identity of the export.
        deciding_world: The agent's world of today.
    """
    last = find_readable_episodes(lake, key, export, deciding_world)
    if last.in_force is None:
        return WriteThreshold(None, last.why_not)
    seen = find_seen_episodes(lake, key, export, deciding_world)
    unreadable = list(seen.damage)
    thresholds: list[float | None] = []
    for played in seen.episodes:
        try:
            players = read_episode_report(played.in_force).players if played.in_force else {}
        except DataError as error:
            unreadable.append(str(error))
            continue
        figures = players.get("model")
        confidence = figures.confidence if figures else None
        threshold = confidence.threshold if confidence else None
        is_last = played.in_force == last.in_force
        # Earlier episodes without any write say nothing about the threshold.
        if threshold is not None or is_last or (confidence and confidence.wrong):
            thresholds.append(threshold)
    if unreadable:
        sentences = "; ".join(sentence.rstrip(".") for sentence in unreadable)
        return WriteThreshold(None, f"some of its episodes cannot be read ({sentences})")
    measured = [threshold for threshold in thresholds if threshold is not None]
    if not measured or len(measured) < len(thresholds):
        return WriteThreshold(None)
    return WriteThreshold(max(measured))


def describe_missing_threshold(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> str:
    """Return a sentence for a person about a champion without a threshold for its writes."""
    why_not = measure_write_threshold(lake, key, export, deciding_world).why_not
    return (
        "The large model makes every write, because the champion's episodes give no confidence "
        f"threshold{f' ({why_not})' if why_not else ''}."
    )


def _was_champion_before(lake: Lake, key: PartitionKey, export: str) -> bool:
    """Return whether an export became the champion again after another export was the champion."""
    champions = [entry.champion for entry in lake.history(EXPORT, key) if entry.moved == "champion"]
    return export in champions[:-1]


def promote(
    lake: Lake,
    key: PartitionKey,
    identity: str = "",
    why: str = "",
    redactor: Redactor | None = None,
) -> Entry:
    """Make an export the champion, and lift a person's hold on it.

    If `redactor` finds private data in the texts of the export, it is not promoted. Without a
    redactor, the texts are not searched.

    Args:
        lake: The lake.
        key: The partition.
        identity: The first digits of the identity of the export or of its adapter; empty for the
            latest export.
        why: The person's reason.
        redactor: The redactor that finds private values.

    Raises:
        DataError: No export or more than one export matches, or the pointers moved in the meantime.
        PrivateDataError: A text of the export contains private data, so the export cannot be
            served.
    """
    seen = lake.pointers(EXPORT, key)
    export = export_named(lake, key, identity) if identity else lake.latest(EXPORT, key)
    if redactor:
        _refuse_private_texts(lake, export, redactor)
    entry = lake.set_champion(export, why=why, expected=seen.generation, command="promote")
    lift_hold(lake, key, export.identity)
    return entry


def rollback(lake: Lake, key: PartitionKey, to: int | None = None, why: str = "") -> Entry:
    """Make an earlier champion the champion again: the previous champion, or the champion of the
    history's entry `to`.

    A champion that was rolled back does not count as an earlier champion, so a second rollback goes
    further back. If the last rollback was killed before its champion was served
    (`interrupted_rollback`), this call moves nothing. The call can therefore be repeated safely.

    Args:
        lake: The lake.
        key: The partition.
        to: The entry of the history; None for the previous champion.
        why: The person's reason.

    Raises:
        DataError: There is no earlier champion, or its files do not exist anymore.
    """
    history = lake.history(EXPORT, key)
    state = history[-1] if history else Entry()
    if to is None:
        if interrupted_rollback(lake, key):
            return msgspec.structs.replace(state, moved="")
        stands: list[str] = []
        for champion in (entry.champion for entry in history if entry.champion):
            stands = [*stands[: stands.index(champion) if champion in stands else None], champion]
        before = stands[-2] if len(stands) > 1 else None
    else:
        before = next((entry.champion for entry in history if entry.generation == to), None)
    if before is None:
        which = "before the current champion" if to is None else f"in entry {to} of its history"
        raise DataError(
            f"{key} had no champion {which}: run `agent-pipeline models show {key}` to see the "
            "history, and choose one of its entries with --to."
        )
    export, command = export_named(lake, key, before), "rollback" if to is None else "rollback --to"
    entry = lake.set_champion(
        export, why=why or "rolled back", expected=state.generation, command=command
    )
    lift_hold(lake, key, export.identity)
    return entry


def interrupted_rollback(lake: Lake, key: PartitionKey) -> Entry | None:
    """Return the last move of the champion if it is a rollback that was killed before
    `complete_move`. Otherwise return `None`.
    """
    moves = [entry for entry in lake.history(EXPORT, key) if entry.moved == "champion"]
    if not moves or moves[-1].command != "rollback":
        return None
    completed = open_completed_moves(lake, key).records()
    return None if completed and completed[-1].generation >= moves[-1].generation else moves[-1]


def complete_move(lake: Lake, key: PartitionKey) -> None:
    """Record that the last move of the champion is complete: the champion is served, and the result
    was reported.
    """
    moves = [entry for entry in lake.history(EXPORT, key) if entry.moved == "champion"]

    def record(number: int) -> CompletedMove | None:
        completed = open_completed_moves(lake, key).records()
        if not moves or (completed and completed[-1].generation >= moves[-1].generation):
            return None
        return CompletedMove(number=number, generation=moves[-1].generation, when=now())

    open_completed_moves(lake, key).append(record)


def serving_difference(lake: Lake, key: PartitionKey) -> str:
    """Return a sentence that says how this machine's served folder differs from the champion, or an
    empty text if it does not.

    If the lake is in a bucket, a missing folder is not a difference, because another machine may be
    serving.
    """
    champion, content = lake.pointers(EXPORT, key).champion, read_folder(lake, key)
    if content.identity == (champion or "")[:16] and content.files == bool(champion):
        return (
            f"damaged in the serving folder: {', '.join(content.damaged)}"
            if content.damaged
            else ""
        )
    if not content.files:
        return (
            f"{champion[:16]} is the champion, and nothing is served"
            if champion and lake.fs.is_local
            else ""
        )
    served = (
        f"{content.identity} is served" if content.identity else "the served folder is incomplete"
    )
    return (
        f"{champion[:16]} is the champion, and {served}"
        if champion
        else f"there is no champion, and {served}"
    )


def champions(lake: Lake) -> Iterator[tuple[PartitionKey, Entry]]:
    """Yield each partition that has an export, and its pointers."""
    for key in lake.partitions("models", EXPORT):
        yield key, lake.pointers(EXPORT, key)


def export_named(lake: Lake, key: PartitionKey, identity: str) -> Artifact:
    """Return the export whose identity, or whose adapter's identity, begins with a given text.

    Raises:
        DataError: No export or more than one export matches.
    """
    every = lake.finished(EXPORT, key)
    matching = [
        export
        for export in every
        if export.identity.startswith(identity)
        or export.manifest["made_from"]["adapter"].startswith(identity)
    ]
    if len(matching) != 1:
        known = ", ".join(export.identity[:16] for export in every) or "none"
        raise DataError(
            f"{len(matching) or 'No'} exports of {key} that passed their check match "
            f"{identity!r}: choose one of {known}."
        )
    return matching[0]
