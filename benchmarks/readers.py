"""`python -m benchmarks.readers [FOLDER]`: sessions read right, of the real files in a folder and of the files that SDKs wrote.

What a file says is taken from it a second time, here, by the few lines that its format needs, and compared with what the pipeline makes of
it after repair: who said what, which tool was called with what, and what came back, in order; of chat messages also where each of the
agent's turns begins. White space does not count. A session that differs is counted where it says so itself (damage, left out, dropped as
broken), and silently wrong where it does not. The last column counts sessions that are right and would be dropped all the same, because
their reader found something that it does not understand.
"""

import json
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source, parse_location
from agent_pipeline_tests.sources.platforms.exports import (
    ANSWER,
    GOODBYE,
    SECOND,
    WHOLE,
    WRITTEN,
    placed,
)
from agent_pipeline_tests.sources.platforms.test_platforms import EXPORTS, unnumbered
from benchmarks.redaction import REAL_TRACES

OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))
HARBOR = tuple(f"harbor/order__{name}" for name in ("claude_code", "codex", "gemini_cli"))
AGENTS = ("claude_code.jsonl", "codex.jsonl", "gemini_cli.jsonl", "openhands", *HARBOR)
DATABASES = (
    (
        "stores/openai_agents_sessions.db",
        "stores/openai_agents_sessions.db",
        "message_data FROM agent_messages",
    ),
    (
        "stores/omniagents_home",
        "stores/omniagents_home/sessions/tau/airline/sessions.db",
        "msg_json FROM history",
    ),
)

ONLY_COUNTED = {"trailing_user", "trailing_tool"}
OF_READERS = {"unread", "torn_record", "cut_text", "missing_media", "invalid_item"}

Events = tuple[tuple[str, ...], ...]


def squeezed(value: Any) -> str:
    """The words of a content, a text or a list of parts, without white space."""
    parts = value if isinstance(value, list) else [value]
    words = [
        each.get("text") or each.get("content") or "" if isinstance(each, dict) else each or ""
        for each in parts
    ]
    return "".join("".join(map(str, words)).split())


def arguments_of(value: Any) -> str:
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True)
    except ValueError:
        return squeezed(value)


def events_of(messages: Iterable[dict[str, Any]], turns: bool = True) -> Events:
    """Who said what, the calls and the results, in order: chat messages, AgentDojo's and Inspect's, and items of the Agents SDK."""
    found: list[tuple[str, ...]] = []
    for each in messages:
        if each.get("type") in ("function_call", "function_call_output"):
            is_call = each["type"] == "function_call"
            found.append(
                ("call", each["name"], arguments_of(each["arguments"]))
                if is_call
                else ("result", squeezed(each["output"]))
            )
            continue
        error = each.get("error")
        content = (error.get("message") if isinstance(error, dict) else error) or each.get(
            "content"
        )
        if each["role"] in ("tool", "function"):
            found.append(("result", squeezed(content)))
            continue
        if turns and each["role"] == "assistant":
            found.append(("turn",))
        if words := squeezed(each.get("content")):
            found.append((each["role"], words))
        for call in [*(each.get("tool_calls") or ()), *filter(None, [each.get("function_call")])]:
            inner = call["function"] if isinstance(call.get("function"), dict) else call
            name = inner.get("name") or inner["function"]
            found.append(
                (
                    "call",
                    name,
                    arguments_of(next(inner[key] for key in ("arguments", "args") if key in inner)),
                )
            )
    return tuple(found)


def lines_of(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def items_in(path: Path, query: str) -> Iterator[list[Any]]:
    """The items of each session of a database."""
    sessions: dict[str, list[Any]] = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        for session, item in connection.execute(query):
            sessions.setdefault(session, []).append(json.loads(item))
    yield from (
        [each for each in items if each.get("type") != "reasoning"] for items in sessions.values()
    )


def real(folder: Path) -> Iterator[tuple[str, Iterable[Any]]]:
    """Each real store, and the messages of each of its sessions, read plainly."""
    for name in ("none_banking_slack_workspace", "important_instructions_slack_3pipelines"):
        yield (
            f"agentdojo/{name}.jsonl",
            (run["messages"] for run in lines_of(folder / "agentdojo" / f"{name}.jsonl")),
        )
    tau = folder / "tau-bench" / "gpt-4o-airline_tasks00-24.json"
    yield (
        "tau-bench/gpt-4o-airline_tasks00-24.json",
        (run["traj"] for run in json.loads(tau.read_text())),
    )
    answers = [
        json.loads(path.read_text())["answer_generation"]
        for path in sorted((folder / "toolbench").rglob("*_answer/*.json"))
    ]
    asked = (
        [{"role": "user", "content": each["query"]}]
        for each in answers
        if not each.get("train_messages")
    )
    yield (
        "toolbench",
        [*(each["train_messages"][-1] for each in answers if each.get("train_messages")), *asked],
    )
    runs = [
        json.loads(path.read_text())["history"]
        for path in sorted((folder / "swe-agent").rglob("*.traj"))
    ]
    yield "swe-agent", ([each for each in run if not each.get("is_demo")] for run in runs)
    for name, database, columns in DATABASES:
        yield name, items_in(folder / database, f"SELECT session_id, {columns} ORDER BY id")


def sessions_of(where: str) -> list[Session]:
    source = open_source(parse_location(where))
    return [
        session for key in source.partitions() for session in read_sessions(source, key, OPTIONS)
    ]


def says_so(session: Session) -> bool:
    return bool(session.broken or session.skipped or session.damage.keys() - ONLY_COUNTED)


def is_dropped(session: Session) -> bool:
    """Whether a session is dropped because of what its reader did not understand."""
    return session.broken in OF_READERS


def compared(
    expected: Iterable[Events], read: list[tuple[Events, bool, bool]]
) -> tuple[int, int, int, int, int]:
    """Sessions compared, right, different and saying so, silently wrong or lost, right and dropped."""
    wanted = Counter(expected)
    right = counted = wrong = dropped = 0
    for events, says, drops in read:
        if wanted[events]:
            wanted[events] -= 1
            right += 1
            dropped += drops
        elif says:
            counted += 1
        else:
            wrong += 1
    lost = max(0, wanted.total() - counted - wrong)
    return right + counted + wrong + lost, right, counted, wrong + lost, dropped


def written(folder: Path) -> tuple[int, int, int, int, int]:
    """The one conversation that was played with every SDK and agent, as their files give it."""
    read = []
    for name in (name for name, (_, _, _, made) in EXPORTS.items() if made is None):
        expected = unnumbered(WHOLE[name == "ag2.jsonl" :])
        read += [
            (unnumbered(each.messages) == expected, says_so(each), is_dropped(each))
            for each in sessions_of(str(placed(name, None, folder)))
        ]
    for each in sessions_of(str(WRITTEN / "messages.jsonl")):
        read.append(
            (
                unnumbered(each.messages) == unnumbered(WHOLE[each.session_id != "pydantic_ai" :]),
                says_so(each),
                is_dropped(each),
            )
        )
    for name in AGENTS:
        for each in sessions_of(f"{'atif:' if 'harbor' in name else ''}{WRITTEN / name}"):
            turns = [message for message in each.messages if message["role"] != "system"][-6:]
            answered = [turns[0]["content"], *turns[3:]] == [
                "Where is order 7?",
                ANSWER,
                SECOND,
                GOODBYE,
            ]
            read.append(
                (
                    answered
                    and "order.txt" in json.dumps(turns[1])
                    and "in Ulm" in turns[2]["content"],
                    says_so(each),
                    is_dropped(each),
                )
            )
    right, counted = (
        sum(good for good, _, _ in read),
        sum(says for good, says, _ in read if not good),
    )
    return (
        len(read),
        right,
        counted,
        len(read) - right - counted,
        sum(good and drops for good, _, drops in read),
    )


def main(folder: Path) -> None:
    print(
        "| store | sessions compared | right | different, and counted | silently wrong | right, but dropped |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    total = [0, 0, 0, 0, 0]
    for name, said in [*real(folder), ("files that SDKs and agents wrote", ())]:
        if said == ():
            with tempfile.TemporaryDirectory() as made:
                row = written(Path(made))
        else:
            turns = all(name != of_items for of_items, _, _ in DATABASES)
            read = [
                (events_of(each.messages, turns), says_so(each), is_dropped(each))
                for each in sessions_of(str(folder / name))
            ]
            row = compared((events_of(each, turns) for each in said), read)
        print(f"| {name} | {' | '.join(f'{each:,}' for each in row)} |", flush=True)
        total = [before + each for before, each in zip(total, row, strict=True)]
    print(f"| **all** | {' | '.join(f'{each:,}' for each in total)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REAL_TRACES)
