"""The helpers for users' tests: the store, the world, the checks of a reader and of a world."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_pipeline.testing as testing
from agent_pipeline.evaluation.worlds import load_world, task_outcome
from agent_pipeline.judging import EvaluationContext, parse_measure
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline.sources.formats.plain import OpenAIChatSource
from agent_pipeline.testing import (
    CITIES,
    WeatherWorld,
    check_reader,
    make_call,
    play_task,
    weather_session,
    write_store,
)

KEY = PartitionKey("home", "weather")


class Fake(OpenAIChatSource):
    """A reader whose store is the list `stored`."""

    name = "fake"
    stored: list[Session] = []
    keys = [KEY]

    @classmethod
    def detect(cls, path: Path) -> bool:
        return True

    def partitions(self) -> list[PartitionKey]:
        return self.keys

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        yield from self.stored

    def signature(self) -> str:
        return "always"


def test_names() -> None:
    """Every public name exists, and the types of a checker have the same names."""
    assert all(getattr(testing, name) for name in testing.__all__)
    with pytest.raises(AttributeError):
        _ = testing.nothing


def test_light_import() -> None:
    """A test of a measure does not wait for torch, and the package does not import this room."""
    script = (
        "import sys, agent_pipeline.testing as testing; testing.WeatherWorld, testing.check_reader;"
        "print([name for name in ('torch', 'transformers', 'dagster') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


@given(
    numbers=st.sets(st.integers(0, 99), min_size=1, max_size=5),
    judgment=st.sampled_from(["acceptable", "unacceptable", None]),
)
def test_store(
    numbers: set[int], judgment: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reader of the format returns what was written."""
    path = tmp_path_factory.mktemp("store") / "new" / "sessions.jsonl"
    sessions = [weather_session(number, judgment) for number in sorted(numbers)]
    source = open_source(write_store(path, sessions))
    read = list(source.sessions(KEY))
    assert source.name == "openai_chat" and source.partitions() == [KEY]
    for session, expected in zip(read, sessions, strict=True):
        assert session.messages == expected.messages and session.tools == expected.tools
        assert session.judgment == judgment and session.task_id == expected.task_id
        assert session.session_id == expected.session_id and not session.damage


def test_reader(tmp_path: Path) -> None:
    store = write_store(tmp_path / "sessions.jsonl", map(weather_session, range(3)))
    assert [session.session_id for session in check_reader(OpenAIChatSource, store)] == [
        "session-0000",
        "session-0001",
        "session-0002",
    ]


@pytest.mark.parametrize(
    ("stored", "keys", "fault"),
    [
        ([weather_session(2), weather_session(1)], [KEY], "ordered by id"),
        ([weather_session(1), weather_session(1)], [KEY], "ordered by id"),
        ([weather_session(1)], [PartitionKey("home", "other")], "home/other"),
        ([weather_session(1)], [KEY, KEY], "partitions()"),
        ([], [], "no partition"),
    ],
)
def test_wrong_reader(
    stored: list[Session], keys: list[PartitionKey], fault: str, tmp_path: Path
) -> None:
    reader = type("Wrong", (Fake,), {"stored": stored, "keys": keys})
    with pytest.raises(AssertionError, match=fault.replace("(", r"\(").replace(")", r"\)")):
        check_reader(reader, tmp_path)


def test_changing_reader(tmp_path: Path) -> None:
    """A reader that invents ids would make every night read everything again."""

    class Changing(Fake):
        reads = 0

        def sessions(self, key: PartitionKey) -> Iterator[Session]:
            Changing.reads += 1
            yield weather_session(Changing.reads)

    with pytest.raises(AssertionError, match="read again"):
        check_reader(Changing, tmp_path)


def test_undetected_store(tmp_path: Path) -> None:
    reader = type("Blind", (Fake,), {"detect": classmethod(lambda cls, path: False)})
    with pytest.raises(AssertionError, match="fake:"):
        check_reader(reader, tmp_path)


@pytest.mark.parametrize("number", [0, 7, len(CITIES)])
def test_world(number: int) -> None:
    """The recorded answers do the task; an answer without the call does not."""
    row = {"task_key": f"task-{number}"}
    session = weather_session(number)
    replies = [message for message in session.messages if message["role"] == "assistant"]
    episode = play_task(WeatherWorld, row, replies)
    assert episode.done and episode.wrong_changes == [] and episode.calls == 1
    texts = [(message["role"], message["content"]) for message in episode.messages]
    assert texts == [(message["role"], message["content"]) for message in session.messages]
    assert not play_task(WeatherWorld, row, ["It is sunny."]).done
    wrong = make_call("weather", {"city": "Paris", "days": 1})
    assert not play_task(WeatherWorld, row, [wrong, "It is sunny."]).done


def test_world_by_name() -> None:
    world = load_world("agent_pipeline.testing.weather:WeatherWorld")()
    world.reset(task_key="task-1")
    assert task_outcome(world).reward == 0.0


def test_measure() -> None:
    context = EvaluationContext.from_session(weather_session(0))
    assert parse_measure("called_tool('weather', times=1)").take(context).passed


@pytest.mark.slow
def test_tiny_model(tmp_path: Path) -> None:
    """The model renders and answers; the tests of training train it."""
    from agent_pipeline.models.chat_renderer import load_renderer
    from agent_pipeline.testing import make_tiny_model

    renderer = load_renderer(make_tiny_model(tmp_path / "model"))
    session = weather_session(0)
    assert renderer.prompt_ids(session.messages[:2], session.tools)
