"""The proof of an agent's tape: whether the replayed world gives the verdicts that are known.

Each judged session is replayed as if a candidate had played it, on the tape of its task without the
session. Playing a candidate belongs to `episodes`, and the rules of a verdict to `replayed_world`.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple, cast

import msgspec

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE
from agent_pipeline.evaluation.episodes import play
from agent_pipeline.evaluation.intervals import NORMAL_QUANTILE_OF_95, share_interval
from agent_pipeline.evaluation.players import recorded_player
from agent_pipeline.evaluation.stored_kinds import (
    ACTING,
    NOT_ACTING,
    NOT_RECORDED,
    TaskKind,
    describe_kind,
)
from agent_pipeline.evaluation.tape import (
    GOOD,
    JUDGED_TABLE,
    TAPE_TABLE,
    Recording,
    State,
    TaskTape,
    add_write,
    count_recordings,
    list_heldout_tasks,
    list_steps,
    read_tapes,
)
from agent_pipeline.evaluation.worlds import REPLAYED, load_world
from agent_pipeline.json_types import JsonObject, JsonValue
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.sessions.session import Tool, hash_json
from agent_pipeline.sessions.tables import decode_json as decode_column
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.sessions.tool_schemas import ToolSchemas, find_call_shapes
from agent_pipeline.storage.artifacts import code_version
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import convert_value, decode_json

TAPE_PROOF = "tape_proof"
"""The name of the stored artifact."""
PROOF_FILE = "proof.json"
MOST_PER_TASK = 10
"""Maximum number of sessions of a task that are replayed, because a tape is arranged for each."""
MOST_TASKS = 1000
"""Maximum number of tasks whose sessions are replayed."""
MIN_SETTLED = 0.5
"""Minimum share of replayed sessions that must be settled. If more than half of the episodes are
undecided, the intervals of two models nearly always overlap.
"""
MIN_AGREEMENT = 0.97
"""Minimum share of settled sessions whose verdict must be the recorded one."""
MIN_LOW_END = 0.9
"""Smallest lower end of the 95 % interval of that share. If up to 10 % of the verdicts on good
sessions and 10 % of those on bad sessions are wrong, a difference between two models shrinks by at
most a fifth, and its sign stays.
"""
MIN_TASKS = ceil(NORMAL_QUANTILE_OF_95**2 * MIN_LOW_END / (1 - MIN_LOW_END))
"""Number of tasks from which the interval's lower end is high enough if all verdicts agree."""


@dataclass(frozen=True)
class LeftOutSession:
    """A recorded session that was replayed on the tape of its task without itself.

    Attributes:
        task_key: The task.
        kind: The kind of the task, by the sessions that are left on the tape.
        session_id: The session.
        is_good: Whether the recorded verdict is good.
        is_settled: Whether the tape settles the session.
        done: The verdict of the replayed world. It means nothing if the session is not settled.
        sources: The sessions that the results and the replies of the user came from.
    """

    task_key: str
    kind: TaskKind
    session_id: str
    is_good: bool
    is_settled: bool
    done: bool
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerdictAgreement:
    """How often the replayed world gives good sessions, or bad ones, their recorded verdict.

    Attributes:
        verdict: The recorded verdict: good or bad.
        sessions: The number of replayed sessions.
        settled: How many of them the tape settles.
        tasks: The number of tasks with a settled session.
        agreeing: How many settled sessions have the recorded verdict.
        low: The lower end of the 95 % interval of the share that agrees. Tasks count, because the
            sessions of a task are alike.
    """

    verdict: Literal["good", "bad"]
    sessions: int
    settled: int
    tasks: int
    agreeing: int
    low: float

    @property
    def is_proven(self) -> bool:
        """Return whether enough verdicts agree, and chance does not explain it."""
        return self.low >= MIN_LOW_END and self.agreeing >= MIN_AGREEMENT * self.settled

    @property
    def shortfall(self) -> str:
        """Return why the agreement is not proven, or an empty text."""
        if self.is_proven:
            return ""
        if not self.settled:
            return f"no replayed {self.verdict} session is settled"
        text = (
            f"{self.agreeing} of {self.settled} settled {self.verdict} sessions of {self.tasks} "
            "tasks have the recorded verdict"
        )
        if self.agreeing < self.settled:
            return (
                f"{text} ({self.agreeing / self.settled:.1%}, and the lower end of the interval is "
                f"{self.low:.1%}; {MIN_AGREEMENT:.0%} and {MIN_LOW_END:.0%} are needed)"
            )
        return f"{text}, and {MIN_TASKS} tasks are needed"


@dataclass(frozen=True)
class KindProof:
    """What replaying recorded sessions shows about one kind of tasks.

    Attributes:
        kind: The kind of tasks.
        good: The agreement on good sessions.
        bad: The agreement on bad sessions. It counts by itself, because a candidate may be worse
            than the recorded agent.
        heldout_tasks: The number of held-out tasks of this kind that can be replayed.
    """

    kind: TaskKind
    good: VerdictAgreement
    bad: VerdictAgreement
    heldout_tasks: int = 0

    @property
    def sessions(self) -> int:
        """Return the number of replayed sessions."""
        return self.good.sessions + self.bad.sessions

    @property
    def settled(self) -> int:
        """Return the number of settled sessions."""
        return self.good.settled + self.bad.settled

    @property
    def shortfall(self) -> str:
        """Return why the replayed world may not decide on these tasks, or an empty text."""
        if not self.sessions:
            return "no task has two judged sessions of which one is good"
        if self.settled < MIN_SETTLED * self.sessions:
            return (
                f"{self.settled} of {self.sessions} replayed sessions are settled, and at least "
                f"{MIN_SETTLED:.0%} are needed"
            )
        return "; ".join(filter(None, (self.good.shortfall, self.bad.shortfall)))


@dataclass(frozen=True)
class TapeProof:
    """What replaying recorded sessions shows about an agent's tape.

    Attributes:
        kinds: The proof for each kind of tasks.
    """

    kinds: tuple[KindProof, ...]

    @property
    def proven(self) -> list[KindProof]:
        """Return the kinds of tasks on which the replayed world may decide."""
        return [proof for proof in self.kinds if not proof.shortfall]

    @property
    def rows(self) -> list[list[str]]:
        """Return the rows of a table, in the order of `HEAD`."""
        return [
            [
                describe_kind(proof.kind),
                agreement.verdict,
                *map(str, (agreement.sessions, agreement.settled, agreement.agreeing)),
                str(agreement.tasks),
                f"{agreement.low:.1%}" if agreement.settled else "–",
                proof.shortfall or "proven",
            ]
            for proof in self.kinds
            for agreement in (proof.good, proof.bad)
        ]

    def __str__(self) -> str:
        """Return why the replayed world decides, or not, and what helps."""
        parts = [
            f"{describe_kind(proof.kind)}: {proof.shortfall or 'proven'}" for proof in self.kinds
        ]
        text = ". ".join(parts)
        if len(self.proven) == len(self.kinds):
            return text
        return f"{text}. To improve this, log and judge more sessions per task, both good and bad"


HEAD = ["tasks", "verdict", "replayed", "settled", "agree", "settled tasks", "at least", "result"]


def find_kind(tape: TaskTape) -> TaskKind:
    """Return the kind of a task by its good recordings."""
    acting = {
        _makes_write(recording, tape.reads)
        for recording in tape.recordings
        if recording.verdict == GOOD
    }
    return ACTING if acting == {True} else NOT_ACTING


def _makes_write(recording: Recording, reads: Collection[str]) -> bool:
    """Return whether a session made a successful write."""
    state: State = ()
    for step in list_steps(recording.messages, {}):
        state = add_write(state, step, reads)
    return bool(state)


def choose_rows(rows: Iterable[DatasetRow], kinds: Collection[str]) -> list[DatasetRow]:
    """Return the rows whose task is of one of these kinds.

    Args:
        rows: Rows of held-out tasks with their tapes, from `add_tapes`.
        kinds: The kinds of tasks.
    """
    return [row for row in rows if _find_kind_of_row(row) in kinds]


def _find_kind_of_row(row: DatasetRow) -> TaskKind:
    """Return the kind of the task of a row that has a tape."""
    values = cast(Mapping[str, object], row)
    return find_kind(convert_value(values["tape"], TaskTape))


def count_not_played(
    rows: Iterable[DatasetRow], taped: Iterable[DatasetRow], kinds: Collection[str]
) -> dict[str, int]:
    """Count the held-out tasks that are not replayed: by kind, or as `NOT_RECORDED`.

    Args:
        rows: All held-out rows.
        taped: Those with a tape, from `add_tapes`.
        kinds: The kinds of tasks that are replayed; empty for all kinds.
    """
    recorded = {row["task_key"]: _find_kind_of_row(row) for row in taped}
    groups = (recorded.get(task, NOT_RECORDED) for task in {row["task_key"] for row in rows})
    counts = Counter(
        group for group in groups if group == NOT_RECORDED or (kinds and group not in kinds)
    )
    return dict(sorted(counts.items()))


def leave_out(tape: TaskTape, recording: Recording) -> TaskTape:
    """Return a tape without one recording.

    Look-ups that tasks share are kept only if a session of another task answers them.
    """
    task_ids = {recorded.session_id for recorded in tape.recordings}
    others = [other for other in tape.recordings if other.session_id != recording.session_id]
    shared_reads = [read for read in tape.shared_reads if read.session_id not in task_ids]
    return msgspec.structs.replace(tape, recordings=others, shared_reads=shared_reads)


class _Trial(NamedTuple):
    """A session that is replayed, and the tape that answers it."""

    task_key: str
    recording: Recording
    tape: TaskTape


def replay_left_out(
    tapes: Mapping[str, TaskTape],
    tools: Sequence[Tool],
    tools_of_sessions: Mapping[str, Sequence[Tool]] | None = None,
) -> list[LeftOutSession]:
    """Replay judged sessions, each on the tape of its task without the session.

    A session without which its task has no good recording is not replayed.

    Args:
        tapes: The tapes by task.
        tools: The agent's tools.
        tools_of_sessions: By session, its own tools, which a row of it has in an episode. Another
            session has the agent's.
    """
    own_tools = tools_of_sessions or {}
    trials = list(_list_trials(tapes))
    rows = [
        {
            "task_key": trial.task_key,
            "messages": trial.recording.messages,
            "tools": own_tools.get(trial.recording.session_id, tools),
            "tape": trial.tape,
        }
        for trial in trials
    ]
    player = recorded_player([trial.recording.messages for trial in trials])
    most_turns = max((len(trial.recording.messages) for trial in trials), default=0) + 1
    episodes = play(load_world(REPLAYED), rows, player, max_turns=most_turns)
    return [
        LeftOutSession(
            trial.task_key,
            find_kind(trial.tape),
            trial.recording.session_id,
            trial.recording.verdict == GOOD,
            episode.unsettled is None,
            episode.done,
            tuple(episode.sources),
        )
        for trial, episode in zip(trials, episodes, strict=True)
    ]


def _list_trials(tapes: Mapping[str, TaskTape]) -> Iterator[_Trial]:
    """Yield the sessions to replay."""
    for task_key, tape in tapes.items():
        judged = [recording for recording in tape.recordings if recording.verdict is not None]
        for recording in judged[:MOST_PER_TASK]:
            shortened = leave_out(tape, recording)
            if any(other.verdict == GOOD for other in shortened.recordings):
                yield _Trial(task_key, recording, shortened)


def measure_agreement(
    sessions: Iterable[LeftOutSession], heldout_tasks: Mapping[TaskKind, int] | None = None
) -> TapeProof:
    """Compare the verdicts of replayed sessions with the recorded ones.

    Args:
        sessions: The replayed sessions.
        heldout_tasks: By kind, the number of held-out tasks that can be replayed.
    """
    groups: defaultdict[tuple[TaskKind, bool], list[LeftOutSession]] = defaultdict(list)
    for session in sessions:
        groups[session.kind, session.is_good].append(session)
    return TapeProof(
        tuple(
            KindProof(
                kind,
                _compare_verdicts("good", groups[kind, True]),
                _compare_verdicts("bad", groups[kind, False]),
                (heldout_tasks or {}).get(kind, 0),
            )
            for kind in (ACTING, NOT_ACTING)
        )
    )


def _compare_verdicts(
    verdict: Literal["good", "bad"], sessions: Sequence[LeftOutSession]
) -> VerdictAgreement:
    """Compare the verdicts on sessions with the same recorded verdict."""
    settled = [session for session in sessions if session.is_settled]
    tasks = [session.task_key for session in settled]
    agrees = [session.done == session.is_good for session in settled]
    low = share_interval(tasks, [float(value) for value in agrees])[0] if settled else 0.0
    return VerdictAgreement(verdict, len(sessions), len(settled), len(set(tasks)), sum(agrees), low)


def prove_tape(lake: Lake, key: PartitionKey, surrogates: bool = False) -> TapeProof:
    """Return what the recordings of an agent show about its replayed world. No model is needed.

    At most `MOST_TASKS` tasks are replayed, chosen by the hash of their key. The proof is stored,
    and made again only if the recordings, the held-out tasks or the code have changed.

    Args:
        lake: The lake.
        key: The partition.
        surrogates: As in `read_tapes`.

    Raises:
        DataError: The table `tape` does not exist, or is damaged.
    """
    stored = find_stored_proof(lake, key, surrogates)
    if stored:
        return stored
    made_from = _describe_inputs(lake, key, surrogates)
    identity = hash_json([TAPE_PROOF, made_from])
    proof = _make_proof(lake, key, surrogates)
    # A person who may only read the lake gets a proof too. It is then made at every call.
    with suppress(OSError):
        folder = lake.building(TAPE_PROOF, key, identity)
        (folder / PROOF_FILE).write_bytes(msgspec.json.encode(proof))
        lake.finish(TAPE_PROOF, key, identity, folder, made_from, {})
    return proof


def find_stored_proof(lake: Lake, key: PartitionKey, surrogates: bool = False) -> TapeProof | None:
    """Return the stored proof, or None if there is none for today's recordings and code.

    Nothing is replayed. The arguments and errors are those of `prove_tape`.
    """
    identity = hash_json([TAPE_PROOF, _describe_inputs(lake, key, surrogates)])
    stored = lake.find(TAPE_PROOF, key, identity)
    if stored is None or lake.damaged_files(stored):
        return None
    return decode_json(stored.read(PROOF_FILE), TapeProof)


def _describe_inputs(lake: Lake, key: PartitionKey, surrogates: bool) -> JsonObject:
    """Return everything that a proof depends on."""
    return {
        "tables": list_examined_tables(lake, key),
        "surrogates": surrogates,
        "code": code_version(),
    }


def list_examined_tables(lake: Lake, key: PartitionKey) -> dict[str, JsonValue]:
    """Return the checksums of the tables that a proof made today examines, by table.

    Raises:
        DataError: A table is damaged.
    """
    tables = (TAPE_TABLE, HELDOUT_TABLE, JUDGED_TABLE)
    return {table: lake.checksum(table, key) for table in tables if lake.has(table, key)}


def _make_proof(lake: Lake, key: PartitionKey, surrogates: bool) -> TapeProof:
    """Replay the recordings of an agent. The arguments and errors are those of `prove_tape`."""
    counts = count_recordings(lake, key)
    repeated = [task for task, count in counts.items() if count > 1]
    repeated.sort(key=lambda task: hashlib.sha256(task.encode()).digest())
    chosen = set(repeated[:MOST_TASKS])
    held_out = list_heldout_tasks(lake, key)
    tapes = read_tapes(lake, key, chosen | held_out, surrogates, apart=True)
    schemas = ToolSchemas()
    for tape in tapes.values():
        for recording in tape.recordings:
            schemas.add(find_call_shapes(recording.messages))
    heldout_kinds = Counter(
        find_kind(tape)
        for task, tape in tapes.items()
        if task in held_out and any(recording.verdict == GOOD for recording in tape.recordings)
    )
    replayed_tapes = {task: tape for task, tape in tapes.items() if task in chosen}
    ids = {session for tape in replayed_tapes.values() for session in tape.session_ids}
    own_tools = _read_tools_of_sessions(lake, key, ids, surrogates)
    replayed = replay_left_out(replayed_tapes, schemas.tools(), own_tools)
    return measure_agreement(replayed, heldout_kinds)


def _read_tools_of_sessions(
    lake: Lake, key: PartitionKey, session_ids: Collection[str], surrogates: bool
) -> dict[str, list[Tool]]:
    """Return the tools of recorded sessions that have tools, by session.

    With `surrogates`, the tools have the made-up values of the recorded calls.
    """
    if not lake.has(JUDGED_TABLE, key):
        return {}
    known: dict[bytes, list[Tool]] = {}
    tools: dict[str, list[Tool]] = {}
    columns = ["session_id", "task_key", "messages", "tools"]
    batches = read_batches(lake.open(JUDGED_TABLE, key), columns)
    for row in to_rows(batches, raw=True):
        if row["session_id"] in session_ids:
            encoded = bytes(row["tools"])
            if encoded not in known:
                known[encoded] = decode_column(row["tools"])
            if known[encoded] and surrogates and PSEUDONYM.search(encoded.decode()):
                messages = decode_column(row["messages"])
                stored = {**row, "messages": messages, "tools": known[encoded]}
                [shown] = with_surrogates([stored])
                tools[row["session_id"]] = shown["tools"]
            elif known[encoded]:
                tools[row["session_id"]] = known[encoded]
    return tools
