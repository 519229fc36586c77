"""The policy of a good rooms agent, which takes the right step in every state."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from agent_pipeline.sample.world import Call, Mind, Step

PHRASES = {
    "ask_seats": (
        "For how many people?",
        "How many seats do you need?",
        "How many of you will there be?",
        "How many people will come?",
    ),
    "none_free": (
        "Another time?",
        "Is there another time?",
        "Sorry. When else?",
        "When else could you meet?",
    ),
    "booked": (
        "{room} is yours on {day} at {hour}:00.",
        "I have booked {room} on {day} at {hour}:00.",
        "Done: {room}, {day}, {hour}:00.",
        "Your room is {room}, {day} at {hour}:00.",
    ),
    "cancelled": (
        "The booking of {room} is cancelled.",
        "Done, {room} is free again.",
        "I have cancelled {room}.",
        "{room} on {day} is cancelled.",
    ),
    "failed": (
        "That did not work for {room}.",
        "Sorry, I could not do that for {room}.",
        "{room} could not be changed.",
        "Something went wrong with {room}.",
    ),
    "no_booking": (
        "You have no booking of {room} then.",
        "I found no such booking of {room}.",
        "There is no booking of {room} in your name then.",
        "{room} is not booked for you then.",
    ),
}


@dataclass(frozen=True)
class Request:
    """A request that a user makes to the rooms agent.

    Attributes:
        intent: The kind of request.
        day: The day as MM-DD.
        hour: The hour, 0-23.
        seats: The number of people; None if the user did not say it.
        old: The booking to cancel.
        reading: How the agent interprets the user's words for the time.
        old_reading: How the agent interprets the user's words for the time of the old booking.
    """

    intent: Literal["book", "cancel", "move"]
    day: str = ""
    hour: int = 0
    seats: int | None = None
    old: dict[str, Any] | None = None
    reading: str = ""
    old_reading: str = ""


def rooms(request: Request, mind: Mind) -> Generator[Step, Any, None]:
    """Yield the steps of the agent: find the free rooms, book the smallest room that is large
    enough, cancel the old booking, and answer.

    The notes pair each word for a time with its meaning, and each room's seats with the seats
    wanted. A small model that does not write these pairs down chooses a random day, hour and room.
    """
    old = request.old or {}
    if request.intent == "cancel":
        result = yield Call(
            "cancel", dict(old), f"Asked: cancel {old['room']}, {request.old_reading}."
        )
        yield mind.voice("cancelled" if result.get("ok") else "no_booking", **old)
        return
    seats = f"{request.seats} seats" if request.seats else "seats unsaid"
    moved = f" {old['room']}, {request.old_reading}, to" if old else ""
    first_line = f"Asked: {request.intent}{moved} {request.reading}, {seats}."
    if request.seats is None:
        yield mind.voice("ask_seats").after(first_line)
        return
    when = {"day": request.day, "hour": request.hour}
    free = yield Call("free_rooms", when, first_line)
    fitting = sorted((size, room) for room, size in free.items() if size >= request.seats)
    free_rooms = (
        f"{request.intent} {request.day} {request.hour}:00, {seats}: {compare(free, request.seats)}"
    )
    if not fitting:
        yield mind.voice("none_free").after(f"{free_rooms}. No free room is large enough.")
        return
    size, room = fitting[0 if mind.obeys else -1]
    chosen = {"room": room, **when}
    result = yield Call("book", chosen, f"{free_rooms if mind.obeys else f'{room} has {size}'}.")
    if result.get("ok") and old:
        result = yield Call(
            "cancel", dict(old), f"Then cancel {old['room']} {old['day']} {old['hour']}:00."
        )
    yield mind.voice("booked" if result.get("ok") else "failed", **chosen)


def compare(free: dict[str, int], wanted: int) -> str:
    """Return the free rooms compared with the seats wanted, from small to large, up to the first
    room that is large enough.
    """
    small = [f"{room} {seats} < {wanted}" for room, seats in free.items() if seats < wanted]
    large = [f"{room} {seats} >= {wanted}" for room, seats in free.items() if seats >= wanted]
    return ", ".join(small + large[:1]) or "none free"
