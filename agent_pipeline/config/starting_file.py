"""The first `pipeline.toml` of a project: proposed settings, each with a comment that says why.

A second proposal adds settings that are missing. It never changes a value, a comment or the order
of an existing file. Choosing the values does not belong here.
"""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item

from agent_pipeline.config.saving import find_or_add_table
from agent_pipeline.errors import SettingsError

_HEADER = "Settings of agent-pipeline. docs/reference/settings.md lists all settings."
_COMMENT_WIDTH = 96


class Choice(msgspec.Struct, frozen=True):
    """A proposed setting.

    Attributes:
        table: The names of the tables that contain the setting; empty for the top of the file.
        name: The name of the setting.
        value: The proposed value.
        comment: Why the value is proposed.
        is_hint: Whether the setting is written as a comment, because only a person can decide.
    """

    table: tuple[str, ...]
    name: str
    value: Any
    comment: str = ""
    is_hint: bool = False

    @property
    def full_name(self) -> str:
        """Return the name of the setting with its tables, as in `split.select`."""
        return tomlkit.key([*self.table, self.name]).as_string()

    @property
    def line(self) -> str:
        """Return the line of the file that sets the value."""
        return f"{tomlkit.key(self.name).as_string()} = {self.make_item().as_string()}"

    def make_item(self) -> Item:
        """Return the value as TOML. A regular expression stays readable, without escapes."""
        if isinstance(self.value, str) and "\\" in self.value and fits_literal(self.value):
            return tomlkit.string(self.value, literal=True)
        if isinstance(self.value, dict):
            table = tomlkit.inline_table()
            table.update(self.value)
            return table
        item: Item = tomlkit.item(self.value)
        return item


def fits_literal(text: str) -> bool:
    """Return whether TOML can write a text without escapes, as a literal string."""
    return "'" not in text and text.isprintable()


class KeptSetting(msgspec.Struct, frozen=True):
    """A setting of an existing file whose value differs from the proposal.

    Attributes:
        name: The name of the setting with its tables.
        value: The value in the file, which stays.
        proposed: The proposed value.
    """

    name: str
    value: Any
    proposed: Any


class ProposedFile(msgspec.Struct, frozen=True):
    """The text of a settings file with the proposed settings.

    Attributes:
        text: The new text of the file.
        added: The settings that the file did not have.
        kept: The settings whose values differ from the proposal, and stay.
    """

    text: str
    added: list[Choice]
    kept: list[KeptSetting]


def propose_file(text: str, choices: Sequence[Choice], path: Path) -> ProposedFile:
    """Return the text of a settings file with the proposed settings added.

    Args:
        text: The text of the existing file; empty for a new file.
        choices: The proposed settings.
        path: The path of the file, for errors.

    Raises:
        SettingsError: The existing file is not TOML, or a name that must be a table is not a table.
    """
    if not text.strip():
        added = [choice for choice in choices if not choice.is_hint]
        return ProposedFile("\n".join(_write_lines(choices)) + "\n", added, [])
    added, kept = [], []
    try:
        document = tomlkit.parse(text)
        for choice in choices:
            if choice.is_hint:
                continue
            table = _find_table(document.unwrap(), choice.table)
            if choice.name not in table:
                target = find_or_add_table(document, choice.table) if choice.table else document
                item = choice.make_item()
                if choice.comment:
                    item.comment(choice.comment)
                target.append(choice.name, item)
                added.append(choice)
            elif table[choice.name] != choice.value:
                kept.append(KeptSetting(choice.full_name, table[choice.name], choice.value))
        return ProposedFile(tomlkit.dumps(document), added, kept)
    except (TOMLKitError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{path} cannot be changed ({error}): edit the file by hand.", path=path
        ) from error


def _find_table(document: Any, names: Sequence[str]) -> Any:
    """Return the table at a path of names, or an empty table."""
    table = document
    for name in names:
        table = table.get(name, {})
    return table


def _write_lines(choices: Sequence[Choice]) -> Iterator[str]:
    """Yield the lines of a new file. The settings at the top come first."""
    yield f"# {_HEADER}"
    for choice in choices:
        if not choice.table:
            yield ""
            yield from write_tables([choice])
    for table in dict.fromkeys(choice.table for choice in choices if choice.table):
        yield ""
        yield from write_tables([choice for choice in choices if choice.table == table])


def write_tables(choices: Sequence[Choice], width: int = _COMMENT_WIDTH) -> Iterator[str]:
    """Yield settings as lines of TOML, with their tables and comments.

    Args:
        choices: The settings.
        width: The width of the comments.
    """
    for table in dict.fromkeys(choice.table for choice in choices):
        if table:
            yield f"[{tomlkit.key(table).as_string()}]"
        for choice in choices:
            if choice.table == table:
                yield from textwrap.wrap(
                    choice.comment, width, initial_indent="# ", subsequent_indent="# "
                )
                yield f"# {choice.line}" if choice.is_hint else choice.line
