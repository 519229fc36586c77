"""The office's tasks: what is wanted, what is free then, and how the calendar should end.

The shares and ranges below are the knobs on difficulty.
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
"""What happens (relative shares); `too small`: no free room is large enough, and the user names
another time; `none free`: the user leaves it at that, and a booking that was to be moved stays.
"""

FREE_ROOMS = (2, 4)
"""Fewest and most rooms that are free at a time: the more, the longer the list to pick from."""

DAYS_AHEAD = (1, 20)
"""How far ahead users plan, in days."""

UNFIT = ("book, too small", "book, none free", "move, none free")
"""The cases in which no room that is free at first is large enough."""

CHATTER = 0.25
"""Probability of a greeting, and of thanks, in a first message."""


def make_tasks(prefix: str, count: int, rng: Random) -> list[Task]:
    """`count` tasks with ids `<prefix>-001`, ...; no two begin with the same message."""
    tasks: dict[str, Task] = {}
    for number, case in enumerate(deck(CASES, count, rng), start=1):
        while True:
            task = make_task(f"{prefix}-{number:03d}", case, rng)
            if tasks.setdefault(task.turns[0].text, task) is task:
                break
    return list(tasks.values())


def make_task(task_id: str, case: str, rng: Random) -> Task:
    """One task: a calendar, the user's turns, and the calendar as it should become."""
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
    """Strangers' bookings at a time, so that a few rooms stay free, one of them large enough if and
    only if `fits`.
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
    """The records with the smallest free room that is large enough booked for the user."""
    fitting = [
        room
        for room, size in ROOMS.items()
        if size >= seats and slot(room, key(day), hour) not in records
    ]
    return with_booking(records, min(fitting, key=ROOMS.__getitem__), key(day), hour)
