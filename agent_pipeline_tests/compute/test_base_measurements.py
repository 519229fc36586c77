"""Measurements of the base model: reused if nothing that affects them changed, deleted with their
sessions."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_pipeline.compute import tasks
from agent_pipeline.compute.base_measurements import FILE, KeptMeasurements, keep_episodes
from agent_pipeline.compute.params import TaskParams
from agent_pipeline.compute.registry import Task
from agent_pipeline.config.assets import EpisodesConfig
from agent_pipeline.evaluation.base_measurements import BASE_MEASUREMENTS
from agent_pipeline.evaluation.confidence import TurnConfidence
from agent_pipeline.evaluation.episodes import Episode
from agent_pipeline.evaluation.evaluate import EvaluationOptions
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.governance.lineage import MEASURED, models_of
from agent_pipeline.governance.pruning import prune
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.promotion.stored_scores import read_scores
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact, put_rows
from agent_pipeline_tests.task_params import task_values
from agent_pipeline_tests.training.world import row

KEY = PartitionKey("tau", "airline")
TASK = Task("measure", 1, (), TaskParams, lambda params, progress: {})


class Weather:
    """A world in which every task is done by an answer."""

    def reset(self, messages: list[dict[str, Any]], **row: Any) -> None:
        """Begin a task."""

    def get_reward(self) -> float:
        return 1.0

    def weather(self, city: str, days: int) -> str:
        """Return the weather.

        Args:
            city: The city.
            days: The number of days.
        """
        return f'{{"city": "{city}", "sun": true}}'


WORLD = f"{__name__}:{Weather.__name__}"


@pytest.fixture
def kept(tmp_path: Path) -> KeptMeasurements:
    params = TaskParams(**task_values(tmp_path / "lake", KEY, tmp_path / "cache"))
    return KeptMeasurements(TASK, params, "tests", {"sessions": ["s"]}, "cpu float32")


class Counter:
    """A measurement that counts how often it is made."""

    def __init__(self, value: Any = 0.1) -> None:
        self.calls, self.value = 0, value

    def __call__(self) -> list[Any]:
        self.calls += 1
        return [self.value]


def test_reuse(kept: KeptMeasurements) -> None:
    """The same measurement is made once, and is the same to the last bit of a number."""
    compute = Counter(0.1 + 0.2)
    results = [kept.measure("f", list[float], compute) for _ in range(3)]
    assert compute.calls == 1 and results == [[0.1 + 0.2]] * 3
    assert len({stored.identity for stored in kept.used}) == 1
    assert kept.used[0].manifest["made_from"]["device"] == "cpu float32"


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: {"device": "cpu bfloat16"},
        lambda kept: {"task": dataclasses.replace(TASK, version=2)},
        lambda kept: {"measures": "other tests"},
        lambda kept: {"made_from": {"sessions": ["t"]}},
        lambda kept: {"params": msgspec.structs.replace(kept.params, fresh="a run")},
    ],
)
def test_a_change_is_measured(
    kept: KeptMeasurements, change: Callable[[KeptMeasurements], dict[str, Any]]
) -> None:
    """Another number format, version or input is no reason to reuse, nor is a fresh run."""
    compute = Counter()
    kept.measure("f", list[float], compute)
    dataclasses.replace(kept, **change(kept)).measure("f", list[float], compute)
    kept.measure("another fingerprint", list[float], compute)
    assert compute.calls == 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_cannot_hold(kept: KeptMeasurements, value: float) -> None:
    """A broken base model is measured again, and its broken loss does not turn into no loss."""
    compute = Counter(value)
    results = [kept.measure("f", list[float | None], compute) for _ in range(2)]
    assert compute.calls == 2 and repr(results) == repr([[value]] * 2) and not kept.used


def test_damage(kept: KeptMeasurements) -> None:
    compute = Counter()
    kept.measure("f", list[float], compute)
    (kept.used[0].path / FILE).write_bytes(b"[0.2]")
    assert kept.measure("f", list[float], compute) == [0.1] and compute.calls == 2


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that answered turns, one entry per pass."""
    seen: list[str] = []
    for name in ("forward", "replies"):
        original = getattr(TurnAnswerer, name)

        def counted(self: TurnAnswerer, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            enabled = any(
                not getattr(module, "disable_adapters", True) for module in self.model.modules()
            )
            seen.append("adapter" if enabled else "base")
            return original(self, *args, **kwargs)

        monkeypatch.setattr(TurnAnswerer, name, counted)
    return seen


class Nights:
    """Nights of one agent, each with a new adapter over the same base model."""

    def __init__(self, folder: Path, base: Any, adapter_dir: Path, rows: list[dict]) -> None:
        self.lake, self.base = Lake(str(folder / "lake")), base
        self.values = task_values(folder / "lake", KEY, folder / "cache")
        self.files = {
            path.name: path.read_bytes() for path in adapter_dir.iterdir() if path.is_file()
        }
        self.count = 0
        put_rows(self.lake, KEY, rows)

    def adapter(self) -> Artifact:
        self.count += 1
        made_from = {
            "base_model": str(self.base.path),
            "base_revision": "",
            "night": self.count,
            "sessions": [],
        }
        return artifact(self.lake, "sft_adapter", KEY, made_from, self.files)

    def evaluate(self, **options: Any) -> dict[str, Any]:
        config = dataclasses.asdict(EvaluationOptions(max_samples=2, max_new_tokens=8)) | options
        params = self.values | {"adapter": self.adapter().reference, "config": config}
        result = tasks.evaluate.run(params)
        found = self.lake.find("evaluation", KEY, result["identity"])
        self.lake.set_latest(found)
        return result

    def ask_sanity_questions(self) -> dict[str, Any]:
        return tasks.sanity_questions.run(
            self.values
            | {
                "adapter": self.adapter().reference,
                "evaluation": {"max_length": 2048},
                "sanity_question_rows": 0,
                "sanity_questions_beyond_project": False,
            }
        )

    def play(self, **options: Any) -> dict[str, Any]:
        config = EpisodesConfig(max_turns=2, max_new_tokens=8, fresh_tasks=0).model_dump()
        return tasks.episodes.run(
            self.values
            | {
                "adapter": self.adapter().reference,
                "gguf_export": None,
                "world": WORLD,
                "config": config | options,
                "alone": False,
                "held_out": "test",
            }
        )

    def stored(self) -> list[Artifact]:
        return self.lake.finished(BASE_MEASUREMENTS, KEY)


ROWS = [row(number, "test") for number in (25, 31)]


@pytest.fixture
def nights(tmp_path: Path, tiny_base: Any, adapter_dir: Path) -> Nights:
    return Nights(tmp_path, tiny_base, adapter_dir, ROWS)


@pytest.mark.slow
def test_the_second_night_asks_the_base_nothing(nights: Nights, forwards: list[str]) -> None:
    """The evaluations are equal, and both name the base's measurement as what they are made from."""
    first, second = nights.evaluate(), nights.evaluate()
    assert forwards == ["base", "adapter", "adapter"]
    assert first["identity"] != second["identity"] and first["report"] == second["report"]
    (stored,) = nights.stored()
    for result in (first, second):
        made = nights.lake.find("evaluation", KEY, result["identity"])
        assert stored.identity in made.manifest["parents"]


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["question", "answer", "template", "base", "length", "split"])
def test_what_changed_is_measured_again(
    changed: str, nights: Nights, forwards: list[str], tmp_path: Path
) -> None:
    nights.evaluate()
    options: dict[str, Any] = {}
    if changed in ("question", "answer"):
        messages = [dict(message) for message in ROWS[0]["messages"]]
        messages[1 if changed == "question" else -1]["content"] += " Thank you."
        put_rows(nights.lake, KEY, [ROWS[0] | {"messages": messages}, ROWS[1]])
    elif changed == "template":
        name = "chat_template.jinja"
        nights.files[name] = nights.files[name].replace(b"{%- for", b"{{- '' }}{%- for", 1)
    elif changed == "base":
        copy = shutil.copytree(nights.base.path, tmp_path / "base")
        config = copy / "config.json"
        config.write_text(config.read_text().replace("{", '{"changed": 1,', 1))
        nights.base = dataclasses.replace(nights.base, path=copy)
    elif changed == "length":
        options["max_new_tokens"] = 6
    else:
        put_rows(nights.lake, KEY, ROWS[:1])
    nights.evaluate(**options)
    assert forwards == ["base", "adapter"] * 2
    assert len(nights.stored()) == 2


@pytest.mark.slow
def test_sanity_questions(nights: Nights, forwards: list[str]) -> None:
    first, second = nights.ask_sanity_questions(), nights.ask_sanity_questions()
    assert forwards == ["base", "adapter", "adapter"]
    assert first["report"] == second["report"]
    assert first["report"]["device"].startswith("cpu ")


@pytest.mark.slow
def test_episodes(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base model plays the same tasks once, and plays other tasks or a changed world anew."""
    opened: list[bool] = []
    memory_player = "agent_pipeline.compute.playing.memory_player"
    from agent_pipeline.compute import playing

    original = playing.memory_player

    def counted(base: Any, tokenizer: Path, adapter: Path | None, *limits: int) -> Any:
        opened.append(adapter is None)
        return original(base, tokenizer, adapter, *limits)

    monkeypatch.setattr(memory_player, counted)
    first, second = nights.play(), nights.play()
    assert sum(opened) == 1 and len(opened) == 3
    assert first["report"]["players"] == second["report"]["players"]
    assert list(second["report"]["players"]) == ["model", "base", "recorded"]
    nights.play(max_turns=3)
    assert sum(opened) == 2
    monkeypatch.setattr(
        "agent_pipeline.evaluation.worlds.hash_world_source", lambda name: "changed"
    )
    nights.play()
    assert sum(opened) == 3


@pytest.mark.slow
@pytest.mark.parametrize("measured", ["evaluation", "episodes"])
def test_bases_of_other_lengths_compare(measured: str, nights: Nights, tmp_path: Path) -> None:
    """A champion whose base reads less than the new base could never be compared again."""
    make = {"evaluation": nights.evaluate, "episodes": nights.play}[measured]
    made = [make(max_length=4000)]
    copy = shutil.copytree(nights.base.path, tmp_path / "base")
    config = json.loads((copy / "config.json").read_text())
    shorter = config["max_position_embeddings"] - 100
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": shorter}))
    nights.base = dataclasses.replace(nights.base, path=copy)
    made.append(make(max_length=4000))
    pair = tuple(nights.lake.find(measured, KEY, result["identity"]) for result in made)
    missing = (None, None)
    evaluations, episodes = (pair, missing) if measured == "evaluation" else (missing, pair)
    candidate, champion = read_scores(evaluations, episodes, same_base=False)
    assert candidate.evaluator == champion.evaluator
    assert candidate.world == champion.world
    assert [result["report"]["max_length"] for result in made] == [shorter + 100, shorter]


def test_an_episode_is_stored_whole(kept: KeptMeasurements) -> None:
    """Messages, tools and all other fields of an episode come back as they were."""
    message = {"role": "assistant", "content": "é", "tool_calls": [{"id": "1", "x": {"y": None}}]}
    episode = Episode(
        task_key="task",
        seed=3,
        trial=0,
        done=True,
        reward=1.0,
        must_act=None,
        kind=None,
        wrong_changes=["a"],
        complaint="",
        acted_early=["b"],
        said_wrong="c",
        end="answered",
        turns=1,
        calls=2,
        prompt_tokens=3,
        tokens=4,
        unended=0,
        variant="v",
        change="w",
        unused_calls=1,
        confidence=[None, TurnConfidence(-0.1, -0.2, writes=True)],
        messages=[message, {"role": "tool", "name": "t", "content": "0.1"}],
        tools=[{"type": "function", "function": {"name": "t", "strict": True}}],
    )
    base = BaseModel("base", Path(), "1")
    adapter = artifact(kept.params.open_lake(), "sft_adapter", KEY)
    play = Counter(episode)
    results = [keep_episodes(kept, base, adapter, {}, play) for _ in range(2)]
    assert results == [[episode]] * 2 and play.calls == 1


def measurement(lake: Lake, sessions: list[str]) -> Artifact:
    """A measurement on these sessions, in which their text stands."""
    made_from = {"measures": "evaluation", "sessions": sessions}
    content = f'["{" ".join(sessions)} said this"]'
    return artifact(lake, BASE_MEASUREMENTS, KEY, made_from, {FILE: content}, latest=False)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    put_rows(lake, KEY, ROWS)
    return lake


def test_forget(lake: Lake) -> None:
    """A forgotten session's measurement is deleted, and that of other sessions stays."""
    gone, stays = measurement(lake, ["session-25", "session-31"]), measurement(lake, ["session-31"])
    changes = forget(lake, "session-25").changes
    assert not gone.path.exists()
    assert [each.identity for each in lake.finished(BASE_MEASUREMENTS, KEY)] == [stays.identity]
    assert any(change.deleted and change.path == str(gone.path) for change in changes)
    assert not [
        path
        for path in Path(lake.root.path).rglob("*")
        if path.is_file() and b"session-25 session-31 said" in path.read_bytes()
    ]


def test_lineage(lake: Lake) -> None:
    """The base model was measured on the session. No model was trained on it."""
    measurement(lake, ["session-25"])
    (use,) = models_of(lake, "session-25")
    assert use.roles == [MEASURED]


def test_prune(lake: Lake) -> None:
    """A measurement is kept as long as an artifact that is kept was made from it."""
    used, unused = measurement(lake, ["session-25"]), measurement(lake, ["session-31"])
    artifact(lake, "evaluation", KEY, parents=[used.identity], identity=hash_json("evaluation"))
    pruned = prune(lake, keep=0, delete=True)
    assert [each.identity[:16] for each in lake.finished(BASE_MEASUREMENTS, KEY)] == [
        used.identity[:16]
    ]
    assert [each.identity for each in pruned.unnamed] == [unused.identity]
