"""The tasks of coresets: losses and vectors of training rows, and the coreset of a compared method.

How rows are chosen belongs to the package `selection`.
"""

import json
import time
from pathlib import Path
from typing import Any

from agent_pipeline.compute.artifact_cache import MODELS, ROW_NAMES, Recipe, build
from agent_pipeline.compute.params import ArtifactReference, EmbeddingParams, RowsParams
from agent_pipeline.compute.registry import TASKS, Result, Task, task
from agent_pipeline.config.assets import CoresetConfig
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.candidates import READ
from agent_pipeline.selection.coresets import build_coreset
from agent_pipeline.selection.embeddings import TFIDF
from agent_pipeline.selection.strategies import load_strategy
from agent_pipeline.selection.tables import write_picks
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.provenance import name_rows

LOSSES_FILE = "losses.json"


# Version 3: the chat template writes the tools of a row sorted by name.
@task(3, EmbeddingParams, MODELS)
def losses(params: EmbeddingParams, progress: Progress = silent) -> Result:
    """Compute the base model's loss on each training row, and keep the losses as an artifact.

    The artifact is called `row_losses`.

    Returns:
        `losses` has the mean loss of each row's assistant tokens in nats, by row id; a row without
        such tokens has None. `tokens` has the number of those tokens, by row id. `seconds` is the
        time that the scoring took.
    """
    from agent_pipeline.engine.scoring import compute_losses_of_base

    rows = list(params.training_rows(ROW_NAMES))
    base = params.open_base(params.base_model, params.base_revision)
    made_from = {
        "base_model": params.base_model,
        "base_revision": base.revision,
        "mix": params.mix,
        "compared": name_rows(rows),
    }

    def write(folder: Path) -> dict[str, Any]:
        started = time.monotonic()
        scores = compute_losses_of_base(params.training_rows(), base, progress=progress)
        entries = [
            {
                "row_id": row["row_id"],
                "session_id": row["session_id"],
                "loss": score.loss,
                "tokens": score.trained_tokens,
            }
            for row, score in zip(rows, scores, strict=True)
        ]
        (folder / LOSSES_FILE).write_text(json.dumps(entries, indent=1), encoding="utf-8")
        return {"rows": len(rows), "seconds": time.monotonic() - started}

    result = build(losses, params, Recipe("row_losses", made_from, write))
    artifact = params.find_artifact(ArtifactReference("row_losses", result["identity"]))
    entries = json.loads((artifact.path / LOSSES_FILE).read_text(encoding="utf-8"))
    return {
        "losses": {entry["row_id"]: entry["loss"] for entry in entries},
        "tokens": {entry["row_id"]: entry["tokens"] for entry in entries},
        "seconds": result["report"]["seconds"],
    }


@task(2, EmbeddingParams, MODELS)
def embed(params: EmbeddingParams, progress: Progress = silent) -> Result:
    """Compute the embeddings of the training rows' conversations, and keep the vectors in the lake.

    Returns:
        The origin of the vectors in the lake, and how many of them are new.
    """
    from agent_pipeline.engine.hidden_states import hidden_state_encoder
    from agent_pipeline.selection.embeddings import HIDDEN_STATES, find_encoder, format_conversation
    from agent_pipeline.selection.vectors import store_vectors

    if params.embeddings == HIDDEN_STATES:
        base = params.open_base(params.base_model, params.base_revision)
        model = hidden_state_encoder(base, progress)
    else:
        model = find_encoder(params.embeddings, params.trust_remote_code)
    texts = [format_conversation(row["messages"]) for row in params.training_rows()]
    return store_vectors(params.open_lake(), params.key, model, texts)


def method_coreset(
    params: RowsParams, by: Task[Any], config: dict[str, Any], progress: Progress
) -> Artifact:
    """Return the coreset on which a compared method trains.

    The report's `seconds` include the time that the losses took.

    Args:
        params: The partition, and whether the rows are those of several agents.
        by: The task whose version and libraries enter the identity.
        config: Options of `CoresetConfig`.
        progress: Called while rows are scored or embedded.
    """
    options = CoresetConfig(**config)
    embedding_params = params.for_task(EmbeddingParams, mix=params.mix, **options.of_model())
    revision = None
    if load_strategy(options.strategy).needs_losses or options.embeddings != TFIDF:
        revision = params.open_base(options.base_model, options.base_revision).revision
    made_from = {
        "mix": params.mix,
        "config": options.model_dump(),
        "revision": revision,
        "compared": name_rows(list(params.training_rows(ROW_NAMES))),
    }

    def write(folder: Path) -> dict[str, Any]:
        started = time.monotonic()
        saved_seconds = 0.0

        def run_model_task(name: str) -> Result:
            nonlocal saved_seconds
            task_started = time.monotonic()
            result = TASKS[name].run(embedding_params, progress)
            if "seconds" in result:
                # Losses that exist already cost no time now. Count what they cost when computed.
                saved_seconds += result["seconds"] - (time.monotonic() - task_started)
            return result

        coreset = build_coreset(
            lambda: params.training_rows(READ),
            params.open_lake(),
            params.key,
            options,
            options.embeddings,
            run_model_task,
        )
        write_picks(coreset.table, folder)
        return {
            "rows": len(coreset.table),
            "chosen": coreset.chosen,
            "reasons": dict(coreset.reasons),
            "seconds": time.monotonic() - started + saved_seconds,
        }

    result = build(by, params, Recipe("method_coreset", made_from, write))
    return params.find_artifact(ArtifactReference("method_coreset", result["identity"]))
