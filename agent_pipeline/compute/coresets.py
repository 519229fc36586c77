"""The rows that a compared method trains on, as an artifact: it is made once."""

import time
from pathlib import Path
from typing import Any

from agent_pipeline.compute.building import ROW_NAMES, asked_lake, asked_rows, build, find_artifact
from agent_pipeline.compute.registry import TASKS, Params, Result, Task
from agent_pipeline.config.assets import CoresetConfig
from agent_pipeline.progress import Progress
from agent_pipeline.selection.coresets import build_coreset
from agent_pipeline.selection.embeddings import TFIDF
from agent_pipeline.selection.strategies import strategy
from agent_pipeline.selection.tables import write_picks
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.base_model import resolve_base_model
from agent_pipeline.training.identity import rows_made_from


def method_coreset(params: Params, by: Task, config: dict[str, Any], progress: Progress) -> Artifact:
    """The coreset of the training rows (`mix`: those of several agents); the report's `seconds` hold those of the losses too.

    `params` are those of every task, `config` are options of `CoresetConfig`.
    """
    (lake, key), options = asked_lake(params), CoresetConfig(**config)
    looks = strategy(options.strategy).needs_losses or options.embeddings != TFIDF
    base = (
        resolve_base_model(options.base_model, Path(params["cache"]), params["trust_remote_code"], options.base_revision) if looks else None
    )
    made_from = {
        "mix": params["mix"],
        "config": options.model_dump(),
        "revision": base.revision if base else None,
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

        coreset = build_coreset(asked_rows(params), lake, key, options, options.embeddings, ask)
        write_picks(coreset.table, folder)
        seconds = time.monotonic() - began + saved
        return {"rows": len(coreset.table), "chosen": coreset.chosen, "reasons": dict(coreset.reasons), "seconds": seconds}

    result = build(by, params, "method_coreset", made_from, make)
    return find_artifact(params, {"asset": "method_coreset", "identity": result["identity"]})
