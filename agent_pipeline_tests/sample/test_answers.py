"""The reading of last answers: every phrase of a good agent is right, and false answers are not."""

import itertools

import pytest

from agent_pipeline.sample.draw import stream
from agent_pipeline.sample.office import OFFICE
from agent_pipeline.sample.office.answers import PATTERNS as OFFICE_PATTERNS
from agent_pipeline.sample.shop import SHOP
from agent_pipeline.sample.shop.answers import PATTERNS as SHOP_PATTERNS
from agent_pipeline.sample.world import Call, Say
from agent_pipeline.sample.writes import good_conduct

SLOTS = {
    "first": "tent",
    "second": "mug",
    "key": "K482",
    "order": "K482",
    "amount": 40,
    "days": 30,
    "limit": 80,
    "room": "Oak",
    "day": "04-09",
    "hour": 14,
}
REFUND = Call("refund", {"order": "K482", "amount": 40})
CANCEL = Call("cancel", {"order": "K482"})
BOOK = Call("book", {"room": "Oak", "day": "04-09", "hour": 14})
GIVE_BACK = Call("cancel", {"room": "Oak", "day": "04-09", "hour": 14})
WRITES = {
    SHOP: {"refunded": [REFUND], "cancelled": [CANCEL]},
    OFFICE: {"booked": [BOOK], "cancelled": [GIVE_BACK]},
}
PHRASES = [
    (domain, kind, phrase.format(**SLOTS))
    for domain in (SHOP, OFFICE)
    for kind, phrases in domain.phrases.items()
    for phrase in phrases
]
FACTS = {
    SHOP: "Asked: refund 1, tent. Found: 1. Tent K482: delivered, 42 > 30 days.",
    OFFICE: "Asked: book tomorrow: Monday 04-08, 2 pm = 14:00, 5 seats.",
}


@pytest.mark.parametrize(("domain", "kind", "phrase"), PHRASES)
def test_a_phrase_of_the_good_agent_is_right_where_its_kind_is_due_and_nowhere_else(
    domain, kind, phrase
):
    for right in domain.phrases:
        writes = WRITES[domain].get(kind, [])
        due = Say(f"{FACTS[domain]} {domain.phrases[right][0].format(**SLOTS)}", right)
        for answer in (phrase, f"{FACTS[domain]} {phrase}"):
            error = domain.said_wrong(answer, due, writes)
            assert (error is None) == (kind == right), (answer, right, error)


@pytest.mark.parametrize(
    ("domain", "kind", "phrase"), [each for each in PHRASES if each[1] in WRITES[each[0]]]
)
def test_a_claim_of_what_was_not_done_is_wrong(domain, kind, phrase):
    right = Say(phrase, kind)
    assert domain.said_wrong(phrase, right, []) is not None
    other = [Call(call.name, {**call.arguments, **OTHERS[domain]}) for call in WRITES[domain][kind]]
    assert domain.said_wrong(phrase, right, other) is not None


OTHERS = {SHOP: {"order": "K111"}, OFFICE: {"room": "Elm"}}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("refunded", "Sure! I've refunded $40 for your order K482. Anything else I can help with?"),
        ("refunded", "Your refund of 40 dollars has been processed."),
        ("refunded", "You will get 40 dollars back for the tent."),
        ("refunded", "Done!"),
        ("cancelled", "No problem, I have canceled order **K482** for you."),
        ("cancelled", "It's done."),
        ("too_late", "Unfortunately the return window for K482 has closed."),
        ("too_late", "Refunds are only possible within 30 days, and K482 came 42 days ago."),
        ("too_late", "I’m sorry, but it is too late for a refund of K482."),
        ("shipped", "Order K482 was already shipped, so it can't be cancelled."),
        ("shipped", "I cannot cancel it because it has been dispatched."),
        ("not_found", "I could not find an order K482. Could you tell me the right number?"),
        ("ask_key", "Sure, please share your order number."),
        ("ask_which", "Which of the two orders do you mean?"),
    ],
)
def test_another_wording_of_the_right_answer_is_right(kind, answer):
    due = Say(f"{FACTS[SHOP]} {SHOP.phrases[kind][0].format(**SLOTS)}", kind)
    assert SHOP.said_wrong(answer, due, WRITES[SHOP].get(kind, [])) is None


@pytest.mark.parametrize(
    ("kind", "answer", "writes"),
    [
        ("refunded", "I have refunded 80 dollars for K482.", [REFUND]),
        ("refunded", "Sorry, the 30 days for K482 are over.", [REFUND]),
        ("refunded", "I cannot refund K482.", [REFUND]),
        ("too_late", "Sorry.", []),
        ("too_late", "Yes?", []),
        ("too_late", "The 14 days for K482 are over, sorry.", []),
        ("too_late", "The 30 days for K111 are over, sorry.", []),
        ("too_late", "The 30 days for K482 are over, but I will refund 40 dollars.", []),
        ("shipped", "Done.", []),
        ("shipped", "K482 has shipped. I have cancelled it for you.", []),
        ("ask_which", "Which one? I have cancelled K482 in the meantime.", []),
    ],
)
def test_an_answer_that_a_careful_person_would_not_accept_is_wrong(kind, answer, writes):
    due = Say(f"{FACTS[SHOP]} {SHOP.phrases[kind][0].format(**SLOTS)}", kind)
    assert SHOP.said_wrong(answer, due, writes) is not None


@pytest.mark.parametrize(
    ("kind", "answer", "writes", "is_right"),
    [
        ("none_free", "All rooms that are large enough are booked then.", [], True),
        ("none_free", "There is no suitable room at 14:00.", [], True),
        ("none_free", "I have booked Oak for you.", [], False),
        ("booked", "I moved your booking from Elm to Oak.", [BOOK, GIVE_BACK], False),
        ("booked", "I have booked Oak on 04-09 at 15:00.", [BOOK], False),
        ("booked", "I have booked Oak, and the old booking is cancelled.", [BOOK, GIVE_BACK], True),
    ],
)
def test_an_answer_about_rooms(kind, answer, writes, is_right):
    due = Say(f"{FACTS[OFFICE]} {OFFICE.phrases[kind][0].format(**SLOTS)}", kind)
    assert (OFFICE.said_wrong(answer, due, writes) is None) == is_right


@pytest.mark.parametrize(("domain", "patterns"), [(SHOP, SHOP_PATTERNS), (OFFICE, OFFICE_PATTERNS)])
def test_every_kind_of_answer_has_a_pattern(domain, patterns):
    assert patterns.kinds.keys() == domain.phrases.keys()


@pytest.mark.parametrize("domain", [SHOP, OFFICE])
def test_the_good_agent_s_last_answer_is_right_in_every_task(domain):
    name = "support" if domain is SHOP else "rooms"
    for task in itertools.islice(domain.tasks(name, 150, stream("answers")), 150):
        conduct = good_conduct(task, domain)
        before, after = conduct.states[0], conduct.states[-1]
        if before == after:
            right = conduct.answers[-1]
            assert domain.said_wrong(right.text, right, []) is None, (task.kind, right.text)
