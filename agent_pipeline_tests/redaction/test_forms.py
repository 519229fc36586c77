"""What is found of the forms that people and programs log, and what is not taken for private."""

import random
import re
import time
from collections import Counter

import pytest
from kingfisher_sdk import Rules, Scanner
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, Leniency, PhoneNumberMatcher

from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.redaction import RedactionOptions, Redactor, numbers
from agent_pipeline.redaction.detectors import RULES, Detectors
from agent_pipeline.redaction.kinds import KINDS
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline_tests.redaction import forms
from agent_pipeline_tests.redaction.planting import stored
from agent_pipeline_tests.redaction.test_redaction import session


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(RedactionOptions())


def test_every_form_is_found_in_every_place_of_a_session_and_the_docs_say_so():
    assert len(forms.FORMS) >= 60
    table = forms.table()
    assert table in forms.DOC.read_text(encoding="utf-8"), (
        "python -m agent_pipeline_tests.redaction.forms writes it"
    )
    assert not [
        row
        for row in table.splitlines()[2:]
        if not row.endswith(f"| {forms.SEEDS * len(forms.PLACES)} |")
    ]


def test_a_value_that_stays_is_seen():
    class Blind:
        def redact(self, session: Session) -> None:
            session.messages[1]["content"] += " <EMAIL_1>"

    assert not any(forms.found(form, "user", 0, Blind()) for form in forms.FORMS)  # type: ignore[arg-type]


def test_every_rule_of_ours_finds_its_examples_and_nothing_in_the_others():
    rules, all_kinds = Rules([RULES], builtins=False), Detectors(forms.BY_SETTING, ["US"])
    assert len(rules) > 10
    for each in rules.metadata():
        rule = rules.detail(each["id"])
        assert each["id"].split(".")[1] in KINDS and rule["examples"]
        for example in rule["examples"]:
            assert each["id"] in {finding.rule_id for finding in Scanner(rules).scan(example)}, (
                example
            )
        assert not [example for example in rule["negative_examples"] if all_kinds.find(example)], (
            each["id"]
        )


DIGITS = "0123456789"
SAID = (
    "Your order #W{7} has items {10} and {10} ({10}).", "1. {10}\n2. {10}", "The tracking number is {12}.",
    "product_id {10}, price $1{3}.99",
    "Refund of {3}.50 to credit_card_{7}, gift_card_{7} or paypal_{7}.", "Flight HAT{3} on 2024-05-1{1} at 1{1}:05:00, seat {1}A",
    "There is a problem on my account with order {10}", "I'll call the tool for item {10}", "please call me about item {10}",
    "my phone case, item {10}", '{{"name": "Smartphone", "item_id": "{10}", "available": true}}', "card charged for invoice {10}",
    '{{"order_id": "{16}", "trace_id": "{19}", "timestamp": 17{11}}}', "commit {7}, build {8}, ticket {6}, version {1}.{2}.{3}",
    "The account holder bought SKU {12} on 2024{4}", "reservation {6}, certificate_{7}, total 1,{3}.00 USD", "user_{4} ordered {13}",
    "Exchange item {10} for {10}, the difference is {2}.{2}", "call function get_order with id {10}", "zip {5}, suite {3}, {3} River Road",
    "from 2024-05-1{1} to 2024-06-2{1}, {1} bags, {2} kg", "pass rate 0.{6}, {8} tokens, key {4}", "EAN 4{12}", "+{4} points, -{5} points",
)  # fmt: skip


def order(generator: random.Random) -> tuple[str, str]:
    """A customer's conversation about orders, as tau2's retail has them; and the one private value in it."""
    lines = [
        re.sub(
            r"\{(\d+)\}", lambda count: "".join(generator.choices(DIGITS, k=int(count[1]))), said
        )
        .replace("{{", "{")
        .replace("}}", "}")
        for said in generator.sample(SAID, 8)
    ]
    address = f"yusuf.rossi{generator.randrange(10**6)}@example.com"
    return "\n".join([*lines, f"I am {address}"]), address


def test_of_orders_flights_dates_amounts_and_ids_at_most_one_value_in_a_hundred_becomes_a_pseudonym():
    generator, redactor = random.Random(0), Redactor(RedactionOptions())
    wrong: Counter[str] = Counter()
    right = 0
    for number in range(1000):
        text, address = order(generator)
        one = Session(
            session_id=str(number),
            project="tau2",
            agent="retail",
            source="t",
            messages=[{"role": "user", "content": text}],
        )
        finds = redactor.finds(one)
        right += address in finds
        wrong.update(value for value in finds if value != address)
    assert right == 1000 and len(wrong) <= 10, wrong


PRIVATE = {
    "EMAIL": r"[\w.+'-]+@[\w-]+(?:\.[\w-]+)+",
    "PHONE": r"\+687 \d\d\.\d\d\.\d\d",
    "IBAN": r"(?:SE|GB|CH|DE)\w{18,24}",
    "PASSWORD": r"1j1l-2k3j|463820|flag\{[0-9a-f]{32}\}",
    "TOKEN": "6e8d74b9-e3da-43d9-bf3d-d4962b3659b5",
    "NAME": "[A-Z][a-z]{1,9}|[a-z]+[._][a-z_]+\\d*",
}
"""What is private in the real traces, by hand: addresses, shipping lines' telephones, IBANs, two passwords, a code, a link's token."""


def test_of_the_values_redacted_in_real_traces_at_most_one_in_a_hundred_is_not_private(real_traces):
    redactor, values = Redactor(RedactionOptions()), set()
    raw = ReadingOptions(redaction=RedactionOptions(enabled=False))
    for name in ("tau-bench", "agentdojo", "toolbench", "swe-agent", "inspect-logs"):
        source = open_source(real_traces / name)
        for key in source.partitions():
            for one in list(read_sessions(source, key, raw))[:: 10 if name == "agentdojo" else 1]:
                values |= set(redactor.finds(one).items())
    addresses = " ".join(value for value, kind in values if kind == "EMAIL").lower()
    wrong = [
        value
        for value, kind in values
        if not re.fullmatch(PRIVATE.get(kind, ""), value)
        or (kind == "NAME" and value.lower() not in addresses)
    ]
    assert len(values) > 80 and len(wrong) <= len(values) / 100, wrong


@pytest.mark.parametrize("field", ["trial", "model_id"])
def test_names_of_trials_models_scores_calls_and_unknown_items_are_looked_at(field):
    call = {
        "id": "for ann@shop.io",
        "type": "function",
        "function": {"name": "mail ann@shop.io", "arguments": "{}"},
    }
    one = Session(
        session_id="s",
        project="shop",
        agent="support",
        source="test",
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "for ann@shop.io", "content": "ok"},
        ],
        skipped={"card of ann@shop.io": 1},
        scores={"ann@shop.io": 0.5},
        **{field: "run of ann@shop.io"},
    )
    Redactor(RedactionOptions()).redact(one)
    assert getattr(one, field).startswith("private:") and "ann@" not in stored(one)
    assert (
        one.messages[1]["tool_calls"][0]["id"] == one.messages[2]["tool_call_id"] == "for <EMAIL_1>"
    )
    assert one.skipped == {"card of <EMAIL_1>": 1} and one.scores == {"<EMAIL_1>": 0.5}


def test_of_numbers_grouped_as_in_north_america_those_are_found_that_libphonenumber_finds():
    generator = random.Random(0)
    countries = COUNTRY_CODE_TO_REGION_CODE[1]
    for area in range(1000):
        gap, country, more = (
            generator.choice("-. "),
            generator.choice(countries),
            generator.randrange(10**7),
        )
        written = f"{area:03d}{gap}{more // 10**4:03d}{gap}{more % 10**4:04d}"
        matches = PhoneNumberMatcher(written, country, leniency=Leniency.STRICT_GROUPING)
        assert numbers._phones_in(written, (country,)) == tuple(
            match.raw_string for match in matches
        ), (written, country)


def test_a_number_grouped_as_in_north_america_costs_no_search_by_libphonenumber(
    redactor, monkeypatch
):
    monkeypatch.setattr(
        "phonenumbers.PhoneNumberMatcher", lambda *_, **__: pytest.fail("libphonenumber searched")
    )
    numbers._phones_in.cache_clear()
    one = session("call 201-555-0123 or 123-456-7890")
    redactor.redact(one)
    assert one.messages[0]["content"] == "call <PHONE_1> or 123-456-7890"


@pytest.mark.parametrize(
    "unit",
    [
        lambda n: f"person{n},person{n}@shop{n % 7}.example,{n}\n",
        lambda n: f'{{"mail": "ann{n}@shop.example", "name": "Ann Lee"}},',
        lambda n: f"{7919 * n % 10**10:010d} ",
        lambda n: f"4111 1111 {n % 10**4:04d} {7919 * n % 10**4:04d} ",
        lambda n: f"{n % 997}-{7919 * n % 1000}-{104729 * n % 10**4:04d} ",
        lambda n: "{",
        lambda n: '{"a": [',
        lambda n: "{}",
        lambda n: f"password: hunter{n}x ",
    ],
    ids=["csv", "json", "numbers", "cards", "dashes", "brace", "nested", "braces", "passwords"],
)
def test_twice_the_text_takes_about_twice_the_time(unit, redactor):
    def seconds(size: int) -> float:
        text, best = "".join(map(unit, range(size // len(unit(1000))))), float("inf")
        for _ in range(2):
            one = session(text)
            numbers._phones_in.cache_clear()
            began = time.process_time()
            redactor.redact(one)
            best = min(best, time.process_time() - began)
        return best

    small, large = seconds(30_000), seconds(120_000)
    assert (
        large < 8 * small + 0.1
    )  # four times the text; its square would take sixteen times as long
