"""Measures: functions that look at one session and pass or fail it with a reason, or score it.

`@measure` registers a function under its name. In a configuration a measure is said as it would be called in Python, without the context:
`ended_with_answer`, `at_most_steps(12)`, `called_tool("refund", times=1)`; one of your own by its dotted path,
`my_package.measures.polite`, or by the name of an entry point of the group `agent_pipeline.measures`. A measure that scores passes with a
threshold: `politeness >= 0.8`. The text is read with `ast`, never run: its arguments are literals.
"""

import ast
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.options import did_you_mean
from agent_pipeline.plugins import load_plugin

ENTRY_POINTS = "agent_pipeline.measures"


class MeasureResult(NamedTuple):
    """`passed` is `None` where the measure could not be taken, or scores without a threshold; `reason` says why in a few words.

    `score` (0 to 1) is `None` where the measure only passes or fails. `raised`: the measure's own code failed.
    """

    passed: bool | None
    reason: str = ""
    score: float | None = None
    raised: bool = False


Measure = Callable[..., Any]
"""`(context, **parameters)` → `MeasureResult`, `bool`, `(bool, reason)`, a score from 0 to 1, or `None` (it does not apply)."""

_M = TypeVar("_M", bound=Measure)

MEASURES: dict[str, Measure] = {}


def measure(function: _M) -> _M:
    """Register a measure under its function's name.

    Raises:
        SettingsError: another function has that name.
    """
    name = function.__name__
    other = MEASURES.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (function.__module__, function.__qualname__):
        raise SettingsError(f"Two measures are called {name!r} ({other.__module__} and {function.__module__}): rename one of them.")
    MEASURES[name] = function
    return function


@dataclass(frozen=True)
class ConfiguredMeasure:
    """A measure with its parameters; `name` is its one spelling in tables and in configuration."""

    name: str
    function: Measure
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    threshold: float | None = None

    def take(self, context: EvaluationContext) -> MeasureResult:
        """The result for one session; an exception costs the measure its value there, and becomes the reason."""
        try:
            return _result(self.function(context, *self.arguments, **self.keywords), self.threshold)
        except Exception as error:  # a user's measure may raise anything; it must cost its own value, not the night
            return MeasureResult(None, f"raised {type(error).__name__}: {_short(error)}", raised=True)


def parse_measures(texts: Iterable[str]) -> list[ConfiguredMeasure]:
    """The measures that a configuration names, each once."""
    return list({parsed.name: parsed for parsed in map(parse_measure, texts)}.values())


def parse_measure(text: str) -> ConfiguredMeasure:
    """Read `name`, `name(literal, key=literal)` or either with `>= threshold`.

    Raises:
        SettingsError: the text is no such call, or names a measure or parameter that there is not.
    """
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text) from error
    threshold = None
    if isinstance(expression, ast.Compare):
        if len(expression.ops) != 1 or not isinstance(expression.ops[0], ast.GtE):
            raise _unreadable(text)
        threshold = _literal(expression.comparators[0], text)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise SettingsError(f"The measure {text!r} has the threshold {threshold!r}: scores go from 0 to 1.")
        expression = expression.left
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    called = expression
    if isinstance(expression, ast.Call):
        called = expression.func
        if any(keyword.arg is None for keyword in expression.keywords) or any(isinstance(each, ast.Starred) for each in expression.args):
            raise _unreadable(text)
        arguments = tuple(_literal(each, text) for each in expression.args)
        keywords = {keyword.arg: _literal(keyword.value, text) for keyword in expression.keywords if keyword.arg}
    if not _is_path(called):
        raise _unreadable(text)
    name = ast.unparse(called)
    function = _function(name)
    _check_parameters(function, arguments, keywords, text)
    spelling = name + (f"({_spelled(arguments, keywords)})" if arguments or keywords else "")
    return ConfiguredMeasure(
        spelling if threshold is None else f"{spelling} >= {threshold}",
        function,
        arguments,
        keywords,
        None if threshold is None else float(threshold),
    )


def _spelled(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    return ", ".join([*map(repr, arguments), *(f"{name}={value!r}" for name, value in keywords.items())])


def _is_path(expression: ast.expr) -> bool:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return isinstance(expression, ast.Name)


def _literal(expression: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(text) from error


def _unreadable(text: str) -> SettingsError:
    return SettingsError(f"{text!r} is no measure: write name, name(12), name(parameter='text'), or one of these with >= 0.8 after it.")


def _function(name: str) -> Measure:
    """A measure by its registered name, its entry point, or its dotted path."""
    if name in MEASURES:
        return MEASURES[name]
    loaded = load_plugin(name, "measure", ENTRY_POINTS, MEASURES)
    if not callable(loaded):
        raise SettingsError(f"The measure {name!r} is a {type(loaded).__name__}: give a function of an evaluation context.")
    return loaded


def _check_parameters(function: Measure, arguments: tuple[Any, ...], keywords: dict[str, Any], text: str) -> None:
    """Every parameter exists, none is missing, and each has the type that the function's hints say."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters)[1:]
    for name in keywords:
        if name not in parameters and not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            raise SettingsError(f"The measure {text!r} has no parameter {name!r}{did_you_mean(name, parameters)}")
    try:
        bound = signature.bind(None, *arguments, **keywords)
    except TypeError as error:
        raise SettingsError(f"The measure {text!r} cannot be called so ({error}): it is {function.__name__}{_shown(signature)}.") from error
    try:
        hints = get_type_hints(function)
    except Exception:  # hints that only a type checker can resolve
        hints = {}
    for name, value in list(bound.arguments.items())[1:]:
        if name not in hints or signature.parameters[name].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise SettingsError(f"The measure {text!r} has a wrong {name} ({error.errors()[0]['msg']}; got {value!r}).") from error


def _shown(signature: inspect.Signature) -> str:
    return str(signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=inspect.Signature.empty))


def _result(value: Any, threshold: float | None) -> MeasureResult:
    """What a measure returned, in its one form."""
    if value is None:
        return MeasureResult(None, "does not apply")
    if isinstance(value, MeasureResult):
        result = value
    elif isinstance(value, bool):
        result = MeasureResult(value)
    elif isinstance(value, int | float):
        result = MeasureResult(None, "", value)
    elif isinstance(value, tuple) and len(value) == 2:
        result = MeasureResult(*value)
    else:
        return MeasureResult(None, f"returned no result but {_short(repr(value))}")
    passed, reason, score, _ = result
    if not (passed is None or isinstance(passed, bool)) or not isinstance(reason, str):
        return MeasureResult(None, f"returned no result but {_short(repr(value))}")
    if score is None:
        if threshold is not None:
            return MeasureResult(None, f"has no score to compare with {threshold}")
        return result
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score) or not 0 <= score <= 1:
        return MeasureResult(None, f"returned the score {_short(repr(score))}: scores go from 0 to 1")
    if threshold is not None:
        return MeasureResult(score >= threshold, reason or f"scores {score:.3g}", float(score))
    return MeasureResult(passed, reason or ("" if passed is not None else "scores, without a threshold"), float(score))


def _short(value: object) -> str:
    """A text of someone else's code in a reason: one line, not too long."""
    return " ".join(str(value).split())[:200]
