"""`python -m benchmarks.served_tokens [FOLDER]`: does llama.cpp's server show the model what training showed it?

A small random model with our template is written as GGUF and loaded by llama.cpp's server, which renders and tokenizes. What is compared:

prompts   of AgentDojo's banking sessions, half of which pay amounts with decimals: each prompt's text, and each trained call's arguments
turns     of conversations of three and more turns (the sample, AgentDojo, tau-bench): the tokens of the training row, and those of the
          messages as a client sends them to the OpenAI-compatible interface, with the line ends that the server returned

The last table counts, by tool, the recorded calls that llama.cpp's grammar for tool calls keeps a model from writing.
FOLDER holds the real traces.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ExportError
from agent_pipeline.export.conversations import LEAST_TURNS, as_clients_send, turns_of
from agent_pipeline.export.converter import convert
from agent_pipeline.export.limits import unwritable_calls
from agent_pipeline.export.llama import LlamaCpp
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.json_numbers import NumberText, parse_json
from agent_pipeline.models.special_tokens import MARK
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session, list_calls
from agent_pipeline.sources import open_source
from agent_pipeline.tokenization.loss_masks import encode_conversation
from agent_pipeline_tests.tiny import make_tiny_base
from benchmarks.redaction import REAL_TRACES

ROOT = Path(__file__).parents[1]
OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))
ROWS = 200
LONGEST_CONTEXT = 512
"""Tokens; nothing is generated."""


def sessions_of(location: Path) -> Iterator[Session]:
    """Yield the sessions of a store that have an answer."""
    source = open_source(location)
    for key in source.partitions():
        for session in read_sessions(source, key, OPTIONS):
            if turns_of(session.messages):
                yield session


def up_to_last_answer(session: Session) -> list[dict[str, Any]]:
    """Return a session's messages up to its last answer, as a training row has them."""
    last = max(
        index for index, message in enumerate(session.messages) if message["role"] == "assistant"
    )
    return session.messages[: last + 1]


def has_decimal(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether the arguments of a call hold a number that Python reads as a float."""
    decimals: list[str] = []
    for _, raw in list_calls(list(messages)):
        with suppress(ValueError):
            json.loads(raw, parse_float=decimals.append)
    return bool(decimals)


def arguments_of_turn(turn: str) -> list[Any]:
    """Return the arguments of the calls in an assistant's rendered turn, with the digits of each number."""
    found = []
    decoder = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText)
    head = re.compile(r'<tool_call>\n\{"name":"[^"]*","arguments":')
    position = 0
    while match := head.search(turn, position):
        value, position = decoder.raw_decode(turn, match.end())
        found.append(value)
    return found


def trained_as_recorded(
    renderer: ChatRenderer, messages: Sequence[dict[str, Any]], tools: Any
) -> bool:
    """Return whether each trained call has the recorded arguments: keys in their order, values, and each number's digits."""
    text = renderer.render(list(messages), tools)
    spans = renderer.assistant_spans(list(messages), tools, text)
    trained = [value for start, end in spans for value in arguments_of_turn(text[start:end])]
    return str(trained) == str([parse_json(raw) for _, raw in list_calls(list(messages))])


def compare_prompts(llama: LlamaCpp, renderer: ChatRenderer, sessions: Sequence[Session]) -> None:
    """Print how many banking sessions have the same prompts in llama.cpp, and calls that are trained as they were recorded."""
    counts: Counter[str] = Counter()
    for session in sessions:
        messages, tools = up_to_last_answer(session), session.tools or []
        decimal = has_decimal(messages)
        counts["sessions"] += 1
        counts["decimals"] += decimal
        asked = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        counts["prompts"] += len(asked)
        try:
            equal = [
                renderer.render(messages[:index], tools, True)
                == llama.render(as_clients_send(messages[:index]), tools)
                for index in asked
            ]
        except ExportError as error:
            print(f"{session.session_id}: {error}")
            equal = [False]
        counts["equal prompts"] += sum(equal)
        counts["equal"] += all(equal)
        counts["equal with decimals"] += all(equal) and decimal
        recorded = trained_as_recorded(renderer, messages, tools)
        counts["recorded"] += recorded
        if not (all(equal) and recorded):
            print(f"differs: {session.session_id}")
    print(
        f"AgentDojo's banking sessions: {counts['sessions']}, {counts['decimals']} of them with decimals in a call"
    )
    print(f"- all prompts equal to llama.cpp's: {counts['equal']} ({counts['equal prompts']} of {counts['prompts']} prompts), "
          f"with decimals {counts['equal with decimals']}")  # fmt: skip
    print(f"- all trained calls equal to the recorded text: {counts['recorded']}")


def compare_turns(
    llama: LlamaCpp, renderer: ChatRenderer, stores: dict[str, list[Session]]
) -> None:
    """Print how many conversations of several turns have the tokens of their training row at the server."""
    print(
        f"\n| conversations of {LEAST_TURNS} and more turns | rows | turns | calls | tokens | equal | special tokens in a text |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    share = -(-ROWS // len(stores))
    for name, sessions in stores.items():
        long = [
            session for session in sessions if turns_of(up_to_last_answer(session)) >= LEAST_TURNS
        ]
        counts: Counter[str] = Counter()
        for session in long[:: max(len(long) // share, 1)][:share]:
            messages, tools = up_to_last_answer(session), session.tools or []
            ids = encode_conversation(renderer, messages, tools).input_ids
            served = llama.tokenize(
                llama.render(as_clients_send(messages), tools, add_generation_prompt=False),
                add_special=True,
            )
            literal = MARK in renderer.render(messages, tools)
            same = served == ids
            counts += Counter(
                rows=1,
                turns=turns_of(messages),
                calls=len(list_calls(messages)),
                tokens=len(ids),
                equal=same,
                literal=literal,
            )
            if not same:
                at = next(
                    (
                        i
                        for i, pair in enumerate(zip(ids, served, strict=False))
                        if pair[0] != pair[1]
                    ),
                    min(len(ids), len(served)),
                )
                print(f"differs: {session.session_id} at token {at}: {renderer.tokenizer.decode(ids[at - 5 : at + 8])!r} in training, "
                      f"{renderer.tokenizer.decode(served[at - 5 : at + 8])!r} served")  # fmt: skip
        values = [counts[each] for each in ("rows", "turns", "calls", "tokens", "equal", "literal")]
        print(f"| {name} | {' | '.join(f'{value:,}' for value in values)} |")


def print_limits(stores: dict[str, list[Session]]) -> None:
    """Print the recorded calls that llama.cpp's grammar keeps a model from writing."""
    print("\n| store | tool | calls | cannot be written | why |\n|---|---|---:|---:|---|")
    for name, sessions in stores.items():
        found = unwritable_calls(
            {"messages": session.messages, "tools": session.tools} for session in sessions
        )
        for tool, limits in sorted(found.items(), key=lambda item: -sum(item[1].reasons.values())):
            why = ", ".join(f"{reason} ({count})" for reason, count in limits.reasons.items())
            print(f"| {name} | {tool} | {limits.count} | {sum(limits.reasons.values())} | {why} |")


def main(traces: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = make_tiny_base(Path(folder) / "base")
        renderer = load_renderer(base)
        renderer.tokenizer.save_pretrained(base)
        template = renderer.template
        print(f"template: {template.origin}, arguments as {template.arguments_as}")
        stores = {
            "sample": list(sessions_of(ROOT / "data" / "sample")),
            "AgentDojo": list(sessions_of(traces / "agentdojo")),
            "tau-bench": list(sessions_of(traces / "tau-bench")),
        }
        with LlamaCpp(
            convert(base, Path(folder) / "tiny.gguf", "f16"), n_ctx=LONGEST_CONTEXT
        ) as llama:
            banking = [
                session
                for session in stores["AgentDojo"]
                if "banking" in f"{session.project}/{session.session_id}"
            ]
            compare_prompts(llama, renderer, banking)
            compare_turns(llama, renderer, stores)
        print_limits(stores)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REAL_TRACES)
