"""The mistakes of a rooms agent in changing calls, and the results that it makes up if it skips a
look-up.
"""

from dataclasses import replace
from random import Random
from typing import Any

from agent_pipeline.sample.office.agent import Request
from agent_pipeline.sample.office.world import HOURS, ROOMS
from agent_pipeline.sample.world import Call


def wrong_tool(call: Call, rng: Random) -> Call:
    """Return the call with `cancel` instead of `book`, or with `book` instead of `cancel`."""
    return replace(call, name="cancel" if call.name == "book" else "book")


def invented_id(call: Call, rng: Random) -> Call:
    """Return the call with a room that this office does not have."""
    return replace(
        call, arguments={**call.arguments, "room": rng.choice(("Pine", "Teak", "Sea", "Hall"))}
    )


def wrong_hour(call: Call, rng: Random) -> Call:
    """Return the call with another hour than the user asked for."""
    hours = [hour for hour in HOURS if hour != call.arguments["hour"]]
    return replace(call, arguments={**call.arguments, "hour": rng.choice(hours)})


def wrong_day(call: Call, rng: Random) -> Call:
    """Return the call with month and day swapped. If they are equal, the month is changed instead."""
    month, day = call.arguments["day"].split("-")
    swapped = f"{day}-{month}" if day != month else f"{int(month) % 12 + 1:02d}-{day}"
    return replace(call, arguments={**call.arguments, "day": swapped})


SLIPS = {
    "wrong_tool": wrong_tool,
    "invented_id": invented_id,
    "wrong_hour": wrong_hour,
    "wrong_day": wrong_day,
}


def imagine(look_up: Call, request: Request, rng: Random) -> dict[str, Any]:
    """Return a made-up result of `free_rooms`: one free room that is large enough."""
    fitting = [room for room, seats in ROOMS.items() if seats >= (request.seats or 1)]
    room = rng.choice(fitting)
    return {room: ROOMS[room]}
