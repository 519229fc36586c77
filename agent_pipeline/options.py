"""Options that a user may set: a model's fields hold each one's type, default, bounds and meaning, once.

The settings file, run config, the command's `--set`, notebooks and the documentation are derived from these models.
"""

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from agent_pipeline.errors import SettingsError

_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table of names and values",
}


class Options(BaseModel):
    """A group of options. Its fields are read-only; `model_fields_set` names those that were given.

    Raises:
        SettingsError: an option does not exist, or its value is of a wrong type or out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(problem(error, type(self))) from None

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which are validated. Raises SettingsError."""
        return type(self)(**({name: getattr(self, name) for name in self.model_fields_set} | values))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `: did you mean lora_r?`, or all known names where none is similar.

    Example:
        >>> did_you_mean("lorar", ["lora_r", "epochs"])
        ': did you mean lora_r?'
        >>> did_you_mean("xyz", ["lora_r", "epochs"])
        ': choose one of epochs, lora_r.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f": did you mean {close[0]}?" if close else f": choose one of {', '.join(names)}." if names else "."


def problem(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first problem that pydantic found in a model's values, as one sentence; `prefix` stands before the option's name."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    owner, field = _field_at(model, path)
    name = prefix + ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"The option {name!r} does not exist{did_you_mean(path[-1], owner.model_fields if owner else ())}"
    if first["type"] == "value_error":
        return f"{f'The option {name!r} is wrong: ' if path else ''}{first['msg'].removeprefix('Value error, ')}"
    expected = allowed(field) if field else first["msg"]
    return f"The option {name!r} is {first['input']!r}: it must be {expected}."


def allowed(field: FieldInfo) -> str:
    """The values that a field takes, to complete the sentence "it must be …"."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    bounds = {type(each): getattr(each, type(each).__name__.lower()) for each in field.metadata if isinstance(each, Ge | Gt | Le | Lt)}
    return f"{_TYPES.get(get_origin(kind) or kind, 'something else')}{_range(bounds)}"


def _range(bounds: Mapping[type, Any]) -> str:
    least, above, most, below = (bounds.get(kind) for kind in (Ge, Gt, Le, Lt))
    lower = f"{least:g} or more" if least is not None else f"above {above:g}" if above is not None else ""
    upper = f"{most:g} or less" if most is not None else f"below {below:g}" if below is not None else ""
    return ", " + " and ".join(filter(None, (lower, upper))) if lower or upper else ""


def _field_at(model: type[BaseModel], path: list[str]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model and the field that a path of names leads to; None where it leaves the models."""
    owner: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for name in path:
        field = owner.model_fields.get(name) if owner else None
        if field is None:
            return owner, None
        kind = field.annotation
        owner = kind if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and issubclass(kind, BaseModel) else None
        if owner is None and path[-1] != name:
            return None, None
    return owner, field
