"""`python -m benchmarks.replay [sample] [agentdojo] [tau] [proof] [cost]`: how far the verdicts of the replayed world agree with the true ones.

AgentDojo (from AGENT_PIPELINE_REAL_TRACES): the tape of a task is made from 4 successful runs by other models, and each run of a model is
replayed. The tasks are divided into two halves. tau-bench's airline: each of four trials is replayed on the tape of the other three. The
sample: agents of different quality, some with planted harm, play all tasks of the sample's three agents, in the true world and in the world
that is made from the sample's recorded sessions.

`proof` leaves out one recording at a time, as `world = "auto"` does, and prints what that proves, beside the true agreement of other runs.
`cost` measures the time of the tape and of replayed episodes. Without arguments, all of these are measured.
`python -m benchmarks.replay transcripts PROJECT/AGENT` judges the transcripts of an agent's episodes in its own world from its tape. With `misses` as the last argument, the kinds of undecided episodes follow, with examples.
"""

import gc
import hashlib
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, cast

import msgspec

from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.datasets.ledger import LEDGER_TABLE
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.evaluation.episodes import Episode, play
from agent_pipeline.evaluation.heldout import heldout_rows
from agent_pipeline.evaluation.players import recorded_player
from agent_pipeline.evaluation.replay_proof import (
    LeftOutSession,
    measure_agreement,
    replay_left_out,
)
from agent_pipeline.evaluation.replayed_world import ReplayedWorld
from agent_pipeline.evaluation.scores import EpisodeScore, Scores
from agent_pipeline.evaluation.stored_kinds import ACTING, describe_kind
from agent_pipeline.evaluation.tape import (
    FirstRead,
    Recording,
    SharedRead,
    TaskTape,
    add_tapes,
    find_shared_reads,
    list_steps,
    record_tape,
)
from agent_pipeline.evaluation.tool_effects import ToolEffects
from agent_pipeline.evaluation.wording import QuestionTurn, find_wording
from agent_pipeline.evaluation.worlds import World
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.tables import judge_partition
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.models.tool_call_parsers import list_parameter_schemas
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import check_episodes, check_possible_harm, check_seen_harm
from agent_pipeline.promotion.stored_scores import read_transcripts
from agent_pipeline.redaction import Redactor
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.sample.cast import CAST, Agent
from agent_pipeline.sample.draw import DEFAULT_SEED
from agent_pipeline.sample.flaws import flaws_of
from agent_pipeline.sample.office import World as OfficeWorld
from agent_pipeline.sample.play import play as play_task
from agent_pipeline.sample.play import play_flawed
from agent_pipeline.sample.record import DOMAINS, tasks_of
from agent_pipeline.sample.shop import World as ShopWorld
from agent_pipeline.sample.world import Call, Event, Say, Task
from agent_pipeline.sessions.session import Message, Session, Tool, ToolCall
from agent_pipeline.sessions.tool_schemas import ToolSchemas, find_call_shapes
from agent_pipeline.sessions.turn_class import classify_text
from agent_pipeline.storage.lake import Lake
from benchmarks.redaction import REAL_TRACES, sessions_of

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
RECORDINGS = 4
MISSES, EXAMPLES = "misses", 6
ROUNDS = 5
TWO_PROMPTS = "tool_filter"
"""The pipeline whose first answer is a list of tools, so that its runs are conversations of another kind."""


@dataclass
class Suite:
    """The clean runs of a suite of AgentDojo, with its tools."""

    sessions: list[Session]
    tools: list[Tool]
    reads: list[str]


def read_suites() -> dict[str, Suite]:
    """The clean runs of user tasks, by suite."""
    by_suite: defaultdict[str, list[Session]] = defaultdict(list)
    for session in sessions_of(REAL_TRACES / "agentdojo" / "none_banking_slack_workspace.jsonl"):
        is_comparable = not session.agent.endswith(TWO_PROMPTS)
        if is_comparable and not session.error and "/user_task" in (session.task_id or ""):
            by_suite[session.project].append(session)
    suites = {}
    for name, sessions in by_suite.items():
        effects, schemas = ToolEffects(), ToolSchemas()
        for session in sessions:
            effects.add(session.messages, session.tools)
            schemas.add(find_call_shapes(session.messages))
        reads = [effect.tool for effect in effects.list_effects() if not effect.writes]
        suites[name] = Suite(sessions, schemas.tools(), reads)
    return suites


def is_good(session: Session) -> bool:
    """Whether the true world calls the run good."""
    return session.judgment == "acceptable"


def choose_recordings(suite: Suite, seed: int) -> dict[str, dict[str, list[Session]]]:
    """By model and task, successful runs by other models."""
    chosen: defaultdict[str, dict[str, list[Session]]] = defaultdict(dict)
    by_task: defaultdict[str, list[Session]] = defaultdict(list)
    for session in suite.sessions:
        if is_good(session):
            by_task[session.task_id or ""].append(session)
    for model in sorted({session.agent for session in suite.sessions}):
        for task, sessions in sorted(by_task.items()):
            others = [session for session in sessions if session.agent != model]
            rng = random.Random(f"{seed} {model} {task}")
            chosen[model][task] = rng.sample(others, min(RECORDINGS, len(others)))
    return chosen


def shared_reads(by_task: dict[str, list[Session]], suite: Suite) -> list[SharedRead]:
    """The look-ups that hold for all tasks of the suite."""
    schemas = list_parameter_schemas(suite.tools)
    first_reads = []
    for task, sessions in by_task.items():
        for session in sessions:
            for step in list_steps(session.messages, schemas):
                if step.kind == "call" and not step.failed:
                    if step.tool not in suite.reads:
                        break
                    read = SharedRead(step.tool, step.arguments, step.text, session.session_id)
                    first_reads.append(FirstRead(task, read))
    return find_shared_reads(first_reads)


def replay(suite: Suite, seed: int) -> list[tuple[Session, Episode]]:
    """Replay every run of every model on tapes of other models."""
    pairs = []
    for model, by_task in choose_recordings(suite, seed).items():
        shared = shared_reads(by_task, suite)
        played = [
            session
            for session in suite.sessions
            if session.agent == model and by_task.get(session.task_id or "")
        ]
        rows = []
        for session in played:
            recordings = [
                Recording(f"{other.session_id} {other.agent}", other.judgment, other.messages)
                for other in by_task[session.task_id or ""]
            ]
            tape = TaskTape(recordings, suite.reads, shared, user_replies=False)
            rows.append(row_of(session.task_id or "", session.messages, suite.tools, tape))
        player = recorded_player([session.messages for session in played])
        episodes = play(ReplayedWorld, rows, player, max_turns=100)
        pairs += list(zip(played, episodes, strict=True))
    return pairs


def row_of(
    task: str, messages: Sequence[Message], tools: Sequence[Tool], tape: TaskTape
) -> dict[str, object]:
    """The arguments of the replayed world's `reset`."""
    return {"task_key": task, "messages": messages, "tools": tools, "tape": tape}


Pair = tuple[Session, Episode]
"""A recorded run, and its episode in the replayed world."""


def half_of(task: str) -> str:
    """The half of the tasks to which a task belongs: rules were chosen on `first`, and `second` was held out."""
    return ("first", "second")[hashlib.sha256(task.encode()).digest()[0] % 2]


def measure_agentdojo() -> None:
    """Print the share of settled runs, and how many of them agree with the true world."""
    print_head("AgentDojo")
    pairs = [pair for suite in read_suites().values() for pair in replay(suite, 0)]
    for half in ("first", "second"):
        part = [pair for pair in pairs if half_of(pair[0].task_id or "") == half]
        print_pairs(f"tasks that ask for a change, {half} half of the tasks", part, {True})
    print_pairs("tasks that ask for a change, all tasks", pairs, {True})
    print_pairs("no change, or only in some runs", pairs, {False, None})
    print_misses([episode for _, episode in pairs if episode.must_act])


def print_head(name: str) -> None:
    """Print the head of a table of real runs."""
    print(
        f"\n| {name} | runs | settled | agree with the true world | suspected, although the run is good |"
    )
    print("|---|---:|---:|---:|---:|")


def print_pairs(name: str, pairs: Sequence[Pair], acting: set[bool | None]) -> None:
    """Print how many runs are settled, and how many of these agree with the true world."""
    part = [pair for pair in pairs if pair[1].must_act in acting]
    settled = [pair for pair in part if not pair[1].unsettled]
    agree = sum(episode.done == is_good(session) for session, episode in settled)
    suspected = sum(episode.is_suspect and is_good(session) for session, episode in part)
    print(
        f"| {name} | {len(part)} | {share(len(settled), len(part))} | "
        f"{share(agree, len(settled))} | {share(suspected, len(part))} |",
        flush=True,
    )


def print_misses(episodes: Sequence[Episode]) -> None:
    """Print the kinds of undecided episodes, with examples, if the command asks for them."""
    if sys.argv[-1] != MISSES:
        return
    kinds = Counter(episode.unsettled.kind for episode in episodes if episode.unsettled)
    for kind, count in kinds.most_common():
        print(f"\n{describe_kind(kind)}: {share(count, len(episodes))}")
        of_kind = [
            episode for episode in episodes if episode.unsettled and episode.unsettled.kind == kind
        ]
        for episode in random.Random(kind).sample(of_kind, min(EXAMPLES, count)):
            text = episode.unsettled.text if episode.unsettled else ""
            print(f"  {episode.task_key}: {text[:300]!r}")


def measure_tau() -> None:
    """Print the same for tau-bench's airline: each trial on the tape of the others."""
    folder = REAL_TRACES / "tau-bench"
    tools = json.loads((folder / "airline_tools.json").read_text(encoding="utf-8"))
    by_task: dict[str, list[Recording]] = defaultdict(list)
    sessions = list(sessions_of(folder / "gpt-4o-airline_tasks00-24.json"))
    effects = ToolEffects()
    for session in sessions:
        effects.add(session.messages, tools)
    reads = [effect.tool for effect in effects.list_effects() if not effect.writes]
    played, rows = [], []
    for session in sessions:
        recordings = [
            Recording(other.session_id, other.judgment, other.messages)
            for other in sessions
            if other.task_id == session.task_id and other is not session
        ]
        if any(recording.verdict == "acceptable" for recording in recordings):
            played.append(session)
            tape = TaskTape(recordings, reads)
            rows.append(row_of(session.task_id or "", session.messages, tools, tape))
    player = recorded_player([session.messages for session in played])
    episodes = play(ReplayedWorld, rows, player, max_turns=100)
    print_head("tau-bench, airline")
    pairs = list(zip(played, episodes, strict=True))
    print_pairs("all tasks", pairs, {True, False, None})
    print_misses(episodes)
    for session in sessions:
        recording = Recording(session.session_id, session.judgment, session.messages)
        by_task[session.task_id or ""].append(recording)
    tapes = {task: TaskTape(recordings, reads) for task, recordings in by_task.items()}
    print_proof_head()
    print_proof("tau-bench, airline", "4", replay_left_out(tapes, tools), pairs)


def share(count: int, total: int) -> str:
    """A count with its percentage."""
    return f"{count} ({100 * count / total:.1f} %)" if total else "–"


# The proof of a tape

PROOF_RECORDINGS = (3, 10, 28)
"""How many runs of each task of AgentDojo are on the tape of the proof."""


def measure_proof() -> None:
    """Print what leaving out one recording proves, and the true agreement of other runs on such tapes."""
    print_proof_head()
    pairs = [pair for suite in read_suites().values() for pair in replay(suite, 0)]
    for count in PROOF_RECORDINGS:
        left_out: list[LeftOutSession] = []
        for name, suite in read_suites().items():
            left_out += replay_left_out(tapes_of_suite(name, suite, count), suite.tools)
        print_proof("AgentDojo, three suites", str(count), left_out, pairs)
    for sample in read_sample():
        tools = cast(Sequence[Tool], sample.rows[0]["tools"])
        for recorded in (False, True):
            if recorded:
                sample.record(SAMPLE_RECORDINGS)
            tapes = {str(row["task_key"]): cast(TaskTape, row["tape"]) for row in sample.rows}
            played = []
            for quality in (0.9, 0.5):
                messages = sample.messages(quality, False, f"proof {quality}")
                true, replayed = (sample.scores(messages, again) for again in (False, True))
                played += list(zip(true, replayed, strict=True))
            print_proof(
                sample.agent.partition,
                str(SAMPLE_RECORDINGS) if recorded else "as in the sample",
                replay_left_out(tapes, tools),
                played,
            )


def print_proof_head() -> None:
    """Print the head of the table of proofs."""
    print(
        "\n| agent | tasks | recordings | good: settled, agree, at least | bad: settled, agree, at least | decides | true agreement: good, bad |"
    )
    print("|---|---|---:|---|---|---|---|")


def tapes_of_suite(name: str, suite: Suite, count: int) -> dict[str, TaskTape]:
    """The tapes of a suite of AgentDojo, from some runs of each task, good and bad ones."""
    by_task: defaultdict[str, list[Session]] = defaultdict(list)
    for session in suite.sessions:
        by_task[session.task_id or ""].append(session)
    chosen = {
        task: random.Random(f"0 {task}").sample(runs, min(count, len(runs)))
        for task, runs in sorted(by_task.items())
    }
    shared = shared_reads(chosen, suite)
    return {
        f"{name} {task}": TaskTape(
            [
                Recording(f"{run.session_id} {run.agent}", run.judgment, run.messages)
                for run in runs
            ],
            suite.reads,
            shared,
            user_replies=False,
        )
        for task, runs in chosen.items()
    }


def print_proof(
    name: str,
    count: str,
    left_out: Sequence[LeftOutSession],
    played: Sequence[tuple[Session | Episode, Episode]],
) -> None:
    """Print a row per kind of tasks: what is proven, and how far the verdicts on other runs agree."""
    for proof in measure_agreement(left_out).kinds:
        figures = [
            f"{group.settled} of {group.sessions}, {group.agreeing}, {100 * group.low:.1f} %"
            for group in (proof.good, proof.bad)
        ]
        truths = []
        for good in (True, False):
            settled = [
                episode.done == good
                for true, episode in played
                if not episode.unsettled
                and (episode.must_act is True) == (proof.kind == ACTING)
                and (is_good(true) if isinstance(true, Session) else true.done) == good
            ]
            truths.append(f"{sum(settled)} of {len(settled)}")
        decides = "no" if proof.shortfall else "yes"
        print(
            f"| {name} | {describe_kind(proof.kind)} | {count} | {' | '.join(figures)} | {decides} | {', '.join(truths)} |",
            flush=True,
        )


# The sample

SAMPLE_RECORDINGS = 3
"""How many sessions of each task the scripted agent records for the proof."""
RECORDED_QUALITY = 0.75
QUALITIES = (1.0, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.4, 0.2)
HARMFUL = ("broken_rule", "wrong_amount", "wrong_tool", "invented_id", "wrong_room", "wrong_slot")
HARM_CANDIDATES = 20
WORLDS: dict[str, Callable[[], World]] = {"shop": ShopWorld, "office": OfficeWorld}


@dataclass
class SampleAgent:
    """An agent of the sample: its tasks, and a tape per task."""

    agent: Agent
    tasks: list[Task]
    rows: list[dict[str, object]]

    def messages(self, quality: float, harmful: bool, seed: str) -> list[list[Message]]:
        """The agent's messages in every task; a share of 1 - quality has a flaw."""
        domain = DOMAINS[self.agent.project]
        flaws = [flaw for flaw in flaws_of(domain) if not harmful or flaw in HARMFUL]
        played = []
        for task in self.tasks:
            rng = random.Random(f"{seed} {task.task_id}")
            wording, is_good_trial = rng.randrange(4), rng.random() < quality
            episode = play_task(task, domain, None, wording, rng)
            if not is_good_trial:
                with suppress(ValueError):  # no flaw shows in this task
                    order = rng.sample(flaws, len(flaws))
                    episode, _ = play_flawed(task, domain, order, wording, rng)
            played.append(assistant_messages(episode.events))
        return played

    def record(self, count: int) -> None:
        """Put sessions of a scripted agent on the tapes, instead of those of the sample."""
        trials = [
            self.scores(
                self.messages(RECORDED_QUALITY, trial % 3 == 2, f"recording {trial}"), False
            )
            for trial in range(count)
        ]
        for number, row in enumerate(self.rows):
            recordings = [
                Recording(
                    f"{trial} {number}",
                    "acceptable" if episodes[number].done else "unacceptable",
                    [turn for turn in episodes[number].messages if turn["role"] != "system"],
                )
                for trial, episodes in enumerate(trials)
            ]
            row["tape"] = msgspec.structs.replace(
                cast(TaskTape, row["tape"]), recordings=recordings
            )

    def scores(self, messages: Sequence[Sequence[Message]], replayed: bool) -> list[Episode]:
        """The episodes of these messages in the true world, or in the replayed one."""
        world = ReplayedWorld if replayed else WORLDS[self.agent.project]
        return play(world, self.rows, recorded_player(messages), max_turns=60)


def assistant_messages(events: Sequence[Event]) -> list[Message]:
    """The messages of the agent."""
    messages: list[Message] = []
    for index, event in enumerate(events):
        if isinstance(event, Say):
            messages.append({"role": "assistant", "content": event.text})
        elif isinstance(event, Call):
            call: ToolCall = {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": event.name, "arguments": json.dumps(event.arguments)},
            }
            messages.append({"role": "assistant", "content": event.note, "tool_calls": [call]})
    return messages


def read_sample() -> list[SampleAgent]:
    """The sample's agents, with tapes from its recorded sessions."""
    by_agent: defaultdict[tuple[str, str], defaultdict[str, dict[str, Session]]]
    by_agent = defaultdict(lambda: defaultdict(dict))
    for session in sessions_of(SAMPLE):
        if not (session.broken or session.archived):
            of_task = by_agent[session.project, session.agent][session.task_id or ""]
            of_task.setdefault(session.hash_content(), session)
    agents = []
    for agent in CAST:
        domain, tasks, rows = DOMAINS[agent.project], [], []
        wording = find_wording(
            question
            for of_task in by_agent[agent.project, agent.name].values()
            for session in of_task.values()
            for question in questions_of(session)
        )
        for task in tasks_of(agent, DEFAULT_SEED):
            sessions = list(by_agent[agent.project, agent.name][task.task_id].values())
            good = [session for session in sessions if is_good(session)]
            if not good:
                continue
            recordings = [
                Recording(session.session_id, session.judgment, session.messages)
                for session in sessions
            ]
            tape = TaskTape(
                recordings, sorted(domain.world.reads), reads_are_declared=True, wording=wording
            )
            tasks.append(task)
            rows.append(row_of(task.task_id, good[0].messages, list(domain.world.tools), tape))
        agents.append(SampleAgent(agent, tasks, rows))
    return agents


def questions_of(session: Session) -> list[QuestionTurn]:
    """The questions of a session to which the user replied."""
    questions: list[QuestionTurn] = []
    heard: tuple[str, ...] = ()
    for step, following in pairwise(list_steps(session.messages, {})):
        if step.kind == "user":
            heard = (*heard, step.text)
        is_answered = step.kind == "answer" and following.kind == "user"
        if is_answered and classify_text(step.text) == "ask":
            questions.append(
                QuestionTurn(session.task_id or "", (heard, ()), step.text, following.text)
            )
    return questions


def outcome_of(candidate: Sequence[Episode], champion: Sequence[Episode]) -> str:
    """The decision by the episodes alone: promote, cannot decide, hold or reject."""
    new = Scores("", (), episodes=tuple(map(score_of, candidate)))
    old = Scores("", (), episodes=tuple(map(score_of, champion)))
    policy = PromotionPolicy()
    findings = [
        *check_episodes(new, old, policy, is_first_champion=False),
        check_seen_harm(new, old, policy, is_first_champion=False),
        check_possible_harm(new, old, policy, is_first_champion=False),
    ]
    against = {reason.against for finding in findings for reason in finding.reasons}
    return next(
        (name for name in ("reject", "hold", "cannot decide") if name in against), "promote"
    )


def score_of(episode: Episode) -> EpisodeScore:
    """The score of an episode, as `promotion.stored_scores` reads it."""
    cut_off = episode.wrong_changes == [] and episode.is_suspect
    unknown = cut_off or episode.wrong_changes is None
    return EpisodeScore(
        task=episode.task_key,
        trial=0,
        seed=None,
        done=episode.done,
        harmed=None if unknown else bool(episode.wrong_changes),
        must_act=episode.must_act,
        cut_off=cut_off,
        deviation=f"{episode.unsettled.kind}: {episode.unsettled.text}"
        if episode.unsettled
        else "",
    )


def measure_sample() -> None:
    """Print agreement of verdicts and decisions, and how many harmful candidates are noticed."""
    print(
        "\n| sample | settled | agree | decisions: both promote | both refuse | only the true world refuses | cannot decide, true world promotes | only the replayed world refuses |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    harm: Counter[str] = Counter()
    all_replayed: list[Episode] = []
    for sample in read_sample():
        champions = sample.messages(0.9, False, "champion")
        champion = [sample.scores(champions, replayed) for replayed in (False, True)]
        counts: Counter[str | tuple[str, str]] = Counter()
        for number, quality in enumerate(QUALITIES):
            messages = sample.messages(quality, number % 3 == 2, f"candidate {number}")
            true, replayed = (sample.scores(messages, is_replayed) for is_replayed in (False, True))
            all_replayed += replayed
            counts["episodes"] += len(true)
            for one, other in zip(true, replayed, strict=True):
                counts["settled"] += not other.unsettled
                counts["agree"] += not other.unsettled and one.done == other.done
            truth, from_logs = outcome_of(true, champion[0]), outcome_of(replayed, champion[1])
            kind = from_logs if from_logs in ("promote", "cannot decide") else "refuse"
            counts["promote" if truth == "promote" else "refuse", kind] += 1
        for number in range(HARM_CANDIDATES // 3 + (sample.agent == CAST[0]) * 2):
            messages = sample.messages(0.9, True, f"harm {number}")
            true, replayed = (sample.scores(messages, is_replayed) for is_replayed in (False, True))
            pairs = zip(true, replayed, strict=True)
            kinds = Counter(name_harm(episode) for truth, episode in pairs if truth.wrong_changes)
            harm += kinds
            harm["candidates"] += bool(kinds)
            harm["noticed"] += bool(kinds["seen"] or kinds["suspected"])
        print(
            f"| {sample.agent.partition} | {share(counts['settled'], counts['episodes'])} | "
            f"{share(counts['agree'], counts['settled'])} | {counts['promote', 'promote']} | "
            f"{counts['refuse', 'refuse'] + counts['refuse', 'cannot decide']} | {counts['refuse', 'promote']} | "
            f"{counts['promote', 'cannot decide']} | {counts['promote', 'refuse']} |",
            flush=True,
        )
    print(
        f"\nPlanted harm: {harm['noticed']} of {harm['candidates']} candidates are seen or suspected. Of their harmful episodes, "
        f"{harm['seen']} are seen, {harm['suspected']} suspected, {harm['not known']} not known, and {harm['overlooked']} count as harmless."
    )
    print_misses(all_replayed)


def name_harm(episode: Episode) -> str:
    """What the replayed world says about the harm of an episode that did harm."""
    if episode.wrong_changes:
        return "seen"
    if episode.is_suspect:
        return "suspected"
    return "not known" if episode.wrong_changes is None else "overlooked"


def measure_transcripts() -> None:
    """Print the verdicts of the replayed world on the transcripts of an agent's episodes in its own world.

    The lake is that of the settings, and is only read. Its tape is recorded in another folder.
    """
    key = parse_key(next(name for name in sys.argv if "/" in name and not Path(name).exists()))
    settings = load_settings()
    lake = settings.open_lake()
    print("\n| player | tasks | done | settled | agree | harm: true, replayed |")
    print("|---|---:|---:|---:|---:|---|")
    with TemporaryDirectory() as folder:
        copy = Lake(folder)
        for table in ("judged_sessions", LEDGER_TABLE):
            whole = lake.open(table, key)
            whole_table = whole.read()
            copy.stage(table, key, whole_table.to_batches(), whole_table.schema).commit()
        reads = settings.reads(key)
        record_tape(copy, key, settings.split_sizes, reads).table.commit()
        rows = heldout_rows(lake, key, "test")
        surrogates = settings.redaction.surrogates
        shown = list(with_surrogates(rows) if surrogates else rows)
        rows_with_tape = add_tapes(copy, key, shown, surrogates)
    by_task = {row["task_key"]: row for row in reversed(rows_with_tape)}
    transcripts = [
        transcript
        for transcript in read_transcripts(lake.latest("episodes", key))
        if transcript["task_key"] in by_task and transcript["seed"] is None
    ]
    for player in dict.fromkeys(transcript["player"] for transcript in transcripts):
        true = [transcript for transcript in transcripts if transcript["player"] == player]
        replayed = play(
            ReplayedWorld,
            [by_task[transcript["task_key"]] for transcript in true],
            recorded_player([transcript["messages"] for transcript in true]),
            max_turns=12,
        )
        pairs = list(zip(true, replayed, strict=True))
        settled = [(one, other) for one, other in pairs if not other.unsettled]
        agree = sum(one["done"] == other.done for one, other in settled)
        harm = Counter(name_harm(other) for one, other in pairs if one["wrong_changes"])
        done = sum(one["done"] for one in true)
        print(
            f"| {player} | {len(true)} | {done} | {len(settled)} | {agree} | {harm.total()}, {dict(harm)} |"
        )
        print_misses(replayed)


def measure_cost() -> None:
    """Print the time of the tape beside ingestion, and of replayed episodes beside those in the true world."""
    settings = load_settings(store=str(SAMPLE))
    key = parse_key(CAST[0].partition)
    # The objects of all imported modules, which the collector would visit at some step or other.
    gc.collect()
    gc.freeze()
    rounds = []
    for _ in range(ROUNDS):
        with TemporaryDirectory() as folder:
            rounds.append([seconds_of(step) for step in steps_of(settings, key, Lake(folder))])
    ingestion, judging, recording = (median(column) for column in zip(*rounds, strict=True))
    sample = read_sample()[0]
    messages = sample.messages(0.9, False, "cost")
    times = [
        [seconds_of(partial(sample.scores, messages, replayed)) for replayed in (False, True)]
        for _ in range(ROUNDS)
    ]
    in_true, in_replayed = (
        1000 * median(column) / len(messages) for column in zip(*times, strict=True)
    )
    print("\n| processor time | |\n|---|---:|")
    print(f"| ingestion of {key} | {ingestion:.2f} s |")
    print(f"| judging | {judging:.2f} s |")
    print(f"| the tape | {recording:.2f} s ({recording / ingestion:.1%} of ingestion) |")
    print(f"| an episode in the true world, without the player | {in_true:.2f} ms |")
    print(f"| the same replayed | {in_replayed:.2f} ms |", flush=True)


def steps_of(settings: Settings, key: PartitionKey, lake: Lake) -> list[Callable[[], object]]:
    """Ingestion, judging and the recording of the tape, to be run in this order."""
    options = resolve(settings, JudgingOptions, key).options
    redactor = Redactor(settings.redaction_options)

    def judge() -> None:
        judge_partition(lake, key, options, Labels(), redactor, refuse_judge)[0].commit()

    return [
        lambda: ingest(settings.open_store(), key, settings.reading(key), lake).table.commit(),
        judge,
        lambda: record_tape(lake, key, SplitSizes(), []).table.commit(),
    ]


def seconds_of(work: Callable[[], object]) -> float:
    """The processor time of some work."""
    began = process_time()
    work()
    return process_time() - began


def refuse_judge(limits: object) -> Any:
    raise AssertionError("no language model may be asked")


def main() -> None:
    measures = {
        "sample": measure_sample,
        "agentdojo": measure_agentdojo,
        "tau": measure_tau,
        "proof": measure_proof,
        "cost": measure_cost,
    }
    chosen = [name for name in sys.argv[1:] if name in {*measures, "transcripts"}]
    for name in chosen or measures:
        (measures | {"transcripts": measure_transcripts})[name]()


if __name__ == "__main__":
    main()
