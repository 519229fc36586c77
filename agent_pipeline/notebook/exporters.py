"""Scored traces of an evaluation as training files : ChatML, preference pairs, ShareGPT; one JSON object a line.

A trace is an invocation of swink-agent-eval or a canonical session. All are repaired and redacted as the lake's sessions are; runs that the
infrastructure failed, or that obeyed an injection, are neither good nor bad. The same traces give the same bytes, whatever their order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, get_args

import msgspec

from agent_pipeline.datasets.jsonl import json_line, write_atomically
from agent_pipeline.datasets.preferences import Pairing, preference_rows
from agent_pipeline.datasets.sft import to_last_assistant
from agent_pipeline.datasets.sharegpt import alternates, conversations, sharegpt_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.notebook.intake import Intake
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Message, Session, sha256_of
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.formats.fields import elements, number, section
from agent_pipeline.sources.formats.record_files import Place

Format = Literal["chatml", "dpo", "sharegpt"]
_LINEAGE = ("session_id", "content_sha256", "task_key")
_TOLERANCE = 1e-9
"""Scores are means of decimals: 0.6 may be 0.6000000000000001."""


class NothingToExport(DataError):
    """No trace passes: no file is written rather than an empty one."""


class EvalSetResult(TypedDict, total=False):
    """One run of an evaluation set, as swink-agent-eval writes it."""

    eval_set_id: str
    case_results: list[dict[str, Any]]
    summary: dict[str, Any]
    timestamp: Any


class ScoredTrace(msgspec.Struct):
    """One run of a case. `invocation` is swink's, or a `Session`; `case` what is known of the case (`system_prompt`, `user_messages`).

    `scored` is false where no metric has a value: the score is then 0.0, and the trace is neither good nor bad.
    """

    invocation: Any
    score: float
    case_id: str
    case: dict[str, Any] = {}
    trial: str | None = None
    scored: bool = True


@dataclass(frozen=True)
class ExportOptions:
    """What is exported. A trace is good from `quality_threshold` (0 to 1) on.

    Pairs: the rejected score is at least `margin` below the threshold; `pairing` says which runs of a case make pairs (the best with
    the worst; `all_pairs` and others with a limit per case).

    `original` gives the records of swink-agent-eval to the key, for those who depend on them. They have no place for results, ShareGPT's
    not for calls either, and each half of a pair begins with the prompt: what is left out is counted. Otherwise a record also names its
    session and the hash of its content.

    Raises:
        SettingsError: an option has a value that it cannot have.
    """

    format: Format = "chatml"
    quality_threshold: float = 0.5
    include_metadata: bool = True
    margin: float = 0.1
    pairing: Pairing = field(default_factory=lambda: Pairing("best_worst"))
    original: bool = False
    redaction: RedactionOptions = field(default_factory=RedactionOptions)

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise SettingsError(f"There is no export format {self.format!r}: choose one of {', '.join(get_args(Format))}.")
        for name in ("quality_threshold", "margin"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"The export's {name} is {getattr(self, name)}: scores go from 0 to 1.")


class _Ready(NamedTuple):
    """A trace as a session that can be an example, and its messages up to the agent's last one."""

    session: Session
    messages: list[Message]
    score: float
    scored: bool
    case_id: str


class Exporter:
    """Base of the exporters: what they share is which traces there are, and the bytes."""

    format: ClassVar[Format]

    def records(self, traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str] | None = None) -> list[dict[str, Any]]:
        """The records, by case and session. `counts` gets `traces`, `records`, and what became of the rest.

        Raises:
            NothingToExport: there is none; says the threshold, and why.
            DataError: a score is no number from 0 to 1.
        """
        counts = Counter() if counts is None else counts
        ready = sorted(_ready(traces, options, counts), key=_order)
        found = list(self._records(ready, options, counts))
        counts["records"] += len(found)
        if not found:
            reasons = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
            best = max((each.score for each in ready if each.scored), default=None)
            raise NothingToExport(
                f"Nothing to export as {self.format} at the quality threshold {options.quality_threshold} "
                f"({reasons or 'there are no traces'}; the best score is {'not known' if best is None else round(best, 4)}): "
                "lower the threshold, or evaluate more trials."
            )
        return found

    def export(self, traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str] | None = None) -> bytes:
        """The records as JSON lines. Raises as `records`."""
        return "".join(map(json_line, self.records(traces, options, counts))).encode("utf-8")

    def _records(self, ready: list[_Ready], options: ExportOptions, counts: Counter[str]) -> Iterator[dict[str, Any]]:
        for each in _good(ready, options, counts):
            metadata = {"metadata": self._metadata(each)} if options.include_metadata else {}
            record = self._original(each, counts) if options.original else self._record(each, counts) | _lineage(each)
            yield record | metadata

    def _record(self, each: _Ready, counts: Counter[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _original(self, each: _Ready, counts: Counter[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _metadata(self, each: _Ready) -> dict[str, Any]:
        return {"case_id": each.case_id, "score": each.score}


class ChatMlExporter(Exporter):
    """`{"messages": [...], "metadata": {case_id, score, model_id, turns}}`, calls and results in OpenAI's form."""

    format = "chatml"

    def _record(self, each: _Ready, counts: Counter[str]) -> dict[str, Any]:
        return {"messages": each.messages} | ({"tools": each.session.tools} if each.session.tools else {})

    def _original(self, each: _Ready, counts: Counter[str]) -> dict[str, Any]:
        return {"messages": _without_results(each.messages, counts)}

    def _metadata(self, each: _Ready) -> dict[str, Any]:
        turns = sum(message["role"] == "assistant" for message in each.messages)
        return super()._metadata(each) | {"model_id": each.session.model_id, "turns": turns}


class ShareGptExporter(Exporter):
    """`{"conversations": [{"from", "value"}], "metadata": {case_id, score}}`, with `function_call` and `observation`."""

    format = "sharegpt"

    def _record(self, each: _Ready, counts: Counter[str]) -> dict[str, Any]:
        (row,) = sharegpt_rows([{"messages": each.messages, "tools": each.session.tools}], alternating=False)
        counts["turns_do_not_alternate"] += not alternates(row["conversations"])  # some loaders throw these away
        return {name: value for name, value in row.items() if value}

    def _original(self, each: _Ready, counts: Counter[str]) -> dict[str, Any]:
        words = [{name: message[name] for name in ("role", "content")} for message in _without_results(each.messages, counts)]
        counts["calls_left_out"] += sum(len(message.get("tool_calls") or ()) for message in each.messages)
        turns = conversations([message for message in words if message["content"]])
        return {"conversations": [{name: turn[name] for name in ("from", "value")} for turn in turns]}


class DpoExporter(Exporter):
    """`{"case_id", "prompt", "chosen", "rejected"}`: two runs of a case from one start, split where the agent's messages part."""

    format = "dpo"

    def _records(self, ready: list[_Ready], options: ExportOptions, counts: Counter[str]) -> Iterator[dict[str, Any]]:
        good_and_bad: tuple[list[Session], list[Session]] = ([], [])
        limit = options.quality_threshold - options.margin + _TOLERANCE
        for place, each in enumerate(ready):
            passes = _passes(each, options)
            if not each.scored:
                counts["not_scored"] += 1
            elif passes or each.score <= limit:
                # Pairs are of a case, whatever task a session is a trial of, and two agents' sessions may have one id.
                named = {"session_id": f"{place:012d}", "task_key": each.case_id, "score": each.score}
                good_and_bad[not passes].append(msgspec.structs.replace(each.session, **named))
            else:
                counts["neither_good_nor_bad"] += 1
        for row in preference_rows(*good_and_bad, SplitSizes(), counts, options.pairing):
            if options.original:
                chosen, rejected = (_without_results(row["prompt"] + row[name], counts) for name in ("chosen", "rejected"))
                yield {"case_id": row["case_id"], "chosen": chosen, "rejected": rejected}
                continue
            good, bad = (ready[int(row[name])] for name in ("session_id", "rejected_session_id"))
            record = {name: row[name] for name in ("case_id", "prompt", "chosen", "rejected", "tools") if name != "tools" or row[name]}
            record |= _lineage(good) | {f"rejected_{name}": value for name, value in _lineage(bad).items() if name != "task_key"}
            if options.include_metadata:
                record["metadata"] = {"chosen_score": good.score, "rejected_score": bad.score, "margin": row["margin"]}
            yield record


_EXPORTERS: dict[str, type[Exporter]] = {each.format: each for each in (ChatMlExporter, DpoExporter, ShareGptExporter)}


def export_traces(traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str] | None = None) -> bytes:
    """Traces in the format that the options name, as JSON lines. Raises as `Exporter.records`."""
    return _EXPORTERS[options.format]().export(traces, options, counts)


class TrainingReporter:
    """Writes the training file of an evaluation to a path. `counts`, of the last report, says what became of the traces."""

    def __init__(self, path: str | Path, options: ExportOptions | None = None) -> None:
        self.path, self.options = Path(path), options or ExportOptions()
        self.counts: Counter[str] = Counter()

    def report(
        self, results: EvalSetResult | Mapping[str, Any] | Iterable[Mapping[str, Any]], eval_set: Mapping[str, Any] | None = None
    ) -> Path:
        """The file of one run, or of several of one set (a case has trials only in several); the set has the prompts.

        Raises:
            NothingToExport: as `Exporter.records`; the path is left as it is.
            OSError: the file cannot be written.
        """
        self.counts = Counter()
        runs = [results] if isinstance(results, Mapping) else list(results)
        traces = [trace for run in runs for trace in scored_traces(run, eval_set, self.counts)]
        return write_atomically(self.path, export_traces(traces, self.options, self.counts))


def scored_traces(
    result: EvalSetResult | Mapping[str, Any], eval_set: Mapping[str, Any] | None = None, counts: Counter[str] | None = None
) -> list[ScoredTrace]:
    """The traces of a run, with the mean of their metrics; `counts` gets `cases_without_an_invocation`.

    Raises:
        DataError: it is no result, or a summary without conversations.
    """
    cases = {each.get("id"): each for each in elements((eval_set or {}).get("cases")) if isinstance(each, dict)}
    found = [each for each in elements(result.get("case_results")) if isinstance(each, dict)]
    traces = []
    for each in found:
        if not isinstance(each.get("invocation"), Mapping):
            continue
        metrics = [value for metric in elements(each.get("metric_results")) if (value := _metric(metric)) is not None]
        traces.append(
            ScoredTrace(
                each["invocation"],
                sum(metrics) / len(metrics) if metrics else 0.0,
                str(each.get("case_id")),
                each if each.get("user_messages") else cases.get(each.get("case_id"), {}),
                str(result["timestamp"]) if result.get("timestamp") is not None else None,
                bool(metrics),
            )
        )
    if not traces:
        raise DataError("The evaluation result has no case with an invocation: give the result itself, not its summary.")
    if counts is not None and len(found) > len(traces):
        counts["cases_without_an_invocation"] += len(found) - len(traces)
    return traces


def _metric(result: Any) -> float | None:
    return number(section(result, "score").get("value"))


def _ready(traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str]) -> Iterator[_Ready]:
    intake = Intake(options.redaction)
    cases: dict[str, list[tuple[Session, ScoredTrace]]] = defaultdict(list)
    for trace in traces:
        counts["traces"] += 1
        if not (0 <= trace.score <= 1):
            raise DataError(f"A trace of case {trace.case_id} has the score {trace.score}: scores go from 0 to 1.")
        cases[trace.case_id].append((_session(trace), trace))
    for runs in cases.values():
        runs.sort(key=lambda run: _identity(run[0]))
        for (session, trace), reason in zip(runs, intake.take_together([session for session, _ in runs]), strict=True):
            messages = to_last_assistant(session.messages)
            if reason or not messages:
                counts[reason or "no_assistant_message"] += 1
                continue
            counts["no_user_message"] += all(message["role"] != "user" for message in messages)
            yield _Ready(session, messages, trace.score, trace.scored, trace.case_id)


def _session(trace: ScoredTrace) -> Session:
    """The trace's session, one that may be changed; an invocation is read by the reader of its files."""
    if isinstance(trace.invocation, Session):
        return msgspec.structs.replace(trace.invocation)
    trial = trace.trial or sha256_of(trace.invocation)[:16]
    prompts = {name: trace.case[name] for name in ("system_prompt", "user_messages") if trace.case.get(name)}
    record = {"case_id": trace.case_id, "invocation": trace.invocation, "timestamp": trial, **prompts}
    reader, key = SwinkSource(Path("results")), PartitionKey("evaluation", "agent")
    (session,) = reader.build(key, f"{trace.case_id}:{trial}", [(Place(Path("results"), 0), record)])
    return session


def _good(ready: Iterable[_Ready], options: ExportOptions, counts: Counter[str]) -> Iterator[_Ready]:
    for each in ready:
        if not each.scored:
            counts["not_scored"] += 1
        elif not _passes(each, options):
            counts["below_threshold"] += 1
        else:
            yield each


def _passes(each: _Ready, options: ExportOptions) -> bool:
    return each.scored and each.score >= options.quality_threshold - _TOLERANCE


def _order(each: _Ready) -> tuple[str, ...]:
    """The order of records: by case and session."""
    return each.case_id, *_identity(each.session), repr(each.score)


def _identity(session: Session) -> tuple[str, ...]:
    """What tells two sessions apart: their ids may be the same in two agents' stores."""
    return session.session_id, session.project, session.agent, session.content_sha256()


def _lineage(each: _Ready) -> dict[str, str]:
    session = each.session
    return dict(zip(_LINEAGE, (session.session_id, session.content_sha256(), session.task_key), strict=True))


def _without_results(messages: list[Message], counts: Counter[str]) -> list[Message]:
    kept = [message for message in messages if message["role"] != "tool"]
    counts["results_left_out"] += len(messages) - len(kept)
    return kept
