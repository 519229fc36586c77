"""Types of JSON that other programs wrote, and of JSON that this package writes.

`JsonObject` is for records of other programs, such as a trace store, a platform's server or a
model. Their fields have any type until a reader has checked them. Rows, parameters and reports of
this package have types of their own and never use `JsonObject`.
"""

from typing import Any, TypeAlias

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""A value that `json.dumps` can write, used for values whose fields are not read."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object from another program whose fields have not been checked yet."""
