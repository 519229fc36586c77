"""Measures: functions that look at one session and pass or fail it with a reason, or score it.

`@measure` registers a function under its name. A setting names a measure as Python would call it, without the context:
`ended_with_answer`, `at_most_steps(12)`, `called_tool("refund", times=1)`; one of your own by its dotted path,
`my_package.measures.polite`, or by the name of an entry point of the group `agent_pipeline.measures`. A measure that scores passes with a
threshold: `politeness >= 0.8`. The text is read with `ast`, never run: its arguments are literals.
"""

import ast
import inspect
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
    if other is not None and (other.__module__, other.__qualname__) != (
        function.__module__,
        function.__qualname__,
    ):
        raise SettingsError(
            f"Two measures are called {name!r} ({other.__module__} and {function.__module__}): rename one of them."
        )
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
            return MeasureResult(
                None, f"raised {type(error).__name__}: {_short(error)}", raised=True
            )


def parse_measures(texts: Iterable[str]) -> list[ConfiguredMeasure]:
    """The measures that a configuration names, each once."""
    return list({parsed.name: parsed for parsed in map(parse_measure, texts)}.values())


def parse_measure(text: str) -> ConfiguredMeasure:
    """Read `name`, `name(literal, key=literal)` or either with `>= threshold`.

    Raises:
        SettingsError: the text is no such call, or names a measure or parameter that there is not.
    """
    try:
        expression, threshold = ast.parse(text.strip(), mode="eval").body, None
        if isinstance(expression, ast.Compare):
            threshold = _threshold(expression)
            expression = expression.left
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        name = ".".join(map(_word, ast.unparse(call.func).split(".")))
        arguments = tuple(ast.literal_eval(each) for each in call.args)
        keywords = {
            _word(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords
        }
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise SettingsError(
            f"{text!r} is not a measure: write name, name(12), name(parameter='text'), or one of these with >= 0.8 after it (from 0 to 1)."
        ) from error
    function = _function(name)
    _check_parameters(function, arguments, keywords, text)
    written = ", ".join(
        [
            *map(repr, arguments),
            *(f"{parameter}={value!r}" for parameter, value in keywords.items()),
        ]
    )
    spelling = (
        name
        + (f"({written})" if written else "")
        + ("" if threshold is None else f" >= {threshold}")
    )
    return ConfiguredMeasure(spelling, function, arguments, keywords, threshold)


def _threshold(expression: ast.Compare) -> float:
    """What a score is compared with; raises ValueError where it is anything but `>=` and a number from 0 to 1."""
    (comparison,), (bound,) = expression.ops, map(ast.literal_eval, expression.comparators)
    if (
        not isinstance(comparison, ast.GtE)
        or type(bound) not in (int, float)
        or not 0 <= bound <= 1
    ):
        raise ValueError(bound)
    return bound


def _word(name: str | None) -> str:
    if name is None or not name.isidentifier():
        raise ValueError(name)
    return name


def _function(name: str) -> Measure:
    """A measure by its registered name, its entry point, or its dotted path."""
    if name in MEASURES:
        return MEASURES[name]
    loaded = load_plugin(name, "measure", ENTRY_POINTS, MEASURES)
    if not callable(loaded):
        raise SettingsError(
            f"The measure {name!r} is a {type(loaded).__name__}: give a function of an evaluation context."
        )
    return loaded


def _check_parameters(
    function: Measure, arguments: tuple[Any, ...], keywords: dict[str, Any], text: str
) -> None:
    """Every parameter exists, none is missing, and each has the type that the function's hints say."""
    signature = inspect.signature(function)
    parameters = dict(list(signature.parameters.items())[1:])
    for name in keywords:
        if name not in parameters and not any(
            each.kind is each.VAR_KEYWORD for each in parameters.values()
        ):
            raise SettingsError(
                f"The measure {text!r} has no parameter {name!r}{did_you_mean(name, list(parameters))}"
            )
    try:
        bound = signature.bind(None, *arguments, **keywords)
    except TypeError as error:
        shown = signature.replace(
            parameters=list(parameters.values()), return_annotation=inspect.Signature.empty
        )
        raise SettingsError(
            f"The measure {text!r} cannot be called so ({error}): it is {function.__name__}{shown}."
        ) from error
    try:
        hints = get_type_hints(function)
    except Exception:  # hints that only a type checker can resolve
        hints = {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name in [
        each
        for each in bound.arguments
        if each in parameters and each in hints and parameters[each].kind not in variadic
    ]:
        value = bound.arguments[name]
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise SettingsError(
                f"The measure {text!r} has a wrong {name} ({error.errors()[0]['msg']}; got {value!r})."
            ) from error


def _result(value: Any, threshold: float | None) -> MeasureResult:
    """What a measure returned, in its one form."""
    if value is None:
        return MeasureResult(None, "does not apply")
    if isinstance(value, bool):
        value = (value, "")
    elif isinstance(value, int | float):
        value = (None, "", value)
    passed, reason, score, _ = (
        MeasureResult(*value)
        if isinstance(value, tuple) and 2 <= len(value) <= 4
        else (None, None, None, None)
    )
    if not (passed is None or isinstance(passed, bool)) or not isinstance(reason, str):
        return MeasureResult(None, f"returned no result but {_short(repr(value))}")
    if score is None:
        return (
            MeasureResult(passed, reason)
            if threshold is None
            else MeasureResult(None, f"has no score to compare with {threshold}")
        )
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        return MeasureResult(
            None, f"returned the score {_short(repr(score))}: scores go from 0 to 1"
        )
    if threshold is not None:
        return MeasureResult(score >= threshold, reason or f"scores {score:.3g}", float(score))
    return MeasureResult(
        passed,
        reason or ("" if passed is not None else "scores, without a threshold"),
        float(score),
    )


def _short(value: object) -> str:
    """A text of someone else's code in a reason: one line, not too long."""
    return " ".join(str(value).split())[:200]
