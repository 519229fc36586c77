"""A small agent that reports the weather: its tool, its sessions, and the world of its tasks.

The user asks for the weather in a city. The agent calls the tool `weather` and answers. A tiny
model learns this job in seconds.
"""

import json
from collections.abc import Collection, Sequence
from typing import Literal, TypedDict

from agent_pipeline.datasets.splits import Split
from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.session import Message, Session, Tool, ToolCall

CITIES = (
    "Oslo",
    "Rome",
    "Bonn",
    "Lima",
    "Kyiv",
    "Riga",
    "Bern",
    "Cork",
    "Graz",
    "Pisa",
    "Nice",
    "Turin",
)
"""The cities of the tasks."""
WEATHER_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
"""The only tool of the agent."""
_SYSTEM = "You report the weather."


class WeatherRow(TypedDict):
    """The columns of `sft_dataset` that training and evaluation read."""

    row_id: str
    session_id: str
    content_sha256: str
    task_key: str
    split: Split
    messages: list[Message]
    tools: list[Tool]


def make_call(name: str, arguments: JsonObject, call_id: str = "call00001") -> ToolCall:
    """Return a tool call as an assistant message holds it."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def weather_messages(number: int) -> list[Message]:
    """Return the conversation of a task: a question, a call, its result and the answer."""
    city, days = _city_and_days(number)
    return [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": _question(number)},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [make_call("weather", {"city": city, "days": days})],
        },
        {"role": "tool", "tool_call_id": "call00001", "content": _report(city)},
        {"role": "assistant", "content": f"It is sunny in {city}."},
    ]


def weather_row(number: int, split: Split = "train") -> WeatherRow:
    """Return the row of `sft_dataset` for one session of the agent."""
    return {
        "row_id": f"row-{number}",
        "session_id": f"session-{number}",
        "content_sha256": f"{number:064x}",
        "task_key": f"task-{number}",
        "split": split,
        "messages": weather_messages(number),
        "tools": [WEATHER_TOOL],
    }


def weather_session(
    number: int, judgment: Literal["acceptable", "unacceptable"] | None = "acceptable"
) -> Session:
    """Return a session of the agent `home/weather`.

    Args:
        number: The number of the task. It chooses the city and the number of days.
        judgment: The verdict of the store. `None` means that nobody judged the session.
    """
    return Session(
        session_id=f"session-{number:04}",
        project="home",
        agent="weather",
        source="testing",
        messages=weather_messages(number),
        tools=[WEATHER_TOOL],
        tools_origin="source",
        task_id=f"task-{number}",
        judgment=judgment,
    )


class WeatherWorld:
    """A world with the tasks of the weather agent.

    A task is done if the model asked for the right city and the right number of days.
    """

    reads: Collection[str] = ("weather",)
    """The tool only looks something up."""

    def reset(self, task_key: str = "task-0", **row: object) -> str:
        """Begin a task, such as `task-3`, and return the question of the user."""
        number = int(task_key.rpartition("-")[2])
        self._expected = _city_and_days(number)
        self._asked_for: list[tuple[str, int]] = []
        self.system: str | None = _SYSTEM
        self.tools: Sequence[Tool] | None = [WEATHER_TOOL]
        self.wrong_changes: list[str] = []
        return _question(number)

    def get_reward(self) -> float:
        """Return 1.0 if the model asked for the weather of the task."""
        return 1.0 if self._expected in self._asked_for else 0.0

    def weather(self, city: str, days: int = 1) -> str:
        """Report the weather in a city.

        Args:
            city: The name of the city.
            days: The number of days.
        """
        self._asked_for.append((city, days))
        return _report(city)


def _city_and_days(number: int) -> tuple[str, int]:
    return CITIES[number % len(CITIES)], 1 + number % 5


def _question(number: int) -> str:
    city, days = _city_and_days(number)
    return f"How is {city} for {days} days?"


def _report(city: str) -> str:
    return f'{{"city": "{city}", "sun": true}}'
