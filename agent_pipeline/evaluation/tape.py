"""Tapes: what the tools and the users answered in the recorded sessions of a task.

The table `tape` has one row per step of a recorded session. A result is found by the tool, the
canonical arguments, and the successful writes before it in the session. Reading the tape in an
episode belongs to `replayed_world`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.datasets.ledger import read_ledger
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE
from agent_pipeline.datasets.splits import SplitSizes, find_root_tasks
from agent_pipeline.evaluation.call_matching import normal
from agent_pipeline.evaluation.episodes import PLAYED
from agent_pipeline.evaluation.tool_effects import DECLARED, ToolEffect, ToolEffects
from agent_pipeline.evaluation.wording import (
    QuestionTurn,
    find_exchanges,
    list_exchanged_words,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.tool_call_parsers import ParameterSchemas, list_parameter_schemas
from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.redaction.surrogates import frame_of, split_frame, spoken
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool, ToolCall, dump_canonical_json
from agent_pipeline.sessions.tables import (
    decode_json,
    define_optional,
    define_required,
    group_rows,
    read_batches,
    to_rows,
)
from agent_pipeline.sessions.transcript import is_failed
from agent_pipeline.sessions.turn_class import classify_text
from agent_pipeline.storage.lake import Lake, StagedTable
from agent_pipeline.structs import convert_value

TAPE_TABLE = "tape"
JUDGED_TABLE = "judged_sessions"
GOOD = "acceptable"
MIN_SHARED_READS = 10
"""Minimum number of look-ups that several tasks made, before all tasks are taken to begin in the
same state.
"""
MAX_SHARE_DIFFERING = 0.1
"""Maximum share of look-ups with different results in different tasks, at which tasks are still
taken to begin in the same state.
"""

MOST_HELD_BYTES = 16 << 20
"""Size of a table of sessions, without compression, up to which its decoded rows are held."""

TAPE = pa.schema(
    [
        *define_required(
            pa.string(),
            session_id="id of the recorded session",
            task_key="key of the session's task",
            split="permanent split of the task: train, select or test",
        ),
        *define_required(pa.int64(), step="position of the step in the session, starting at 0"),
        *define_required(pa.string(), step_kind="kind of the step: user, call or answer"),
        *define_optional(pa.string(), tool="name of the tool, for a call"),
        *define_optional(pa.string(), arguments="canonical arguments of the call, as JSON"),
        *define_optional(
            pa.string(), writes_before="successful writes before the call, as a JSON list"
        ),
        *define_optional(
            pa.bool_(), writes="whether the call counts as a write (it may change something)"
        ),
        *define_optional(
            pa.string(),
            effect_reason="reason why the tool counts as reading or as writing",
        ),
        *define_optional(pa.bool_(), failed="whether the result of the call is an error"),
        *define_required(
            pa.string(), text="result of the call, or text of the user's or agent's message"
        ),
        *define_optional(
            pa.string(), verdict="acceptable or unacceptable; null if nobody judged the session"
        ),
        *define_optional(
            pa.string(),
            system="system message, and the tools if they have pseudonyms; only the first row of a "
            "session has it",
        ),
    ]
)

_WORD = re.compile(r"\w+")

State = tuple[str, ...]
"""The successful writes so far, sorted. A write that was made twice stands there twice."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """One step of a recorded session.

    Attributes:
        kind: `user`, `call` or `answer`.
        text: The words of the user or of the agent, or the result of the call.
        tool: The tool of a call.
        arguments: The canonical arguments of a call.
        failed: Whether the result of a call is an error.
    """

    kind: Literal["user", "call", "answer"]
    text: str
    tool: str = ""
    arguments: str = ""
    failed: bool = False

    @property
    def call(self) -> str:
        """Return the call as text: `refund({"order":"K1"})`."""
        return f"{self.tool}({self.arguments})"


class Recording(msgspec.Struct, frozen=True):
    """The steps of a recorded session.

    Attributes:
        session_id: The session.
        verdict: The verdict on the session, or None.
        messages: The user's messages, the agent's messages and the results.
        tied_calls: The positions of calls with a pseudonym that appears after the user's first
            message. Pseudonyms are numbered per session, so such a pseudonym may stand for another
            value in another session.
    """

    session_id: str
    verdict: str | None
    messages: list[Message]
    tied_calls: list[int] = []


class SharedRead(msgspec.Struct, frozen=True):
    """A look-up in the initial state, which another task recorded.

    Attributes:
        tool: The tool.
        arguments: The canonical arguments.
        result: The result.
        session_id: A session that recorded it.
    """

    tool: str
    arguments: str
    result: str
    session_id: str


class FirstRead(msgspec.Struct, frozen=True):
    """A look-up before the first write of a session.

    Attributes:
        task_key: The task of the session.
        read: The look-up.
    """

    task_key: str
    read: SharedRead


class TaskTape(msgspec.Struct, frozen=True):
    """Everything that was recorded about one task.

    Attributes:
        recordings: The recorded sessions of the task.
        reads: The tools that only look things up.
        shared_reads: Look-ups of other tasks that begin in the same state.
        user_replies: Whether users of this agent ever reply to an answer.
        reads_are_declared: Whether the settings name the tools that only look things up. Otherwise,
            they are inferred.
        wording: Words that sessions of this agent exchange without an effect on the user.
    """

    recordings: list[Recording]
    reads: list[str]
    shared_reads: list[SharedRead] = []
    user_replies: bool = True
    reads_are_declared: bool = False
    wording: list[str] = []

    @property
    def session_ids(self) -> set[str]:
        """Return the ids of all sessions on the tape."""
        return {recording.session_id for recording in self.recordings} | {
            read.session_id for read in self.shared_reads
        }


def canonical_arguments(tool: str, arguments: object, schemas: ParameterSchemas) -> str:
    """Return a text that is equal for all arguments with the same effect by the tool's schema.

    Args:
        tool: The name of the tool.
        arguments: The decoded arguments.
        schemas: The parameter schemas by tool.
    """
    normalized = normal(arguments, schemas.get(tool) or {})
    return dump_canonical_json(_with_plain_numbers(normalized))


def _with_plain_numbers(value: Any) -> Any:
    """Return a JSON value in which whole numbers are integers, so that 20.0 and 20 are equal."""
    if isinstance(value, dict):
        return {name: _with_plain_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_plain_numbers(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def list_steps(messages: Sequence[Message], schemas: ParameterSchemas) -> list[Step]:
    """Return the steps of a session in order. A call without a result is no step.

    Args:
        messages: The messages.
        schemas: The parameter schemas by tool.
    """
    results = {
        message["tool_call_id"]: message
        for message in messages
        if message["role"] == "tool" and "tool_call_id" in message
    }
    steps = []
    for message in messages:
        if message["role"] == "user":
            steps.append(Step("user", message["content"]))
        if message["role"] != "assistant":
            continue
        calls = message.get("tool_calls") or ()
        if not calls:
            steps.append(Step("answer", message.get("content") or ""))
        for call in calls:
            result = results.get(call.get("id", ""))
            if result is None:
                continue
            name = call["function"]["name"]
            arguments = decode_arguments(call["function"]["arguments"])
            steps.append(
                Step(
                    "call",
                    result["content"],
                    name,
                    canonical_arguments(name, arguments, schemas),
                    is_failed(result),
                )
            )
    return steps


def add_write(state: State, step: Step, reads: Collection[str]) -> State:
    """Return the writes so far after a step. A failed call and a look-up change nothing."""
    if step.kind != "call" or step.failed or step.tool in reads:
        return state
    return tuple(sorted((*state, step.call)))


# Writing the table


@dataclass(frozen=True)
class RecordedTape:
    """The table `tape` before it is committed.

    Attributes:
        table: The staged table.
        effects: The effect of every tool.
        sessions: The number of recorded sessions.
        left_out: By reason, the number of sessions that are not on the tape.
    """

    table: StagedTable
    effects: list[ToolEffect]
    sessions: int
    left_out: Counter[str]


_COLUMNS = [
    *("session_id", "parent_session_id", "task_key", "content_sha256", "archived", "broken"),
    *("error", "attack_succeeded", "verdict", "messages", "tools"),
]


def record_tape(
    lake: Lake, key: PartitionKey, sizes: SplitSizes, declared_reads: Sequence[str]
) -> RecordedTape:
    """Stage the table `tape` of an agent from its judged sessions.

    Left out are archived and broken sessions, failures of the infrastructure, attacks that
    succeeded, copies of a session, and sessions that a model played in an episode.

    Args:
        lake: The lake.
        key: The partition.
        sizes: The sizes of the split, for tasks that are not in the split ledger.
        declared_reads: The tools that only read, according to the settings; empty to infer them.

    Raises:
        DataError: The table of sessions does not exist, or a table is damaged.
    """
    left_out: Counter[str] = Counter()
    usable = _read_usable_sessions(lake, key, left_out)
    effects = _infer_effects(usable).list_effects(declared_reads)
    reasons: dict[str | None, str] = {effect.tool: effect.reason for effect in effects}
    reads = {effect.tool for effect in effects if not effect.writes}
    ledger = read_ledger(lake, key, sizes)
    names = ["session_id", "parent_session_id", "task_key"]
    root_tasks = find_root_tasks(to_rows(read_batches(lake.open(JUDGED_TABLE, key), names)))
    sessions = 0

    def make_rows() -> Iterator[_TapeRow]:
        nonlocal sessions
        for session in usable:
            sessions += 1
            task_key = root_tasks.get(session.session_id, session.task_key)
            session = session._replace(task_key=task_key)
            yield from _rows_of_session(session, ledger.find_split(task_key), reads, reasons)

    sized_rows = ((row, len(row.text)) for row in make_rows())
    staged = lake.stage(TAPE_TABLE, key, group_rows(sized_rows, TAPE), TAPE)
    return RecordedTape(staged, effects, sessions, left_out)


class _UsableSession(NamedTuple):
    """A session that may be on a tape.

    Attributes:
        session_id: The session.
        task_key: The task of the session itself.
        verdict: The verdict on the session.
        messages: The messages.
        tools: The tools. Sessions with equal tools share them.
        schemas: The parameter schemas of the tools.
    """

    session_id: str
    task_key: str
    verdict: str | None
    messages: list[Message]
    tools: list[Tool]
    schemas: ParameterSchemas


class _TapeRow(NamedTuple):
    """A row of the table. The columns are those of `TAPE`, in their order."""

    session_id: str
    task_key: str
    split: str
    step: int
    step_kind: str
    tool: str | None
    arguments: str | None
    writes_before: str | None
    writes: bool | None
    effect_reason: str | None
    failed: bool | None
    text: str
    verdict: str | None
    system: str | None


def _rows_of_session(
    session: _UsableSession,
    split: str,
    reads: Collection[str],
    reasons: Mapping[str | None, str],
) -> Iterator[_TapeRow]:
    """Yield the rows of the table for one session.

    Args:
        session: The session, with the task of its root.
        split: The split of the task.
        reads: The tools that only read.
        reasons: Why a tool counts as reading or as writing.
    """
    state: State = ()
    messages = session.messages
    system: str | None = frame_of(messages, session.tools)
    for index, step in enumerate(list_steps(messages, session.schemas)):
        after = add_write(state, step, reads)
        is_call = step.kind == "call"
        # A named tuple's constructor by position is the fastest way to make a row.
        yield _TapeRow(
            session.session_id,
            session.task_key,
            split,
            index,
            step.kind,
            step.tool or None,
            step.arguments or None,
            (json.dumps(state, ensure_ascii=False) if state else "[]") if is_call else None,
            after != state if is_call else None,
            reasons.get(step.tool or None),
            step.failed if is_call else None,
            step.text,
            session.verdict,
            system,
        )
        state, system = after, None


def _infer_effects(sessions: Iterable[_UsableSession]) -> ToolEffects:
    """Count the calls of an agent's recorded sessions, to infer which tools write."""
    effects = ToolEffects()
    for session in sessions:
        effects.add(session.messages, session.tools)
    return effects


def _read_usable_sessions(
    lake: Lake, key: PartitionKey, left_out: Counter[str]
) -> Iterable[_UsableSession]:
    """Return the sessions that may be on a tape, to be read twice, and count the others.

    A small table is decoded once and held in memory. A large one is read again each time.

    Args:
        lake: The lake.
        key: The partition.
        left_out: By reason, the number of sessions that are left out. It is filled when the
            sessions are read.
    """
    file = lake.open(JUDGED_TABLE, key)
    usable = _UsableSessions(file, left_out)
    groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
    is_small = sum(group.total_byte_size for group in groups) <= MOST_HELD_BYTES
    return list(usable) if is_small else usable


@dataclass(frozen=True)
class _UsableSessions:
    """The sessions of an agent that may be on a tape. Each loop over them reads the table."""

    file: pq.ParquetFile
    left_out: Counter[str]

    def __iter__(self) -> Iterator[_UsableSession]:
        """Yield the sessions, and count the others by reason."""
        self.left_out.clear()
        seen: set[str] = set()
        known_tools: dict[bytes, tuple[list[Tool], ParameterSchemas]] = {}
        for row in to_rows(read_batches(self.file, _COLUMNS), raw=True):
            reason = _why_left_out(row, seen)
            if reason:
                self.left_out[reason] += 1
                continue
            seen.add(row["content_sha256"])
            encoded_tools = bytes(row["tools"])
            if encoded_tools not in known_tools:
                tools = decode_json(row["tools"])
                known_tools[encoded_tools] = tools, list_parameter_schemas(tools)
            yield _UsableSession(
                row["session_id"],
                row["task_key"],
                row["verdict"],
                decode_json(row["messages"]),
                *known_tools[encoded_tools],
            )


def _why_left_out(row: Mapping[str, Any], seen: Collection[str]) -> str:
    """Return why a session is not on the tape, or an empty text.

    Two runs that differ only in the ids of their calls are two recordings, and not copies: each is
    evidence of its own.
    """
    if row["session_id"].startswith(PLAYED):
        return "played in an episode"
    if row["broken"]:
        return "broken"
    if row["archived"]:
        return "archived"
    if row["error"]:
        return "failure of the infrastructure"
    if row["attack_succeeded"]:
        return "attack that succeeded"
    return "copy of another session" if row["content_sha256"] in seen else ""


# Reading the table


def read_tapes(
    lake: Lake,
    key: PartitionKey,
    tasks: Collection[str],
    surrogates: bool = False,
    apart: bool = False,
) -> dict[str, TaskTape]:
    """Return the tapes of some tasks, by task. A task without a recording has no tape.

    Args:
        lake: The lake.
        key: The partition.
        tasks: The tasks.
        surrogates: Whether made-up values replace pseudonyms, as in the rows that models see.
        apart: Whether the wording of a task is learned from other tasks only.

    Raises:
        DataError: The table does not exist, or is damaged.
    """
    reads, declared = _read_tools(lake, key), _are_reads_declared(lake, key)
    shared = find_shared_reads(_list_first_reads(lake, key, reads))
    user_replies = _has_replies(lake, key)
    rows = to_rows(read_batches(lake.open(TAPE_TABLE, key, TAPE), TAPE.names))
    sessions: defaultdict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    questions: list[QuestionTurn] = []
    for _, session_rows in groupby(rows, key=lambda row: row["session_id"]):
        steps = list(session_rows)
        task_key = steps[0]["task_key"]
        questions += _list_questions(steps)
        if task_key in tasks:
            sessions[task_key].append(steps)
    exchanges = find_exchanges(questions)
    wording = list_exchanged_words(exchanges)
    return {
        task: TaskTape(
            list(_recordings(task_sessions, surrogates)),
            sorted(reads),
            shared,
            user_replies,
            declared,
            list_exchanged_words(exchanges, task) if apart else wording,
        )
        for task, task_sessions in sessions.items()
    }


def _list_questions(steps: Sequence[Mapping[str, Any]]) -> Iterator[QuestionTurn]:
    """Yield the questions of a session to which the user replied.

    The private values of an answer are pseudonyms, which are no words of the agent.
    """
    heard: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    for step, following in pairwise(steps):
        if step["step_kind"] == "user":
            heard = (*heard, step["text"])
        elif step["writes"]:
            writes = (*writes, f"{step['tool']}({step['arguments']})")
        is_answered = step["step_kind"] == "answer" and following["step_kind"] == "user"
        if is_answered and classify_text(step["text"]) == "ask":
            text = PSEUDONYM.sub(" ", step["text"])
            yield QuestionTurn(step["task_key"], (heard, writes), text, following["text"])


def _recordings(
    sessions: Sequence[Sequence[Mapping[str, Any]]], surrogates: bool
) -> Iterator[Recording]:
    """Yield the recordings of a task from the rows of its sessions."""
    for steps, known in zip(sessions, _find_known_pseudonyms(sessions), strict=True):
        first, messages = steps[0], _messages_of(steps)
        calls = [step for step in steps if step["step_kind"] == "call"]
        tied = [
            index
            for index, call in enumerate(calls)
            if set(_pseudonyms(f"{call['arguments']} {call['text']}")) - known
        ]
        if surrogates:
            messages = spoken(messages, first["task_key"], first["system"] or "")
        yield Recording(first["session_id"], first["verdict"], messages, tied)


def _find_known_pseudonyms(
    sessions: Sequence[Sequence[Mapping[str, Any]]],
) -> list[set[str]]:
    """Return the pseudonyms of each session that stand for the same values in all its sessions.

    Values are numbered in the order of the tools, the system message and the user's message. So the
    pseudonyms of a part are known if the part and the parts before it are the same in all sessions.
    Parts without pseudonyms may differ.
    """
    parts_by_session = [
        [part if PSEUDONYM.search(part) else "" for part in _opening_parts(steps)]
        for steps in sessions
    ]
    known: list[set[str]] = [set() for _ in sessions]
    for index in range(3):
        beginnings = {tuple(parts[: index + 1]) for parts in parts_by_session if parts[index]}
        if len(beginnings) > 1:
            break
        for pseudonyms, parts in zip(known, parts_by_session, strict=True):
            pseudonyms.update(_pseudonyms(parts[index]))
    return known


def _opening_parts(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tools, the system message and the first message of the user.

    The tools are empty if they have no pseudonyms.
    """
    system, tools = split_frame(steps[0]["system"] or "")
    user = next((step["text"] for step in steps if step["step_kind"] == "user"), "")
    return [tools, system, user]


def _pseudonyms(text: str) -> Iterator[str]:
    """Yield the pseudonyms in a text."""
    if "<" in text:
        for match in PSEUDONYM.finditer(text):
            yield match.group()


def add_tapes(
    lake: Lake, key: PartitionKey, rows: Iterable[DatasetRow], surrogates: bool
) -> list[DatasetRow]:
    """Return the rows whose task has a good recording, each with the tape of its task.

    Args:
        lake: The lake.
        key: The partition.
        rows: Rows of held-out tasks.
        surrogates: As in `read_tapes`.

    Raises:
        DataError: The table does not exist, or is damaged.
    """
    rows = list(rows)
    tapes = read_tapes(lake, key, {row["task_key"] for row in rows}, surrogates)
    encoded = {
        task: msgspec.to_builtins(tape)
        for task, tape in tapes.items()
        if any(recording.verdict == GOOD for recording in tape.recordings)
    }
    return [
        cast(DatasetRow, {**row, "tape": encoded[row["task_key"]]})
        for row in rows
        if row["task_key"] in encoded
    ]


def list_heldout_tasks(lake: Lake, key: PartitionKey) -> set[str]:
    """Return the held-out tasks of an agent; none without held-out rows."""
    held_out: set[str] = set()
    if lake.has(HELDOUT_TABLE, key):
        for batch in read_batches(lake.open(HELDOUT_TABLE, key), ["task_key"]):
            held_out.update(batch["task_key"].to_pylist())
    return held_out


def count_recordings(lake: Lake, key: PartitionKey) -> Counter[str]:
    """Count the judged sessions on the tape of each task.

    Raises:
        DataError: The table does not exist, or is damaged.
    """
    counts: Counter[str] = Counter()
    for batch in read_batches(lake.open(TAPE_TABLE, key, TAPE), ["task_key", "step", "verdict"]):
        is_first = pc.and_(pc.equal(batch["step"], 0), pc.is_valid(batch["verdict"]))
        counts.update(batch.filter(is_first)["task_key"].to_pylist())
    return counts


def count_recorded_tasks(lake: Lake, key: PartitionKey) -> int:
    """Return the number of held-out tasks that have a good recording, so that they can be replayed.

    Without the table `tape`, or without held-out rows, it is 0.
    """
    if not lake.has(TAPE_TABLE, key):
        return 0
    recorded: set[str] = set()
    for batch in read_batches(lake.open(TAPE_TABLE, key, TAPE), ["task_key", "verdict"]):
        good = batch.filter(pc.equal(batch["verdict"], GOOD))
        recorded.update(good["task_key"].to_pylist())
    return len(list_heldout_tasks(lake, key) & recorded)


def list_tape_sessions(tasks: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the ids of the sessions on the tapes of tasks. Tasks without a tape have none."""
    ids: set[str] = set()
    for task in tasks:
        if "tape" in task:
            ids |= convert_value(task["tape"], TaskTape).session_ids
    return ids


def _has_replies(lake: Lake, key: PartitionKey) -> bool:
    """Return whether a user of the agent ever wrote a message after the first step."""
    for batch in read_batches(lake.open(TAPE_TABLE, key, TAPE), ["step", "step_kind"]):
        is_reply = pc.and_(pc.equal(batch["step_kind"], "user"), pc.greater(batch["step"], 0))
        if pc.any(is_reply).as_py():
            return True
    return False


def _read_tools(lake: Lake, key: PartitionKey) -> set[str]:
    """Return the tools on the tape that only read.

    A tool that writes has a row that says so, unless all its calls failed.
    """
    reads: set[str] = set()
    writing: set[str] = set()
    for batch in read_batches(lake.open(TAPE_TABLE, key, TAPE), ["tool", "writes", "failed"]):
        for row in batch.filter(pc.is_valid(batch["tool"])).to_pylist():
            if row["writes"]:
                writing.add(row["tool"])
            elif not row["failed"]:
                reads.add(row["tool"])
    return reads - writing


def _are_reads_declared(lake: Lake, key: PartitionKey) -> bool:
    """Return whether the settings named the tools that only look things up."""
    for batch in read_batches(lake.open(TAPE_TABLE, key, TAPE), ["effect_reason"]):
        if pc.any(pc.equal(batch["effect_reason"], DECLARED)).as_py():
            return True
    return False


def _list_first_reads(lake: Lake, key: PartitionKey, reads: Collection[str]) -> Iterator[FirstRead]:
    """Yield the look-ups before the first write of every session, without private values."""
    columns = ["session_id", "task_key", "tool", "arguments", "writes_before", "failed", "text"]
    for batch in read_batches(lake.open(TAPE_TABLE, key, TAPE), columns):
        for row in batch.filter(pc.equal(batch["writes_before"], "[]")).to_pylist():
            is_private = any(_pseudonyms(f"{row['arguments']} {row['text']}"))
            if row["tool"] in reads and not row["failed"] and not is_private:
                read = SharedRead(row["tool"], row["arguments"], row["text"], row["session_id"])
                yield FirstRead(row["task_key"], read)


def find_shared_reads(first_reads: Iterable[FirstRead]) -> list[SharedRead]:
    """Return the look-ups that hold for every task, or none if tasks begin in different states.

    Tasks begin in the same state if nearly every look-up that several tasks made had the same
    result in all of them, and if there are enough such look-ups. A look-up with several results is
    never shared. If it has them within one task, it is volatile and says nothing about the states.
    """
    results: defaultdict[tuple[str, str], dict[str, set[tuple[str, ...]]]] = defaultdict(dict)
    examples: dict[tuple[str, str], SharedRead] = {}
    for first_read in first_reads:
        name = (first_read.read.tool, first_read.read.arguments)
        examples.setdefault(name, first_read.read)
        content = _content_of(first_read.read.result)
        results[name].setdefault(first_read.task_key, set()).add(content)
    shared: list[SharedRead] = []
    agreeing = differing = 0
    for name, by_task in sorted(results.items()):
        if any(len(texts) > 1 for texts in by_task.values()):
            continue
        if len(set.union(*by_task.values())) > 1:
            differing += 1
            continue
        agreeing += len(by_task) > 1
        shared.append(examples[name])
    begin_alike = differing <= MAX_SHARE_DIFFERING * (agreeing + differing)
    return shared if begin_alike and agreeing >= MIN_SHARED_READS else []


def _content_of(result: str) -> tuple[str, ...]:
    """Return the words and numbers of a result, which do not depend on its format."""
    return tuple(sorted(_WORD.findall(result.casefold())))


def _messages_of(rows: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of a session from its rows on the tape."""
    messages: list[Message] = []
    for row in rows:
        if row["step_kind"] != "call":
            role: Literal["user", "assistant"] = (
                "user" if row["step_kind"] == "user" else "assistant"
            )
            messages.append({"role": role, "content": row["text"]})
            continue
        call_id = f"call_{row['step']}"
        call: ToolCall = {
            "id": call_id,
            "type": "function",
            "function": {"name": row["tool"], "arguments": row["arguments"]},
        }
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result: Message = {"role": "tool", "tool_call_id": call_id, "content": row["text"]}
        if row["failed"]:
            result["is_error"] = True
        messages.append(result)
    return messages
