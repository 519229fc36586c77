"""The checks of a champion's turn, and the files for LiteLLM's proxy. The proxy itself is in
`test_litellm_proxy`.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.evaluation.confidence import TurnConfidence
from agent_pipeline.gateway.traffic import (
    Models,
    follow_champion,
    make_config,
    parse_share,
    pause_champion,
    read_rules,
    stop_traffic,
    traffic_folder,
    write_traffic,
)
from agent_pipeline.gateway.turn_checks import (
    ChampionTurn,
    TrafficRules,
    find_objection,
    plain_messages,
)
from agent_pipeline.governance.agent_status import read_agent_status
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.export.test_serving import export
from agent_pipeline_tests.judging.test_preconditions import call

KEY = PartitionKey("shop", "support")
MODELS = {str(KEY): Models("openai/gpt-4.1", "", "KEY", "http://127.0.0.1:8080/v1", 30.0)}
TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in ("find", "cancel")]
RULES = TrafficRules(share=0.1, champion="a" * 16, reads=["find"], threshold=-0.5)


def objection(name: str, act: Any, words: float | None = None, forced: bool = False) -> str | None:
    """Return the kind of objection to a turn with one call."""
    message: Any = {"role": "assistant", "content": "", "tool_calls": [call(name)]}
    confidence = None if words is None else TurnConfidence(words, words, forced)
    rules = TrafficRules(act=act, reads=["find"], threshold=-0.5)
    found = find_objection(ChampionTurn(message, "stop", confidence), [], TOOLS, rules)
    return found.kind if found else None


@pytest.mark.parametrize(
    ("name", "act", "words", "forced", "expected"),
    [
        ("find", "reads", None, False, None),
        ("cancel", "reads", -0.1, False, "write"),
        ("cancel", "sure", -0.5, False, None),
        ("cancel", "sure", -0.51, False, "unsure_write"),
        ("cancel", "sure", -0.1, True, "unsure_write"),
        ("cancel", "sure", None, False, "unsure_write"),
        ("find", "sure", -9.0, True, None),
        ("cancel", "all", -9.0, True, None),
        ("unknown", "all", 0.0, False, "unreadable_call"),
    ],
)
def test_held_writes(
    name: str, act: str, words: float | None, forced: bool, expected: str | None
) -> None:
    """`act` decides which calls are accepted; a tool that is not in `reads` writes."""
    assert objection(name, act, words, forced) == expected


def test_precondition_sees_the_conversation() -> None:
    """A look-up in the request satisfies the precondition of a call in the turn."""
    preconditions = Preconditions.parse({"cancel": ["looked_up('find', 'order')"]})
    turn = ChampionTurn(
        {"role": "assistant", "content": "", "tool_calls": [call("cancel", order="K1")]}
    )
    request: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Cancel K1."}]},
        {"role": "assistant", "content": None, "tool_calls": [call("find", query="K1")]},
        {"role": "tool", "tool_call_id": "find", "content": '{"K1": "open"}'},
    ]
    for messages, kind in ((request, None), (request[:1], "precondition")):
        found = find_objection(turn, plain_messages(messages), TOOLS, RULES, preconditions)
        assert (found.kind if found else None) == kind


def test_config() -> None:
    """The configuration is YAML; without the hook, requests go to the large model."""
    config = yaml.safe_load(make_config(MODELS))
    large, champion = config["model_list"]
    assert large["model_name"] == str(KEY) and large["litellm_params"]["model"] == "openai/gpt-4.1"
    assert large["litellm_params"]["api_key"] == "os.environ/KEY"
    assert champion["litellm_params"]["model"] == f"openai/{KEY}"
    assert config["router_settings"]["fallbacks"] == [{champion["model_name"]: [str(KEY)]}]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("champion", "is_back", "share"),
    [("a" * 64, True, 0.1), ("b" * 64, False, 0.1), ("b" * 64, True, 0.0), ("", False, 0.0)],
)
def test_champion_moves(lake: Lake, champion: str, is_back: bool, share: float) -> None:
    """A promotion keeps the share; a rollback, and the end of a champion, set it to 0."""
    assert not follow_champion(lake, KEY, champion, None, is_back)
    write_traffic(lake, KEY, RULES, MODELS)
    sentence = follow_champion(lake, KEY, champion, -0.5, is_back)
    rules = read_rules(lake)[str(KEY)]
    assert rules.share == share and bool(sentence) is (share == 0)
    assert rules.champion == champion[:16]


def test_pause(lake: Lake) -> None:
    """While another champion is put into the served folder, no champion answers."""
    write_traffic(lake, KEY, RULES, MODELS)
    pause_champion(lake, KEY, "a" * 64)
    assert read_rules(lake)[str(KEY)] == RULES, "the champion stays"
    pause_champion(lake, KEY, "b" * 64)
    paused = read_rules(lake)[str(KEY)]
    assert (paused.champion, paused.threshold, paused.share) == ("", None, 0.1)
    follow_champion(lake, KEY, "b" * 64, -0.5, is_back=False)
    moved = read_rules(lake)[str(KEY)]
    assert (moved.champion, moved.threshold, moved.share) == ("b" * 16, -0.5, 0.1)


def test_stop(lake: Lake) -> None:
    """The share becomes 0 once; an agent without traffic has nothing to stop."""
    assert not stop_traffic(lake, KEY)
    write_traffic(lake, KEY, RULES, MODELS)
    assert stop_traffic(lake, KEY) and read_rules(lake)[str(KEY)].share == 0
    assert not stop_traffic(lake, KEY)


def test_other_agents_stay(lake: Lake) -> None:
    """The rules of other agents stay as they are."""
    other = PartitionKey("shop", "intern")
    write_traffic(lake, KEY, RULES, MODELS)
    write_traffic(lake, other, TrafficRules(), MODELS)
    assert read_rules(lake) == {str(KEY): RULES, str(other): TrafficRules()}


def test_damaged_rules(lake: Lake) -> None:
    """Damaged rules are an error, and are never taken for no rules."""
    folder = write_traffic(lake, KEY, RULES, MODELS)
    (folder / "traffic.json").write_text('{"shop/support": {"share": "much"}}')
    assert folder == traffic_folder(lake)
    with pytest.raises(DataError):
        read_rules(lake)


@given(st.floats(0, 1))
def test_share(share: float) -> None:
    """A share may be written as a number or in percent."""
    assert parse_share(str(share)) == share
    assert parse_share(f"{100 * share} %") == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "much", "-1", "5", "101%", "5%%", "nan", "inf"])
def test_bad_share(text: str) -> None:
    """A text that is no share is refused. 5 could mean 5 % or 5 times, so it is refused, too."""
    with pytest.raises(SettingsError):
        parse_share(text)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes the share and the settings; without --share, the share stays."""
    (tmp_path / "pipeline.toml").write_text(
        f'lake = "{tmp_path / "lake"}"\nstore = "{tmp_path}"\n[agents."{KEY}"]\n'
        'reads = ["find"]\n[agents."shop/support".traffic]\n'
        'large_model = "openai/large"\nact = "sure"\n'
    )
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(tmp_path / "pipeline.toml"))
    lake = load_settings().open_lake()
    export(lake, "first")
    promote(lake, KEY)
    for arguments in (["--share", "5%"], []):
        result = CliRunner().invoke(app, ["traffic", str(KEY), *arguments])
        assert result.exit_code == 0, result.output
        rules = read_rules(lake)[str(KEY)]
        assert (rules.share, rules.act, rules.reads) == (0.05, "sure", ["find"])
    # There are no episodes, so no write is sure.
    assert rules.threshold is None and "no confidence threshold" in " ".join(result.output.split())
    assert rules.champion == lake.champion("gguf_export", KEY).identity[:16]
    assert rules.log == str(tmp_path / "traffic-log")


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of an agent with a champion, which has the rules of these settings."""
    file = tmp_path / "pipeline.toml"
    file.write_text(SETTINGS.format(lake=tmp_path / "lake", store=tmp_path))
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(file))
    lake = load_settings().open_lake()
    export(lake, "first")
    promote(lake, KEY)
    assert CliRunner().invoke(app, ["traffic", str(KEY), "--share", "5%"]).exit_code == 0
    return file


SETTINGS = """\
lake = "{lake}"
store = "{store}"

[agents."shop/support"]
reads = ["find", "list"]
preconditions = {{ cancel = ["looked_up('find', 'order')"] }}

[agents."shop/support".traffic]
large_model = "openai/large"
act = "sure"
"""


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ('act = "sure"', 'act = "all"', ["act"]),
        ('"find", "list"', '"list"', ["reads"]),
        ('"find", "list"', '"list", "find"', []),
        ("preconditions =", "# preconditions =", ["preconditions"]),
        ("'order'", "'id'", ["preconditions"]),
        ("openai/large", "openai/larger", []),
    ],
)
def test_changed_settings(settings_file: Path, before: str, after: str, names: list[str]) -> None:
    """`status` names the settings that the gateway does not have yet, until `traffic` runs."""
    assert read_agent_status(load_settings(), KEY).waits == []
    text = settings_file.read_text()
    assert before in text
    settings_file.write_text(text.replace(before, after))
    status = read_agent_status(load_settings(), KEY)
    assert "5 %" in status.traffic and "sure" in status.traffic
    sentences = status.waits
    assert len(sentences) == bool(names) and all(name in sentences[0] for name in names)
    assert all(f"agent-pipeline traffic {KEY}" in sentence for sentence in sentences)
    assert CliRunner().invoke(app, ["traffic", str(KEY)]).exit_code == 0
    assert read_agent_status(load_settings(), KEY).waits == []


def test_changed_settings_without_traffic(settings_file: Path) -> None:
    """Nobody has to update rules by which no call is checked."""
    assert CliRunner().invoke(app, ["traffic", str(KEY), "--share", "0"]).exit_code == 0
    settings_file.write_text(settings_file.read_text().replace('"sure"', '"all"'))
    assert read_agent_status(load_settings(), KEY).waits == []
