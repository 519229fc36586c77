"""docs/reference/cli.md: every command. `python -m agent_pipeline_tests.docs.cli_page`."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import typer

from agent_pipeline.cli.app import PANELS, app
from agent_pipeline.cli.night import PlannedNight
from agent_pipeline.cli.registry import OLD_NAMES, fill
from agent_pipeline.config.setting_list import SettingList
from agent_pipeline.governance.agent_status import Status
from agent_pipeline.governance.explain import SessionStory
from agent_pipeline.governance.forgetting import Forgotten
from agent_pipeline.governance.lineage import ModelLineage, SessionLineage
from agent_pipeline.governance.model_list import ModelHistory, ModelList
from agent_pipeline.governance.pruning import Pruned
from agent_pipeline.governance.session_list import SessionList
from agent_pipeline.ingestion.discovery import Discovery
from agent_pipeline_tests.docs.markdown import GENERATED, join_parts, make_table, wrap
from agent_pipeline_tests.docs.pages import DOCS

PATH = DOCS / "reference" / "cli.md"
COMMANDS = {command.name: command for commands in PANELS.values() for command in commands}
TYPES = {str: "text", int: "whole number", float: "number", Path: "path"}
JSON_TYPES = {str: "string", int: "number", float: "number", bool: "boolean"}
JSON_OUTPUTS = {
    "discover": Discovery,
    "config show": SettingList,
    "sessions list": SessionList,
    "sessions show": SessionStory,
    "sessions show --lineage": SessionLineage,
    "models list": ModelList,
    "models show PARTITION": ModelHistory,
    "models show MODEL": ModelLineage,
    "forget": Forgotten,
    "prune": Pruned,
    "status": Status,
    "night --dry-run": PlannedNight,
}
"""The struct that each command prints with `--json`."""

INTRODUCTION = """\
`make install` installs the command as `.venv/bin/agent-pipeline`. On this page,
`.venv/bin` is left out. To see the help of a command, add `--help` or `-h`, for example
`agent-pipeline materialize --help`. `agent-pipeline --version` prints the version.

A partition is one agent of one project, written as `project/agent`, such as `shop/support`.

| exit code | meaning |
|---|---|
| 0 | The command succeeded. |
| 1 | The command failed. The last line on standard error says why, and what to do. |
| 2 | The command line is wrong, for example because an option does not exist. |
| 130 | Somebody interrupted the command with Ctrl+C. |

If a command succeeds, it prints the next sensible command on standard error. A command with
`--json` or `--path` does not print the next command.

The option `--install-completion` installs completion for your shell (bash, zsh, fish or
PowerShell). Start a new shell afterwards.
"""


def name_value(parameter: Any) -> str:
    """Return which values a parameter accepts. An option without a value gives an empty text."""
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    text = TYPES[annotation]
    return f"{text}, {parameter.min:g} or more" if parameter.min is not None else text


def name_default(parameter: Any) -> str:
    """Return the default of a parameter. A default that the help explains is left out."""
    if parameter.required:
        return "required"
    if parameter.default is None or parameter.default is False or parameter.default == "":
        return ""
    return f"`{parameter.default}`"


def list_parameters(command: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, the values, the default and the meaning of each parameter."""
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        help_text = str(parameter.help or "").replace("\\[", "[")
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        yield names, name_value(parameter), name_default(parameter), help_text


def describe_command(path: str, command: Any) -> Iterator[str]:
    """Yield the parts of a page that describe a command, or the commands of a group."""
    if subcommands := getattr(command, "commands", None):
        for name, subcommand in subcommands.items():
            yield from describe_command(f"{path} {name}", subcommand)
        return
    yield f"### {path}"
    yield wrap(command.help)
    yield make_table(
        ("argument or option", "value", "default", "meaning"), list_parameters(command)
    )
    texts = COMMANDS[path]
    examples = "\n".join(f"agent-pipeline {example}" for example in texts.examples)
    yield f"```sh\n{examples}\n```"
    yield f"Next: `agent-pipeline {fill(texts.next_step, {})}`"


def find_struct(kind: Any) -> type | None:
    """Return the struct that a type is, or that its entries are; None if there is none."""
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def name_json_type(kind: Any) -> str:
    """Return the JSON type of a field."""
    kinds = [part for part in get_args(kind) if part is not type(None)]
    if type(None) in get_args(kind):
        return f"{name_json_type(kinds[0])} or null"
    if get_origin(kind) is list:
        return f"list of {name_json_type(kinds[0])}s"
    return JSON_TYPES.get(kind, "object")


def read_attributes(struct: type) -> dict[str, str]:
    """Return the meanings of the fields of a struct, from the section Attributes of its text."""
    section = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def describe_json() -> Iterator[str]:
    """Yield the parts of the page that list the fields of the JSON output."""
    yield "## JSON output"
    yield wrap(
        "The option `--json` prints one JSON object on one line. A field without a value may be "
        "missing. `[]` marks the entries of a list."
    )
    for command, struct in JSON_OUTPUTS.items():
        yield f"### JSON of {command}"
        yield make_table(("field", "type", "meaning"), list_fields(struct))


def list_fields(struct: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the path, the type and the meaning of each field of a struct, and of its structs."""
    meanings = read_attributes(struct)
    for field in msgspec.structs.fields(struct):
        nested = find_struct(field.type)
        is_list = get_origin(field.type) is list
        path = f"{prefix}{field.name}{'[]' if is_list and nested else ''}"
        yield f"`{path}`", name_json_type(field.type), meanings[field.name]
        if nested and nested is not struct:
            yield from list_fields(nested, f"{path}.")


def render_cli_page() -> str:
    """Return the page of the command line."""
    panels: dict[str, list[str]] = {}
    group: Any = typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.commands[name]
        parts = panels.setdefault(command.rich_help_panel, [])
        parts += describe_command(name, command)
    page = ["# Command line", GENERATED, INTRODUCTION.strip()]
    for panel, parts in panels.items():
        page += [f"## {panel}", *parts]
    return join_parts([*page, *describe_old_names(), *describe_json()])


def describe_old_names() -> Iterator[str]:
    """Yield the parts of the page that list the old names of commands."""
    yield "## Old names"
    yield "The old names of commands still work, and print the present name on standard error."
    rows = [(f"`{old}`", f"`{new}`") for old, new in OLD_NAMES.items()]
    yield make_table(("old name", "present name"), rows)


if __name__ == "__main__":
    PATH.write_text(render_cli_page(), encoding="utf-8")
