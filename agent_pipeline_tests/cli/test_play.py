"""`agent-pipeline play`: which model plays, and the store that it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.cli.play import _session_ids, play
from agent_pipeline.cli.players import find_limits, open_player
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.evaluation.heldout import recorded_sessions
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.sample.shop import World
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.sources.opening import open_sources, parse_location
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.judging.endpoint import endpoint, refuses, says

KEY = PartitionKey("shop", "support")


def test_an_adapter_plays_on_the_revision_of_its_base_that_it_was_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    lake, asked = load_settings().open_lake(), []
    made_from = {"base_model": "org/base", "base_revision": "1234abc"}
    lake.set_latest(
        lake.finish(
            "sft_adapter", KEY, "a" * 64, lake.building("sft_adapter", KEY, "a" * 64), made_from, {}
        )
    )
    base = BaseModel("org/base", tmp_path, "1234abc")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 256}', encoding="utf-8")
    monkeypatch.setattr(
        "agent_pipeline.compute.params.resolve_base_model",
        lambda *given: asked.append(given) or base,
    )
    lengths: list[int] = []
    monkeypatch.setattr(
        "agent_pipeline.compute.playing.memory_player", lambda *given: lengths.append(given[-1])
    )
    for model in ("adapter", "base"):
        open_player(model, KEY, 0.0, (8, 512))
    assert [(given[0], given[-1]) for given in asked] == [("org/base", "1234abc")] * 2
    assert lengths == [256, 256]  # the base model reads no longer conversation


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ("", 5120),
        ("assets.sft_adapter = { max_length = 3000 }", 3000),
        ("assets.episodes = { max_length = 700 }", 700),
    ],
)
def test_longest_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, length: int
) -> None:
    """A conversation that fitted in training was cut at 2,048 tokens by `play` and `chat`."""
    file = tmp_path / "pipeline.toml"
    file.write_text(f'lake = "{tmp_path / "lake"}"\n{settings}\n', encoding="utf-8")
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(file))
    lake = load_settings().open_lake()

    def put(asset: str, identity: str, made_from: dict[str, Any]) -> Artifact:
        folder = lake.building(asset, KEY, identity)
        made = lake.finish(asset, KEY, identity, folder, made_from, {})
        lake.set_latest(made)
        return made

    put("sft_adapter", "b" * 64, {"config": {"max_length": 4096}})
    champion = put("gguf_export", "c" * 64, {"adapter": "b" * 64})
    lake.set_champion(champion)
    put("sft_adapter", "a" * 64, {"config": {"max_length": 5120}})
    assert find_limits(load_settings(), KEY, "adapter", 32) == (32, length)
    of_champion = 4096 if length == 5120 else length
    assert find_limits(load_settings(), KEY, "champion", 32) == (32, of_champion)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Held-out tasks of an agent that has a world."""
    toml = f'lake = "{tmp_path / "lake"}"\n[agents."shop/support"]\nworld = "agent_pipeline.sample.shop:World"\n'
    toml += "assets.episodes = { max_new_tokens = 33 }\n"
    (tmp_path / "pipeline.toml").write_text(toml, encoding="utf-8")
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(tmp_path / "pipeline.toml"))
    rows = [{"task_key": f"support-{number:03d}"} for number in range(1, 9)]
    monkeypatch.setattr("agent_pipeline.evaluation.heldout.heldout_rows", lambda lake, key: rows)
    return rows


def test_an_episode_that_the_endpoint_refuses_is_kept_without_a_verdict_and_the_others_are_played(
    tmp_path: Path, rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint(
        lambda request, number: refuses(400) if number == 2 else says("Sorry, I cannot do that.")
    ) as server:
        play(
            "shop/support",
            tmp_path / "out",
            model=f"{server.url}#m",
            tasks=6,
            seed=0,
            trials=1,
            temperature=0.0,
        )
    sessions = list(
        read_sessions(open_sources([parse_location(str(tmp_path / "out"))]), KEY, ReadingOptions())
    )
    failed = [each for each in sessions if each.error]
    assert (
        len(sessions) == 6
        and len(failed) == 1
        and failed[0].judgment is None
        and failed[0].messages
    )
    assert "BadRequestError" in failed[0].error
    assert "1 of 6 episodes were refused" in capsys.readouterr().err


def test_the_shell_shows_how_far_a_play_is(
    tmp_path: Path, rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint(lambda request, number: says("Sorry, I cannot do that.")) as server:
        play(
            "shop/support",
            tmp_path / "out",
            model=f"{server.url}#m",
            tasks=6,
            seed=0,
            trials=1,
            temperature=0.0,
        )
    assert "episodes played by the model: 6/6" in capsys.readouterr().err


def test_an_answer_that_the_limit_cut_is_no_example_for_the_next_night(
    tmp_path: Path, rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing is due, the world found it acceptable, and its beginning was trained as a whole answer."""
    status, headers, body = says("Sorry, I cann")
    with endpoint(
        lambda request, number: (status, headers, body.replace('"stop"', '"length"'))
    ) as server:
        play(
            "shop/support",
            tmp_path / "out",
            model=f"{server.url}#m",
            tasks=6,
            seed=0,
            trials=1,
            temperature=0.0,
        )
    sessions = list(
        read_sessions(open_sources([parse_location(str(tmp_path / "out"))]), KEY, ReadingOptions())
    )
    assert {(each.judgment, each.error) for each in sessions} == {
        (None, "max_new_tokens cut off a message of the model")
    }
    assert "6 of 6 episodes were refused or cut" in capsys.readouterr().err


@pytest.mark.parametrize("status", [400, 401, 404])
def test_an_endpoint_that_refuses_all_ends_the_play_with_one_sentence(
    tmp_path: Path, rows: list[dict[str, str]], status: int
) -> None:
    with (
        endpoint(lambda request, number: refuses(status)) as server,
        pytest.raises(InfrastructureError, match=str(status)),
    ):
        play(
            "shop/support",
            tmp_path / "out",
            model=f"{server.url}#m",
            tasks=6,
            seed=0,
            trials=1,
            temperature=0.0,
        )
    assert 1 <= len(server.requests) <= 6 and not (tmp_path / "out").exists(), (
        "no conversation is tried twice"
    )


def test_what_was_played_is_a_store_with_the_worlds_verdicts_whose_tasks_keep_their_splits(
    tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    with endpoint(lambda request, number: says("Sorry, it is too late for a refund.")) as server:
        for night in ("one", "two"):
            play(
                "shop/support",
                tmp_path / night,
                model=f"{server.url}#m",
                tasks=6,
                seed=0,
                trials=1,
                temperature=0.0,
            )
        with pytest.raises(SettingsError, match="earlier `play`"):
            play(
                "shop/support",
                tmp_path / "one",
                model=f"{server.url}#m",
                tasks=6,
                seed=0,
                trials=1,
                temperature=0.0,
            )
    assert {request["max_tokens"] for request in server.requests} == {33}
    source = open_sources([parse_location(str(tmp_path / night)) for night in ("one", "two")])
    sessions = list(read_sessions(source, KEY, ReadingOptions()))
    assert len({each.session_id for each in sessions}) == len(sessions) == 12 and not any(
        "~" in each.session_id for each in sessions
    )
    assert {each.task_key for each in sessions} < {row["task_key"] for row in rows}
    world = World()
    for each in sessions:
        for _ in world.reset(each.task_key), *world._task.turns[1:]:
            world.user.reply("Sorry, it is too late for a refund.")
        is_right = not (world.must_act or world.said_wrong)
        assert each.judgment == ("acceptable" if is_right else "unacceptable")
    assert {each.judgment for each in sessions} == {"acceptable", "unacceptable"}


def test_the_traces_for_the_hub_are_the_sessions_of_the_store(
    tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    """Read again, they are the same conversations with the same verdicts."""
    out, traces = tmp_path / "out", tmp_path / "traces"
    with endpoint(lambda request, number: says("Sorry, I cannot do that.")) as server:
        play(
            "shop/support",
            out,
            model=f"{server.url}#m",
            tasks=3,
            seed=0,
            trials=1,
            temperature=0.0,
            traces=traces,
        )
        with pytest.raises(SettingsError, match="twice"):
            play(
                "shop/support",
                tmp_path / "two",
                model=f"{server.url}#m",
                tasks=3,
                seed=0,
                trials=1,
                temperature=0.0,
                traces=tmp_path / "two/t",
            )
    stored, shown = (
        {
            each.session_id: (each.messages, each.judgment, each.task_id)
            for each in open_sources([parse_location(str(folder))]).sessions(KEY)
        }
        for folder in (out, traces)
    )
    assert len(shown) == 3 and shown == stored
    head = json.loads(sorted(traces.iterdir())[0].read_text(encoding="utf-8").splitlines()[0])
    assert (head["type"], head["harness"], head["id"] in shown) == (
        "session",
        "agent-pipeline",
        True,
    )


def test_a_pattern_that_would_move_a_played_task_into_another_split_is_refused_before_anything_is_played() -> (
    None
):
    tasks = [{"task_key": "airline-12"}, {"task_key": "support-003", "seed": 2001}]
    assert _session_ids("", tasks, 2, "0123abcd")[::2] == [
        "played-airline-12-0-0123abcd",
        "played-support-003-seed2001-0-0123abcd",
    ]
    assert len(_session_ids(r"airline-\d+", tasks[:1], 1, "0123abcd")) == 1
    with pytest.raises(SettingsError, match="played-airline-12-0"):
        _session_ids(r"^(.*)-\w+$", tasks, 1, "0123abcd")


def test_what_a_model_played_is_not_taken_for_the_recorded_agent(tmp_path: Path) -> None:
    lake, said = Lake(str(tmp_path)), [{"role": "user", "content": "Hello"}]
    ids = {"tau-7": "1", "played-airline-12-0-0123abcd": "0"}
    rows = [
        make_session_row(
            Session(
                session_id=name,
                project="shop",
                agent="support",
                source="",
                messages=said,
                task_key="airline-12",
                trial=trial,
            )
        )
        for name, trial in ids.items()
    ]
    lake.stage("judged_sessions", KEY, to_batches(rows, SESSIONS), SESSIONS).commit()
    assert recorded_sessions(lake, KEY, ["airline-12"])["airline-12"][0] == "tau-7"
