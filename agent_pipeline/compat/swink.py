"""Scored traces of an evaluation as training files: ChatML, preference pairs, ShareGPT; one JSON
object a line.

A trace is an invocation of swink-agent-eval or a canonical session. All are repaired and redacted
as the lake's sessions are; runs that the infrastructure failed, or that obeyed an injection, are
neither good nor bad. The same traces give the same bytes, whatever their order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, get_args

import msgspec

from agent_pipeline.compat.examples import Example, Intake, counted
from agent_pipeline.datasets.preferences import Pairing, pair_sessions
from agent_pipeline.datasets.sharegpt import make_sharegpt_rows, to_sharegpt_turns, turns_alternate
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.json_text import dump_json_line
from agent_pipeline.sessions.session import Message, Session, hash_json, list_calls
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.formats.fields import chosen, elements, number, objects, section
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.formats.session_fields import new_session
from agent_pipeline.storage.filesystem import write_atomically

Format = Literal["chatml", "dpo", "sharegpt"]
_PROMPTS = ("system_prompt", "user_messages")
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
    """One run of a case. `invocation` is swink's, or a `Session` (`scored_traces` gives one, with
    its prompts).

    `scored` is false where no metric has a value: the score is then 0.0, and the trace is neither
    good nor bad.
    """

    invocation: Any
    score: float
    case_id: str
    scored: bool = True


@dataclass(frozen=True)
class ExportOptions:
    """What is exported. A trace is good from `quality_threshold` (0 to 1) on.

    Pairs: the rejected score is at least `margin` below the threshold; `pairing` says which runs of
    a case make pairs (the best with the worst; `all_pairs` and others with a limit per case).

    `original` gives the records of swink-agent-eval to the key, for those who depend on them. They
    have no place for results, ShareGPT's not for calls either, and each half of a pair begins with
    the prompt: what is left out is counted. Otherwise a record also names its session and the hash
    of its content.

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
            raise SettingsError(
                f"There is no export format {self.format!r}: choose one of "
                f"{', '.join(get_args(Format))}."
            )
        for name in ("quality_threshold", "margin"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(
                    f"The export's {name} is {getattr(self, name)}: scores go from 0 to 1."
                )


class _Trace(NamedTuple):
    """A scored trace whose session can be an example."""

    example: Example
    score: float
    scored: bool
    case_id: str

    def passes(self, options: ExportOptions) -> bool:
        return self.scored and self.score >= options.quality_threshold - _TOLERANCE


class Exporter:
    """Base of the exporters: what they share is which traces there are, and the bytes."""

    format: ClassVar[Format]

    def records(
        self,
        traces: Iterable[ScoredTrace],
        options: ExportOptions,
        counts: Counter[str] | None = None,
    ) -> list[dict[str, Any]]:
        """The records, by case and session. `counts` gets `traces`, `records`, and what became of
        the rest.

        Raises:
            NothingToExport: there is none; says the threshold, and why.
            DataError: a score is not a number from 0 to 1.
        """
        counts = Counter() if counts is None else counts
        ready = sorted(
            _examples(traces, options, counts),
            key=lambda example: (
                example.case_id,
                *_identity(example.example.session),
                repr(example.score),
            ),
        )
        records = list(self._records(ready, options, counts))
        counts["records"] += len(records)
        if not records:
            best = max((example.score for example in ready if example.scored), default=None)
            raise NothingToExport(
                f"Nothing to export as {self.format} at the quality threshold "
                f"{options.quality_threshold} "
                f"({counted(counts) or 'there are no traces'}; the best score is "
                f"{'not known' if best is None else round(best, 4)}): "
                "lower the threshold, or evaluate more trials."
            )
        return records

    def export(
        self,
        traces: Iterable[ScoredTrace],
        options: ExportOptions,
        counts: Counter[str] | None = None,
    ) -> bytes:
        """The records as JSON lines. Raises as `records`."""
        return "".join(map(dump_json_line, self.records(traces, options, counts))).encode("utf-8")

    def _records(
        self, traces: list[_Trace], options: ExportOptions, counts: Counter[str]
    ) -> Iterator[dict[str, object]]:
        for trace in traces:
            if not trace.passes(options):
                counts["below_threshold" if trace.scored else "not_scored"] += 1
                continue
            lineage = {} if options.original else trace.example.lineage
            metadata = {"metadata": self._metadata(trace)} if options.include_metadata else {}
            yield self._record(trace.example, options.original, counts) | lineage | metadata

    def _record(self, example: Example, original: bool, counts: Counter[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _metadata(self, trace: _Trace) -> dict[str, object]:
        return {"case_id": trace.case_id, "score": trace.score}


class ChatMlExporter(Exporter):
    """`{"messages": [...], "metadata": {case_id, score, model_id, turns}}`, calls and results in
    OpenAI's form.
    """

    format = "chatml"

    def _record(self, example: Example, original: bool, counts: Counter[str]) -> dict[str, Any]:
        if original:
            return {"messages": _without_results(example.messages, counts)}
        return {"messages": example.messages} | (
            {"tools": example.session.tools} if example.session.tools else {}
        )

    def _metadata(self, trace: _Trace) -> dict[str, object]:
        turns = sum(message["role"] == "assistant" for message in trace.example.messages)
        return super()._metadata(trace) | {
            "model_id": trace.example.session.model_id,
            "turns": turns,
        }


class ShareGptExporter(Exporter):
    """`{"conversations": [{"from", "value"}], "metadata": {case_id, score}}`, with `function_call`
    and `observation`.
    """

    format = "sharegpt"

    def _record(self, example: Example, original: bool, counts: Counter[str]) -> dict[str, Any]:
        if original:
            words = [
                Message(role=message["role"], content=message["content"])
                for message in _without_results(example.messages, counts)
            ]
            counts["calls_left_out"] += len(list_calls(example.messages))
            turns = to_sharegpt_turns([message for message in words if message["content"]])
            return {
                "conversations": [
                    {name: turn[name] for name in ("from", "value")} for turn in turns
                ]
            }
        (row,) = make_sharegpt_rows(
            [{"messages": example.messages, "tools": example.session.tools}], alternating=False
        )
        counts["turns_do_not_alternate"] += not turns_alternate(
            row["conversations"]
        )  # some loaders throw these away
        return {name: value for name, value in row.items() if value}


class DpoExporter(Exporter):
    """`{"case_id", "prompt", "chosen", "rejected"}`: two runs of a case from one start, split where
    the agent's messages part.
    """

    format = "dpo"

    def _records(
        self, traces: list[_Trace], options: ExportOptions, counts: Counter[str]
    ) -> Iterator[dict[str, object]]:
        good_and_bad: tuple[list[Session], list[Session]] = ([], [])
        limit = options.quality_threshold - options.margin + _TOLERANCE
        for index, trace in enumerate(traces):
            passes = trace.passes(options)
            if passes or (trace.scored and trace.score <= limit):
                # Pairs are of a case, whatever task a session is a trial of, and two agents'
                # sessions may have one id.
                named = {
                    "session_id": f"{index:012d}",
                    "task_key": trace.case_id,
                    "score": trace.score,
                }
                good_and_bad[not passes].append(
                    msgspec.structs.replace(trace.example.session, **named)
                )
            else:
                counts["neither_good_nor_bad" if trace.scored else "not_scored"] += 1
        for row in pair_sessions(*good_and_bad, SplitSizes(), counts, options.pairing):
            if options.original:
                chosen, rejected = (
                    _without_results(row["prompt"] + row[name], counts)
                    for name in ("chosen", "rejected")
                )
                yield {"case_id": row["case_id"], "chosen": chosen, "rejected": rejected}
                continue
            good, bad = (traces[int(row[name])] for name in ("session_id", "rejected_session_id"))
            record: dict[str, object] = {
                name: row[name]
                for name in ("case_id", "prompt", "chosen", "rejected", "tools")
                if name != "tools" or row[name]
            }
            record |= good.example.lineage
            record |= {
                f"rejected_{name}": value
                for name, value in bad.example.lineage.items()
                if name != "task_key"
            }
            if options.include_metadata:
                record["metadata"] = {
                    "chosen_score": good.score,
                    "rejected_score": bad.score,
                    "margin": row["margin"],
                }
            yield record


_EXPORTERS: dict[str, type[Exporter]] = {
    exporter.format: exporter for exporter in (ChatMlExporter, DpoExporter, ShareGptExporter)
}


def export_traces(
    traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str] | None = None
) -> bytes:
    """Traces in the format that the options name, as JSON lines. Raises as `Exporter.records`."""
    return _EXPORTERS[options.format]().export(traces, options, counts)


class TrainingReporter:
    """Writes the training file of an evaluation to a path. `counts`, of the last report, says what
    became of the traces.
    """

    def __init__(self, path: str | Path, options: ExportOptions | None = None) -> None:
        self.path, self.options = Path(path), options or ExportOptions()
        self.counts: Counter[str] = Counter()

    def report(
        self,
        results: EvalSetResult | Mapping[str, object] | Iterable[Mapping[str, object]],
        eval_set: Mapping[str, object] | None = None,
    ) -> Path:
        """The file of one run, or of several of one set (a case has trials only in several); the
        set has the prompts.

        Raises:
            NothingToExport: as `Exporter.records`; the path is left as it is.
            OSError: the file cannot be written.
        """
        self.counts = Counter()
        runs = [results] if isinstance(results, Mapping) else list(results)
        traces = [trace for run in runs for trace in scored_traces(run, eval_set, self.counts)]
        return write_atomically(self.path, export_traces(traces, self.options, self.counts))


def scored_traces(
    result: EvalSetResult | Mapping[str, object],
    eval_set: Mapping[str, object] | None = None,
    counts: Counter[str] | None = None,
) -> list[ScoredTrace]:
    """The traces of a run, with the mean of their metrics; `counts` gets
    `cases_without_an_invocation`.

    Raises:
        DataError: it is not a result, or a summary without conversations.
    """
    cases = {
        case.get("id"): chosen(case, _PROMPTS) for case in objects((eval_set or {}).get("cases"))
    }
    results = objects(result.get("case_results"))
    traces = []
    for case in results:
        if not isinstance(case.get("invocation"), Mapping):
            continue
        values = [
            number(section(metric, "score").get("value"))
            for metric in elements(case.get("metric_results"))
        ]
        metrics = [value for value in values if value is not None]
        prompts = {} if case.get("user_messages") else cases.get(case.get("case_id"), {})
        session = _of_swink(
            {
                **chosen(case, ("case_id", "invocation", *_PROMPTS)),
                **prompts,
                **chosen(result, ("timestamp",)),
            }
        )
        traces.append(
            ScoredTrace(
                session,
                sum(metrics) / len(metrics) if metrics else 0.0,
                str(case.get("case_id")),
                bool(metrics),
            )
        )
    if not traces:
        raise DataError(
            "The evaluation result has no case with an invocation: give the result itself, not its "
            "summary."
        )
    if counts is not None and len(results) > len(traces):
        counts["cases_without_an_invocation"] += len(results) - len(traces)
    return traces


def _examples(
    traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str]
) -> Iterator[_Trace]:
    intake = Intake(options.redaction)
    cases: dict[str, list[tuple[Session, ScoredTrace]]] = defaultdict(list)
    for trace in traces:
        counts["traces"] += 1
        if not (0 <= trace.score <= 1):
            raise DataError(
                f"A trace of case {trace.case_id} has the score {trace.score}: scores go from 0 to "
                f"1."
            )
        run = trace.invocation
        session = (
            run
            if isinstance(run, Session)
            else _of_swink({"case_id": trace.case_id, "invocation": run})
        )
        cases[trace.case_id].append((msgspec.structs.replace(session), trace))
    for runs in cases.values():
        runs.sort(key=lambda run: _identity(run[0]))
        for (_, trace), example in zip(
            runs, intake.take_together([session for session, _ in runs]), strict=True
        ):
            if isinstance(example, str):
                counts[example] += 1
                continue
            counts["no_user_message"] += all(
                message["role"] != "user" for message in example.messages
            )
            yield _Trace(example, trace.score, trace.scored, trace.case_id)


def _of_swink(record: dict[str, object]) -> Session:
    """A case's run as the reader of such files reads it."""
    record = {"timestamp": hash_json(record["invocation"])[:16], **record}
    reader, key, name = (
        SwinkSource(Path("results")),
        PartitionKey("evaluation", "agent"),
        f"{record.get('case_id')}:{record['timestamp']}",
    )
    return new_session(
        reader.name, key, name, **reader.fields(record, RecordLocation(Path("results"), 0), name)
    )


def _identity(session: Session) -> tuple[str, ...]:
    """What tells two sessions apart: their ids may be the same in two agents' stores."""
    return session.session_id, session.project, session.agent, session.hash_content()


def _without_results(messages: list[Message], counts: Counter[str]) -> list[Message]:
    others = [message for message in messages if message["role"] != "tool"]
    counts["results_left_out"] += len(messages) - len(others)
    return others
