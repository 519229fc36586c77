"""An office: meeting rooms that users want to book, move or give back, and an agent that must pick
the right one.
"""

from agent_pipeline.sample.environment import Environment
from agent_pipeline.sample.office.agent import PHRASES, rooms
from agent_pipeline.sample.office.answers import said_wrong
from agent_pipeline.sample.office.slips import SLIPS, imagine
from agent_pipeline.sample.office.tasks import make_tasks
from agent_pipeline.sample.office.world import Office, looked_up
from agent_pipeline.sample.world import Domain

OFFICE = Domain(
    Office,
    rooms,
    PHRASES,
    make_tasks,
    imagine,
    SLIPS,
    looked_up,
    said_wrong,
    variants=("other_words", "second_request"),
)


class World(Environment):
    """The office as an environment of TRL's `GRPOTrainer`, and of the asset `episodes`."""

    domain = OFFICE
    variants = OFFICE.variants

    def free_rooms(self, day: str, hour: int) -> str:
        """Find the rooms that are free at a time.

        Args:
            day: The day, as MM-DD.
            hour: The hour, 0 to 23.

        Returns:
            The seats of each free room, as JSON.
        """
        return self._call("free_rooms", day=day, hour=hour)

    def book(self, room: str, day: str, hour: int) -> str:
        """Book a free room for the user.

        Args:
            room: The room's name.
            day: The day, as MM-DD.
            hour: The hour, 0 to 23.

        Returns:
            {"ok":true}, or an error, as JSON.
        """
        return self._call("book", room=room, day=day, hour=hour)

    def cancel(self, room: str, day: str, hour: int) -> str:
        """Give back a booking of the user.

        Args:
            room: The room's name.
            day: The day, as MM-DD.
            hour: The hour, 0 to 23.

        Returns:
            {"ok":true}, or an error, as JSON.
        """
        return self._call("cancel", room=room, day=day, hour=hour)
