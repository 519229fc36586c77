"""Run config, which whoever reaches the UI can write, sets neither code nor a place that data is sent to."""

from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.config import trust
from agent_pipeline.config.assets import ASSETS
from agent_pipeline_tests.defs.conftest import Bench

KEY = "shop/intern"


@pytest.mark.parametrize(
    ("asset", "config"),
    [
        ("judged_sessions", {"measures": ["subprocess.check_output"]}),
        ("judged_sessions", {"measures": ["ended_with_answer", "os.system(1)"]}),
        ("judged_sessions", {"turn_measures": ["subprocess:check_output"]}),
        ("curated_sessions", {"required_measures": ["subprocess.check_output"]}),
        ("sft_dataset", {"push_to": "evil/stolen"}),
        ("sft_coreset", {"strategy": "subprocess:check_output"}),
        ("serving", {"hub": "evil/stolen"}),
        ("method_comparison", {"settings": ["sft_coreset.strategy=subprocess:check_output"]}),
        ("method_comparison", {"settings": ["strategy=subprocess:check_output"]}),
    ],
)
def test_code_or_target_in_run_config(bench: Bench, asset: str, config: dict[str, Any]) -> None:
    """A page that reached the UI, or a colleague, sets it in the launchpad."""
    name, value = next(iter(config.items()))
    configured = {each: options() for each, options in ASSETS.items()}
    with pytest.raises(trust.SettingsError, match=r"pipeline\.toml"):
        if asset == "method_comparison":
            trust.check_texts(value, configured)
        else:
            trust.check_trusted(asset, {name: value}, configured[asset])


def test_run_with_code_ends_before_the_code_is_imported(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "imported"
    (tmp_path / "hostile.py").write_text(
        f"open({str(marker)!r}, 'w')\ndef measure(session): return True\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert bench.run(KEY, "sessions").success
    config = {"judged_sessions": {"measures": ["hostile.measure"]}}
    failed = bench.run(KEY, "judged_sessions", config=config)
    assert not failed.success and "pipeline.toml" in bench.sentence(failed)
    assert not marker.exists()
    monkeypatch.setenv("AGENT_PIPELINE_ASSETS__JUDGED_SESSIONS__MEASURES", '["hostile.measure"]')
    assert bench.run(KEY, "judged_sessions", config=config).success, (
        "what the environment sets is trusted"
    )


def test_other_settings_in_run_config(bench: Bench) -> None:
    """The launchpad works as before for everything else."""
    assert bench.run(KEY, "sessions", config={"sessions": {"smallest_share": 0.1}}).success
    assert bench.run(
        KEY,
        "judged_sessions",
        config={"judged_sessions": {"measures": ["ended_with_answer", "at_most_steps(12)"]}},
    ).success


def test_typed_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who types --set could edit pipeline.toml as well."""
    monkeypatch.setattr(trust, "_typed", [])
    trust.trust({"serving": {"hub": "me/mine"}})
    trust.check_trusted("serving", {"hub": "me/mine"}, ASSETS["serving"]())
    with pytest.raises(trust.SettingsError):
        trust.check_trusted("serving", {"hub": "evil/stolen"}, ASSETS["serving"]())


def test_every_setting_that_names_code_or_a_target_is_known() -> None:
    """A new setting whose description names a dotted path, a push or an address must be listed."""
    listed = {
        (asset, name)
        for table in (trust.PLUGINS, trust.TARGETS)
        for asset, names in table.items()
        for name in names
    }
    words = ("package.module", "my_package", "push", "url of", "address")
    found = {
        (asset, name)
        for asset, options in ASSETS.items()
        for name, field in options.model_fields.items()
        if any(word in (field.description or "").lower() for word in words)
    }
    assert found <= listed, found - listed
