"""The reading of the rooms agent's last answer by its words."""

import re
from collections.abc import Sequence

from agent_pipeline.sample.answers import AnswerPatterns
from agent_pipeline.sample.office.world import ROOMS
from agent_pipeline.sample.world import Call, Say

ROOM = re.compile(rf"\b(?:{'|'.join(ROOMS).lower()})\b")
DAY = re.compile(r"\b\d\d-\d\d\b")
HOUR = re.compile(r"\b(\d{1,2}):00\b")
OTHERS = re.compile(r"\b(?:all|every|everything|fully|others?|none)\b")
"""Words with which a sentence says that other people booked the rooms."""

ANSWERS = {
    "ask_seats": (
        r"\bhow (?:many|large|big)\b|\bnumber of (?:people|seats|persons|attendees|participants)\b"
    ),
    "none_free": (
        r"\b(?:another|other|different) (?:time|day|hour|slot)\b|\bwhen else\b|"
        r"\bno (?:free |available |suitable |such |large enough )*rooms?\b|"
        r"\bnone (?:of|is|are|free|available)\b|\bnothing (?:is )?(?:free|available)\b|"
        r"\b(?:all|every)\b[^.;]*\b(?:booked|taken|occupied|too small)\b"
    ),
    "booked": (
        r"\bbooked\b|\breserved\b|\bis (?:now )?yours\b|\byour (?:new )?room is\b|\bmoved\b|"
        rf"\bdone: (?:{'|'.join(ROOMS).lower()}), \d|"
        r"\bbooking\b[^;]*\b(?:confirmed|made)\b|"
        r"\b(?:i'll|i will|we'll|we will) (?:now )?(?:book|reserve|move)\b"
    ),
    "cancelled": (
        r"\bcancell?ed\b|\bis (?:now )?free again\b|\bgiven back\b|\bfreed\b|"
        r"\b(?:i'll|i will|we'll|we will) (?:now )?cancel\b"
    ),
    "failed": (
        r"\b(?:did not|didn't) work\b|\bwent wrong\b|\bfailed\b|"
        r"\b(?:could not|couldn't) (?:be changed|do that)\b"
    ),
    "no_booking": r"\bno (?:such )?(?:booking|reservation)\b|\b(?:not|isn't) booked\b",
}
"""The pattern of each kind of answer, for the agent's own phrases and for other wordings."""


def is_booked(sentence: str, writes: Sequence[Call]) -> bool:
    """Return whether a room was booked at the time that a sentence names, and only named rooms were
    changed.
    """
    if OTHERS.search(sentence):
        return True
    rooms = set(ROOM.findall(sentence))
    changed = {str(call.arguments["room"]).lower() for call in writes}
    days, hours = set(DAY.findall(sentence)), {int(hour) for hour in HOUR.findall(sentence)}
    return rooms <= changed and any(
        call.name == "book"
        and (not rooms or str(call.arguments["room"]).lower() in rooms)
        and (not days or call.arguments["day"] in days)
        and (not hours or call.arguments["hour"] in hours)
        for call in writes
    )


def is_cancelled(sentence: str, writes: Sequence[Call]) -> bool:
    """Return whether a room that a sentence names was given back."""
    rooms = set(ROOM.findall(sentence))
    cancelled = {str(call.arguments["room"]).lower() for call in writes if call.name == "cancel"}
    return bool(cancelled) and (not rooms or bool(rooms & cancelled))


PATTERNS = AnswerPatterns(
    kinds={kind: re.compile(pattern) for kind, pattern in ANSWERS.items()},
    claims={"booked": is_booked, "cancelled": is_cancelled},
    weaker={},
    names=ROOM,
)


def said_wrong(answer: str, right: Say, writes: Sequence[Call]) -> str | None:
    """Return the reason why the rooms agent's last answer is wrong, or None if it is right.

    Args:
        answer: The answer.
        right: The good agent's answer.
        writes: The calls that changed the calendar.
    """
    return PATTERNS.find_error(answer, right, writes)
