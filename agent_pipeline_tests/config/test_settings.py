"""Settings: from the file and the environment, and never a misspelt one in silence."""

import os
import re
from pathlib import Path

import pytest
import yaml

from agent_pipeline.cli import webserver
from agent_pipeline.cli.instance import dagster_home, open_instance
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import SettingsError, disk_sentence
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources import Location
from agent_pipeline_tests.interruptions import run_python

AIRLINE = PartitionKey("tau", "airline")


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the pipeline.toml of a project that is the working directory's parent."""
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")

    def write(text: str | bytes) -> Path:
        path = tmp_path / "pipeline.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return path

    return write


def refused() -> str:
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_file_is_found_above_and_its_paths_are_relative_to_it(toml, tmp_path, monkeypatch):
    monkeypatch.delenv("AGENT_PIPELINE_CACHE")
    toml('store = "stores/mine"\nlake = "s3://bucket/lake"\ncache = "/tmp/c"\n')
    settings = load_settings()
    assert settings.stores == [Location(str(tmp_path / "stores" / "mine"))]
    assert settings.lake_url == "s3://bucket/lake"
    assert settings.cache_path == Path("/tmp/c")


def test_several_stores_are_a_list_and_a_variable_holds_it_as_json(toml, tmp_path, monkeypatch):
    toml(
        'store = ["a", "langfuse:b", "postgresql://u:secret@host/db?x=1", "./a"]\nsources = ["mine:Reader"]\n'
    )
    settings = load_settings()
    assert settings.stores == [
        Location(str(tmp_path / "a")),
        Location(str(tmp_path / "b"), "langfuse"),
        Location("postgresql://u:secret@host/db?x=1"),
    ]
    assert [str(each) for each in settings.stores][1:] == [
        f"langfuse:{tmp_path / 'b'}",
        "postgresql://host/db",
    ]
    assert settings.sources == ["mine:Reader"]
    monkeypatch.setenv("AGENT_PIPELINE_STORE", '["c", "d"]')
    monkeypatch.setenv("AGENT_PIPELINE_SOURCES", '["other:Reader"]')
    assert [Path(each.where).name for each in load_settings().stores] == ["c", "d"]
    assert load_settings().sources == ["other:Reader"]


@pytest.mark.parametrize("store", ["[]", '["a", 5]', '["a", ""]', "[a"])
def test_a_list_of_stores_that_is_none_is_a_sentence(monkeypatch, store):
    monkeypatch.setenv("AGENT_PIPELINE_STORE", store)
    assert "'store'" in refused()


def test_who_sets_no_store_has_the_one_of_omniagents_own_variables(monkeypatch):
    variables = [
        ("OMNIAGENTS_HOME", "/home", "/home"),
        ("OMNIAGENTS_HISTORY_DB", "/one/sessions.db", "/one/sessions.db"),
        ("OMNIAGENTS_HISTORY_URL", "postgresql://host/db", "/one/sessions.db"),
        ("OMNIAGENTS_HISTORY_BACKEND", "postgres", "postgresql://host/db"),
        ("AGENT_PIPELINE_STORE", "/mine", "/mine"),
    ]
    for name, value, expected in variables:
        monkeypatch.setenv(name, value)
        assert [each.where for each in load_settings().stores] == [expected]


def test_a_named_file_is_taken_and_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(tmp_path / "other.toml"))
    assert str(tmp_path / "other.toml") in refused()
    (tmp_path / "other.toml").write_text('lake = "x"', encoding="utf-8")
    assert load_settings().lake_url == str(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('laek = "x"', "'laek' .* does not exist: did you mean lake"),
        ('home = "/"', "'home' .* does not exist"),
        ("[split]\ntset = 0.1", "'split.tset' .* does not exist: did you mean test"),
        ('[agents."tau/airline"]\ntask_patern = "x"', "does not exist: did you mean task_pattern"),
        ("[mixing]\nweight = {}", "'mixing.weight' .* does not exist: did you mean weights"),
        ('[mixing.weights]\n"tau/*" = -1', r"'mixing.weights.tau/\*'"),
        ('[agents."Tau Airline"]\ntask_pattern = "x"', "'Tau Airline' is not a partition"),
        ("store = 5", "'store'"),
        ('[split]\ntest = "much"', "'split.test'"),
        ("store = ", "is not a valid TOML file"),
        (b"\xff\xfe", "is not a valid TOML file"),
    ],
)
def test_a_wrong_file_is_a_sentence_that_names_it(toml, text, sentence):
    path = toml(text)
    message = refused()
    assert str(path) in message
    assert re.search(sentence, message)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("AGENT_PIPELINE_STOER", "x", "AGENT_PIPELINE_STOER .*: did you mean AGENT_PIPELINE_STORE"),
        ("agent_pipeline_stoer", "x", "^agent_pipeline_stoer "),
        ("AGENT_PIPELINE_HOME", "x", "^AGENT_PIPELINE_HOME "),
        ("AGENT_PIPELINE_STORE__PATH", "x", "^AGENT_PIPELINE_STORE__PATH "),
        ("AGENT_PIPELINE_SPLIT__TSET", "0.1", "'split.tset' .* does not exist: did you mean test"),
        ("AGENT_PIPELINE_SPLIT__TEST", "much", "'split.test'"),
        ("AGENT_PIPELINE_AGENTS", "{", "An environment variable has a wrong value"),
        ("AGENT_PIPELINE_TRUST_REMOTE_CODE", "perhaps", "'trust_remote_code'"),
    ],
)
def test_a_wrong_variable_is_a_sentence(monkeypatch, name, value, sentence):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=sentence) as error:
        load_settings()
    assert "None" not in str(error.value)


# Agents


def test_an_agents_own_settings_beat_the_defaults_for_all(toml, tmp_path):
    toml(
        'task_pattern = "all"\ntask_field = "case"\n'
        '[agents."tau/airline"]\ntask_pattern = "own"\nsystem_prompt = "p"\ntools = "tools.json"\n'
    )
    (tmp_path / "tools.json").write_text('[{"type": "function"}]', encoding="utf-8")
    settings = load_settings()
    own, other = settings.reading(AIRLINE), settings.reading(PartitionKey("tau", "retail"))
    assert (own.task_pattern, own.task_field, own.system_prompt, own.tools) == (
        "own",
        "case",
        "p",
        ({"type": "function"},),
    )
    assert (other.task_pattern, other.task_field, other.system_prompt, other.tools) == (
        "all",
        "case",
        "",
        (),
    )


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[1]", "no json", '[{"a": NaN}]', r'[{"a": "\ud800"}]']
)
def test_a_tools_file_that_is_missing_or_none_is_a_sentence(toml, tmp_path, content):
    toml('[agents."tau/airline"]\ntools = "tools.json"\n')
    if content is not None:
        (tmp_path / "tools.json").write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"tools\.json"):
        load_settings().reading(AIRLINE)


# What lies beside the settings


def test_dagsters_home_lies_beside_the_settings_and_is_made_whole(toml, tmp_path, monkeypatch):
    toml("")
    monkeypatch.setenv("DAGSTER_HOME", "")
    assert dagster_home() == tmp_path / ".dagster"
    assert (tmp_path / ".dagster" / "dagster.yaml").stat().st_size > 0
    (tmp_path / ".dagster" / "dagster.yaml").write_text("# mine\n", encoding="utf-8")
    assert (dagster_home() / "dagster.yaml").read_text(encoding="utf-8") == "# mine\n"


def test_a_home_that_is_made_where_an_address_of_postgres_is_set_keeps_dagsters_tables_there(
    toml, tmp_path, monkeypatch
):
    toml("")
    monkeypatch.setenv("DAGSTER_HOME", "")
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "postgresql://me:secret@db/dagster")
    monkeypatch.setattr("agent_pipeline.cli.instance.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'agent-pipeline\[postgres\]'"):
        dagster_home()
    monkeypatch.setattr("agent_pipeline.cli.instance.find_spec", lambda name: name)
    text = (dagster_home() / "dagster.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["storage"] == {
        "postgres": {"postgres_url": {"env": "DAGSTER_POSTGRES_URL"}}
    }
    assert os.environ["DAGSTER_POSTGRES_URL"] == "postgresql+psycopg2://me:secret@db/dagster", (
        "the driver that dagster-postgres brings"
    )
    assert "secret" not in text


def test_every_unknown_setting_is_named_with_the_nearest(toml):
    toml('storre = "x"\n[sft_adapter]\nlora_r = 8\n[zzz]\n[trains]\n')
    with pytest.raises(SettingsError) as error:
        load_settings()
    sentence = str(error.value)
    assert "did you mean store?" in sentence and "assets.sft_adapter" in sentence
    assert "'zzz'" in sentence and "no known name is similar" in sentence
    assert "did you mean train?" in sentence
    assert "trust_remote_code" not in sentence and "\n" not in sentence


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_web_server_without_serve_names_the_driver_of_postgres(toml, monkeypatch, scheme):
    """`python -m agent_pipeline.cli.webserver` opens the database that `serve webserver` opens."""
    toml("")
    addresses = []
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", f"{scheme}://me:secret@db/dagster")
    monkeypatch.setattr(
        webserver,
        "run_webserver",
        lambda wrap: addresses.append(os.environ["DAGSTER_POSTGRES_URL"]),
    )
    webserver.main()
    assert addresses == ["postgresql+psycopg2://me:secret@db/dagster"]


@pytest.mark.parametrize("made_with", ["postgresql://db/dagster", ""])
def test_a_home_and_a_variable_that_contradict_each_other_are_refused(toml, monkeypatch, made_with):
    toml("")
    monkeypatch.setattr("agent_pipeline.cli.instance.find_spec", lambda name: name)
    monkeypatch.setenv("DAGSTER_HOME", "")
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", made_with)
    dagster_home()
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "" if made_with else "postgresql://db/dagster")
    with pytest.raises(
        SettingsError,
        match="is not set, but .* reads it" if made_with else "is set, but .* does not read it",
    ):
        dagster_home()


def test_the_pools_of_a_new_home_are_limited_before_its_first_run(toml, monkeypatch):
    toml("")
    monkeypatch.setenv("DAGSTER_HOME", "")
    with open_instance() as instance:
        assert {
            (each.name, each.limit) for each in instance.event_log_storage.get_pool_limits()
        } == {("gpu", 1), ("cpu-heavy", 1)}
        instance.event_log_storage.set_concurrency_slots("gpu", 2)
    with open_instance() as instance:
        assert ("gpu", 2) in {
            (each.name, each.limit) for each in instance.event_log_storage.get_pool_limits()
        }


SIX_SHELLS = """
import multiprocessing
import dagster._core.storage.sqlite_storage
from agent_pipeline.cli.instance import open_instance

context = multiprocessing.get_context("fork")
together = context.Barrier(6)

def open_together():
    together.wait()
    with open_instance():
        pass

shells = [context.Process(target=open_together) for _ in range(6)]
for shell in shells:
    shell.start()
for shell in shells:
    shell.join()
print([shell.exitcode for shell in shells])
"""
"""Forks of a process without threads: a fork of the test's process may wait for ever for a lock."""


@pytest.mark.slow
def test_processes_that_open_a_new_home_at_once_all_open_it(toml, monkeypatch):
    """Two shells on a first day: most of such processes ended in Dagster's half-made tables."""
    toml("")
    monkeypatch.setenv("DAGSTER_HOME", "")
    assert run_python(SIX_SHELLS) == "[0, 0, 0, 0, 0, 0]\n"


def test_a_full_disk_and_a_forbidden_one_have_their_sentence_and_other_errors_none():
    assert "The disk is full at /x: " in str(disk_sentence(OSError(28, "no space", "/x")))
    assert "no permission to write at /x" in str(disk_sentence(PermissionError(13, "denied", "/x")))
    assert disk_sentence(FileNotFoundError(2, "gone", "/x")) is None
    # As safetensors and torch say it of a checkpoint, in errors of their own without a number.
    for text in (
        "I/O error: No space left on device (os error 28)",
        "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
    ):
        assert "The disk is full: " in str(disk_sentence(RuntimeError(text)))
