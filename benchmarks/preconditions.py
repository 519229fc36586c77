"""`python -m benchmarks.preconditions`: preconditions that are proposed from good sessions of the sample, and the calls that they stop.

Sessions without a flaw of one seed give the proposals, as `agent-pipeline doctor` makes them. The proposals check the changing calls of new
tasks: sessions without a flaw, and sessions with a flaw, each replayed in its world. A call is harmful if the world lists a wrong change
after it that it did not list before. Right calls are the changing calls of sessions without a flaw.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

from agent_pipeline.evaluation.worlds import load_world, run_tool, user_reply, writes
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.readiness.precondition_proposals import propose_preconditions
from agent_pipeline.sample.environment import tasks_by_id
from agent_pipeline.sample.flaws import flaws_of
from agent_pipeline.sample.play import play
from agent_pipeline.sample.world import Call, Say

WORLDS = {
    "support": "agent_pipeline.sample.shop:World",
    "intern": "agent_pipeline.sample.shop:World",
    "rooms": "agent_pipeline.sample.office:World",
}
Turn = tuple[dict[str, Any], bool | None]
"""A message, and for a changing call whether it is harmful."""


def replay(world: Any, row: dict[str, Any], events: Any) -> list[Turn]:
    """Play the steps of a session in its world again, and return its messages."""
    opening = world.reset(**row)
    turns: list[Turn] = [
        ({"role": "system", "content": world.system}, None),
        ({"role": "user", "content": opening}, None),
    ]
    for event in events:
        if isinstance(event, Call):
            function = {"name": event.name, "arguments": json.dumps(event.arguments)}
            call = {"id": f"c{len(turns)}", "type": "function", "function": function}
            before = len(world.wrong_changes)
            result = run_tool(world, event.name, event.arguments)
            is_harmful = len(world.wrong_changes) > before
            message = {"role": "assistant", "content": event.note, "tool_calls": [call]}
            turns.append((message, is_harmful if writes(world, event.name) else None))
            turns.append(({"role": "tool", "tool_call_id": call["id"], "content": result}, None))
        elif isinstance(event, Say):
            turns.append(({"role": "assistant", "content": event.text}, None))
            if reply := user_reply(world, event.text):
                turns.append(({"role": "user", "content": reply}, None))
    return turns


def sessions(agent: str, seed: int, count: int, flawed: bool) -> Iterator[tuple[str, list[Turn]]]:
    """Yield the flaw and the turns of sessions of new tasks; each task is played with every flaw that shows."""
    world_class: Any = load_world(WORLDS[agent])
    domain = world_class.domain
    for number, row in enumerate(world_class.fresh_tasks(count, seed, f"{agent}-001")):
        task = tasks_by_id(domain, agent, row["seed"])[row["task_key"]]
        good = play(task, domain, None, number, Random(number))
        if not flawed:
            yield "none", replay(world_class(), row, good.events)
            continue
        for flaw in flaws_of(domain):
            episode = play(task, domain, flaw, number, Random(number))
            if episode.outline() != good.outline():
                yield flaw, replay(world_class(), row, episode.events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="sessions for the proposals")
    parser.add_argument("--tasks", type=int, default=200, help="new tasks that are checked")
    chosen = parser.parse_args()
    print("| agent | proposals | harmful calls stopped | right calls stopped | by flaw |")
    print("|---|---:|---:|---:|---|")
    texts = []
    for agent in WORLDS:
        good = [
            [message for message, _ in turns]
            for _, turns in sessions(agent, 1, chosen.sessions, flawed=False)
        ]
        proposals = propose_preconditions(good)
        by_tool: defaultdict[str, list[str]] = defaultdict(list)
        for proposal in proposals:
            by_tool[proposal.tool].append(proposal.precondition)
            texts.append(f"{agent}: {proposal.tool}: {proposal.precondition} ({proposal.evidence})")
        preconditions = Preconditions.parse(by_tool)
        calls: Counter[tuple[str, bool, bool]] = Counter()
        for flawed in (False, True):
            for flaw, turns in sessions(agent, 5001, chosen.tasks, flawed):
                messages = [message for message, _ in turns]
                for index, (_, is_harmful) in enumerate(turns):
                    if is_harmful is not None:
                        broken = any(preconditions.find_broken(messages[: index + 1], (), index))
                        calls[flaw, is_harmful, broken] += 1

        def stopped(is_harmful: bool, flaw: str = "", calls: Counter[Any] = calls) -> str:
            counts = {
                broken: sum(
                    number
                    for (name, harmful, was_broken), number in calls.items()
                    if harmful == is_harmful
                    and was_broken == broken
                    and flaw in ("", name)
                    and (harmful or name == "none")
                )
                for broken in (True, False)
            }
            total = sum(counts.values())
            return f"{counts[True]} of {total}" if total else ""

        flaws = sorted({name for name, harmful, _ in calls if harmful})
        detail = ", ".join(f"{name} {stopped(True, name)}" for name in flaws)
        figures = (agent, str(len(proposals)), stopped(True), stopped(False), detail)
        print(f"| {' | '.join(figures)} |", flush=True)
    print("\n" + "\n".join(texts))


if __name__ == "__main__":
    main()
