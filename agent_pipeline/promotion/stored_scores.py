"""The scores of two models, which are read from their stored evaluations and episodes.

The package `evaluation` scores turns and episodes. This module converts stored artifacts of all
versions to `Scores`, which the rules compare.
"""

import json
from collections.abc import Iterable, Iterator

from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.episodes import UNSEEN
from agent_pipeline.evaluation.evaluate import ROW_LOSSES, SAMPLES
from agent_pipeline.evaluation.scores import EpisodeScore, RowScore, Scores, TurnScore
from agent_pipeline.evaluation.stored_entries import (
    EvaluatedModel,
    RowLossEntry,
    SampleEntry,
    Transcript,
)
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.reports.episode_report import TRANSCRIPTS
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact

ArtifactPair = tuple[Artifact | None, Artifact | None]
"""An artifact of the candidate and an artifact of the champion. An artifact that does not exist is
`None`.
"""


def read_scores(
    evaluations: ArtifactPair, episodes: ArtifactPair, same_base: bool
) -> tuple[Scores, Scores]:
    """Return the scores of the candidate and of its baseline on the turns that both answered.

    Args:
        evaluations: The evaluations of the candidate and the champion. Without the champion's
            evaluation, the base model is the baseline.
        episodes: The episodes of the candidate and the champion.
        same_base: Whether both models were trained from the same base model. A loss depends on the
            tokenizer, so losses are only compared between models with the same tokens.

    Raises:
        DataError: A file of an artifact does not exist anymore.
    """
    candidate_evaluation, champion_evaluation = evaluations
    candidate_episodes, champion_episodes = episodes
    candidate_turns = _read_turns(candidate_evaluation, "adapter")
    candidate_losses = _read_losses(candidate_evaluation, "adapter") if same_base else {}
    baseline_evaluation = champion_evaluation
    baseline_model: EvaluatedModel = "adapter"
    baseline_episodes, baseline_player = champion_episodes, "model"
    if champion_evaluation is None:
        baseline_evaluation, baseline_model = candidate_evaluation, "base"
        baseline_episodes, baseline_player = candidate_episodes, "base"
    baseline_turns = _read_turns(baseline_evaluation, baseline_model)
    baseline_losses = _read_losses(baseline_evaluation, baseline_model) if same_base else {}
    candidate = Scores(
        evaluator=_fingerprint(candidate_evaluation),
        turns=tuple(turn for name, turn in candidate_turns.items() if name in baseline_turns),
        losses=tuple(row for name, row in candidate_losses.items() if name in baseline_losses),
        world=_fingerprint(candidate_episodes),
        episodes=tuple(_read_episodes(read_transcripts(candidate_episodes), "model")),
        varied_episodes=tuple(_read_episodes(read_varied_transcripts(candidate_episodes), "model")),
        not_played=_read_not_played(candidate_episodes),
    )
    baseline = Scores(
        evaluator=_fingerprint(baseline_evaluation),
        turns=tuple(turn for name, turn in baseline_turns.items() if name in candidate_turns),
        losses=tuple(row for name, row in baseline_losses.items() if name in candidate_losses),
        world=_fingerprint(baseline_episodes),
        episodes=tuple(_read_episodes(read_transcripts(baseline_episodes), baseline_player)),
        varied_episodes=tuple(
            _read_episodes(read_varied_transcripts(baseline_episodes), baseline_player)
        ),
    )
    return candidate, baseline


def _fingerprint(artifact: Artifact | None) -> str:
    """Return a hash of all inputs of an artifact except the model."""
    made_from = artifact.manifest["made_from"] if artifact else {}
    return hash_json(
        {name: value for name, value in made_from.items() if name not in ("adapter", EXPORT)}
    )


def _read_not_played(episodes: Artifact | None) -> dict[str, int]:
    """Return the number of held-out tasks that were not played, by their kind."""
    made_from = episodes.manifest["made_from"] if episodes else {}
    return dict(made_from.get("not_played", {}))


def _read_turns(evaluation: Artifact | None, model: EvaluatedModel) -> dict[str, TurnScore]:
    """Return a model's scores at the turns that it answered, by the name of the turn."""
    turns = {}
    for entry in read_samples(evaluation):
        name = f"{entry['row_id']}:{entry['turn_index']}"
        turns[name] = TurnScore(
            turn=name,
            task=entry["task_key"],
            capability=entry["expected_tool"] or entry["expected_class"] or "nothing",
            expects_call=entry["expected_class"] == "call",
            called=entry[model]["called"],
            # Older versions wrote None for a call that the limit on new tokens ended.
            right=bool(entry[model]["right"]),
        )
    return turns


def _read_losses(evaluation: Artifact | None, model: EvaluatedModel) -> dict[str, RowScore]:
    """Return a model's losses by the id of the row."""
    entries: list[RowLossEntry] = json.loads(read_text(evaluation, ROW_LOSSES) or "[]")
    losses = {}
    for entry in entries:
        loss = entry[model]
        if loss is not None:
            losses[entry["row_id"]] = RowScore(
                row=entry["row_id"], task=entry["task_key"], loss=loss, tokens=entry["tokens"]
            )
    return losses


def _read_episodes(transcripts: Iterable[Transcript], player: str) -> Iterator[EpisodeScore]:
    """Yield the scores of a player's episodes."""
    for transcript in transcripts:
        if transcript["player"] != player:
            continue
        wrong_changes = transcript["wrong_changes"]
        # A message that was cut off may have been a wrong change.
        unsettled = transcript.get("unsettled")
        is_suspect = bool(unsettled and unsettled["harm_suspected"])
        cut_off = wrong_changes == [] and (transcript.get("end") in UNSEEN or is_suspect)
        harmed = None if cut_off or wrong_changes is None else bool(wrong_changes)
        yield EpisodeScore(
            task=transcript["task_key"],
            trial=transcript["trial"],
            seed=transcript["seed"],
            done=transcript["done"],
            harmed=harmed,
            must_act=transcript.get("must_act"),
            cut_off=cut_off,
            variant=transcript.get("variant", ""),
            deviation=f"{unsettled['kind']}: {unsettled['text']}" if unsettled else "",
        )


def read_samples(evaluation: Artifact | None) -> list[SampleEntry]:
    """Return the answered turns of an evaluation. Without an artifact, the list is empty.

    Raises:
        DataError: The file does not exist anymore.
    """
    entries: list[SampleEntry] = json.loads(read_text(evaluation, SAMPLES) or "[]")
    return entries


def read_transcripts(episodes: Artifact | None) -> list[Transcript]:
    """Return the episodes of every player without variants.

    Without an artifact, the list is empty.

    Raises:
        DataError: The file does not exist anymore.
    """
    return [entry for entry in _read_entries(episodes) if not entry.get("variant")]


def read_varied_transcripts(episodes: Artifact | None) -> list[Transcript]:
    """Return the episodes in which tasks were played in variants.

    Without an artifact, and in artifacts of older versions, the list is empty.

    Raises:
        DataError: The file does not exist anymore.
    """
    return [entry for entry in _read_entries(episodes) if entry.get("variant")]


def _read_entries(episodes: Artifact | None) -> list[Transcript]:
    """Return every episode of every player."""
    # Not splitlines: a message may contain other line ends, such as U+2028.
    lines = read_text(episodes, TRANSCRIPTS).split("\n")
    return [json.loads(line) for line in lines if line]


def read_text(artifact: Artifact | None, file_name: str) -> str:
    """Return the text of an artifact's file. Without an artifact, the text is empty.

    Raises:
        DataError: The file does not exist anymore.
        DamageError: The file is damaged.
    """
    if artifact is None:
        return ""
    try:
        return artifact.read(file_name).decode("utf-8")
    except FileNotFoundError as error:
        raise DataError(
            f"The {artifact.asset} of {artifact.key} has no {file_name}, because a session in it "
            f"was forgotten or an older version made it: materialize `{artifact.asset}` again."
        ) from error
