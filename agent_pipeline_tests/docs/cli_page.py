"""docs/reference/cli.md: every command. `python -m agent_pipeline_tests.docs.cli_page`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from agent_pipeline.cli.app import app
from agent_pipeline_tests.docs.markdown import GENERATED, join_parts, make_table, wrap
from agent_pipeline_tests.docs.pages import DOCS

PATH = DOCS / "reference" / "cli.md"
EXAMPLE = "Example: "
TYPES = {str: "text", int: "whole number", float: "number", Path: "path"}
INTRODUCTION = """\
`make install` installs the command as `.venv/bin/agent-pipeline`. This page writes it without
`.venv/bin`. Every command explains itself with `--help` or `-h`, for example
`agent-pipeline materialize --help`.

A partition is one agent of one project, written as `project/agent`, such as `shop/support`.

| exit code | meaning |
|---|---|
| 0 | The command succeeded. |
| 1 | The command failed. The last line on standard error says why, and what to do. |
| 2 | The command line is wrong, for example because an option does not exist. |
| 130 | Somebody interrupted the command with Ctrl+C. |
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
    if command.epilog:
        yield f"```sh\n{command.epilog.removeprefix(EXAMPLE)}\n```"


def render_cli_page() -> str:
    """Return the page of the command line."""
    panels: dict[str, list[str]] = {}
    for name, command in typer.main.get_command(app).commands.items():
        parts = panels.setdefault(command.rich_help_panel, [])
        parts += describe_command(name, command)
    page = ["# Command line", GENERATED, INTRODUCTION.strip()]
    for panel, parts in panels.items():
        page += [f"## {panel}", *parts]
    return join_parts(page)


if __name__ == "__main__":
    PATH.write_text(render_cli_page(), encoding="utf-8")
