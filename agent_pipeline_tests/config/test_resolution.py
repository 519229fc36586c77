"""One tree of settings: which value holds for whom, where it was set, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.config.assets import (
    ASSETS,
    AdapterConfig,
    CurationConfig,
    EvaluationConfig,
    owning_asset,
)
from agent_pipeline.config.checks import problems, unknown_agents
from agent_pipeline.config.overrides import overrides
from agent_pipeline.config.presets import PRESETS
from agent_pipeline.config.reference import make_parts, update_page
from agent_pipeline.config.resolution import (
    SHARED,
    THIS_RUN,
    fingerprint,
    preset_sentences,
    resolve,
    shared,
)
from agent_pipeline.config.saving import save
from agent_pipeline.config.sections import AgentSettings
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.training.config import TrainingConfig

SUPPORT, INTERN = PartitionKey("shop", "support"), PartitionKey("shop", "intern")
TREE = """\
preset = "smoke"

[assets.sft_adapter]  # all agents
lora_r = 6

[agents."shop/support".assets.sft_adapter]
lora_r = 12   # this one needs more
base_model = "Qwen/Qwen2.5-0.5B-Instruct"
"""


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the pipeline.toml of the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        (tmp_path / "pipeline.toml").write_text(text, encoding="utf-8")
        return tmp_path / "pipeline.toml"

    return write


def test_the_run_beats_the_agent_which_beats_all_agents_which_beat_the_preset(toml) -> None:
    toml(TREE)
    settings = load_settings()
    general, own = (
        resolve(settings, AdapterConfig),
        resolve(settings, AdapterConfig, SUPPORT, {"lora_r": 24}),
    )
    assert (
        general.options.max_steps,
        general.options.lora_r,
        general.options.num_train_epochs,
    ) == (
        4,
        6,
        0.0,
    )
    assert (
        general.origins["max_steps"] == 'preset = "smoke"'
        and general.origins["lora_r"] == "[assets.sft_adapter]"
    )
    assert (own.options.lora_r, own.options.base_model) == (24, "Qwen/Qwen2.5-0.5B-Instruct")
    assert (
        own.origins["lora_r"] == THIS_RUN
        and own.origins["base_model"] == '[agents."shop/support".assets.sft_adapter]'
    )
    assert "num_train_epochs" not in own.origins
    assert resolve(settings, AdapterConfig, SUPPORT).options.lora_r == 12
    assert resolve(settings, AdapterConfig, INTERN) == general


def test_a_variable_beats_the_file_and_is_named(toml, monkeypatch: pytest.MonkeyPatch) -> None:
    toml(TREE)
    monkeypatch.setenv("AGENT_PIPELINE_ASSETS__SFT_ADAPTER__LORA_R", "3")
    monkeypatch.setenv(
        "AGENT_PIPELINE_ASSETS__JUDGED_SESSIONS__MEASURES",
        "ended_with_answer, called_tool('a', times=2)",
    )
    monkeypatch.setenv(
        "AGENT_PIPELINE_ASSETS__CURATED_SESSIONS__VERDICT_LEAKS", "reward{1,2},x[,;]y"
    )
    adapter, judging = (
        resolve(load_settings(), AdapterConfig),
        resolve(load_settings(), JudgingOptions),
    )
    assert resolve(load_settings(), CurationConfig).options.verdict_leaks == [
        "reward{1,2}",
        "x[,;]y",
    ]
    assert (adapter.options.lora_r, adapter.origins["lora_r"]) == (
        3,
        "AGENT_PIPELINE_ASSETS__SFT_ADAPTER__LORA_R",
    )
    assert judging.options.measures == ["ended_with_answer", "called_tool('a', times=2)"]


def test_settings_outside_of_the_assets_are_named_with_their_place_where_they_are_not_defaults(
    toml, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml(
        'train = ["sft", "dpo"]\ntask_pattern = "(.*)"\n[redaction]\nphone_regions = ["DE"]\n'
        '[agents."shop/support"]\ntrain = ["sft", "kto"]\nworld = "agent_pipeline.sample.shop:World"\n'
    )
    monkeypatch.setenv("AGENT_PIPELINE_SPLIT__TEST", "0.3")

    def of(asset: str, key: PartitionKey | None = None) -> dict[str, tuple[object, str]]:
        return {
            row["setting"]: (row["value"], row["set_by"])
            for row in shared(load_settings(), asset, key)
        }

    own = '[agents."shop/support"]'
    assert of("sft_adapter", SUPPORT) == {"train": (["sft", "kto"], own)}
    assert of("sft_adapter", INTERN) == of("evaluation") == {"train": (["sft", "dpo"], "train")}
    assert of("sessions", SUPPORT) == {
        "redaction.phone_regions": (["DE"], "[redaction]"),
        "task_pattern": ("(.*)", "task_pattern"),
    }
    assert of("sft_dataset") == {"split.test": (0.3, "AGENT_PIPELINE_SPLIT")}
    assert (
        of("episodes", SUPPORT) == {"world": ("agent_pipeline.sample.shop:World", own)}
        and of("episodes", INTERN) == {}
    )


def test_every_setting_that_assets_share_exists_and_belongs_to_an_asset() -> None:
    known = set(Settings.model_fields) | set(AgentSettings.model_fields)
    assert {name.partition(".")[0] for names in SHARED.values() for name in names} <= known
    assert set(SHARED) <= set(ASSETS)


class TestMaxLengthFollowsTheTrainingRows:
    """A user who sets only `sft_adapter.max_length` had an evaluation in which no turn fitted."""

    @pytest.mark.parametrize(
        "asset",
        [name for name, options in ASSETS.items() if "max_length" in options.model_fields],
    )
    def test_every_asset(self, toml, asset: str) -> None:
        toml('[agents."shop/support".assets.sft_adapter]\nmax_length = 6000\n')
        settings = load_settings()
        own = resolve(settings, ASSETS[asset], SUPPORT)
        assert own.options.model_dump()["max_length"] == 6000
        if asset != "sft_adapter":
            assert own.origins["max_length"] == "sft_adapter.max_length"
            other = resolve(settings, ASSETS[asset], INTERN).options.model_dump()
            assert other["max_length"] == 2048

    def test_own_value_wins(self, toml) -> None:
        toml(
            "[assets.sft_adapter]\nmax_length = 6000\n[assets.evaluation]\nmax_length = 1024\n"
            '[agents."shop/intern".assets.evaluation]\nmax_length = 512\n'
        )
        settings = load_settings()
        for key, length in ((SUPPORT, 1024), (INTERN, 512)):
            assert resolve(settings, EvaluationConfig, key).options.max_length == length

    def test_shorter_rows_change_nothing(self, toml) -> None:
        """Nor does a length that is left to the base model, or a preset with longer prompts."""
        for text, length in (
            ("[assets.sft_adapter]\nmax_length = 1024\n", 2048),
            ("", 2048),
            ('preset = "gpu"\n[assets.sft_adapter]\nmax_length = 4096\n', 8192),
        ):
            toml(text)
            resolved = resolve(load_settings(), EvaluationConfig, SUPPORT)
            assert resolved.options.max_length == length
            assert resolved.origins.get("max_length") != "sft_adapter.max_length"

    def test_fingerprint(self, toml) -> None:
        """A run with longer rows than the settings differs in its evaluation too."""
        toml("[assets.sft_adapter]\nmax_length = 6000\n")
        run = {"sft_adapter": {"max_length": 4096}}
        sent = run | {"evaluation": {"max_length": 4096}}
        followers = {
            name: {"max_length": 4096}
            for name, options in ASSETS.items()
            if "max_length" in options.model_fields
        }
        settings = load_settings()
        assert fingerprint(settings, SUPPORT, run) == fingerprint(settings, SUPPORT, sent)
        assert fingerprint(settings, SUPPORT, run) == fingerprint(settings, SUPPORT, followers)

    def test_value_of_the_run(self, toml) -> None:
        toml("")
        resolved = resolve(load_settings(), EvaluationConfig, SUPPORT, {}, 4096)
        assert resolved.options.max_length == 4096


def test_an_agents_preset_replaces_the_general_one(toml) -> None:
    toml('preset = "smoke"\n[agents."shop/support"]\npreset = "cpu"\n')
    assert resolve(load_settings(), AdapterConfig, SUPPORT).options == AdapterConfig()
    assert resolve(load_settings(), AdapterConfig, INTERN).options.max_steps == 4


def test_every_other_name_leads_to_an_option() -> None:
    for options in ASSETS.values():
        assert set(options.other_names.values()) <= set(options.model_fields)
        assert set(options.earlier_names.values()) <= set(options.model_fields)
        assert not {*options.other_names, *options.earlier_names} & set(options.model_fields)
    assert TrainingConfig.translated(
        {"num_train_epochs": 3, "r": 4, "output_dir": "x"}
    ) == TrainingConfig(num_train_epochs=3, lora_r=4)


def other_values(default: Any) -> tuple[Any, Any]:
    """Return two valid values of an option that differ from its default, if it has as many."""
    if isinstance(default, bool):
        return not default, default
    if isinstance(default, str):
        return "cosine", "constant"
    if isinstance(default, float):
        return default / 2, default / 4
    return default + 3, 7


@pytest.mark.parametrize("asset", [name for name in ASSETS if ASSETS[name].earlier_names])
def test_earlier_names(toml, asset) -> None:
    """A settings file or a run of an earlier version sets the same options, and hashes keep their names."""
    options = ASSETS[asset]
    defaults = options().model_dump(mode="json")
    for earlier, current in options.earlier_names.items():
        value, other = other_values(defaults[current])
        toml(f"[assets.{asset}]\n{earlier} = {json.dumps(value)}")
        settings = load_settings()
        resolved = resolve(settings, options)
        assert getattr(resolved.options, current) == value
        assert resolve(load_settings(), options, SUPPORT, {current: other}).options == (
            options(**{earlier: other})
        )
        text = value if isinstance(value, str) else json.dumps(value)
        assert overrides([f"{asset}.{earlier}={text}"], {asset}) == {asset: {current: value}}
        assert resolved.options.hashed()[earlier] == value
        assert current not in resolved.options.hashed()
        with pytest.raises(SettingsError):
            options.validated({earlier: value, current: value})


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[assets.sft_adaptr]\nlora_r = 8", "sft_adapter"),
        ("[assets.sft_adapter]\nlorar = 8", "lora_r"),
        ("[assets.sft_adapter]\nnum_epochs = 2", "num_train_epochs"),
        ('[agents."shop/support".assets.evaluatio]\nseed = 1', "evaluation"),
        ('[agents."shop/support".assets.evaluation]\nmax_sample = 1', "max_samples"),
        ('[agents."shop/support"]\npresett = "cpu"', "preset"),
        ('preset = "gpuu"', "gpu"),
    ],
)
def test_a_misspelt_name_anywhere_in_the_file_is_refused_with_the_nearest(
    toml, text, nearest
) -> None:
    path = toml(text)
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert (
        nearest in str(error.value)
        and str(path) in str(error.value)
        and "\n" not in str(error.value)
    )


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("lorar=8", "lora_r"),
        ("sft_adapter.epoch=2", "num_train_epochs"),
        ("sft_adaptr.epochs=2", "sft_adapter"),
        ("r=8", "lora_r"),
    ],
)
def test_a_misspelt_name_of_a_run_is_refused_with_the_nearest(text, nearest) -> None:
    with pytest.raises(SettingsError, match=nearest):
        overrides([text], {"adapter"})


@pytest.mark.parametrize(
    ("asset", "name", "reason"),
    [
        (asset, name, reason)
        for asset, options in ASSETS.items()
        for name, reason in options.removed_options.items()
    ],
)
def test_removed_option(toml, asset, name, reason) -> None:
    """An option of an earlier version is refused with the reason why it was removed."""
    with pytest.raises(SettingsError) as error:
        overrides([f"{asset}.{name}=1"], {owning_asset(asset)})
    assert reason in str(error.value)
    toml(f"[assets.{asset}]\n{name} = 1")
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert reason in str(error.value) and f"{asset}.{name}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("lora_r", "-3", "1 or more"),
        ("lora_r", "many", "a whole number"),
        ("lora_dropout", "1", "below 1"),
        ("max_grad_norm", "0", "above 0"),
        ("use_dora", "perhaps", "true or false"),
        ("lr_scheduler_type", "cosinus", "one of linear, cosine"),
    ],
)
def test_a_wrong_value_is_refused_for_its_real_reason_in_the_shell_and_in_the_file(
    toml, name, value, reason
) -> None:
    with pytest.raises(SettingsError, match=reason):
        overrides([f"{name}={value}"], {"adapter"})
    toml(f'[assets.sft_adapter]\n{name} = "{value}"')
    with pytest.raises(SettingsError, match=reason):
        load_settings()


def test_a_setting_of_an_asset_that_the_run_does_not_make_is_refused() -> None:
    with pytest.raises(SettingsError, match="sft_adapter"):
        overrides(["lora_r=8"], {"evaluation"})
    assert overrides(["sft_adapter.seed=7", "evaluation.seed=7"], {"adapter", "evaluation"}) == {
        "sft_adapter": {"seed": 7},
        "evaluation": {"seed": 7},
    }


def test_saved_values_hold_from_then_on_and_comments_stay(toml) -> None:
    path = toml(TREE)
    save(
        {"sft_adapter": {"lora_r": 16}, "judged_sessions": {"when_unjudged": "train_unverified"}},
        SUPPORT,
    )
    save({"multi_task_dataset": {"huggingface": True}}, None)
    text, settings = path.read_text(encoding="utf-8"), load_settings()
    assert (
        "lora_r = 16   # this one needs more" in text
        and "[assets.sft_adapter]  # all agents" in text
    )
    assert (
        resolve(settings, AdapterConfig, SUPPORT).options.lora_r == 16
        and resolve(settings, AdapterConfig, INTERN).options.lora_r == 6
    )
    assert resolve(settings, JudgingOptions, SUPPORT).options.when_unjudged == "train_unverified"
    assert settings.assets["multi_task_dataset"] == {"huggingface": True}


def test_without_a_file_saving_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert save({"sft_adapter": {"lora_r": 4}}, None) == tmp_path / "pipeline.toml"
    assert load_settings().assets == {"sft_adapter": {"lora_r": 4}}


@pytest.mark.parametrize(
    "change",
    [
        "[assets.sft_adapter]\nlora_r = 6",
        'base_model = "Qwen/Qwen2.5-0.5B-Instruct"',
        "[redaction]\nenabled = false",
        'task_pattern = "x"',
        'llama_cpp = "/opt/llama.cpp"',
        '[agents."shop/support"]\nworld = "shop.world:Shop"',
        '[agents."shop/support"]\nworld = "replayed"',
        '[agents."shop/support"]\nworld = ""',
        "[split]\ntest = 0.3",
        '[agents."shop/support".assets.judged_sessions]\nwhen_unjudged = "train_unverified"',
    ],
)
def test_a_changed_setting_changes_the_fingerprint_of_an_agent(toml, change) -> None:
    toml("")
    before = fingerprint(load_settings(), SUPPORT)
    toml(change)
    assert fingerprint(load_settings(), SUPPORT) != before


def test_what_decides_nothing_leaves_the_fingerprint(toml) -> None:
    toml("")
    before = fingerprint(load_settings(), SUPPORT)
    toml(
        'lake = "elsewhere"\n[assets.sft_adapter]\nlora_r = 16\n[agents."shop/intern".assets.sft_adapter]\nlora_r = 4\n[judge]\nmodel = "x"'
    )
    assert fingerprint(load_settings(), SUPPORT) == before
    assert fingerprint(load_settings(), SUPPORT, {"sft_adapter": {"lora_r": 8}}) != before


def test_what_only_a_room_can_judge_is_checked_for_all_agents_and_for_each(toml) -> None:
    toml(
        'labels = "gone.csv"\n[assets.judged_sessions]\nmeasures = ["ended_with_anser"]\n'
        '[agents."shop/support"]\ntools = "gone.json"\n[agents."shop/support".assets.sessions]\nrepair = {orphan_outputs = "keep"}\n'
    )
    general, *others = problems(load_settings())
    assert "ended_with_answer" in general
    assert sum(sentence.startswith("shop/support: ") for sentence in others) == 2
    assert any("gone.csv" in sentence for sentence in others) and len(others) == 3


@pytest.mark.parametrize(
    "text",
    [
        "[split]\ntest = 0.7\nselect = 0.4",
        'task_pattern = "("',
        '[agents."shop/support"]\ntask_pattern = "("',
        '[redaction]\ntypes = ["nme"]',
        '[redaction]\nallow = ["/(/"]',
        '[assets.judged_sessions]\ndecided_by = ["measures+llm"]',
        '[assets.gguf_export]\nouttypes = ["q4_k"]',
        '[agents."shop/support"]\nworld = "no_package:World"',
        '[assets.gguf_export]\nouttypes = ["lora"]',
        'train = ["sft", "distill"]',
        'train = ["sft", "dpo"]\n[assets.sft_dataset]\nreasoning = true',
        '[agents."shop/support"]\ntrain = ["sft", "distill"]',
    ],
)
def test_what_would_end_a_run_after_hours_is_reported_before_it(toml, text) -> None:
    toml(text)
    assert len(problems(load_settings())) == 1


def test_the_presets_have_no_problems_beside_a_world(toml) -> None:
    for preset in PRESETS:
        toml(
            f'preset = "{preset}"\n[agents."shop/support"]\nworld = "agent_pipeline.sample.shop:World"'
        )
        assert not problems(load_settings())


def test_settings_of_an_agent_that_no_store_has_are_reported(toml) -> None:
    toml('[agents."shop/suport"]\ntask_field = "x"\n[agents."shop/intern"]\ntask_field = "x"\n')
    (sentence,) = unknown_agents(load_settings(), [SUPPORT, INTERN])
    assert "shop/suport" in sentence and "shop/support" in sentence


def test_the_page_of_settings_lists_every_setting_of_every_asset_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(
        encoding="utf-8"
    )
    assert update_page(page) == page, "run python -m agent_pipeline.config.reference"
    assert all(text in page for text in make_parts().values())
    assert all(
        f"| `{name}` |" in page for options in ASSETS.values() for name in options.model_fields
    )


def test_the_page_of_settings_lists_an_option_that_several_assets_have_once() -> None:
    rows = [row for row in make_parts()["training options"].splitlines() if row.startswith("| `")]
    rows += [row for row in make_parts()["dataset options"].splitlines() if row.startswith("| `")]
    assert len({(row.split("|")[1], row.split("|")[-2]) for row in rows}) == len(rows)


def test_saving_beside_dotted_keys_of_an_agent_keeps_them(toml) -> None:
    toml('[agents]\n"shop/support".world = "a:B"  # played here\n"shop/intern".world = "a:C"\n')
    path = save({"sft_adapter": {"lora_r": 4}}, SUPPORT)
    agents = load_settings().agents
    assert agents["shop/support"].assets == {"sft_adapter": {"lora_r": 4}}
    assert (agents["shop/support"].world, agents["shop/intern"].world) == ("a:B", "a:C")
    assert "# played here" in path.read_text(encoding="utf-8")


def test_a_run_says_what_its_preset_changes(toml) -> None:
    toml(TREE)
    (sentence,) = preset_sentences(resolve(load_settings(), AdapterConfig))
    assert sentence.startswith('preset = "smoke" sets sft_adapter: ')
    assert "max_steps = 4" in sentence
    assert "lora_r" not in sentence, "the settings file says otherwise"
    assert preset_sentences(resolve(load_settings(), CurationConfig)) == []
