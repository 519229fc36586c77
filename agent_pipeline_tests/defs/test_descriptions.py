"""Everything that the UI and the shell show has a description."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

import agent_pipeline.defs
from agent_pipeline.cli.app import app
from agent_pipeline.cli.chat import TOOL_ANSWERERS
from agent_pipeline.config.settings import Settings
from agent_pipeline.definitions import defs
from agent_pipeline.defs.io_managers.parquet import COLUMN_SCHEMA
from agent_pipeline.defs.metadata_keys import (
    ASSET_METADATA,
    CHECK_METADATA,
    describe_check_key,
    describe_key,
)
from agent_pipeline.governance.session_list import VERDICTS
from agent_pipeline.judging.review import FIRST_GROUPS
from agent_pipeline_tests.defs.conftest import DATA_ASSETS, Bench

REPOSITORY = defs.get_repository_def()
GRAPH = REPOSITORY.asset_graph
MAKERS = ("MaterializeResult", "AssetMaterialization", "add_output_metadata")


def test_assets_checks_and_columns() -> None:
    missing = [str(key) for key in GRAPH.get_all_asset_keys() if not GRAPH.get(key).description]
    missing += [str(key) for key in GRAPH.asset_check_keys if not GRAPH.get(key).description]
    for key in GRAPH.get_all_asset_keys():
        schema = GRAPH.get(key).metadata.get(COLUMN_SCHEMA)
        columns = getattr(getattr(schema, "schema", schema), "columns", ())
        missing += [f"{key}.{column.name}" for column in columns if not column.description]
    assert not missing


def test_jobs_schedules_and_sensors() -> None:
    jobs = [job for job in REPOSITORY.get_all_jobs() if not job.name.startswith("__")]
    listed: list[Any] = [*jobs, *REPOSITORY.schedule_defs, *REPOSITORY.sensor_defs]
    assert [each.name for each in listed if not each.description] == []


def fields_of(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield each setting with its description, those of nested groups included."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield above + name, field.description or field.annotation.__doc__
            yield from fields_of(field.annotation, f"{above}{name}.")
        else:
            yield above + name, field.description


def test_settings() -> None:
    fields = dict(fields_of(Settings))
    assert "judge.model" in fields, "nested settings are seen, too"
    assert [name for name, description in fields.items() if not description] == []


def commands_of(command: Any, name: str = "agent-pipeline") -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, f"{name} {child}")


def test_command_line() -> None:
    """Every command, group, argument and option has a text of its own that ends in a period."""
    commands = dict(commands_of(typer.main.get_command(app)))
    assert {"agent-pipeline", "agent-pipeline label", "agent-pipeline label import"} <= set(
        commands
    )
    texts = {name: command.help for name, command in commands.items()}
    texts |= {
        f"{name} {parameter.opts[0]}": getattr(parameter, "help", None)
        for name, command in commands.items()
        for parameter in command.params
    }
    assert len(texts) > 150, "arguments and options are seen, too"
    assert [name for name, text in texts.items() if not (text or "").strip().endswith(".")] == []


CHOICES = {
    ("chat", "--tools"): TOOL_ANSWERERS,
    ("label export", "--first"): FIRST_GROUPS,
    ("review", "--first"): FIRST_GROUPS,
    ("sessions list", "--verdict"): VERDICTS,
}
"""The words of which an option takes one, by its command and its name."""


def test_choices_of_options() -> None:
    """The text of an option that takes one of a few words names each word."""
    commands = dict(commands_of(typer.main.get_command(app)))
    for (command, option), words in CHOICES.items():
        parameters = commands[f"agent-pipeline {command}"].params
        (text,) = [parameter.help for parameter in parameters if option in parameter.opts]
        assert set(words) <= set(re.findall(r"\w+", text)), f"{command} {option}"


def shown_keys() -> set[str]:
    """Return the metadata keys that the code of the graph writes, as they stand in dict literals."""
    keys: set[str] = set()
    for path in Path(agent_pipeline.defs.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            literal: ast.AST | None = None
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(MAKERS):
                named = [word.value for word in node.keywords if word.arg == "metadata"]
                literal = next(iter([*named, *node.args]), None)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "metadata":
                    index = target.slice
                    keys |= {index.value} if isinstance(index, ast.Constant) else set()
                elif ast.unparse(target) in ("metadata", "more"):
                    literal = node.value
            if isinstance(literal, ast.Dict):
                keys |= {key.value for key in literal.keys if isinstance(key, ast.Constant)}
    return keys


def test_metadata_keys() -> None:
    keys = shown_keys()
    assert len(keys) > 60, "the keys are found in the code"
    assert sorted(key for key in keys if not describe_check_key(key)) == []


def test_no_description_of_a_key_that_is_gone() -> None:
    folder = Path(agent_pipeline.__file__).parent
    texts = [
        path.read_text(encoding="utf-8")
        for path in folder.rglob("*.py")
        if path.name != "metadata_keys.py"
    ]
    code = "\n".join(texts)
    assert [key for key in {**ASSET_METADATA, **CHECK_METADATA} if key not in code] == []


def test_what_a_run_shows(bench: Bench) -> None:
    """Every check result has a description, passed or failed, and the first figure is a count."""
    result = bench.run("shop/support", *DATA_ASSETS)
    assert result.success
    evaluations = result.get_asset_check_evaluations()
    assert len(evaluations) > 15
    assert [each.check_name for each in evaluations if not each.description] == []
    keys = {key for each in evaluations for key in each.metadata}
    assert sorted(key for key in keys if not describe_check_key(key)) == []
    for event in result.get_asset_materialization_events():
        shown = event.materialization.metadata
        assert [key for key in shown if not describe_key(key)] == []
        first = next(key for key in shown if not key.startswith("dagster/"))
        assert first in ("sessions", "verdicts", "rows", "training_rows"), event.asset_key
