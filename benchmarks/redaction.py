"""`python -m benchmarks.redaction [STORE ...]`: what redaction finds in sessions, of what is planted in them, and what it costs.

`python -m benchmarks.redaction people MODEL` measures a spaCy pipeline alone, `python -m benchmarks.redaction long` sessions of 1 and 2 MB.
`python -m benchmarks.redaction values` counts what remains of 500 planted values that are written in 6 forms each, numbers of shops that
become telephone numbers, and rows of real traces with a made-up name that no visible text explains.
`python -m benchmarks.redaction harmless` counts harmless values that become a pseudonym, by their kind.

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
from typing import Any

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.redaction.surrogates import spoken, system_of
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline_tests.redaction import same_value
from agent_pipeline_tests.redaction.harmless import harmless_texts
from agent_pipeline_tests.redaction.personal_forms import REGIONS
from agent_pipeline_tests.redaction.planting import KINDS, missed, places, planted
from agent_pipeline_tests.redaction.retail import written_numbers
from benchmarks.ingestion import ratio, rounds, seconds

ROOT = Path(__file__).parents[1]
REAL_TRACES = Path(
    os.environ.get("AGENT_PIPELINE_REAL_TRACES") or ROOT.parent / "shared" / "data" / "traces"
)
SEEDS, EACH = 5, 10
SHOWN = 6


def sessions_of(store: Path) -> Iterator[Session]:
    """Every session as it was before redaction."""
    source = open_source(store)
    for key in source.partitions():
        yield from read_sessions(
            source, key, ReadingOptions(redaction=RedactionOptions(enabled=False))
        )


def finds(sessions: list[Session], redactor: Redactor) -> None:
    """What is found in untouched sessions."""
    messages = sum(len(session.messages) for session in sessions)
    replaced: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {}
    for session in sessions:
        for value, kind in redactor.finds(session).items():
            values.setdefault(kind, Counter())[value] += 1
        replaced.update(redactor.redact(session))
    print(
        f"\n| kind | in {len(sessions):,} sessions | per 1,000 of {messages:,} messages | values | in most sessions |"
    )
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
    by_kind = (
        ", ".join(f"{name} {number}" for name, number in lost.most_common()) or "none of any kind"
    )
    print(
        f"\nPlanted, {SEEDS} times {EACH * len(KINDS)} values of {len(KINDS)} kinds: {count - lost.total()} of {count} found."
    )
    print(f"Missed: {by_kind}.")


def cost(store: Path) -> None:
    """The time of the ingestion, with and without."""
    with tempfile.TemporaryDirectory() as folder:
        found = rounds(["ours", "redacting"], store, Path(folder))
    without, with_ = found["ours"], found["redacting"]
    print(
        f"\nIngestion without {seconds(without)}, with {seconds(with_)}: {ratio(with_, without):.2f} times.",
        flush=True,
    )


FIRST = ["Noah", "Mia", "Yusuf", "Fatima", "Aarav", "Isabella", "Raj", "Sofia", "Ethan", "Mei"]
LAST = [
    "Brown",
    "Garcia",
    "Rossi",
    "Hernandez",
    "Patel",
    "Johansson",
    "Kim",
    "Nguyen",
    "Smith",
    "Khan",
]
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
        return redactor.finds(
            Session(
                session_id="",
                project="",
                agent="",
                source="",
                messages=[{"role": "user", "content": text}],
            )
        )

    for sentence in SENTENCES:
        whole = sum(
            {first, last} <= set(found(sentence.format(first, last)))
            for first in FIRST
            for last in LAST
        )
        print(f"{whole:4} of 100 names in {sentence}")
    values = [
        found(f"I live at {number} {last} Road, Denver, CO 80{number}.")
        for number in range(100, 110)
        for last in LAST
    ]
    print(
        f"{sum('Denver' in each for each in values):4} of 100 cities,",
        sum("Road" in " ".join(each) for each in values),
        "of 100 streets",
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
            one = Session(
                session_id="",
                project="",
                agent="",
                source="",
                messages=[{"role": "user", "content": text}],
            )
            began = time.process_time()
            counts = redactor.redact(one)
            print(
                f"{name}, {len(text) / 1e6:.1f} MB: {time.process_time() - began:.1f} s, {dict(counts)}",
                flush=True,
            )


def values_in_forms() -> None:
    """How many of 500 values in 6 forms each have several pseudonyms or remain in a form, by kind."""
    redactor, wrong, count = Redactor(RedactionOptions()), Counter[str](), 0
    for value, forms, session in same_value.planted(seed=0, count=500):
        count += 1
        redactor.redact(session)
        remains = same_value.remains(session, forms)
        wrong[value.kind] += bool(remains) or len(same_value.pseudonyms(session, value.kind)) != 1
    print(
        f"{wrong.total()} of {count} values in {same_value.FORMS_PER_VALUE} forms remain or have several pseudonyms: {dict(+wrong)}"
    )


def numbers_of_shops() -> None:
    """How many order numbers, items, tickets, dates and amounts become telephone numbers."""
    for regions in (("US",), ("US", "DE", "GB", "FR")):
        redactor, texts = (
            Redactor(RedactionOptions(phone_regions=regions)),
            list(written_numbers(each=5)),
        )
        sessions = (
            Session(
                session_id="",
                project="",
                agent="",
                source="",
                messages=[{"role": "user", "content": each.text}],
            )
            for each in texts
        )
        wrong = sum("PHONE" in redactor.finds(session).values() for session in sessions)
        print(
            f"{wrong} of {len(texts)} texts with a number of a shop hold a telephone number (regions {', '.join(regions)})"
        )


def harmless_values(count: int = 40) -> None:
    """Print how many harmless values of each kind become a pseudonym, with the default region and with 17 regions."""
    for regions in (("US",), REGIONS):
        wrong: Counter[str] = Counter()
        redactor, texts = (
            Redactor(RedactionOptions(phone_regions=regions)),
            list(harmless_texts(count=count)),
        )
        for template, text in texts:
            one = Session(
                session_id="",
                project="",
                agent="",
                source="",
                messages=[{"role": "user", "content": text}],
            )
            wrong[template] += bool(redactor.finds(one))
        share = wrong.total() / len(texts)
        print(
            f"{wrong.total()} of {len(texts):,} harmless values of {len(wrong)} kinds ({share:.2%}), regions {', '.join(regions)}"
        )
        for template, number in (+wrong).most_common():
            print(f"  {number} of {count}: {template}")


def unexplained_names(stores: list[Path]) -> None:
    """How many sessions have an answer with a made-up name that stands in nothing that a model was shown before the answer."""
    redactor, count, unexplained = Redactor(RedactionOptions()), 0, 0
    for store in stores:
        for session in sessions_of(store):
            redactor.redact(session)
            count += 1
            unexplained += any(_unexplained(session))
    print(
        f"{unexplained} of {count:,} real sessions have a name in an answer that no visible text explains"
    )


def _unexplained(session: Session) -> Iterator[str]:
    system = system_of(session.messages)
    shown = spoken(session.messages, session.task_key, system)
    before = str(session.tools).lower()
    for written, seen in zip(session.messages, shown, strict=True):
        for text in _texts(written) if written["role"] == "assistant" else ():
            for match in PSEUDONYM.finditer(text):
                name = spoken(
                    [{"role": "user", "content": match.group()}], session.task_key, system
                )[0]["content"]
                if match["kind"] == "NAME" and name.lower() not in before:
                    yield name
        before += " ".join(_texts(seen)).lower()


def _texts(message: dict[str, Any]) -> list[str]:
    calls = message.get("tool_calls") or ()
    return [message.get("content") or "", *(call["function"]["arguments"] for call in calls)]


def main(stores: list[Path]) -> None:
    redactor = Redactor(RedactionOptions())
    for store in stores:
        print(f"\n## {store.name}", flush=True)
        sessions = list(sessions_of(store))
        recall(sessions, redactor)
        finds(sessions, redactor)
        cost(store)


if __name__ == "__main__":
    real = [
        REAL_TRACES / name
        for name in (
            "stores/omniagents_home",
            "tau-bench",
            "agentdojo",
            "toolbench",
            "swe-agent",
            "inspect-logs",
        )
    ]
    if sys.argv[1:2] == ["people"]:
        sys.exit(people(sys.argv[2]))
    if sys.argv[1:] == ["long"]:
        sys.exit(long())
    if sys.argv[1:] == ["harmless"]:
        sys.exit(harmless_values())
    if sys.argv[1:] == ["values"]:
        values_in_forms()
        numbers_of_shops()
        sys.exit(unexplained_names([each for each in real if each.exists()]))
    main(
        [Path(each).resolve() for each in sys.argv[1:]]
        or [ROOT / "data" / "sample", *(each for each in real if each.exists())]
    )
