"""The component: a project of a user's own with an asset `sessions`, to which agent-pipeline is added."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from agent_pipeline.component import APPLIED, AgentPipelineComponent, apply_variables
from agent_pipeline.config.settings import load_settings
from agent_pipeline.definitions import build_defs
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.conftest import REPOSITORY, SAMPLE

TYPE = "agent_pipeline.AgentPipelineComponent"
ATTRIBUTES = {"store": str(SAMPLE), "lake": "lake", "key_prefix": "agents"}
ASSET = "import dagster as dg\n\n\n@dg.asset\ndef sessions() -> None: ...\n"
DEFINITIONS = """from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in the layout of `create-dagster`, with an asset of its own."""
    name = f"host_{tmp_path.name}"
    root = tmp_path / name
    package = root / "src" / name
    (package / "defs").mkdir(parents=True)
    (root / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "1"\n'
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{name}"\n',
        encoding="utf-8",
    )
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    (package / "defs" / "__init__.py").touch()
    (package / "defs" / "sessions.py").write_text(ASSET, encoding="utf-8")
    monkeypatch.syspath_prepend(str(root / "src"))
    yield root
    apply_variables({})


def add_component(project: Path, attributes: Mapping[str, Any], folder: str = "my_agents") -> Path:
    path = project / "src" / project.name / "defs" / folder / "defs.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({"type": TYPE, "attributes": dict(attributes)}))
    return path


def load(project: Path) -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=project)


def cause(error: BaseException | None) -> SettingsError:
    """Return the error of the component, which Dagster wraps."""
    while error is not None and not isinstance(error, SettingsError):
        error = error.__cause__ or error.__context__
    assert error is not None
    return error


def test_definitions_in_a_host_project(project: Path) -> None:
    """The graph has its prefix, groups and owners, and changes nothing of the project's own."""
    add_component(project, ATTRIBUTES | {"group_prefix": "agents", "owners": ["team:support"]})
    loaded = load(project)
    dg.Definitions.validate_loadable(loaded)
    assert loaded.executor is None and not loaded.loggers
    graph = loaded.resolve_asset_graph()
    own, ours = dg.AssetKey("sessions"), dg.AssetKey(["agents", "sessions"])
    assert {own, ours} <= graph.get_all_asset_keys()
    assert {key.path[0] for key in graph.get_all_asset_keys() - {own}} == {"agents"}
    assert graph.get(ours).group_name == "agents_traces" and graph.get(own).group_name == "default"
    groups = {graph.get(key).group_name for key in graph.get_all_asset_keys() - {own}}
    assert all(group and group.startswith("agents_") for group in groups)
    assert graph.get(ours).owners == ["team:support"] and not graph.get(own).owners
    repository = loaded.get_repository_def()
    assert {"agents__retrain", "agents__mix"} <= set(repository.job_names)
    assert repository.has_sensor_def("agents__discover_agents")
    assert repository.has_schedule_def("agents__nightly")
    retrain = loaded.resolve_job_def("agents__retrain").asset_layer.executable_asset_keys
    assert own not in retrain and ours in retrain
    selection = loaded.resolve_sensor_def("agents__fresh_tables").asset_selection
    assert selection is not None
    fresh = selection.resolve(graph)
    assert own not in fresh and ours in fresh


NAMESAKES = """import dagster as dg

JOBS, SCHEDULES, SENSORS, RESOURCES = {names}


class Own(dg.ConfigurableResource):
    label: str = "own"


@dg.op
def promote_export() -> None: ...


def make_job(name: str) -> dg.JobDefinition:
    @dg.job(name=name)
    def job() -> None:
        promote_export()

    return job


def make_sensor(name: str) -> dg.SensorDefinition:
    @dg.sensor(name=name, job=jobs["retrain"])
    def sensor(workspace: Own) -> dg.SkipReason:
        return dg.SkipReason(workspace.label)

    return sensor


@dg.asset
def champion(workspace: Own) -> str:
    return workspace.label


jobs = {{name: make_job(name) for name in JOBS}}
defs = dg.Definitions(
    assets=[champion],
    jobs=list(jobs.values()),
    schedules=[
        dg.ScheduleDefinition(name=name, job=jobs["retrain"], cron_schedule="0 5 * * *")
        for name in SCHEDULES
    ],
    sensors=[make_sensor(name) for name in SENSORS],
    resources={{key: Own() for key in RESOURCES}},
)
"""
"""A module of a user whose definitions have the names of ours."""


def test_namesakes(project: Path) -> None:
    """A user may have a job, schedule, sensor or resource of every name that we use."""
    plain = build_defs(standalone=False)
    names = [
        [definition.name for definition in definitions or ()]
        for definitions in (plain.jobs, plain.schedules, plain.sensors)
    ]
    module = NAMESAKES.format(names=[*names, list(plain.resources or ())])
    folder = project / "src" / project.name / "defs"
    (folder / "namesakes.py").write_text(module, encoding="utf-8")
    add_component(project, ATTRIBUTES)
    loaded = load(project)
    dg.Definitions.validate_loadable(loaded)
    repository = loaded.get_repository_def()
    loaded_names = {
        "jobs": [name for name in repository.job_names if "ASSET_JOB" not in name],
        "schedules": [schedule.name for schedule in repository.schedule_defs],
        "sensors": [sensor.name for sensor in repository.sensor_defs],
        "resources": list(repository.get_top_level_resources()),
    }
    for kind, all_names in loaded_names.items():
        own = {name for name in all_names if not name.startswith("agents__")}
        assert own and {f"agents__{name}" for name in own} == set(all_names) - own, kind
    with dg.DagsterInstance.ephemeral() as instance:
        user_run = loaded.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey("champion")]
        )
        assert user_run.output_for_node("champion") == "own"
        instance.add_dynamic_partitions(AGENTS.name or "", ["shop/intern"])
        ours = loaded.resolve_job_def("agents__retrain").execute_in_process(
            instance=instance,
            partition_key="shop/intern",
            asset_selection=[dg.AssetKey(["agents", "sessions"])],
        )
    assert ours.success and Lake(str(project / "lake")).has("sessions", parse_key("shop/intern"))


def test_documentation() -> None:
    """The page of the component in Dagster's UI describes each attribute, with an example."""
    properties = AgentPipelineComponent.model().model_json_schema()["properties"]
    assert set(properties) == set(AgentPipelineComponent.model_fields)
    for name, schema in properties.items():
        assert schema["description"] and schema["examples"][0], name
    assert AgentPipelineComponent.get_spec().owners


def test_no_automation(project: Path) -> None:
    """Dagster would add a sensor of its own if an asset kept its automation condition."""
    add_component(project, ATTRIBUTES | {"automation": False})
    repository = load(project).get_repository_def()
    assert repository.sensor_defs == [] and repository.schedule_defs == []
    assert "agents__retrain" in repository.job_names


def test_run_with_the_attributes(project: Path) -> None:
    """A run reads the store and writes the lake that the attributes name, from any folder."""
    add_component(project, ATTRIBUTES | {"agents": {"shop/intern": {"task_field": "ticket"}}})
    job = load(project).resolve_job_def("agents__retrain")
    settings = load_settings()
    assert settings.reading(parse_key("shop/intern")).task_field == "ticket"
    key = dg.AssetKey(["agents", "sessions"])
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", ["shop/intern"])
        result = job.execute_in_process(
            instance=instance, partition_key="shop/intern", asset_selection=[key]
        )
    assert result.success
    assert Lake(str(project / "lake")).has("sessions", parse_key("shop/intern"))


def test_settings_file(project: Path) -> None:
    """The attributes override the project's pipeline.toml, whose paths start at its folder."""
    (project / "pipeline.toml").write_text('lake = "elsewhere"\nkeep_exports = 7\n')
    add_component(project, {"store": "tickets", "key_prefix": "agents"})
    load(project)
    settings = load_settings()
    assert settings.lake_url == str(project / "elsewhere") and settings.keep_exports == 7
    assert [store.where for store in settings.stores] == [str(project / "tickets")]


def test_missing_settings_file(project: Path) -> None:
    add_component(project, ATTRIBUTES | {"settings": "nowhere.toml"})
    with pytest.raises(Exception) as error:
        load(project).get_repository_def()
    assert cause(error.value).setting == "settings"
    assert cause(error.value).path == str(project / "nowhere.toml")


def test_wrong_setting_of_an_agent(project: Path) -> None:
    """The error names defs.yaml, where the wrong setting stands."""
    path = add_component(project, ATTRIBUTES | {"agents": {"shop/intern": {"trian": ["sft"]}}})
    with pytest.raises(Exception) as error:
        load(project).get_repository_def()
    assert cause(error.value).path == str(path)
    assert "trian" in str(cause(error.value))


def test_second_component(project: Path) -> None:
    """Settings belong to the process, so a second store would silently replace the first one."""
    add_component(project, ATTRIBUTES)
    add_component(project, ATTRIBUTES | {"store": "tickets"}, "more_agents")
    with pytest.raises(Exception) as error:
        load(project).get_repository_def()
    assert cause(error.value).setting == "store"


def test_variables_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed attribute replaces the value of an earlier load, but never a user's variable."""
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", "/user")
    monkeypatch.setenv(APPLIED, "{}")
    apply_variables({"AGENT_PIPELINE_LAKE": "/lake", "AGENT_PIPELINE_STORE": "/one"})
    assert os.environ["AGENT_PIPELINE_LAKE"] == "/user"
    assert os.environ["AGENT_PIPELINE_STORE"] == "/one"
    apply_variables({"AGENT_PIPELINE_STORE": "/two"})
    assert os.environ["AGENT_PIPELINE_STORE"] == "/two"
    apply_variables({})
    assert "AGENT_PIPELINE_STORE" not in os.environ and APPLIED not in os.environ
    assert os.environ["AGENT_PIPELINE_LAKE"] == "/user"


@pytest.fixture
def fresh_project(tmp_path: Path) -> Path:
    """A project as `create-dagster` writes it today, with an asset of the user's own."""
    folders = [os.environ["PATH"], str(REPOSITORY / "build" / "dagster" / "bin")]
    program = shutil.which("create-dagster", path=os.pathsep.join(folders))
    if program is None:
        pytest.skip("no create-dagster here: .ci/run installs it into build/dagster")
    command = [program, "project", "shopflow", "--no-uv-sync"]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    root = tmp_path / "shopflow"
    (root / "src" / "shopflow" / "defs" / "sessions.py").write_text(ASSET, encoding="utf-8")
    return root


@pytest.fixture
def run_dg(project: Path, tmp_path: Path) -> Callable[..., str]:
    """Run `dg` in the project, in an environment with this package's entry points."""
    metadata = tmp_path / "installed" / "agent_pipeline_here-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: agent-pipeline-here\nVersion: 1\n"
    )
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in pyproject["project"]["entry-points"].items()
        )
    )
    (tmp_path / "home").mkdir()

    def run(*arguments: str, project: Path = project) -> str:
        folders = [metadata.parent, REPOSITORY, project / "src"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "DAGSTER_HOME": str(tmp_path / "home"),
        }
        command = [sys.executable, "-c", "from dagster_dg_cli.cli import main; main()", *arguments]
        result = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


@pytest.mark.slow
def test_commands_of_dg(project: Path, run_dg: Callable[..., str]) -> None:
    """A user scaffolds the component, checks the project, and lists its definitions."""
    run_dg("scaffold", "defs", TYPE, "my_agents", "--store", str(SAMPLE))
    scaffolded = project / "src" / project.name / "defs" / "my_agents" / "defs.yaml"
    written = yaml.safe_load(scaffolded.read_text(encoding="utf-8"))
    assert written["type"] == TYPE and written["attributes"]["store"] == str(SAMPLE)
    run_dg("check", "defs")
    listed = json.loads(run_dg("list", "defs", "--json"))
    keys = {asset["asset_key"] for asset in listed["assets"]}
    assert {"sessions", "agents/sessions", "agents/adapter"} <= keys
    assert {"agents__retrain", "agents__mix", "agents__compare_methods"} <= {
        job["name"] for job in listed["jobs"]
    }


@pytest.mark.slow
def test_project_of_create_dagster(fresh_project: Path, run_dg: Callable[..., str]) -> None:
    """Three commands, eight lines, and the user's own asset `sessions` stays."""
    run_dg("scaffold", "defs", TYPE, "my_agents", "--store", str(SAMPLE), project=fresh_project)
    written = fresh_project / "src" / "shopflow" / "defs" / "my_agents" / "defs.yaml"
    assert len(written.read_text(encoding="utf-8").split("\n\n", 1)[1].splitlines()) <= 8
    run_dg("check", "defs", project=fresh_project)
    listed = json.loads(run_dg("list", "defs", "--json", project=fresh_project))
    keys = {asset["asset_key"] for asset in listed["assets"]}
    assert {"sessions", "agents/sessions"} <= keys
    assert {key.partition("/")[0] for key in keys - {"sessions"}} == {"agents"}


@pytest.mark.slow
def test_list_of_components(run_dg: Callable[..., str]) -> None:
    """The component and its description are listed, by the entry point of this package."""
    listed = json.loads(run_dg("list", "components", "--json"))["items"]
    summaries = {component["key"]: component["summary"] for component in listed}
    assert summaries[TYPE] == AgentPipelineComponent.__doc__.splitlines()[0]
