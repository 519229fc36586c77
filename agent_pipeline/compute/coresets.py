"""What coresets need of a model, losses and vectors, as tasks; and the coreset of a compared method, as an artifact: it is made once."""

import json
import time
from pathlib import Path
from typing import Any

from agent_pipeline.compute.artifact_cache import (
    MODELS,
    ROW_NAMES,
    asked_base,
    asked_lake,
    asked_rows,
    build,
    find_artifact,
)
from agent_pipeline.compute.registry import TASKS, Params, Result, Task, task
from agent_pipeline.config.assets import CoresetConfig
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.candidates import READ
from agent_pipeline.selection.coresets import build_coreset
from agent_pipeline.selection.embeddings import TFIDF
from agent_pipeline.selection.strategies import strategy
from agent_pipeline.selection.tables import write_picks
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.identity import rows_made_from


@task(version=2, libraries=MODELS)
def losses(params: Params, progress: Progress = silent) -> Result:
    """The base model's mean loss on each training row's assistant tokens (`None`: no such token), how many `tokens` those are, and the
    `seconds` that it took when it was made: the artifact `row_losses`."""
    from agent_pipeline.engine.scoring import row_losses

    rows, base = list(asked_rows(params, columns=ROW_NAMES)), asked_base(params)
    mix = params.get("mix", False)
    made_from = {
        "base_model": params["base_model"],
        "base_revision": base.revision,
        "mix": mix,
        "compared": rows_made_from(rows),
    }

    def make(folder: Path) -> dict[str, Any]:
        began, found = time.monotonic(), row_losses(asked_rows(params), base, progress=progress)
        of = [
            {
                "row_id": row["row_id"],
                "session_id": row["session_id"],
                "loss": each.loss,
                "tokens": each.trained_tokens,
            }
            for row, each in zip(rows, found, strict=True)
        ]
        (folder / "losses.json").write_text(json.dumps(of, indent=1), encoding="utf-8")
        return {"rows": len(rows), "seconds": time.monotonic() - began}

    result = build(losses, params, "row_losses", made_from, make)
    kept = find_artifact(params, {"asset": "row_losses", "identity": result["identity"]})
    of = json.loads((kept.path / "losses.json").read_text(encoding="utf-8"))
    return {
        "losses": {each["row_id"]: each["loss"] for each in of},
        "tokens": {each["row_id"]: each["tokens"] for each in of},
        "seconds": result["report"]["seconds"],
    }


@task(version=2, libraries=MODELS)
def embed(params: Params, progress: Progress = silent) -> Result:
    """The vectors of the training rows' conversations, put into the lake, by a model: their origin there, and how many were new."""
    from agent_pipeline.engine.hidden_states import hidden_state_encoder
    from agent_pipeline.selection.embeddings import HIDDEN_STATES, conversation_text, encoder
    from agent_pipeline.selection.vectors import keep_vectors

    if params["embeddings"] == HIDDEN_STATES:
        model = hidden_state_encoder(asked_base(params), progress)
    else:
        model = encoder(params["embeddings"], params["trust_remote_code"])
    lake, key = asked_lake(params)
    return keep_vectors(
        lake, key, model, [conversation_text(row["messages"]) for row in asked_rows(params)]
    )


def method_coreset(
    params: Params, by: Task, config: dict[str, Any], progress: Progress
) -> Artifact:
    """The coreset of the training rows (`mix`: those of several agents); the report's `seconds` hold those of the losses too.

    `params` are those of every task, `config` are options of `CoresetConfig`.
    """
    (lake, key), options = asked_lake(params), CoresetConfig(**config)
    looks = strategy(options.strategy).needs_losses or options.embeddings != TFIDF
    made_from = {
        "mix": params["mix"],
        "config": options.model_dump(),
        "revision": asked_base(params | options.of_model()).revision if looks else None,
        "compared": rows_made_from(list(asked_rows(params, columns=ROW_NAMES))),
    }

    def make(folder: Path) -> dict[str, Any]:
        began, saved = time.monotonic(), 0.0

        def ask(task: str) -> Result:
            nonlocal saved
            asked = time.monotonic()
            result = TASKS[task].run(params | options.of_model(), progress)
            if "seconds" in result:  # what the losses took when they were made
                saved += result["seconds"] - (time.monotonic() - asked)
            return result

        coreset = build_coreset(
            lambda: asked_rows(params, columns=READ), lake, key, options, options.embeddings, ask
        )
        write_picks(coreset.table, folder)
        seconds = time.monotonic() - began + saved
        return {
            "rows": len(coreset.table),
            "chosen": coreset.chosen,
            "reasons": dict(coreset.reasons),
            "seconds": seconds,
        }

    result = build(by, params, "method_coreset", made_from, make)
    return find_artifact(params, {"asset": "method_coreset", "identity": result["identity"]})
