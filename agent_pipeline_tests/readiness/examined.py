"""Examination of stores in tests, with and without the lake's tables."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agent_pipeline.config.assets import CurationConfig, SftConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.datasets.build import BuiltDataset, build_sft
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.judging import read_labels
from agent_pipeline.judging.curation import CurationBounds
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.tables import curate_sessions, judge_partition
from agent_pipeline.keys import PartitionKey
from agent_pipeline.readiness.doctor import Doctor
from agent_pipeline.readiness.report import AgentReport, Readiness
from agent_pipeline.readiness.token_counts import BaseTokens
from agent_pipeline.redaction import Redactor

TOKENIZERS: dict[str, BaseTokens] = {}
"""The tokenizers of this process, which are loaded once."""

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a thing.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}


def chat(
    session_id: str, request: str, answer: str = "It is here.", **fields: object
) -> dict[str, Any]:
    """A session with one call."""
    function = {"name": "find", "arguments": json.dumps({"name": request})}
    call = {"id": "c", "type": "function", "function": function}
    return {
        "session_id": session_id,
        "project": "p",
        "agent": "a",
        "tools": [TOOL],
        "messages": [
            {"role": "system", "content": "Find things."},
            {"role": "user", "content": request},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": '{"place": "shelf"}'},
            {"role": "assistant", "content": answer},
        ],
        **fields,
    }


def write_chats(file: Path, chats: Iterable[Mapping[str, object]]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in chats), encoding="utf-8")
    return file


def labels_of(settings: Settings, key: PartitionKey) -> Labels:
    path = settings.labels_path(key)
    return read_labels(path, key, is_own_file=False) if path else Labels()


def examine_store(store: Path, **overrides: object) -> Readiness:
    """The report on a store."""
    settings = load_settings(**({"store": str(store)} | overrides))
    return make_doctor(settings).report()


def make_doctor(settings: Settings) -> Doctor:
    return Doctor(settings, partial(labels_of, settings), refuse_judge, _tokens=TOKENIZERS)


def refuse_judge(limits: object) -> Any:
    raise AssertionError("no language model may be asked")


def examine_one(store: Path, **overrides: object) -> AgentReport:
    (agent,) = examine_store(store, **overrides).agents
    return agent


def build_by_assets(settings: Settings, key: PartitionKey) -> tuple[BuiltDataset, list[str]]:
    """The SFT tables and the drop reasons that the functions of the assets make in the lake."""
    lake, source = settings.open_lake(), settings.open_store()
    ingest(source, key, settings.reading(key), lake).table.commit()
    options = resolve(settings, JudgingOptions, key).options
    redactor = Redactor(settings.redaction_options)
    table, _ = judge_partition(lake, key, options, labels_of(settings, key), redactor, refuse_judge)
    table.commit()
    curation = resolve(settings, CurationConfig, key).options
    curated = curate_sessions(
        lake,
        key,
        curation.required_measures,
        CurationBounds(curation.max_sessions, curation.max_characters),
        curation.verdict_leaks,
    )
    curated.table.commit()
    sft = resolve(settings, SftConfig, key).options
    built = build_sft(lake, key, settings.split_sizes, sft.untrained_turns, sft)
    return built, curated.curation.reasons
