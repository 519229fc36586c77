"""The rows that a compared method trains on, and the losses that it may choose them by, as artifacts: each is made once."""

import json
import time
from pathlib import Path
from typing import Any

from agent_pipeline.compute.building import asked_lake, asked_rows, build, find_artifact
from agent_pipeline.compute.registry import Params, Result, Task
from agent_pipeline.compute.tasks import embed, losses
from agent_pipeline.config.assets import CoresetConfig
from agent_pipeline.progress import Progress
from agent_pipeline.selection.coresets import Losses, embedded_coreset
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
    (lake, key), rows, options = asked_lake(params), asked_rows(params), CoresetConfig(**config)
    model = {"base_model": options.base_model, "base_revision": options.base_revision}
    looks = strategy(options.strategy).needs_losses or options.embeddings != TFIDF
    base = (
        resolve_base_model(options.base_model, Path(params["cache"]), params["trust_remote_code"], options.base_revision) if looks else None
    )
    made_from = {
        "mix": params["mix"],
        "config": options.model_dump(),
        "revision": base.revision if base else None,
        "compared": rows_made_from(rows),
    }

    def make(folder: Path) -> dict[str, Any]:
        began, more = time.monotonic(), 0.0

        def model_losses() -> Losses:
            nonlocal more
            asked = time.monotonic()
            kept = _losses(params | model, made_from["revision"], rows, progress)
            more = kept.manifest["report"]["seconds"] - (time.monotonic() - asked)
            found = json.loads((kept.path / "losses.json").read_text(encoding="utf-8"))
            return {each["row_id"]: each["loss"] for each in found}, {each["row_id"]: each["tokens"] for each in found}

        def vectors() -> Result:
            return embed.run(params | model | {"embeddings": options.embeddings}, progress)

        coreset, _ = embedded_coreset(rows, lake, key, options, options.embeddings, model_losses, vectors)
        write_picks(coreset.table, folder)
        return {"rows": len(rows), "chosen": coreset.chosen, "reasons": dict(coreset.reasons), "seconds": time.monotonic() - began + more}

    result = build(by, params, "method_coreset", made_from, make)
    return find_artifact(params, {"asset": "method_coreset", "identity": result["identity"]})


def _losses(params: Params, revision: str | None, rows: list[dict[str, Any]], progress: Progress) -> Artifact:
    """The base model's loss on each row."""

    def make(folder: Path) -> dict[str, Any]:
        began = time.monotonic()
        found = losses.run(params, progress)
        of = [
            {name: row[name] for name in ("row_id", "session_id")}
            | {name: found[kind][row["row_id"]] for name, kind in (("loss", "losses"), ("tokens", "tokens"))}
            for row in rows
        ]
        (folder / "losses.json").write_text(json.dumps(of, indent=1), encoding="utf-8")
        return {"rows": len(rows), "seconds": time.monotonic() - began}

    made_from = {"base_model": params["base_model"], "base_revision": revision, "mix": params["mix"], "compared": rows_made_from(rows)}
    result = build(losses, params, "row_losses", made_from, make)
    return find_artifact(params, {"asset": "row_losses", "identity": result["identity"]})
