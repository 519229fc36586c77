"""`python -m benchmarks.replay`: how far the verdicts of the replayed world agree with the true ones.

AgentDojo (from AGENT_PIPELINE_REAL_TRACES): the tape of a task is made from 4 successful runs by other models, and each run of a model is
replayed. The sample: agents of different quality, some with planted harm, play all tasks of the sample's three agents, in the true world
and in the world that is made from the sample's recorded sessions.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent_pipeline.evaluation.episodes import Episode, play
from agent_pipeline.evaluation.players import recorded_player
from agent_pipeline.evaluation.replayed_world import ReplayedWorld
from agent_pipeline.evaluation.scores import EpisodeScore, Scores
from agent_pipeline.evaluation.tape import (
    FirstRead,
    Recording,
    SharedRead,
    TaskTape,
    find_shared_reads,
    list_steps,
)
from agent_pipeline.evaluation.tool_effects import ToolEffects
from agent_pipeline.evaluation.worlds import World
from agent_pipeline.models.tool_call_parsers import list_parameter_schemas
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import check_episodes, check_possible_harm, check_seen_harm
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
from benchmarks.redaction import REAL_TRACES, sessions_of

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
RECORDINGS = 4
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


def measure_agentdojo() -> None:
    """Print the share of settled runs, and how many of them agree with the true world."""
    print("| AgentDojo | runs | settled | agree with the true world | wrongly suspected of harm |")
    print("|---|---:|---:|---:|---:|")
    pairs = [pair for suite in read_suites().values() for pair in replay(suite, 0)]
    for name, acting in (("it must act", {True}), ("it must not act, or either", {False, None})):
        part = [(session, episode) for session, episode in pairs if episode.must_act in acting]
        settled = [(session, episode) for session, episode in part if not episode.unsettled]
        agree = sum(episode.done == is_good(session) for session, episode in settled)
        suspected = sum(episode.is_suspect and is_good(session) for session, episode in part)
        print(
            f"| {name} | {len(part)} | {share(len(settled), len(part))} | "
            f"{share(agree, len(settled))} | {share(suspected, len(part))} |"
        )


def share(count: int, total: int) -> str:
    """A count with its percentage."""
    return f"{count} ({100 * count / total:.1f} %)" if total else "–"


# The sample

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
        for task in tasks_of(agent, DEFAULT_SEED):
            sessions = list(by_agent[agent.project, agent.name][task.task_id].values())
            good = [session for session in sessions if is_good(session)]
            if not good:
                continue
            recordings = [
                Recording(session.session_id, session.judgment, session.messages)
                for session in sessions
            ]
            tape = TaskTape(recordings, sorted(domain.world.reads))
            tasks.append(task)
            rows.append(row_of(task.task_id, good[0].messages, list(domain.world.tools), tape))
        agents.append(SampleAgent(agent, tasks, rows))
    return agents


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
    harmful = noticed = 0
    for sample in read_sample():
        champions = sample.messages(0.9, False, "champion")
        champion = [sample.scores(champions, replayed) for replayed in (False, True)]
        counts: Counter[str | tuple[str, str]] = Counter()
        for number, quality in enumerate(QUALITIES):
            messages = sample.messages(quality, number % 3 == 2, f"candidate {number}")
            true, replayed = (sample.scores(messages, is_replayed) for is_replayed in (False, True))
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
            if any(episode.wrong_changes for episode in true):
                harmful += 1
                noticed += any(episode.wrong_changes or episode.is_suspect for episode in replayed)
        print(
            f"| {sample.agent.partition} | {share(counts['settled'], counts['episodes'])} | "
            f"{share(counts['agree'], counts['settled'])} | {counts['promote', 'promote']} | "
            f"{counts['refuse', 'refuse'] + counts['refuse', 'cannot decide']} | {counts['refuse', 'promote']} | "
            f"{counts['promote', 'cannot decide']} | {counts['promote', 'refuse']} |",
            flush=True,
        )
    print(f"\nPlanted harm: {noticed} of {harmful} candidates are seen or suspected.")


def main() -> None:
    measure_sample()
    measure_agentdojo()


if __name__ == "__main__":
    main()
