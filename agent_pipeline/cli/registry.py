"""Registration of the commands: panels of the help, examples, next steps and old names.

The table of the commands is in `app`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from shutil import which
from string import Formatter
from typing import Any

import typer
from typer.core import TyperGroup

PROGRAM = "agent-pipeline"
EPILOG_SEPARATOR = "\n\n"
"""Separator of the lines of an epilog, because Typer joins lines that one newline separates."""

OLD_NAMES = {
    "champions": "models list",
    "check": "config check",
    "explain": "sessions show",
    "lineage model": "models show",
    "lineage session": "sessions show --lineage",
    "serve daemon": "service daemon",
    "serve webserver": "service webserver",
}
"""The present command by its old name. Old names still work, but the help does not show them."""


@dataclass(frozen=True)
class Command:
    """A command with the texts of its help.

    Attributes:
        function: The function that Typer runs. If it returns a text, this text is the next step. An
            empty text means that the function has printed the next step itself.
        name: The words of the command, such as `models list`.
        examples: The arguments of examples, such as `models list --json`.
        next_step: The next sensible command. `{partition}` stands for the argument.
    """

    function: Callable[..., Any]
    name: str
    examples: tuple[str, ...]
    next_step: str

    @property
    def epilog(self) -> str:
        """Return the end of the help: the examples and the next step."""
        title = "Example:" if len(self.examples) == 1 else "Examples:"
        examples = [f"{PROGRAM} {example}" for example in self.examples]
        next_step = f"Next: {PROGRAM} {fill(self.next_step, {})}"
        return EPILOG_SEPARATOR.join([title, *examples, next_step])


def fill(next_step: str, values: Mapping[str, object]) -> str:
    """Return a next step with the values of a command's arguments.

    Example:
        >>> fill("report {partition}", {"partition": "shop/support"})
        'report shop/support'
        >>> fill("report {partition}", {})
        'report PARTITION'
    """
    names = [name for _, name, _, _ in Formatter().parse(next_step) if name]
    return next_step.format(**{name: values.get(name) or name.upper() for name in names})


def print_next(command: str) -> None:
    """Print the next command on standard error, so that the output of this command stays clean.

    Args:
        command: The command without the name of the program; empty to print nothing.
    """
    if command:
        sys.stderr.write(f"Next: {name_program()} {command}\n")


def name_program() -> str:
    """Return the program as a shell finds it: its name, or its path if it is not on the PATH.

    Example:
        After `make demo`, the program is `.venv/bin/agent-pipeline`.
    """
    called = Path(sys.argv[0])
    if called.name != PROGRAM or which(PROGRAM):
        return PROGRAM
    if called.is_absolute() and called.is_relative_to(Path.cwd()):
        called = called.relative_to(Path.cwd())
    return str(called)


def with_next_step(command: Command) -> Callable[..., None]:
    """Return the function of a command, which then prints the next step.

    With `--json` and `--path`, nothing follows the output.
    """

    @wraps(command.function)
    def run(**values: Any) -> None:
        next_step = command.function(**values)
        if values.get("as_json") or values.get("only_path"):
            return
        print_next(fill(command.next_step, values) if next_step is None else str(next_step))

    return run


@dataclass(frozen=True)
class Renamed:
    """A command line that uses an old name.

    Attributes:
        old_name: The old name of the command.
        new_name: The present name of the command.
        words: The command line with the present name.
    """

    old_name: str
    new_name: str
    words: list[str]


def find_old_name(words: Sequence[str]) -> Renamed | None:
    """Return the present form of a command line, or None if it uses no old name.

    Example:
        >>> find_old_name(["champions", "shop/support"]).words
        ['models', 'show', 'shop/support']
        >>> find_old_name(["status"])
    """
    # Earlier versions wrote a file by `review --out`; the present command of this name has no file.
    if words[:1] == ["review"] and any(word.startswith("--out") for word in words):
        return Renamed("review", "label export", ["label", "export", *words[1:]])
    for length in (2, 1):
        old_name, rest = " ".join(words[:length]), list(words[length:])
        if old_name in OLD_NAMES:
            new_name = OLD_NAMES[old_name]
            if old_name == "champions" and any(not word.startswith("-") for word in rest):
                new_name = "models show"
            return Renamed(old_name, new_name, [*new_name.split(), *rest])
    return None


class OrderedGroup(TyperGroup):
    """The group of all commands: it lists them in the order of the table, and knows old names."""

    order: Sequence[str] = ()
    """The first words of the commands, in the order of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the table."""
        return sorted(super().list_commands(ctx), key=self.order.index)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a command line names, by its present name or by an old name."""
        renamed = find_old_name(args)
        if renamed and not ctx.resilient_parsing:
            sys.stderr.write(
                f"note: `{PROGRAM} {renamed.old_name}` is now `{PROGRAM} {renamed.new_name}`.\n"
            )
        return super().resolve_command(ctx, renamed.words if renamed else args)


def register(
    app: typer.Typer, panels: Mapping[str, Sequence[Command]], groups: Mapping[str, str]
) -> None:
    """Add the commands to the application.

    Args:
        app: The application, whose class is `OrderedGroup`.
        panels: The commands by the panel of the help in which they appear.
        groups: The help of each group of commands, by the first word of the group's commands.
    """
    group_apps: dict[str, typer.Typer] = {}
    order: dict[str, None] = {}
    for panel, commands in panels.items():
        for command in commands:
            first, *rest = command.name.split()
            order[first] = None
            if not rest:
                app.command(first, rich_help_panel=panel, epilog=command.epilog)(
                    with_next_step(command)
                )
                continue
            if first not in group_apps:
                group_apps[first] = typer.Typer(no_args_is_help=True, help=groups[first])
                app.add_typer(group_apps[first], name=first, rich_help_panel=panel)
            group_apps[first].command(*rest, epilog=command.epilog)(with_next_step(command))
    OrderedGroup.order = tuple(order)
