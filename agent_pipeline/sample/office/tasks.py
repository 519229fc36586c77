"""The office's tasks: the user's wish, the free rooms, and the calendar at the end.

The shares and ranges below control the difficulty.
"""

from dataclasses import replace
from datetime import date, timedelta
from random import Random

from agent_pipeline.sample.draw import deck, working_day
from agent_pipeline.sample.names import chatter
from agent_pipeline.sample.office import wording
from agent_pipeline.sample.office.agent import Request
from agent_pipeline.sample.office.world import HOURS, ROOMS, key, slot, system, with_booking
from agent_pipeline.sample.world import Records, Task, Turn

CASES = {
    "book": 24,
    "book, size unsaid": 12,
    "book, too small": 12,
    "book, none free": 18,
    "cancel": 10,
    "move": 12,
    "move, none free": 12,
}
"""The cases and their relative shares. In `too small`, no free room is large enough and the user
names another time. In `none free`, the user does not name another time, and a booking that
should be moved is kept.
"""

FREE_ROOMS = (2, 4)
"""The minimum and maximum number of free rooms at a time. More free rooms give a longer list to
choose from.
"""

DAYS_AHEAD = (1, 20)
"""The minimum and maximum number of days between today and a booking."""

UNFIT = ("book, too small", "book, none free", "move, none free")
"""The cases in which no room that is free at the first time is large enough."""

CHATTER = 0.25
"""The probability of a greeting, and of thanks, in a first message."""


def make_tasks(prefix: str, count: int, rng: Random) -> list[Task]:
    """Return `count` tasks with ids `<prefix>-001`, and so on. All of them begin with different
    messages.
    """
    tasks: dict[str, Task] = {}
    for number, case in enumerate(deck(CASES, count, rng), start=1):
        while True:
            task = make_task(f"{prefix}-{number:03d}", case, rng)
            if tasks.setdefault(task.turns[0].text, task) is task:
                break
    return list(tasks.values())


def make_task(task_id: str, case: str, rng: Random) -> Task:
    """Return a task: a calendar, the user's turns, and the calendar at the end."""
    today = working_day(rng)
    soon, later, last = (
        today + timedelta(days=n)
        for n in sorted(rng.sample(range(DAYS_AHEAD[0], DAYS_AHEAD[1] + 1), 3))
    )
    seats, hour, other_hour = rng.randint(2, 12), rng.choice(HOURS), rng.choice(HOURS)
    start = occupied({}, soon, hour, seats, case not in UNFIT, rng)
    start = occupied(start, later, other_hour, seats, True, rng)
    mine = {"room": rng.choice(tuple(ROOMS)), "day": key(last), "hour": rng.choice(HOURS)}
    when, then_when, mine_when = (
        wording.say_when(day, start_hour, today, rng)
        for day, start_hour in ((soon, hour), (later, other_hour), (last, mine["hour"]))
    )
    words = {
        "seats": seats,
        "room": mine["room"],
        "when": when.text,
        "later": then_when.text,
        "mine": mine_when.text,
    }
    book = Request("book", key(soon), hour, seats, reading=when.reading)
    then = replace(book, day=key(later), hour=other_hour, reading=then_when.reading)
    give_back = {"old": mine, "old_reading": mine_when.reading}

    def first(forms: tuple[str, ...], request: Request) -> Turn:
        return Turn(chatter(rng.choice(forms).format(**words), CHATTER, rng), request)

    def reply(forms: tuple[str, ...], request: Request) -> Turn:
        text = rng.choice(forms).format(**words)
        return Turn(text[:1].upper() + text[1:], request)

    match case:
        case "book" | "book, none free":
            turns = (first(wording.BOOK, book),)
        case "book, size unsaid":
            turns = (
                first(wording.BOOK_UNSIZED, replace(book, seats=None)),
                reply(wording.SEATS, book),
            )
        case "book, too small":
            turns = (first(wording.BOOK, book), reply(wording.OTHER_TIME, then))
        case "move" | "move, none free":
            turns = (first(wording.MOVE, replace(book, intent="move", **give_back)),)
        case _:
            turns = (first(wording.CANCEL, Request("cancel", **give_back)),)
    without_mine = start
    if case in ("cancel", "move", "move, none free"):
        start = with_booking(start, **mine)
    match case:
        case "book, none free" | "move, none free":
            goal = start
        case "cancel":
            goal = without_mine
        case "book, too small":
            goal = booked(without_mine, later, other_hour, seats)
        case _:
            goal = booked(without_mine, soon, hour, seats)
    return Task(task_id, case, today, system(today), turns, start, goal)


def occupied(
    records: Records, day: date, hour: int, seats: int, fits: bool, rng: Random
) -> Records:
    """Return the records with other people's bookings, so that only a few rooms are free at a time.

    One of the free rooms is large enough if and only if `fits` is true.

    Args:
        records: The bookings so far.
        day: The day.
        hour: The hour.
        seats: The number of seats that the user wants.
        fits: Whether a free room has enough seats.
        rng: The random stream.
    """
    large = [room for room, size in ROOMS.items() if size >= seats]
    small = [room for room in ROOMS if room not in large]
    count = rng.randint(*FREE_ROOMS)
    free = (
        {rng.choice(large), *rng.sample(tuple(ROOMS), count - 1)}
        if fits
        else set(rng.sample(small, min(count, len(small))))
    )
    for room in ROOMS:
        if room not in free:
            records = with_booking(records, room, key(day), hour, by="other")
    return records


def booked(records: Records, day: date, hour: int, seats: int) -> Records:
    """Return the records with the smallest free room that is large enough booked for the user."""
    fitting = [
        room
        for room, size in ROOMS.items()
        if size >= seats and slot(room, key(day), hour) not in records
    ]
    return with_booking(records, min(fitting, key=ROOMS.__getitem__), key(day), hour)
