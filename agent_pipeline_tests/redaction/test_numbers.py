"""Which numbers are taken for telephone numbers, and which are not."""

import pytest

from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline_tests.redaction.retail import SURROUNDINGS, written_numbers
from agent_pipeline_tests.redaction.test_redaction import session


@pytest.mark.parametrize("regions", [("US",), ("US", "DE", "GB", "FR")], ids="-".join)
def test_numbers_of_shops_couriers_and_calendars(regions):
    """An item's id became a telephone number if digits or a bracket followed it, and a model learned to call tools with it."""
    redactor = Redactor(RedactionOptions(phone_regions=regions))
    texts = list(written_numbers(seed=1, each=2))
    assert len(texts) > 20 * len(SURROUNDINGS)
    wrong = [
        (written.text, finds)
        for written in texts
        if "PHONE" in (finds := redactor.finds(session(written.text))).values()
    ]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "phone 4155552671 (mobile)",
        "phone 4155552671 - call after 10",
        "phone numbers: 4155552671, 4155552672",
        "(415) 555-2671 (2 lines)",
        "order 12 is late, call 415-555-2671",
        "Order 123, 415-555-2671",
        "2 people: +1 415 555 2671 2 days",
        "call 415.555.2671 10-15 days",
        '{"order": 12, "phone": "4155552671", "n": 2}',
        "Meine Telefonnummer ist 030 901820",
        "Handynummer: 0171 1234567",
    ],
)
def test_telephone_numbers_beside_other_digits(text):
    """Digits, brackets and orders around a telephone number hide it no more than they make one."""
    finds = Redactor(RedactionOptions()).finds(session(text))
    assert set(finds.values()) == {"PHONE"} and not any("10-15" in value for value in finds), finds
