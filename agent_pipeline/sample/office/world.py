"""The office's state and tools: `free_rooms` reads the calendar, and `book` and `cancel` change it."""

from datetime import date
from typing import Any

from agent_pipeline.sample.world import Call, Records, World, tool

ROOMS = {"Oak": 4, "Elm": 6, "Fir": 8, "Ash": 10, "Yew": 14, "Bay": 20}
"""The number of seats of each meeting room, from the smallest to the largest room."""

HOURS = range(8, 18)
"""The full hours at which a meeting can begin. Every meeting takes one hour."""


def system(today: date) -> str:
    """Return the agent's instructions on a given day. They define the form of days and hours in
    tool calls.
    """
    return (
        f"Today is {today:%A %m-%d}. Days are MM-DD, hours 0-23. Book the smallest free room with "
        f"enough seats. "
        "To move: book the new slot, then cancel the old. State the facts, then act."
    )


def key(day: date) -> str:
    """Convert a day into the format that the tools use."""
    return f"{day:%m-%d}"


def slot(room: str, day: str, hour: int) -> str:
    """Return the id of a booking. A room can have one booking per hour."""
    return f"{room} {day} {hour:02d}"


def booking(room: str, day: str, hour: int, by: str) -> dict[str, object]:
    """Return the record of a booking. `by` is `user` or `other`."""
    return {"room": room, "day": day, "hour": hour, "by": by}


class Office(World):
    """An office with bookings by slot. The rooms are always the same."""

    tools = (
        tool("free_rooms", day={"type": "string"}, hour={"type": "integer"}),
        tool("book", room={"type": "string"}, day={"type": "string"}, hour={"type": "integer"}),
        tool("cancel", room={"type": "string"}, day={"type": "string"}, hour={"type": "integer"}),
    )
    reads = frozenset({"free_rooms"})

    def free_rooms(self, day: str, hour: int) -> dict[str, int]:
        """Return the free rooms at a time, and their seats."""
        return {
            room: seats
            for room, seats in ROOMS.items()
            if slot(room, day, hour) not in self.records
        }

    def book(self, room: str, day: str, hour: int) -> dict[str, object]:
        """Book a free room for the user."""
        if room not in ROOMS:
            return {"error": "no such room"}
        if slot(room, day, hour) in self.records:
            return {"error": "taken"}
        self.records[slot(room, day, hour)] = booking(room, day, hour, "user")
        return {"ok": True}

    def cancel(self, room: str, day: str, hour: int) -> dict[str, object]:
        """Cancel a booking of the user."""
        if self.records.get(slot(room, day, hour), {}).get("by") != "user":
            return {"error": "no such booking"}
        del self.records[slot(room, day, hour)]
        return {"ok": True}


def looked_up(call: Call, results: list[tuple[Call, Any]]) -> bool:
    """Return whether an earlier `free_rooms` showed the room that this call books. A cancellation
    needs no look-up.
    """
    day, hour = call.arguments["day"], call.arguments["hour"]
    wanted = {"day": day, "hour": hour}
    return call.name == "cancel" or any(
        past.arguments == wanted and call.arguments["room"] in free for past, free in results
    )


def with_booking(records: Records, room: str, day: str, hour: int, by: str = "user") -> Records:
    """Return the records with an additional booking."""
    return {**records, slot(room, day, hour): booking(room, day, hour, by)}
