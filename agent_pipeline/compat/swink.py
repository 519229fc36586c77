"""Export of scored evaluation runs as training files, with the names of swink-agent-eval.

The formats are ChatML, preference pairs (DPO) and ShareGPT, with one JSON object per line. The runs
are repaired and redacted like the sessions of the lake. The order of the runs does not change the
file. The tables of the lake belong to `datasets`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, get_args

import msgspec

from agent_pipeline.compat.examples import Example, ExampleMaker, format_counts
from agent_pipeline.compat.swink_results import (
    EvalSetResult,
    ScoredTrace,
    list_scored_traces,
    read_session,
)
from agent_pipeline.datasets.preferences import Pairing, pair_sessions
from agent_pipeline.datasets.sharegpt import make_sharegpt_rows, to_sharegpt_turns, turns_alternate
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.json_text import dump_json_line
from agent_pipeline.sessions.session import Message, Session, list_calls
from agent_pipeline.storage.filesystem import write_atomically

Format = Literal["chatml", "dpo", "sharegpt"]
Record = dict[str, object]
TOLERANCE = 1e-9
"""Tolerance for comparing scores. A mean of decimals may be 0.6000000000000001 instead of 0.6."""


class NothingToExport(DataError):
    """Raised if no run passes the export's conditions. In this case, no file is written."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        format: The format of the file.
        quality_threshold: The lowest score of a good run, from 0 to 1.
        include_metadata: Whether each record has the key `metadata`.
        margin: How far below the threshold the score of a rejected run must be, from 0 to 1.
        pairing: Which runs of a case make pairs.
        original: Whether the records have exactly the keys of swink-agent-eval. Such records have
            no tool results. Their ShareGPT form has no calls, and both sides of a pair begin with
            the prompt.
        redaction: What is redacted.

    Raises:
        SettingsError: An option has a value that is not allowed.
    """

    format: Format = "chatml"
    quality_threshold: float = 0.5
    include_metadata: bool = True
    margin: float = 0.1
    pairing: Pairing = field(default_factory=lambda: Pairing("best_worst"))
    original: bool = False
    redaction: RedactionOptions = field(default_factory=RedactionOptions)

    def __post_init__(self) -> None:
        formats = get_args(Format)
        if self.format not in formats:
            raise SettingsError(
                f"The export format {self.format!r} does not exist: choose one of "
                f"{', '.join(formats)}.",
                setting="format",
            )
        for name in ("quality_threshold", "margin"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise SettingsError(
                    f"The option `{name}` of the export is {value}: set it to a number from 0 to "
                    "1.",
                    setting=name,
                )


@dataclass(frozen=True)
class _Run:
    """A scored evaluation run that can become a training example."""

    example: Example
    trace: ScoredTrace

    @property
    def sort_key(self) -> tuple[str, ...]:
        identity = _identify(self.example.session)
        return (self.trace.case_id, *identity, repr(self.trace.score))

    def is_good(self, options: ExportOptions) -> bool:
        limit = options.quality_threshold - TOLERANCE
        return self.trace.scored and self.trace.score >= limit

    def is_bad(self, options: ExportOptions) -> bool:
        limit = options.quality_threshold - options.margin + TOLERANCE
        return not self.is_good(options) and self.trace.scored and self.trace.score <= limit


class Exporter:
    """Base class of the exporters."""

    format: ClassVar[Format]

    def records(
        self,
        traces: Iterable[ScoredTrace],
        options: ExportOptions,
        counts: Counter[str] | None = None,
    ) -> list[Record]:
        """Return the records to export, sorted by case and session.

        Args:
            traces: The runs.
            options: The options.
            counts: Receives `traces`, `records`, and the reasons why runs were left out.

        Raises:
            NothingToExport: No run passes. The message has the threshold and the counts.
            DataError: A score is not a number from 0 to 1.
        """
        counts = Counter() if counts is None else counts
        runs = sorted(_make_runs(traces, options, counts), key=lambda run: run.sort_key)
        records = list(self._make_records(runs, options, counts))
        counts["records"] += len(records)
        if not records:
            scores = [run.trace.score for run in runs if run.trace.scored]
            best = f"{round(max(scores), 4)}" if scores else "not known"
            raise NothingToExport(
                f"No run can be exported as {self.format} at the quality threshold "
                f"{options.quality_threshold} ({format_counts(counts) or 'there are no traces'}; "
                f"the best score is {best}): lower `quality_threshold`, or evaluate more trials."
            )
        return records

    def export(
        self,
        traces: Iterable[ScoredTrace],
        options: ExportOptions,
        counts: Counter[str] | None = None,
    ) -> bytes:
        """Return the records as JSON Lines text.

        The arguments and errors are those of `records`.
        """
        return "".join(map(dump_json_line, self.records(traces, options, counts))).encode("utf-8")

    def _make_records(
        self, runs: list[_Run], options: ExportOptions, counts: Counter[str]
    ) -> Iterator[Record]:
        for run in runs:
            if not run.is_good(options):
                counts["below_threshold" if run.trace.scored else "not_scored"] += 1
                continue
            if options.original:
                record = self._make_original_record(run.example, counts)
            else:
                record = self._make_record(run.example, counts) | run.example.lineage
            if options.include_metadata:
                record["metadata"] = self._make_metadata(run)
            yield record

    def _make_record(self, example: Example, counts: Counter[str]) -> Record:
        raise NotImplementedError

    def _make_original_record(self, example: Example, counts: Counter[str]) -> Record:
        raise NotImplementedError

    def _make_metadata(self, run: _Run) -> Record:
        return {"case_id": run.trace.case_id, "score": run.trace.score}


class ChatMlExporter(Exporter):
    """An exporter of `{"messages", "tools", "metadata": {case_id, score, model_id, turns}}`.

    Calls and results are in the form of OpenAI.
    """

    format = "chatml"

    def _make_record(self, example: Example, counts: Counter[str]) -> Record:
        record: Record = {"messages": example.messages}
        if example.session.tools:
            record["tools"] = example.session.tools
        return record

    def _make_original_record(self, example: Example, counts: Counter[str]) -> Record:
        return {"messages": _drop_results(example.messages, counts)}

    def _make_metadata(self, run: _Run) -> Record:
        turns = sum(message["role"] == "assistant" for message in run.example.messages)
        facts = {"model_id": run.example.session.model_id, "turns": turns}
        return super()._make_metadata(run) | facts


class ShareGptExporter(Exporter):
    """An exporter of `{"conversations": [{"from", "value"}], "metadata": {case_id, score}}`.

    Calls are turns from `function_call`, and results are turns from `observation`.
    """

    format = "sharegpt"

    def _make_record(self, example: Example, counts: Counter[str]) -> Record:
        chat = {"messages": example.messages, "tools": example.session.tools}
        (row,) = make_sharegpt_rows([chat], alternating=False)
        # Some loaders drop such rows.
        counts["turns_do_not_alternate"] += not turns_alternate(row["conversations"])
        return {name: value for name, value in row.items() if value}

    def _make_original_record(self, example: Example, counts: Counter[str]) -> Record:
        texts = [
            Message(role=message["role"], content=message["content"])
            for message in _drop_results(example.messages, counts)
            if message["content"]
        ]
        counts["calls_left_out"] += len(list_calls(example.messages))
        turns = to_sharegpt_turns(texts)
        return {"conversations": [{"from": turn["from"], "value": turn["value"]} for turn in turns]}


class DpoExporter(Exporter):
    """An exporter of `{"case_id", "prompt", "chosen", "rejected"}`.

    `prompt` is the common beginning of two runs of a case.
    """

    format = "dpo"

    def _make_records(
        self, runs: list[_Run], options: ExportOptions, counts: Counter[str]
    ) -> Iterator[Record]:
        good: list[Session] = []
        bad: list[Session] = []
        for index, run in enumerate(runs):
            if run.is_good(options):
                good.append(_rename_session(run, index))
            elif run.is_bad(options):
                bad.append(_rename_session(run, index))
            else:
                counts["neither_good_nor_bad" if run.trace.scored else "not_scored"] += 1
        for pair in pair_sessions(good, bad, SplitSizes(), counts, options.pairing):
            if options.original:
                yield {
                    "case_id": pair["case_id"],
                    "chosen": _drop_results(pair["prompt"] + pair["chosen"], counts),
                    "rejected": _drop_results(pair["prompt"] + pair["rejected"], counts),
                }
                continue
            chosen_run = runs[int(pair["session_id"])]
            rejected_run = runs[int(pair["rejected_session_id"])]
            record: Record = {
                "case_id": pair["case_id"],
                "prompt": pair["prompt"],
                "chosen": pair["chosen"],
                "rejected": pair["rejected"],
            }
            if pair["tools"]:
                record["tools"] = pair["tools"]
            record |= chosen_run.example.lineage
            record["rejected_session_id"] = rejected_run.example.lineage["session_id"]
            record["rejected_content_sha256"] = rejected_run.example.lineage["content_sha256"]
            if options.include_metadata:
                record["metadata"] = {
                    "chosen_score": chosen_run.trace.score,
                    "rejected_score": rejected_run.trace.score,
                    "margin": pair["margin"],
                }
            yield record


def _rename_session(run: _Run, index: int) -> Session:
    """Return a run's session as a trial of its case. The session id is the index of the run.

    Pairs belong to a case, whatever the task of the session is. The sessions of two agents may have
    the same id.
    """
    return msgspec.structs.replace(
        run.example.session,
        session_id=f"{index:012d}",
        task_key=run.trace.case_id,
        score=run.trace.score,
    )


EXPORTERS: dict[str, type[Exporter]] = {
    "chatml": ChatMlExporter,
    "dpo": DpoExporter,
    "sharegpt": ShareGptExporter,
}


def export_traces(
    traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str] | None = None
) -> bytes:
    """Return runs as JSON Lines in the format that the options name.

    The arguments and errors are those of `Exporter.records`.
    """
    return EXPORTERS[options.format]().export(traces, options, counts)


class TrainingReporter:
    """A writer of training files.

    Attributes:
        path: The file.
        options: The options of the export.
        counts: What became of the runs of the last report.
    """

    def __init__(self, path: str | Path, options: ExportOptions | None = None) -> None:
        self.path, self.options = Path(path), options or ExportOptions()
        self.counts: Counter[str] = Counter()

    def report(
        self,
        results: EvalSetResult | Mapping[str, object] | Iterable[Mapping[str, object]],
        eval_set: Mapping[str, object] | None = None,
    ) -> Path:
        """Write the training file for one run of an evaluation set, or for several runs.

        Args:
            results: The runs. Pairs need several runs.
            eval_set: The set, which has the prompts.

        Returns:
            The path of the file.

        Raises:
            NothingToExport: No run passes. The file does not change.
            OSError: The file cannot be written.
        """
        self.counts = Counter()
        set_runs = [results] if isinstance(results, Mapping) else list(results)
        traces = [
            trace
            for set_run in set_runs
            for trace in list_scored_traces(set_run, eval_set, self.counts)
        ]
        return write_atomically(self.path, export_traces(traces, self.options, self.counts))


def _make_runs(
    traces: Iterable[ScoredTrace], options: ExportOptions, counts: Counter[str]
) -> Iterator[_Run]:
    """Yield the runs that can become examples. All runs of a case are redacted together."""
    example_maker = ExampleMaker(options.redaction)
    cases: dict[str, list[tuple[Session, ScoredTrace]]] = defaultdict(list)
    for trace in traces:
        counts["traces"] += 1
        if not 0 <= trace.score <= 1:
            raise DataError(
                f"A trace of case {trace.case_id} has the score {trace.score}: give each trace a "
                "score from 0 to 1."
            )
        session = trace.invocation
        if not isinstance(session, Session):
            session = read_session({"case_id": trace.case_id, "invocation": session})
        cases[trace.case_id].append((msgspec.structs.replace(session), trace))
    for case in cases.values():
        case.sort(key=lambda run: _identify(run[0]))
        examples = example_maker.make_together([session for session, _ in case])
        for example, (_, trace) in zip(examples, case, strict=True):
            if isinstance(example, str):
                counts[example] += 1
                continue
            has_user = any(message["role"] == "user" for message in example.messages)
            counts["no_user_message"] += not has_user
            yield _Run(example, trace)


def _identify(session: Session) -> tuple[str, ...]:
    """Return a value that identifies a session, because two agents can have the same session id."""
    return session.session_id, session.project, session.agent, session.hash_content()


def _drop_results(messages: list[Message], counts: Counter[str]) -> list[Message]:
    kept = [message for message in messages if message["role"] != "tool"]
    counts["results_left_out"] += len(messages) - len(kept)
    return kept
