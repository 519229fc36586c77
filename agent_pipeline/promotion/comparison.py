"""The task `compare`: its parameters, and the artifacts that it made.

The task compares a candidate with the champion.

The scores in these artifacts are read by `stored_scores`.
"""

from dataclasses import dataclass
from typing import TypedDict

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.evaluate import ROW_LOSSES
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision import SanityAnswer
from agent_pipeline.promotion.episodes_in_force import DecidingWorld, find_last_episodes
from agent_pipeline.promotion.sanity_questions import ANSWERS_ASSET, ANSWERS_FILE
from agent_pipeline.promotion.stored_scores import ArtifactPair, read_text
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import decode_json
from agent_pipeline.training.chain import find_trained_adapters


class CompareResult(TypedDict, total=False):
    """The result of the task `compare`.

    Each attribute is the identity of an artifact, or `None` if the artifact does not exist.

    Attributes:
        candidate: The candidate's evaluation on the split `select`.
        champion: The champion's evaluation on the split `select`.
        champion_on_test: The champion's evaluation on the split `test`.
        champion_episodes: The champion's episodes.
        sanity_questions: The answers to the sanity questions.
        same_base: Whether both models were trained from the same base model.
    """

    candidate: str | None
    champion: str | None
    champion_on_test: str | None
    champion_episodes: str | None
    sanity_questions: str | None
    same_base: bool


@dataclass(frozen=True)
class Comparison:
    """The artifacts for a decision, each as a pair of the candidate's and the champion's artifact.

    Without a champion, the second part of each pair is `None`, and the baseline is the base model.

    Attributes:
        select: The evaluations on the split `select`.
        test: The evaluations on the split `test`.
        episodes: The episodes.
        sanity_answers: The answers to the sanity questions.
        same_base: Whether both models were trained from the same base model.
    """

    select: ArtifactPair
    test: ArtifactPair
    episodes: ArtifactPair
    sanity_answers: tuple[SanityAnswer, ...] = ()
    same_base: bool = True


def make_compare_params(
    lake: Lake,
    key: PartitionKey,
    evaluation: Artifact,
    candidate: Artifact,
    champion: Artifact | None,
    deciding_world: DecidingWorld,
) -> dict[str, object]:
    """Return the parameters of the task `compare`.

    The champion is scored with the settings of the candidate's evaluation, and it plays the same
    episodes as the candidate.

    Args:
        lake: The lake.
        key: The partition.
        evaluation: The candidate's evaluation.
        candidate: The candidate, an export.
        champion: The champion, if there is one.
        deciding_world: The world of the episodes that the decision uses.

    Raises:
        DataError: The evaluation belongs to another adapter than the candidate's, or an older
            version wrote it, the candidate has not played in the agent's own world, its episodes in
            the replayed world are outdated, or the champion's adapter does not exist anymore.
    """
    read_text(evaluation, ROW_LOSSES)
    adapter = evaluation.manifest["made_from"]["adapter"]
    if adapter != candidate.manifest["made_from"]["adapter"]:
        raise DataError(
            f"The evaluation of {key} measured another adapter than the adapter in its export: "
            "materialize `evaluation` and `gguf_export` again."
        )
    world = deciding_world.world
    last = find_last_episodes(lake, key, candidate.identity, deciding_world)
    episodes = last.in_force
    # Outdated episodes in the replayed world can show harm, so they must be played again. Without
    # any such episodes, the decision says that there was no world.
    worlds_played = [last.played.manifest["made_from"].get("world")] if last.played else []
    if not episodes and world and (world != REPLAYED or REPLAYED in worlds_played):
        raise DataError(
            f"The export {candidate.identity[:16]} of {key} has no episodes in the world {world} "
            f"({last.why_not}): materialize `episodes` again."
        )
    play = None
    if episodes and champion:
        made_from = episodes.manifest["made_from"]
        play = {
            "world": made_from["world"],
            "config": made_from["config"],
            "gguf_export": champion.reference,
            "alone": False,
            "held_out": "test",
            "preconditions": made_from.get("preconditions", {}),
            "task_kinds": made_from.get("task_kinds", []),
        }
    return {
        "candidate": _find_adapter(lake, key, adapter).reference,
        "champion": adapter_of_export(lake, key, champion).reference if champion else None,
        "evaluation": evaluation.manifest["made_from"]["config"],
        "play": play,
        "watch": False,
    }


def read_comparison(
    lake: Lake,
    key: PartitionKey,
    evaluation: Artifact,
    candidate: Artifact,
    result: CompareResult,
    deciding_world: DecidingWorld,
) -> Comparison:
    """Return the artifacts that the task `compare` made, together with the candidate's artifacts.

    Args:
        lake: The lake.
        key: The partition.
        evaluation: The candidate's evaluation on the split `test`.
        candidate: The candidate, an export.
        result: The result of the task `compare`.
        deciding_world: As in `make_compare_params`.

    Raises:
        DataError: An artifact does not exist anymore.
    """

    def find(asset: str, identity: str | None) -> Artifact | None:
        artifact = lake.find_undamaged(asset, key, identity) if identity else None
        if identity and not artifact:
            raise DataError(
                f"The {asset} {identity[:16]} of {key} was deleted after it was made: materialize "
                "`champion` again."
            )
        return artifact

    answers = read_text(find(ANSWERS_ASSET, result["sanity_questions"]), ANSWERS_FILE) or "[]"
    return Comparison(
        select=(
            find("evaluation", result["candidate"]),
            find("evaluation", result["champion"]),
        ),
        test=(evaluation, find("evaluation", result["champion_on_test"])),
        episodes=(
            find_last_episodes(lake, key, candidate.identity, deciding_world).in_force,
            find("episodes", result["champion_episodes"]),
        ),
        sanity_answers=tuple(decode_json(answers, list[SanityAnswer])),
        same_base=result["same_base"],
    )


def adapter_of_export(lake: Lake, key: PartitionKey, export: Artifact) -> Artifact:
    """Return the adapter that an export was made from.

    Raises:
        DataError: The adapter does not exist anymore.
    """
    return _find_adapter(lake, key, export.manifest["made_from"]["adapter"])


def _find_adapter(lake: Lake, key: PartitionKey, identity: str) -> Artifact:
    adapters = find_trained_adapters(lake, key, identity)
    if not adapters:
        raise DataError(
            f"The adapter {identity[:16]} of {key} was deleted, so no model can be compared with "
            f"it. If it is the champion's adapter, run `agent-pipeline promote {key}` to make the "
            "latest export the champion."
        )
    return adapters[-1]
