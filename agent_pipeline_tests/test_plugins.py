"""Modules of users: where they are found, and what an error says if they are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_pipeline
from agent_pipeline.errors import SettingsError
from agent_pipeline.plugins import load_plugin, set_module_folder
from agent_pipeline_tests.conftest import SAMPLE

LOAD = "from agent_pipeline.plugins import load_plugin; print(load_plugin('beside:VALUE', 'world', ''))"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with settings that name a measure, the measure's module, and a folder inside."""
    (tmp_path / "pipeline.toml").write_text(
        f'store = "{SAMPLE}"\n[assets.judged_sessions]\nmeasures = ["beside.polite"]\n',
        encoding="utf-8",
    )
    (tmp_path / "beside.py").write_text(
        "VALUE = 7\n\n\ndef polite(context):\n    return True\n", encoding="utf-8"
    )
    (tmp_path / "json.py").write_text("raise RuntimeError\n", encoding="utf-8")
    (tmp_path / "inside").mkdir()
    return tmp_path


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the inner folder, which is not the folder of the modules."""
    environment = {**os.environ, "DAGSTER_HOME": str(project / "home")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=project / "inside",
        env=environment,
        capture_output=True,
        text=True,
    )


def test_modules_next_to_the_settings_file(project: Path) -> None:
    """The command line, the code location and the worker find them, and nothing is hidden."""
    checked = run(project, "-m", "agent_pipeline.cli.app", "config", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    location = run(project, "-c", f"import agent_pipeline.definitions; {LOAD}")
    assert location.stdout.strip() == "7", location.stderr
    worker = run(
        project, "-c", f"from agent_pipeline import worker; worker._find_user_modules(); {LOAD}"
    )
    assert worker.stdout.strip() == "7", worker.stderr
    installed = run(project, "-c", f"{LOAD.replace('beside:VALUE', 'json:dumps')}")
    assert "function dumps" in installed.stdout


def test_error_names_where_a_module_may_lie(tmp_path: Path) -> None:
    set_module_folder(tmp_path)
    with pytest.raises(SettingsError) as error:
        load_plugin("nowhere_at_all:World", "world", "agent_pipeline.worlds")
    assert str(tmp_path) in str(error.value) and "PYTHONPATH" in str(error.value)
    (tmp_path / "broken_inside.py").write_text("import nowhere_at_all\n", encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        load_plugin("broken_inside:World", "world", "agent_pipeline.worlds")
    assert "PYTHONPATH" not in str(error.value)
    set_module_folder(None)
    with pytest.raises(SettingsError) as error:
        load_plugin("nowhere_at_all:World", "world", "agent_pipeline.worlds")
    assert str(tmp_path) not in str(error.value) and "PYTHONPATH" in str(error.value)


def test_folder_of_each_agent(tmp_path: Path) -> None:
    """Modules of several folders load in one process, and none is used for another folder."""
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"only_in_{name}.py").write_text(f"VALUE = {name!r}\n", encoding="utf-8")
    for name in ("one", "two", "one"):
        loaded = load_plugin(f"only_in_{name}:VALUE", "rule", "", folder=tmp_path / name)
        assert loaded == name
    with pytest.raises(SettingsError):
        load_plugin("only_in_one:VALUE", "rule", "", folder=tmp_path / "three")
    # A module that imports a module with a name of another folder would get the wrong one.
    (tmp_path / "three" / "only_in_two.py").write_text("VALUE = 3\n", encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        load_plugin("only_in_three:VALUE", "rule", "", folder=tmp_path / "three")
    assert str(tmp_path / "three") in str(error.value)


def test_installed_package_with_settings_in_its_clone(tmp_path: Path) -> None:
    """The sample's worlds loaded in no other folder once the clone's own settings had been read."""
    clone, name = Path(agent_pipeline.__file__).parents[1], "agent_pipeline.sample.shop:World"
    for folder in (clone, tmp_path):
        assert load_plugin(name, "world", "", folder=folder).__name__ == "World"
    hiding = tmp_path / "hiding"
    (hiding / "agent_pipeline").mkdir(parents=True)
    (hiding / "agent_pipeline" / "__init__.py").touch()
    with pytest.raises(SettingsError):
        load_plugin(name, "world", "", folder=hiding)
