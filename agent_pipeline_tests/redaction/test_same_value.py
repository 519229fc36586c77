"""One value has one pseudonym in all forms in which a session writes it, and nothing of it stays."""

import json
import random
import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.encoded import decode
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.redaction.trials import Known
from agent_pipeline.sessions.session import Session
from agent_pipeline_tests.redaction.planting import stored
from agent_pipeline_tests.redaction.same_value import MAKERS, planted, pseudonyms, put, remains
from agent_pipeline_tests.redaction.test_redaction import session


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(RedactionOptions())


def redacted(*contents: str, **more: Any) -> list[str]:
    """Return what becomes of the messages, the calls' arguments and the results of a session."""
    one = session(*contents, **more)
    Redactor(RedactionOptions()).redact(one)
    calls = [
        call["function"]["arguments"]
        for message in one.messages
        for call in message.get("tool_calls", ())
    ]
    return [*(message["content"] for message in one.messages if message["content"]), *calls]


def shown(one: Session) -> Session:
    """Return a session as a model sees it."""
    copy = deepcopy(one)
    [row] = with_surrogates(
        [{"row_id": "r", "session_id": "s", "task_key": "t", "messages": copy.messages}]
    )
    copy.messages = row["messages"]
    return copy


def test_what_remains_is_seen(redactor):
    """The check itself must find all forms in sessions that were not redacted."""
    for _, forms, one in planted(seed=3, count=50):
        assert len(remains(one, forms)) == len(forms), [form.text for form in forms]


def test_planted_values(redactor):
    """A telephone number in three forms became two pseudonyms, and the third form stayed in the table."""
    for value, forms, one in planted(seed=0, count=200):
        redactor.redact(one)
        assert not remains(one, forms) and len(pseudonyms(one, value.kind)) == 1, [
            form.text for form in forms
        ]
        assert not redactor.finds(one)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(MAKERS), st.integers(0, 10**6), st.data())
def test_any_forms_in_any_places(make, seed, data):
    """The structural rule: whatever forms of a value a session has, in whatever places, one pseudonym stands for all of them."""
    generator = random.Random(seed)
    value = make(generator)
    chosen = data.draw(st.lists(st.sampled_from(value.others), max_size=5))
    forms = [value.labelled, *chosen] if data.draw(st.booleans()) else [*chosen, value.labelled]
    one = put([form.text for form in forms], generator)
    Redactor(RedactionOptions()).redact(one)
    assert not remains(one, forms), stored(one)
    assert len(pseudonyms(one, value.kind)) == 1
    once = deepcopy(one)
    assert not Redactor(RedactionOptions()).redact(one) and one == once


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(MAKERS), st.integers(0, 10**6)),
        min_size=2,
        max_size=4,
        unique_by=lambda each: each[1],
    )
)
def test_several_values(makers):
    """Values that stand beside one another keep their own pseudonyms, and nothing of any of them stays."""
    values = [make(random.Random(seed)) for make, seed in makers]
    generator = random.Random(makers[0][1])
    forms = [form for value in values for form in (value.labelled, generator.choice(value.others))]
    generator.shuffle(forms)
    one = put([form.text for form in forms], generator)
    Redactor(RedactionOptions()).redact(one)
    assert not remains(one, [value.labelled for value in values])
    for kind in {value.kind for value in values}:
        cores = {value.labelled.core for value in values if value.kind == kind}
        assert len(pseudonyms(one, kind)) == len(cores), stored(one)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("card 4111 1111 1111 1111, ending in 1111", "card <CARD_1>, ending in <CARD_1:last4>"),
        ("card 4111 1111 1111 1111 (**** 1111)", "card <CARD_1> (**** <CARD_1:last4>)"),
        ("card 4111 1111 1111 1111, order 1111, 1111 points", "card <CARD_1>, order 1111, 1111 points"),
        ("IBAN DE89 3704 0044 0532 0130 00, bank code 37040044", "IBAN <IBAN_1>, bank code <IBAN_1:5-12>"),
        ("IBAN GB82 WEST 1234 5698 7654 32, sort code 12-34-56", "IBAN <IBAN_1>, sort code <IBAN_1:9-14>"),
        ("ana.lopez+shop@example.com, ana.lopez@example.com", "<EMAIL_1>, <EMAIL_1>"),
        ("ana.lopez@example.com is ANA LOPEZ, A. Lopez, ana_lopez_7", "<EMAIL_1> is <NAME_1:upper> <NAME_2:upper>, "
         "<NAME_1:initial>. <NAME_2>, <NAME_1:lower>_<NAME_2:lower>_7"),
        ("call +49 (0)30 901820, 030 901820, 0049-30-901820", "call <PHONE_1>, <PHONE_1>, <PHONE_1>"),
    ],
)  # fmt: skip
def test_parts(text, becomes):
    """A part of a value goes with the value if a word says what it is, and its pseudonym says which part it is."""
    assert redacted(text) == [becomes]


def test_a_number_of_two_kinds_is_one_value():
    """The telephone number of a customer is her account, too."""
    one = session(
        "phone (415) 555-2671, account 4155552671", arguments='{"customer_id": 4155552671}'
    )
    Redactor(RedactionOptions()).redact(one)
    assert set(re.findall(r"<\w+>", stored(one))) == {"<PHONE_1>"} and "2671" not in stored(one)


def test_relations_of_surrogates():
    """A model was shown `tonight.teach@brewer.example` and trained to say "Gardner Wyatt"."""
    for number in range(20):
        one = session(
            f"I am ana.lopez{number}@mail.example, card 4111 1111 1111 1111, IBAN DE89370400440532013000",
            arguments='{"last4": "1111", "bank_code": "37040044", "first_name": "Ana", "last_name": "Lopez"}',
            output=json.dumps({"user": f"ana_lopez_{number}", "name": "Ana Lopez"}),
            task_key=str(number),
        )
        Redactor(RedactionOptions()).redact(one)
        user, call, result = shown(one).messages
        arguments, output = (
            json.loads(call["tool_calls"][0]["function"]["arguments"]),
            json.loads(result["content"]),
        )
        address, card, account = re.fullmatch(
            r"I am (\S+), card (.+), IBAN (\S+)", user["content"]
        ).groups()
        first, last = arguments["first_name"], arguments["last_name"]
        assert first.lower() in address and re.sub("[^a-z]", "", last.lower()) in address
        assert output == {"user": f"{first}_{last}_{number}".lower(), "name": f"{first} {last}"}
        assert card.endswith(arguments["last4"]) and account[4:12] == arguments["bank_code"]


def test_owners_that_share_a_name():
    """The addresses of a family: each is made from its owner's names, and the family name is one value."""
    one = session("Mia Brown, mia.brown@mail.example, and Noah Brown, noah.brown@mail.example")
    Redactor(RedactionOptions()).redact(one)
    assert (
        one.messages[0]["content"]
        == "<NAME_1> <NAME_2>, <EMAIL_1>, and <NAME_3> <NAME_2>, <EMAIL_2:of-3-2>"
    )
    names = re.fullmatch(
        r"(\S+) (\S+), (\S+), and (\S+) (\S+), (\S+)", shown(one).messages[0]["content"]
    ).groups()
    for first, last, email in (names[:3], names[3:]):
        assert first.lower() in email and last.lower() in email
    assert names[1] == names[4]


def test_another_trial_says_the_value_in_another_form(redactor):
    """What one trial gives away, the others do not keep in another form."""
    known = Known()
    known.add(
        {"(415) 555-2671": "PHONE", "ana.lopez@mail.example": "EMAIL", "4111111111111111": "CARD"},
        True,
    )
    one = session("to 4155552671 by ana_lopez_4471, card ending in 1111")
    assert redactor.redact(one) == {}
    also = redactor.private_elsewhere(one, known)
    redactor.redact(one, also)
    assert (
        one.messages[0]["content"]
        == "to <PHONE_1> by <NAME_1:lower>_<NAME_2:lower>_4471, card ending in <CARD_1:last4>"
    )
    assert not redactor.private_elsewhere(one, known)


@given(st.text(alphabet=st.sampled_from(list("ab%40&#64;\\u0n[at](dot) \n")), max_size=40))
def test_places_in_decoded_texts(text):
    """Each range of a decoded text stands for a range of the encoded text, and decodes to itself where nothing is encoded."""
    for layer in decode(text)[:1]:
        ranges = [layer.encoded_range(place, place + 1) for place in range(len(layer.text))]
        assert all(start < end for start, end in ranges)
        assert [start for start, _ in ranges] == sorted(start for start, _ in ranges)
        same = [(place, start) for place, (start, end) in enumerate(ranges) if end - start == 1]
        assert all(layer.text[place] == text[start] for place, start in same)
