"""A language model as a judge of one session, or of two.

The rubric is a Jinja template over the evaluation context; what the answer must look like is added to it, and an answer that is anything
else is no opinion: it is counted, never guessed at. Of two sessions the better is asked for in both orders, for models favour a place.
"""

import json
from collections.abc import Callable, Sequence
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

    def __init__(self, client: LlmClient, rubric: str = "", comparison: str = "", max_characters: int = 200_000) -> None:
        self.client = client
        self._rubric = _template(rubric or default_template("rubric"))
        self._comparison = _template(comparison or default_template("comparison"))
        self._max_characters = max_characters

    def __enter__(self) -> Self:
        self.client.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.__exit__(*exc)

    def opinion(self, context: EvaluationContext) -> "Future[Opinion]":
        """The model's opinion of a session.

        Raises:
            SettingsError: the rubric uses what the context does not have (and, from the future, what the client raises).
        """
        fields = {"calls": context.calls, "final_answer": context.final_answer, "metadata": context.metadata}
        answer = self._ask(self._rubric, _Verdict, [context], messages=_shown(context), tools=context.tools, **fields)
        return _then(answer, self._opinion)

    def compare(self, a: EvaluationContext, b: EvaluationContext) -> Comparison:
        """Which of two sessions is better, asked in both orders."""
        one = self._ask(self._comparison, _Better, [a, b], first=_side(a), second=_side(b))
        other = self._ask(self._comparison, _Better, [a, b], first=_side(b), second=_side(a))
        answers = [future.result() for future in (one, other)]
        parsed = [_parsed(answer.text, _Better) for answer in answers]
        reasons = [each.reason if each else answer.problem for each, answer in zip(parsed, answers, strict=True)]
        if parsed[0] is None or parsed[1] is None:
            return Comparison(None, (reasons[0], reasons[1]))
        winners = [{"first": "ab"[turn], "second": "ba"[turn]}.get(each.better, "tie") for turn, each in enumerate(parsed) if each]
        better: Any = winners[0] if winners[0] == winners[1] else "tie"
        return Comparison(better, (reasons[0], reasons[1]))

    def _ask(self, template: Any, form: type[_Form], about: Sequence[EvaluationContext], **fields: Any) -> "Future[Answer]":
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
            future: Future[Answer] = Future()
            future.set_result(Answer(None, TOO_LONG))
            return future
        aliases = " ".join(alias(str(each.metadata.get("session_id"))) for each in about)
        return self.client.ask(text, schema, lambda answer: _parsed(answer, form) is not None, aliases)

    def _opinion(self, answer: Answer) -> Opinion:
        parsed = _parsed(answer.text, _Verdict)
        if parsed is None:
            return Opinion(None, answer.problem, pending=answer.pending)
        return Opinion(VERDICTS.get(parsed.verdict), parsed.reason, self.client.endpoint.model)


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


def default_template(name: str) -> str:
    """The text of the rubric (or of the `comparison`) that comes with the pipeline."""
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


def _then(future: "Future[Answer]", step: Callable[[Answer], Opinion]) -> "Future[Opinion]":
    """A future of what a step makes of an answer; an error of the one is an error of the other."""
    following: Future[Opinion] = Future()

    def finish(done: "Future[Answer]") -> None:
        try:
            following.set_result(step(done.result()))
        except BaseException as error:
            following.set_exception(error)

    future.add_done_callback(finish)
    return following


def _shown(context: EvaluationContext) -> list[dict[str, Any]]:
    """Messages as a reader needs them: call ids only bind calls to results, which stand beside them already."""
    shown = []
    for message in context.messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        shown.append({"role": message["role"], "content": message["content"]} | ({"tool_calls": calls} if calls else {}))
    return shown


def _side(context: EvaluationContext) -> dict[str, Any]:
    return {"messages": _shown(context), "tools": context.tools, "final_answer": context.final_answer, "metadata": context.metadata}


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
