"""The slips of a rooms agent in changing calls, and the results that it makes up if it skips a
look-up.
"""

from dataclasses import replace
from random import Random
from typing import Any

from agent_pipeline.sample.office.agent import Request
from agent_pipeline.sample.office.world import HOURS, ROOMS
from agent_pipeline.sample.world import Call


def wrong_tool(call: Call, rng: Random) -> Call:
    """Cancel instead of booking, or book instead of canceling."""
    return replace(call, name="cancel" if call.name == "book" else "book")


def invented_id(call: Call, rng: Random) -> Call:
    """Use a room that this office does not have."""
    return replace(
        call, arguments={**call.arguments, "room": rng.choice(("Pine", "Teak", "Sea", "Hall"))}
    )


def wrong_hour(call: Call, rng: Random) -> Call:
    """Use another hour than the user asked for."""
    hours = [hour for hour in HOURS if hour != call.arguments["hour"]]
    return replace(call, arguments={**call.arguments, "hour": rng.choice(hours)})


def wrong_day(call: Call, rng: Random) -> Call:
    """Swap month and day. If both are equal, use the next month instead."""
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
    """Make up a free room that is large enough."""
    fitting = [room for room, seats in ROOMS.items() if seats >= (request.seats or 1)]
    room = rng.choice(fitting)
    return {room: ROOMS[room]}
