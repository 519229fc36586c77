"""`python -m benchmarks.redaction [STORE ...]`: what redaction finds in sessions, of what is planted in them, and what it costs.

`python -m benchmarks.redaction people MODEL` measures a spaCy pipeline alone, `python -m benchmarks.redaction long` sessions of 1 and 2 MB.

Without arguments: the sample, and the real traces where they are. Three tables for each store: finds per 1,000 messages of the untouched
sessions, by kind, with the values that occur most (look at them: a genuine address is not a false positive); how many of 200 planted values
of 20 kinds are found; the time of the whole ingestion with and without, in turn, each in a process of its own.
"""

import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline_tests.redaction.planting import KINDS, missed, places, planted
from benchmarks.ingestion import ratio, rounds, seconds

ROOT = Path(__file__).parents[1]
REAL_TRACES = Path(os.environ.get("AGENT_PIPELINE_REAL_TRACES") or ROOT.parent / "shared" / "data" / "traces")
SEEDS, EACH = 5, 10
SHOWN = 6


def sessions_of(store: Path) -> Iterator[Session]:
    """Every session as it was before redaction."""
    source = open_source(store)
    for key in source.partitions():
        yield from read_sessions(source, key, ReadingOptions(redaction=RedactionOptions(enabled=False)))


def finds(sessions: list[Session], redactor: Redactor) -> None:
    """What is found in untouched sessions."""
    messages = sum(len(session.messages) for session in sessions)
    replaced: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {}
    for session in sessions:
        for value, kind in redactor.finds(session).items():
            values.setdefault(kind, Counter())[value] += 1
        replaced.update(redactor.redact(session))
    print(f"\n| kind | in {len(sessions):,} sessions | per 1,000 of {messages:,} messages | values | in most sessions |")
    print("|---|---:|---:|---:|---|")
    for kind, count in replaced.most_common():
        found = values[kind]
        most = ", ".join(f"`{value}`" for value, _ in found.most_common(SHOWN))
        print(f"| {kind} | {count:,} | {1000 * count / messages:.2f} | {len(found)} | {most} |")


def recall(sessions: list[Session], redactor: Redactor) -> None:
    """How many of the planted values are found, by kind."""
    if len(places(sessions)) < EACH:
        print(f"\nToo few of its {len(sessions)} sessions have what a value can be planted in.")
        return
    lost: Counter[str] = Counter()
    count = 0
    for seed in range(SEEDS):
        copies, plants = planted(sessions, seed, EACH)
        for copy in copies:
            redactor.redact(copy)
        lost.update(plant.kind.name for plant in missed(plants, copies))
        count += len(plants)
    by_kind = ", ".join(f"{name} {number}" for name, number in lost.most_common()) or "none of any kind"
    print(f"\nPlanted, {SEEDS} times {EACH * len(KINDS)} values of {len(KINDS)} kinds: {count - lost.total()} of {count} found.")
    print(f"Missed: {by_kind}.")


def cost(store: Path) -> None:
    """The time of the ingestion, with and without."""
    with tempfile.TemporaryDirectory() as folder:
        found = rounds(["ours", "redacting"], store, Path(folder))
    without, with_ = found["ours"], found["redacting"]
    print(f"\nIngestion without {seconds(without)}, with {seconds(with_)}: {ratio(with_, without):.2f} times.", flush=True)


FIRST = ["Noah", "Mia", "Yusuf", "Fatima", "Aarav", "Isabella", "Raj", "Sofia", "Ethan", "Mei"]
LAST = ["Brown", "Garcia", "Rossi", "Hernandez", "Patel", "Johansson", "Kim", "Nguyen", "Smith", "Khan"]
SENTENCES = (
    "Hi, I'm {0} {1} and I want to return a lamp.", "My name is {0} {1}, zip 80279.",
    "please send it to {0} {1} instead",
    "{0} {1} here. Where is my order?", "The customer {0} {1} asked for a refund.",
    '{{"name": {{"first_name": "{0}", "last_name": "{1}"}}}}',
)  # fmt: skip


def people(model: str) -> None:
    """How many of 100 names, cities and streets a pipeline finds in a sentence, and what it takes for one in real sessions."""
    redactor = Redactor(RedactionOptions(types=("PERSON", "LOCATION"), ner_model=model))

    def found(text: str) -> dict[str, str]:
        return redactor.finds(Session(session_id="", project="", agent="", source="", messages=[{"role": "user", "content": text}]))

    for sentence in SENTENCES:
        whole = sum({first, last} <= set(found(sentence.format(first, last))) for first in FIRST for last in LAST)
        print(f"{whole:4} of 100 names in {sentence}")
    values = [found(f"I live at {number} {last} Road, Denver, CO 80{number}.") for number in range(100, 110) for last in LAST]
    print(
        f"{sum('Denver' in each for each in values):4} of 100 cities,", sum("Road" in " ".join(each) for each in values), "of 100 streets"
    )
    finds(list(sessions_of(REAL_TRACES / "tau-bench"))[::5], redactor)


def long() -> None:
    """The processor time that a session of one message takes, by what the message is full of."""
    draw, redactor = random.Random(0), Redactor(RedactionOptions())

    def number(count: int) -> str:
        return "".join(draw.choices("0123456789", k=count))

    forms: dict[str, Callable[[], str]] = {
        "addresses in CSV": lambda: f"p{number(6)}@shop{number(2)}.example,",
        "addresses in JSON": lambda: f'"p{number(6)}@shop{number(2)}.example",',
        "numbers of 10 to 16 digits": lambda: number(draw.randint(10, 16)) + " ",
        "cards": lambda: f"4{number(15)} ",
        "numbers with dashes": lambda: f"{number(3)}-{number(3)}-{number(4)}\n",
        "passwords": lambda: f"password: x{number(9)}a\n",
        "braces": lambda: "{" * 20,
    }
    for name, piece in forms.items():
        for megabytes in (1, 2):
            text = "".join(piece() for _ in range(megabytes * 1_000_000 // len(piece())))
            text = f"[{text}1]" if "JSON" in name else text
            one = Session(session_id="", project="", agent="", source="", messages=[{"role": "user", "content": text}])
            began = time.process_time()
            counts = redactor.redact(one)
            print(f"{name}, {len(text) / 1e6:.1f} MB: {time.process_time() - began:.1f} s, {dict(counts)}", flush=True)


def main(stores: list[Path]) -> None:
    redactor = Redactor(RedactionOptions())
    for store in stores:
        print(f"\n## {store.name}", flush=True)
        sessions = list(sessions_of(store))
        recall(sessions, redactor)
        finds(sessions, redactor)
        cost(store)


if __name__ == "__main__":
    real = [REAL_TRACES / name for name in ("stores/omniagents_home", "tau-bench", "agentdojo", "toolbench", "swe-agent", "inspect-logs")]
    if sys.argv[1:2] == ["people"]:
        sys.exit(people(sys.argv[2]))
    if sys.argv[1:] == ["long"]:
        sys.exit(long())
    main([Path(each).resolve() for each in sys.argv[1:]] or [ROOT / "data" / "sample", *(each for each in real if each.exists())])
