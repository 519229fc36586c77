"""Groups of options. Each option defines its type, default, bounds and meaning in one place.

The settings file, run config, `--set`, notebooks and the documentation are derived from these
models. The options themselves are in `config.assets` and next to the code that uses them.
"""

import difflib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, Self, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agent_pipeline.errors import SettingsError

_COMMA = re.compile(r",(?![^(\[{]*[)\]}])")
"""Pattern of a comma that separates entries, but not of a comma in brackets, as in `{1,2}`."""

_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table of names and values",
}


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(extra="forbid")


class Options(BaseModel):
    """A group of read-only options. `model_fields_set` contains the options that were given.

    Raises:
        SettingsError: an option does not exist, or its value is of a wrong type or out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    other_names: ClassVar[Mapping[str, str]] = {}
    """Names of options in other systems, with the names of the same options here."""
    earlier_names: ClassVar[Mapping[str, str]] = {}
    """Earlier names of options in this group, with their current names.

    An earlier name is accepted, with a hint in the log. Hashes keep it (`hashed`), so that renaming
    an option changes no identity.
    """
    removed_options: ClassVar[Mapping[str, str]] = {}
    """Options that were removed from this group, with the reason for each removal."""

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**self.with_current_names(values))
        except ValidationError as error:
            raise SettingsError(problem(error, type(self))) from None

    def changed(self, **values: object) -> Self:
        """Return a copy with some values replaced and validated.

        Raises:
            SettingsError: a value is wrong.
        """
        set_values = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(set_values | self.with_current_names(values)))

    @classmethod
    def with_current_names(cls, values: Mapping[str, object]) -> dict[str, Any]:
        """Return values in which earlier option names are replaced by the current names.

        Raises:
            SettingsError: an option was set under both of its names.
        """
        renamed: dict[str, object] = {}
        for name, value in values.items():
            current_name = cls.earlier_names.get(name, name)
            if current_name != name:
                _log_earlier_name(name, current_name)
                if current_name in values:
                    raise SettingsError(
                        f"{name!r} is the earlier name of {current_name!r}, and both are set: "
                        f"remove `{name}`."
                    )
            renamed[current_name] = value
        return renamed

    @classmethod
    def with_hashed_names(cls, values: Mapping[str, object]) -> dict[str, object]:
        """Return values under the names that enter hashes.

        An option always keeps its first name.
        """
        first_names = {current: earlier for earlier, current in cls.earlier_names.items()}
        return {first_names.get(name, name): value for name, value in values.items()}

    def hashed(self) -> dict[str, Any]:
        """Return all options as JSON under the names that enter hashes."""
        return self.with_hashed_names(self.model_dump(mode="json"))

    @classmethod
    def validated(cls, values: Mapping[str, object], prefix: str = "", where: str = "") -> Self:
        """Create the group from values that a user wrote. Texts are parsed as each option's type.

        Args:
            values: The values by name.
            prefix: The text before the option's name in an error, such as `sft_adapter.`.
            where: The file that an error names.

        Raises:
            SettingsError: a name does not exist, or a value is wrong.
        """
        group = cls.__new__(cls)
        try:
            BaseModel.__init__(
                group,
                **{
                    name: cls.parsed(name, value)
                    for name, value in cls.with_current_names(values).items()
                },
            )
        except ValidationError as error:
            raise SettingsError(problem(error, cls, prefix, where)) from None
        return group

    @classmethod
    def parsed(cls, name: str, value: object) -> Any:
        """Parse a text as the type of an option.

        The text is read as JSON, or for a list as entries separated by commas. A value that is not
        a text is returned unchanged.
        """
        field = cls.model_fields.get(cls.earlier_names.get(name, name))
        if (
            not isinstance(value, str)
            or field is None
            or field.annotation is str
            or get_origin(field.annotation) is Literal
        ):
            return value
        try:
            parsed = json.loads(value)
        except ValueError:
            return (
                [part.strip() for part in _COMMA.split(value)]
                if get_origin(field.annotation) is list
                else value
            )
        return (
            [parsed]
            if get_origin(field.annotation) is list and not isinstance(parsed, list)
            else parsed
        )

    @classmethod
    def translated(cls, values: Mapping[str, object]) -> Self:
        """Create the group from values under our names or another system's names.

        Ignore other names.

        Raises:
            SettingsError: a value is wrong.
        """
        names = {**cls.other_names, **cls.earlier_names}
        ours = {names.get(name, name): value for name, value in values.items()}
        return cls(**{name: value for name, value in ours.items() if name in cls.model_fields})


@cache
def _log_earlier_name(name: str, current_name: str) -> None:
    """Log the hint about an earlier name once per process, because settings are read many times."""
    logging.getLogger(__name__).warning(
        "The setting `%s` is called `%s` now. Both names are accepted: use the new name.",
        name,
        current_name,
    )


MAX_NAMES = 25
"""Maximum number of names that an error lists. If there are more, it lists only similar names."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest name, or all known names.

    If there are many names, at most three that are similar are shown.

    Example:
        >>> did_you_mean("lorar", ["lora_r", "max_steps"])
        ': did you mean lora_r?'
        >>> did_you_mean("xyz", ["lora_r", "max_steps"])
        ': choose one of lora_r, max_steps.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f": did you mean {close[0]}?"
    if len(names) > MAX_NAMES:
        similar = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        if not similar:
            return ": no known name is similar."
        return f": similar names are {', '.join(similar)}."
    return f": choose one of {', '.join(names)}." if names else "."


def problem(
    error: ValidationError, model: type[BaseModel], prefix: str = "", where: str = ""
) -> str:
    """Return the first problem that pydantic found in a model's values, and all unknown names.

    Each problem is one sentence.

    Args:
        error: The error.
        model: The model that was validated.
        prefix: The text before the setting's name.
        where: The file that the sentence names.
    """
    first, *others = error.errors()
    shown = [first, *(other for other in others if other["type"] == "extra_forbidden")]
    return " ".join(_describe_problem(details, model, prefix, where) for details in shown)


def _describe_problem(first: ErrorDetails, model: type[BaseModel], prefix: str, where: str) -> str:
    path = [str(part) for part in first["loc"]]
    owner, field = _field_at(model, path)
    name, where = prefix + ".".join(path), f" in {where}" if where else ""
    if first["type"] == "extra_forbidden":
        return f"The setting {name!r}{where} does not exist{_nearest(path[-1], owner)}"
    if first["type"] == "value_error":
        reason = first["msg"].removeprefix("Value error, ")
        return f"The setting {name!r}{where} is wrong: {reason}" if path else reason
    expected = f"it must be {allowed(field)}" if field else first["msg"].lower()
    return f"The setting {name!r}{where} is {first['input']!r}: {expected}."


def _nearest(name: str, owner: type[BaseModel]) -> str:
    other_names = getattr(owner, "other_names", {})
    if name in other_names:
        return f": it is called `{other_names[name]}` here."
    removed_options = getattr(owner, "removed_options", {})
    if name in removed_options:
        return f" any more, because {removed_options[name]}: delete it."
    return did_you_mean(name, owner.model_fields)


def allowed(field: FieldInfo) -> str:
    """Return the values that a field accepts, as the end of the sentence "it must be …"."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return f"one of {', '.join(str(value) for value in get_args(kind) if value != '')}"
    bounds = {
        type(constraint): getattr(constraint, type(constraint).__name__.lower())
        for constraint in field.metadata
        if isinstance(constraint, Ge | Gt | Le | Lt)
    }
    return f"{_TYPES.get(get_origin(kind) or kind, 'something else')}{_range(bounds)}"


def _range(bounds: Mapping[type, object]) -> str:
    least, above, most, below = (bounds.get(kind) for kind in (Ge, Gt, Le, Lt))
    lower = (
        f"{least:g} or more"
        if least is not None
        else f"above {above:g}"
        if above is not None
        else ""
    )
    upper = (
        f"{most:g} or less" if most is not None else f"below {below:g}" if below is not None else ""
    )
    return ", " + " and ".join(filter(None, (lower, upper))) if lower or upper else ""


def _field_at(model: type[BaseModel], path: list[str]) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the innermost model on a path of names, and the field at its end.

    The field is None if the path leads to no field.
    """
    owner, kind, field = model, cast(Any, model), None
    for name in path:
        field = None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            owner, field = kind, kind.model_fields.get(name)
            kind = field.annotation if field else None
        else:
            kind = get_args(kind)[1] if get_origin(kind) is dict else None
    return owner, field
