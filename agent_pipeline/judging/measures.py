"""Measures: functions that examine one session and pass it, fail it or score it.

`@measure` registers a function under its name. A setting names a measure like a Python call without
the context: `ended_with_answer`, `at_most_steps(12)`, `called_tool("refund", times=1)`. A user's
measure is named by its dotted path, `my_package.measures.polite`, or by the name of an entry point
of the group `agent_pipeline.measures`. A measure that returns a score passes or fails with a
threshold: `politeness >= 0.8`. The text is parsed with `ast` and never executed, so its arguments
are literals.

The measures that are part of this package belong to `builtin_measures`.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.options import did_you_mean
from agent_pipeline.plugins import load_plugin

ENTRY_POINTS = "agent_pipeline.measures"

_MAX_QUOTED_CHARACTERS = 200


class MeasureResult(NamedTuple):
    """The result of a measure for one session.

    Attributes:
        passed: Whether the session passes. `None` means that the measure could not be taken, or
            that it has a score without a threshold.
        reason: A short reason.
        score: A score from 0 to 1, or `None` if the measure only passes or fails.
        raised: Whether the measure's code raised an exception.
    """

    passed: bool | None
    reason: str = ""
    score: float | None = None
    raised: bool = False


Measure = Callable[..., Any]
"""A function that measures a session, called as `(context, **parameters)`.

It returns a `MeasureResult`, a `bool`, `(bool, reason)`, a score from 0 to 1, or `None` if the
measure cannot be taken of the session. A measure whose rule does not concern a session returns
True: if `curated_sessions` requires a measure, a session without a result is dropped (reason
`unmeasured`).
"""

_Measure = TypeVar("_Measure", bound=Measure)

MEASURES: dict[str, Measure] = {}
"""All registered measures, by name."""


def measure(function: _Measure) -> _Measure:
    """Register a function as a measure under its own name.

    Raises:
        SettingsError: Another function is already registered under this name.
    """
    name = function.__name__
    other = MEASURES.get(name)
    if other is not None and _locate(other) != _locate(function):
        raise SettingsError(
            f"Two measures are called {name!r} ({other.__module__} and {function.__module__}): "
            "rename one of them."
        )
    MEASURES[name] = function
    return function


def _locate(function: Measure) -> tuple[str, str]:
    return function.__module__, function.__qualname__


@dataclass(frozen=True)
class ConfiguredMeasure:
    """A measure, together with the parameters that a configuration gives it.

    Attributes:
        name: The canonical text of the measure in tables and in the configuration.
        function: The measure.
        arguments: Positional arguments after the context.
        keywords: Keyword arguments.
        threshold: The lowest score that passes.
    """

    name: str
    function: Measure
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, object] = field(default_factory=dict)
    threshold: float | None = None

    def take(self, context: EvaluationContext) -> MeasureResult:
        """Apply the measure to one session.

        If the measure raises an exception, the session has no value for it, and the exception
        becomes the reason. The run continues.
        """
        try:
            returned = self.function(context, *self.arguments, **self.keywords)
            return _read_result(returned, self.threshold)
        except Exception as error:  # a user's measure may raise any exception
            reason = f"raised {type(error).__name__}: {_quote(error)}"
            return MeasureResult(None, reason, raised=True)


def parse_measures(texts: Iterable[str]) -> list[ConfiguredMeasure]:
    """Parse the measures that a configuration lists.

    A repeated measure is returned only once.
    """
    measures_by_name: dict[str, ConfiguredMeasure] = {}
    for text in texts:
        parsed = parse_measure(text)
        measures_by_name[parsed.name] = parsed
    return list(measures_by_name.values())


def parse_measure(
    text: str,
    registered: Mapping[str, Measure] = MEASURES,
    kind: str = "measure",
    entry_points: str = ENTRY_POINTS,
    folder: Path | None = None,
) -> ConfiguredMeasure:
    """Parse `name` or `name(literal, key=literal)`, with or without `>= threshold`.

    Args:
        text: The text.
        registered: The functions that can be named without a dotted path.
        kind: The name of the parsed text in error messages.
        entry_points: The group of entry points that can be named.
        folder: The folder of the user's modules (`load_plugin`).

    Raises:
        SettingsError: The text does not have this form, or it names a measure or a parameter that
            does not exist.
    """
    try:
        written = _parse_call(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise SettingsError(
            f"{text!r} is not a {kind}: write name, name(12) or name(parameter='text'), and add "
            "a threshold such as >= 0.8 if the measure has scores from 0 to 1."
        ) from error
    function = registered.get(written.name)
    if function is None:
        loaded = load_plugin(written.name, kind, entry_points, registered, folder)
        function = _check_function(loaded, f"The {kind} {written.name!r}")
    _check_parameters(function, written, text)
    return ConfiguredMeasure(
        written.spell(), function, written.arguments, written.keywords, written.threshold
    )


@dataclass(frozen=True)
class _WrittenMeasure:
    """A measure as the configuration spells it."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, object]
    threshold: float | None

    def spell(self) -> str:
        """Return the canonical spelling of the measure."""
        values = [repr(argument) for argument in self.arguments]
        values += [f"{name}={value!r}" for name, value in self.keywords.items()]
        spelling = self.name
        if values:
            spelling += f"({', '.join(values)})"
        if self.threshold is not None:
            spelling += f" >= {self.threshold}"
        return spelling


def _parse_call(text: str) -> _WrittenMeasure:
    """Parse the call in a measure's text, such as `name(literal, key=literal)`.

    An error of `ast`, or a ValueError, is raised if the text is not a measure.
    """
    expression = ast.parse(text.strip(), mode="eval").body
    threshold = None
    if isinstance(expression, ast.Compare):
        threshold = _read_threshold(expression)
        expression = expression.left
    call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
    parts = ast.unparse(call.func).split(".")
    return _WrittenMeasure(
        name=".".join(_check_identifier(part) for part in parts),
        arguments=tuple(ast.literal_eval(argument) for argument in call.args),
        keywords={
            _check_identifier(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in call.keywords
        },
        threshold=threshold,
    )


def _read_threshold(expression: ast.Compare) -> float:
    """Return the threshold in a comparison.

    Raises:
        ValueError: The comparison is not `>=` with a number from 0 to 1.
    """
    [comparison] = expression.ops
    [bound] = [ast.literal_eval(comparator) for comparator in expression.comparators]
    is_number = type(bound) in (int, float)
    if not isinstance(comparison, ast.GtE) or not is_number or not 0 <= bound <= 1:
        raise ValueError(bound)
    threshold: float = bound
    return threshold


def _check_identifier(name: str | None) -> str:
    if name is None or not name.isidentifier():
        raise ValueError(name)
    return name


def _check_function(loaded: object, what: str) -> Measure:
    """Return a loaded object, which must be a function."""
    if not callable(loaded):
        raise SettingsError(
            f"{what} is of type {type(loaded).__name__}: register a function that takes an "
            "evaluation context."
        )
    function: Measure = loaded
    return function


def _check_parameters(function: Measure, written: _WrittenMeasure, text: str) -> None:
    """Check that a measure accepts the given parameters.

    Every parameter must exist and have the type of its hint, and no required parameter may be
    missing.
    """
    signature = inspect.signature(function)
    parameters = dict(list(signature.parameters.items())[1:])  # without the context
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in written.keywords:
        if name not in parameters and not takes_any:
            raise SettingsError(
                f"The measure {text!r} has no parameter {name!r}"
                f"{did_you_mean(name, list(parameters))}"
            )
    try:
        bound = signature.bind(None, *written.arguments, **written.keywords)
    except TypeError as error:
        shown = signature.replace(
            parameters=list(parameters.values()), return_annotation=inspect.Signature.empty
        )
        raise SettingsError(
            f"The measure {text!r} has wrong arguments ({error}): call it as "
            f"{function.__name__}{shown}."
        ) from error
    try:
        hints = get_type_hints(function)
    except Exception:  # only a type checker can resolve such hints
        return
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, value in bound.arguments.items():
        if name in parameters and name in hints and parameters[name].kind not in variadic:
            _check_type(name, value, hints[name], text)


def _check_type(name: str, value: Any, hint: Any, text: str) -> None:
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        raise SettingsError(
            f"The measure {text!r} has a wrong value for {name} ({error.errors()[0]['msg']}; got "
            f"{value!r})."
        ) from error


def _read_result(returned: object, threshold: float | None) -> MeasureResult:
    """Convert the return value of a measure into a checked result."""
    if returned is None:
        return MeasureResult(None, "has no result for the session")
    result = _unpack_result(returned)
    if result is None:
        return MeasureResult(None, f"returned {_quote(repr(returned))}, which is not a result")
    if result.score is None:
        if threshold is None:
            return result
        return MeasureResult(None, f"has no score that can be compared with {threshold}")
    if not _is_score(result.score):
        quoted = _quote(repr(result.score))
        return MeasureResult(None, f"returned the score {quoted}, but scores must be from 0 to 1")
    score = float(result.score)
    if threshold is not None:
        return MeasureResult(score >= threshold, result.reason or f"scores {score:.3g}", score)
    if result.passed is None:
        return MeasureResult(None, result.reason or "has scores, so it needs a threshold", score)
    return MeasureResult(result.passed, result.reason, score)


def _unpack_result(returned: object) -> MeasureResult | None:
    """Convert the return value of a measure into an unchecked result, or return `None`.

    A valid return value is a bool, a number, or a tuple of `passed`, `reason` and optionally a
    score.
    """
    if isinstance(returned, bool):
        return MeasureResult(returned)
    if isinstance(returned, int | float):
        return MeasureResult(None, "", returned)
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 4:
        return None
    passed, reason = returned[:2]
    score = returned[2] if len(returned) > 2 else None
    if not (passed is None or isinstance(passed, bool)) or not isinstance(reason, str):
        return None
    return MeasureResult(passed, reason, score)


def _is_score(score: object) -> bool:
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return is_number and 0 <= score <= 1  # type: ignore[operator]  # a number by now


def _quote(value: object) -> str:
    """Shorten a text from a user's code to one line of limited length, for use in a reason."""
    return " ".join(str(value).split())[:_MAX_QUOTED_CHARACTERS]
