"""Checks that search for private data in tables and files that are derived from `sessions`.

They search tables, exports, pages and logs. The check of `sessions` itself stands in `traces`.
`sft_coreset` and `trained_sessions` need no check, because they contain only ids, hashes, scores
and reasons of a fixed list.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import dagster as dg

from agent_pipeline.datasets.multi_task import MIXED_TABLE as MULTI_TASK
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table, table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import check_result
from agent_pipeline.errors import counts_in_words
from agent_pipeline.ingestion.derived import scan_derived
from agent_pipeline.redaction import Redactor
from agent_pipeline.redaction.files import finds_in_files
from agent_pipeline.redaction.surrogates import SHOWN, with_surrogates
from agent_pipeline.reports.episode_report import TRANSCRIPTS
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import dump_canonical_json
from agent_pipeline.storage.artifacts import MANIFEST

TABLE_CHECK, TEXTS_CHECK = "nothing_private_was_added", "its_texts_hold_nothing_private"


def _table_check(
    asset: str, partitions: dg.PartitionsDefinition | None = AGENTS
) -> dg.AssetChecksDefinition:
    """Return the check that a table derived from `sessions` contains no private data."""

    @dg.asset_check(
        asset=asset,
        name=TABLE_CHECK,
        partitions_def=partitions,
        blocking=True,
        description=(
            "Passes if the detectors find no private value in the texts that are new in this "
            "table, which means that they are not in the table `sessions`. If the check fails, "
            "no later asset is made from this table. If the value is private, remove it from its "
            "source. If the value is not private, add it to `redaction.allow`."
        ),
    )
    def check(
        context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
    ) -> dg.AssetCheckResult:
        with user_errors():
            key = agent_key(context) if partitions else None
            redactor = Redactor(workspace.settings().redaction_options)
            scan = scan_derived(workspace.open_lake(), asset, key, redactor)
        why = None
        if scan.kinds:
            why = (
                f"{asset} contains private data ({counts_in_words(scan.kinds)}) in the columns "
                f"{', '.join(scan.columns)}, so no later asset is made from this table"
            )
        metadata = {
            "rows": scan.rows,
            "texts": scan.texts,
            "searched": scan.searched,
            "found": counts_table(scan.kinds, "kind of private data"),
        }
        return check_result(not scan.kinds, why, metadata)

    return check


judged_sessions_check = _table_check("judged_sessions")
curated_sessions_check = _table_check("curated_sessions")
sft_dataset_check = _table_check("sft_dataset")
heldout_dataset_check = _table_check("heldout_dataset")
preference_dataset_check = _table_check("preference_dataset")
kto_dataset_check = _table_check("kto_dataset")
sharegpt_dataset_check = _table_check("sharegpt_dataset")
replay_buffer_check = _table_check("replay_buffer")
tape_check = _table_check("tape")
multi_task_dataset_check = _table_check(MULTI_TASK, partitions=None)


def _texts_check(asset: str, blocking: bool, description: str) -> dg.AssetChecksDefinition:
    """Return the check that the texts in an artifact's folder contain no private data."""

    @dg.asset_check(
        asset=asset,
        name=TEXTS_CHECK,
        partitions_def=AGENTS,
        blocking=blocking,
        description=description,
    )
    def check(
        context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
    ) -> dg.AssetCheckResult:
        with user_errors():
            settings, lake, key = workspace.settings(), workspace.open_lake(), agent_key(context)
            redactor = Redactor(settings.redaction_options)
            latest = lake.pointers(asset, key).latest
            artifact = lake.find_undamaged(asset, key, latest) if latest else None
            files = _files_in(artifact.path) if artifact else {}
            finds = finds_in_files(files, redactor)
            if finds and not blocking:
                rows = read_dataset_rows(lake, key, ("select", "test"))
                made_up = [*texts_of_rows(rows), *_texts_beside_models(files)]
                allowed = set(redactor.finds_in_texts(made_up))
                finds = finds_in_files({name: files[name] for name in finds}, redactor, allowed)
        return _texts_result(asset, files, finds, blocking)

    return check


def _texts_result(
    asset: str, files: Mapping[str, Path], finds: Mapping[str, Counter[str]], blocks: bool
) -> dg.AssetCheckResult:
    kinds: Counter[str] = sum(finds.values(), Counter())
    why = None
    if finds:
        named = "; ".join(
            f"{name}: {counts_in_words(counts)}" for name, counts in sorted(finds.items())
        )
        what_follows = "it is not served" if blocks else "read the files before you share them"
        why = f"the texts of {asset} contain values that look private ({named}): {what_follows}"
    rows = [[name, counts_in_words(counts)] for name, counts in sorted(finds.items())]
    metadata = {
        "files": len(files),
        "found": counts_table(kinds, "kind of private data"),
        "in_files": table(["file", "found"], rows),
    }
    return check_result(not finds, why, metadata, blocks=blocks)


def _files_in(folder: Path) -> dict[str, Path]:
    """Return the files of an artifact by name, except for its manifest."""
    return {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def texts_of_rows(rows: Iterable[DatasetRow]) -> Iterator[str]:
    """Yield the texts of rows as models read them, including the tools.

    Their made-up values are not private.
    """
    for row in with_surrogates(rows):
        columns: Mapping[str, object] = row
        yield dump_canonical_json([columns[name] for name in SHOWN if columns.get(name)])


def _texts_beside_models(files: Mapping[str, Path]) -> Iterator[str]:
    """Yield the parts of transcripts that no model wrote: the recorded agent and the world."""
    for line in files[TRANSCRIPTS].read_text("utf-8").splitlines() if TRANSCRIPTS in files else ():
        episode = json.loads(line)
        for message in episode["messages"]:
            if episode["player"] == "recorded" or message["role"] != "assistant":
                yield dump_canonical_json(message)


gguf_export_texts = _texts_check(
    "gguf_export",
    True,
    "Passes if the detectors find no private data in the metadata of the GGUF files and in the "
    "Modelfile. If the check fails, the export is not used for episodes, for a decision or for "
    "serving.",
)
evaluation_texts = _texts_check(
    "evaluation",
    False,
    "Passes if the pages and the Inspect logs contain no text that looks like private data. "
    "Made-up values from the held-out rows are allowed. If the check fails, read the model's "
    "answers before you share a page.",
)
episodes_texts = _texts_check(
    "episodes",
    False,
    "Passes if the transcripts contain no text that looks like private data. Made-up values from "
    "the held-out rows are allowed. If the check fails, the model or the world wrote such a "
    "text. Read the transcripts before you share them.",
)
