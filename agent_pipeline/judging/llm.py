"""A language model as a judge of one session, or of two.

The rubric is a Jinja template over the evaluation context; what the answer must look like is added to it, and an answer that is anything
else is no opinion: it is counted, never guessed at. Of two sessions the better is asked for in both orders, for models favour a place.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args

import msgspec

from agent_pipeline.errors import SettingsError
from agent_pipeline.ingestion.forgotten import alias
from agent_pipeline.judging.client import Answer, LlmClient
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.labels import VERDICTS
from agent_pipeline.judging.policy import Opinion
from agent_pipeline.sessions.session import canonical_json, sha256_of

_REASON = {"type": "string", "description": "One or two sentences."}
_LONGEST_REASON = 2000

TOO_LONG = "the session is too long to ask about"


class _Verdict(msgspec.Struct, forbid_unknown_fields=True):
    reason: str
    verdict: Literal["acceptable", "unacceptable", "unsure"]


class _Better(msgspec.Struct, forbid_unknown_fields=True):
    reason: str
    better: Literal["first", "second", "tie"]


_Form = TypeVar("_Form", _Verdict, _Better)


class Comparison(NamedTuple):
    """`better` is `tie` where the two orders disagree, and `None` where one of them got no answer."""

    better: Literal["a", "b", "tie"] | None
    reasons: tuple[str, str]


class LlmJudge:
    """Judges by a rubric (the text of a Jinja template) through a client; as a context manager it closes the client.

    A session whose question would have more than `max_characters` is not asked about: cutting it would judge another session.

    Raises:
        SettingsError: the rubric is no Jinja template.
    """

    def __init__(self, client: LlmClient, rubric: str = "", max_characters: int = 200_000) -> None:
        self.client = client
        self._rubric, self._comparison = _template(rubric or _own_template("rubric")), _template(_own_template("comparison"))
        self._max_characters = max_characters

    def __enter__(self) -> Self:
        self.client.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.__exit__(*exc)

    def opinion(self, context: EvaluationContext) -> "Future[Opinion]":
        """The model's opinion of a session. The future raises SettingsError where the rubric cannot be filled in, and what the client
        raises."""
        return self.client.pool.submit(self._opinion, context)

    def compare(self, a: EvaluationContext, b: EvaluationContext) -> Comparison:
        """Which of two sessions is better, asked in both orders."""
        futures = [self.client.pool.submit(self._better, *order) for order in ((a, b), (b, a))]
        (first, why), (second, why_second) = (future.result() for future in futures)
        if first is None or second is None:
            return Comparison(None, (why, why_second))
        winners = ({"first": "a", "second": "b"}.get(first), {"first": "b", "second": "a"}.get(second))
        better: Any = winners[0] if winners[0] == winners[1] and winners[0] else "tie"
        return Comparison(better, (why, why_second))

    def _opinion(self, context: EvaluationContext) -> Opinion:
        parsed, answer = self._ask(self._rubric, _Verdict, [context], **_fields(context), calls=context.calls)
        if parsed is None:
            return Opinion(None, answer.problem, pending=answer.pending)
        return Opinion(VERDICTS.get(parsed.verdict), parsed.reason, self.client.endpoint.model)

    def _better(self, first: EvaluationContext, second: EvaluationContext) -> tuple[str | None, str]:
        """Which of the two is better, `None` without an answer; and why."""
        parsed, answer = self._ask(self._comparison, _Better, [first, second], first=_fields(first), second=_fields(second))
        return (parsed.better, parsed.reason) if parsed else (None, answer.problem)

    def _ask(self, template: Any, form: type[_Form], about: Sequence[EvaluationContext], **fields: Any) -> tuple[_Form | None, Answer]:
        text = _rendered(template, fields | {"boundary": f"=== {sha256_of(fields.get('messages') or fields)[:12]} ==="})
        name, kind = list(form.__annotations__.items())[1]
        schema = {
            "type": "object",
            "properties": {"reason": _REASON, name: {"type": "string", "enum": list(get_args(kind))}},
            "required": ["reason", name],
            "additionalProperties": False,
        }
        example = json.dumps({"reason": "…", name: " or ".join(get_args(kind))}, ensure_ascii=False)
        text += f"\nAnswer with one JSON object and nothing else: {example}\n"
        if len(text) > self._max_characters:
            self.client.count(TOO_LONG)
            return None, Answer(None, TOO_LONG)
        aliases = " ".join(alias(str(each.metadata.get("session_id"))) for each in about)
        answer = self.client.ask(text, schema, lambda answer: _parsed(answer, form) is not None, aliases)
        return _parsed(answer.text, form), answer


def _parsed(answer: str | None, form: type[_Form]) -> _Form | None:
    """The answer in its form; `None` where there is none, or it has another form."""
    if answer is None:
        return None
    try:
        parsed = msgspec.json.decode(answer.strip(), type=form)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    parsed.reason = parsed.reason.strip().replace("\0", "\ufffd")[:_LONGEST_REASON]
    return parsed


def _own_template(name: str) -> str:
    return files("agent_pipeline.judging").joinpath(f"{name}.jinja").read_text(encoding="utf-8")


def read_rubric(path: Path) -> str:
    """A rubric of the user's.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The rubric {path} cannot be read ({error}): let judge.rubric name a Jinja template in UTF-8.") from error


def _fields(context: EvaluationContext) -> dict[str, Any]:
    """A session as a template is given it. Call ids only bind calls to results, which stand beside them already."""
    shown = []
    for message in context.messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        shown.append({"role": message["role"], "content": message["content"]} | ({"tool_calls": calls} if calls else {}))
    return {"messages": shown, "tools": context.tools, "final_answer": context.final_answer, "metadata": context.metadata}


def _template(text: str) -> Any:
    """A template in a sandbox, in which a name that does not exist is an error."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["json"] = canonical_json
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise SettingsError(f"The judge's rubric is no Jinja template ({error}): correct it.") from error


def _rendered(template: Any, fields: dict[str, Any]) -> str:
    try:
        return str(template.render(fields))
    except Exception as error:  # a user's template may divide by zero
        names = ", ".join(sorted(fields))
        raise SettingsError(f"The judge's rubric cannot be filled in ({type(error).__name__}: {error}): it is given {names}.") from error
