"""The office's tasks: the user's wish, the free rooms, and the calendar at the end.

The shares and ranges below control the difficulty.
"""

from dataclasses import replace
from datetime import date, timedelta
from random import Random
from typing import Any

from agent_pipeline.sample.draw import deck, working_day
from agent_pipeline.sample.names import chatter
from agent_pipeline.sample.office import wording
from agent_pipeline.sample.office.agent import Request
from agent_pipeline.sample.office.world import HOURS, ROOMS, key, slot, system, with_booking
from agent_pipeline.sample.world import Records, Task, Turn, Variant

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

REQUESTS = {1: 75, 2: 25}
"""The number of requests per conversation, and their relative shares."""

NEXT_CASES = {"book": 60, "cancel": 40}
"""The cases of a second request, and their relative shares."""

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


def make_tasks(prefix: str, count: int, rng: Random, variant: Variant = "") -> list[Task]:
    """Return `count` tasks with ids `<prefix>-001`, and so on. All of them begin with different
    messages.

    A task of a variant has the same case and calendar as the task without a variant.

    Args:
        prefix: The first part of the ids.
        count: The number of tasks.
        rng: The random stream.
        variant: How the tasks differ from those of the sample; empty if they do not differ.
    """
    tasks: dict[str, Task] = {}
    decks = deck(CASES, count, rng), deck(REQUESTS, count, rng)
    for number, (case, requests) in enumerate(zip(*decks, strict=True), start=1):
        if variant == "second_request":
            requests = 2
        while True:
            maker = TaskMaker(f"{prefix}-{number:03d}", Random(rng.random()), variant)
            task = maker.make(case, requests)
            if tasks.setdefault(task.turns[0].text, task) is task:
                break
    return list(tasks.values())


class TaskMaker:
    """A generator of one task.

    Attributes:
        task_id: The id of the task.
        rng: The random stream of the facts. The wording has a stream of its own, so that other
            words do not change the facts.
    """

    def __init__(self, task_id: str, rng: Random, variant: Variant) -> None:
        self.task_id, self.rng = task_id, rng
        self._words_rng = Random(rng.random())
        self._words = wording.OTHER if variant == "other_words" else wording.TRAINED
        self._today = working_day(rng)
        days = sorted(rng.sample(range(DAYS_AHEAD[0], DAYS_AHEAD[1] + 1), 3))
        self._soon, self._later, self._last = (self._today + timedelta(days=n) for n in days)
        other_days = sorted(set(range(DAYS_AHEAD[0], DAYS_AHEAD[1] + 1)) - set(days))
        self._next_day = self._today + timedelta(days=rng.choice(other_days))
        self._start: Records = {}

    def make(self, case: str, requests: int) -> Task:
        """Return the task: a calendar, the user's turns, and the calendar at the end.

        Args:
            case: The case of the first request.
            requests: The number of requests, 1 or 2.
        """
        rng = self.rng
        seats, hour, other_hour = rng.randint(2, 12), rng.choice(HOURS), rng.choice(HOURS)
        self._start = occupied({}, self._soon, hour, seats, case not in UNFIT, rng)
        self._start = occupied(self._start, self._later, other_hour, seats, True, rng)
        mine = {
            "room": rng.choice(tuple(ROOMS)),
            "day": key(self._last),
            "hour": rng.choice(HOURS),
        }
        turns = self._turns(case, seats, hour, other_hour, mine)
        goal = self._start
        if case in ("cancel", "move", "move, none free"):
            self._start = with_booking(self._start, **mine)
        match case:
            case "book, none free" | "move, none free":
                goal = self._start
            case "cancel":
                pass
            case "book, too small":
                goal = booked(goal, self._later, other_hour, seats)
            case _:
                goal = booked(goal, self._soon, hour, seats)
        kind = case
        if requests > 1:
            next_case = rng.choices(list(NEXT_CASES), list(NEXT_CASES.values()))[0]
            turn, goal = self._next_request(next_case, goal)
            turns, kind = (*turns, turn), f"{case}, then {next_case}"
        system_prompt = system(self._today)
        return Task(self.task_id, kind, self._today, system_prompt, turns, self._start, goal)

    def _turns(
        self, case: str, seats: int, hour: int, other_hour: int, mine: dict[str, Any]
    ) -> tuple[Turn, ...]:
        """Return the messages of the first request.

        Args:
            case: The case.
            seats: The number of people.
            hour: The hour that the user asks for.
            other_hour: The hour that the user asks for if no room is large enough.
            mine: The booking that the user already has.
        """
        when = self._say_when(self._soon, hour)
        then_when = self._say_when(self._later, other_hour)
        mine_when = self._say_when(self._last, mine["hour"])
        slots = {
            "seats": seats,
            "room": mine["room"],
            "when": when.text,
            "later": then_when.text,
            "mine": mine_when.text,
        }
        book = Request("book", key(self._soon), hour, seats, reading=when.reading)
        then = replace(book, day=key(self._later), hour=other_hour, reading=then_when.reading)
        give_back = {"old": mine, "old_reading": mine_when.reading}
        words = self._words
        match case:
            case "book" | "book, none free":
                return (self._first(words.book, slots, book),)
            case "book, size unsaid":
                unsized = self._first(words.book_unsized, slots, replace(book, seats=None))
                return unsized, self._reply(words.seats, slots, book)
            case "book, too small":
                return (
                    self._first(words.book, slots, book),
                    self._reply(words.other_time, slots, then),
                )
            case "move" | "move, none free":
                return (self._first(words.move, slots, replace(book, intent="move", **give_back)),)
            case _:
                return (self._first(words.cancel, slots, Request("cancel", **give_back)),)

    def _next_request(self, case: str, goal: Records) -> tuple[Turn, Records]:
        """Return the message of a second request, and the calendar at the end.

        Args:
            case: The case of the request.
            goal: The calendar after the first request.
        """
        rng, day = self.rng, self._next_day
        seats, hour, room = rng.randint(2, 12), rng.choice(HOURS), rng.choice(tuple(ROOMS))
        when = self._say_when(day, hour)
        if case == "cancel":
            mine = {"room": room, "day": key(day), "hour": hour}
            self._start = with_booking(self._start, **mine)
            request = Request("cancel", old=mine, old_reading=when.reading)
            forms = self._words.cancel
            slots: dict[str, Any] = {"room": room, "mine": when.text}
        else:
            taken = occupied({}, day, hour, seats, True, rng)
            self._start = {**self._start, **taken}
            goal = booked({**goal, **taken}, day, hour, seats)
            request = Request("book", key(day), hour, seats, reading=when.reading)
            forms = self._words.book
            slots = {"seats": seats, "when": when.text}
        ask = self._fill(forms, slots)
        return self._reply(self._words.next_request, {"ask": ask}, request), goal

    def _say_when(self, day: date, hour: int) -> wording.When:
        """Return a time as the user writes it."""
        return wording.say_when(day, hour, self._today, self._words_rng)

    def _fill(self, forms: tuple[str, ...], slots: dict[str, Any]) -> str:
        """Return a random phrase with filled slots and a capital first letter."""
        text = self._words_rng.choice(forms).format(**slots)
        return text[:1].upper() + text[1:]

    def _first(self, forms: tuple[str, ...], slots: dict[str, Any], request: Request) -> Turn:
        """Return the first message of a conversation."""
        text = self._words_rng.choice(forms).format(**slots)
        return Turn(chatter(text, CHATTER, self._words_rng), request)

    def _reply(self, forms: tuple[str, ...], slots: dict[str, Any], request: Request) -> Turn:
        """Return a later message of a conversation."""
        return Turn(self._fill(forms, slots), request)


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
