"""The phrases of office users for days, hours and wishes. Each meaning has many forms."""

from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from agent_pipeline.sample.office.world import key


@dataclass(frozen=True)
class Words:
    """The phrases of a group of simulated users.

    In phrases, `{when}`, `{later}` and `{mine}` are times, `{seats}` is a number of people,
    `{room}` is a room, and `{ask}` is a request.

    Attributes:
        book: Requests for a room.
        book_unsized: Requests for a room that do not name the number of people.
        seats: Answers to the question for the number of people.
        other_time: Requests for another time.
        cancel: Requests to give back a room.
        move: Requests to move a booking.
        next_request: Sentences around a later request.
    """

    book: tuple[str, ...]
    book_unsized: tuple[str, ...]
    seats: tuple[str, ...]
    other_time: tuple[str, ...]
    cancel: tuple[str, ...]
    move: tuple[str, ...]
    next_request: tuple[str, ...]


TRAINED = Words(
    book=(
        "Book a room {when} for {seats} people, please.",
        "I need a room {when} for {seats}.",
        "Can you get us a room {when}? We are {seats}.",
        "We are {seats} and need a room {when}.",
        "Room for {seats} people {when}, please.",
        "Please reserve a room for {seats} {when}.",
        "A meeting {when}, {seats} people. Which room can we have? Book it.",
        "Find and book a room {when} for a team of {seats}.",
    ),
    book_unsized=(
        "I need a room {when}.",
        "Please book a room {when}.",
        "Can we have a room {when}?",
        "Book us a room {when}, please.",
        "Could you reserve a room {when}?",
    ),
    seats=(
        "We are {seats}.",
        "{seats} people.",
        "{seats}",
        "For {seats}.",
        "There will be {seats} of us.",
    ),
    other_time=(
        "Then {later}?",
        "What about {later}?",
        "{later} would do too.",
        "OK, {later} instead.",
        "Try {later}, please.",
    ),
    cancel=(
        "Please cancel {room} {mine}.",
        "I don't need {room} {mine} any more.",
        "Give back {room} {mine}, please.",
        "Our meeting in {room} {mine} is off. Please cancel the room.",
        "Cancel my booking of {room} {mine}.",
        "You can free {room} {mine}, we won't come.",
    ),
    move=(
        "Please move our meeting in {room} {mine} to {when}. We are {seats}.",
        "Can you move my {room} booking {mine} to {when}? {seats} people.",
        "I have {room} {mine}, but need it {when}, for {seats}. Please move it.",
        "Move {room} {mine} to {when}, please, {seats} seats.",
    ),
    next_request=(
        "{ask}",
        "One more thing. {ask}",
        "Thanks. {ask}",
        "OK, next: {ask}",
        "I have another request. {ask}",
    ),
)
"""The phrases of the sample."""

OTHER = Words(
    book=(
        "Would you find {seats} of us a room {when}?",
        "{seats} colleagues meet {when}. A room, please.",
        "We'd like to meet {when}, {seats} people in all. Please book.",
        "Is there a room for {seats} {when}? Then book it.",
    ),
    book_unsized=("Is there a room {when}? Then book it.", "We'd like to meet {when}."),
    seats=("{seats} of us.", "I count {seats}.", "Let's say {seats}."),
    other_time=("Could we meet {later}?", "How about {later}?", "Then take {later}."),
    cancel=(
        "{room} {mine} is no longer needed.",
        "Kindly cancel what I booked: {room} {mine}.",
        "We won't use {room} {mine}. Cancel it.",
    ),
    move=(
        "Our booking {mine} in {room} should be {when} instead, {seats} people.",
        "Shift {room} {mine} to {when}, we are {seats}.",
    ),
    next_request=("Great. Now this: {ask}", "While we are at it: {ask}", "Second question. {ask}"),
)
"""The phrases of the variant `other_words`. No session of the sample has them."""


@dataclass(frozen=True)
class When:
    """A time as the user writes it (`text`), and as a careful agent interprets it (`reading`), such
    as `2 pm = 14:00`.
    """

    text: str
    reading: str


def say_when(day: date, hour: int, today: date, rng: Random) -> When:
    """Return a date and a time in random order and wording."""
    said_day, said_hour = say_day(day, today, rng), say_hour(hour, rng)
    parts = [said_day, f"at {said_hour}"]
    if rng.random() < 0.3:
        parts.reverse()
    return When(
        " ".join(parts), f"{read_day(said_day, day, today)}, {equals(said_hour, f'{hour}:00')}"
    )


def say_day(day: date, today: date, rng: Random) -> str:
    """Return a date as a user writes it.

    The forms are `tomorrow`, `on Thursday` (within six days), `on April 9`, `on 9 April` and `on
    04-09`.
    """
    ahead = (day - today).days
    forms = [
        f"on {day:%B} {day.day}",
        f"on {day.day} {day:%B}",
        f"on {day:%b} {day.day}",
        f"on {key(day)}",
    ]
    if ahead == 1:
        forms = ["tomorrow"] * 3 + forms
    elif ahead <= 6:
        forms = [f"on {day:%A}", f"this {day:%A}", *forms]
    return rng.choice(forms)


def read_day(day_words: str, day: date, today: date) -> str:
    """Return a day in the user's words and in the form of the tools.

    If the user does not name a date, the days are listed from today to the day.
    """
    words = day_words.removeprefix("on ").removeprefix("this ")
    if words not in ("tomorrow", f"{day:%A}"):
        return equals(words, key(day))
    days = (today + timedelta(days=n) for n in range((day - today).days + 1))
    return f"{words}: {', '.join(f'{day:%A} {key(day)}' for day in days)}"


def say_hour(hour: int, rng: Random) -> str:
    """Return an hour as a user writes it: `14:00`, `2 pm` or `2pm`."""
    half, part_of_day = ("pm", "afternoon") if hour >= 12 else ("am", "morning")
    twelve = (hour - 1) % 12 + 1
    return rng.choice(
        (
            f"{hour}:00",
            f"{twelve} {half}",
            f"{twelve}{half}",
            f"{twelve} o'clock in the {part_of_day}",
        )
    )


def equals(words: str, value: str) -> str:
    """Return the user's words and their value, such as `2 pm = 14:00`. Return only the value if
    both are equal.
    """
    return value if words == value else f"{words} = {value}"
