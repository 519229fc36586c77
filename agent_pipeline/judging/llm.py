"""A language model as a judge of one session.

The rubric is a Jinja template over the evaluation context; what the answer must look like is added to it, and an answer that is anything
else is not an opinion: it is counted, never guessed at.
"""

import json
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args

import msgspec

from agent_pipeline.errors import SettingsError
from agent_pipeline.ingestion.block_list import make_alias
from agent_pipeline.judging.client import FAILURES_IN_A_ROW, REFUSED, LlmClient
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.labels import VERDICTS
from agent_pipeline.judging.policy import Opinion
from agent_pipeline.sessions.session import dump_canonical_json, hash_json

_LONGEST_REASON = 2000

TOO_LONG = "the session is too long to ask about"


class _Verdict(msgspec.Struct, forbid_unknown_fields=True):
    reason: str
    verdict: Literal["acceptable", "unacceptable", "unsure"]


_WORDS = get_args(_Verdict.__annotations__["verdict"])
_SCHEMA = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "description": "One or two sentences."},
        "verdict": {"type": "string", "enum": list(_WORDS)},
    },
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
_EXAMPLE = json.dumps({"reason": "…", "verdict": " or ".join(_WORDS)}, ensure_ascii=False)


class LlmJudge:
    """Judges by a rubric (the text of a Jinja template) through a client; as a context manager it closes the client.

    A session whose question would have more than `max_characters` is not asked about: cutting it would judge another session.

    Raises:
        SettingsError: the rubric is not a Jinja template.
    """

    def __init__(self, client: LlmClient, rubric: str = "", max_characters: int = 200_000) -> None:
        self.client = client
        own = files("agent_pipeline.judging").joinpath("rubric.jinja")
        self._rubric = _template(rubric or own.read_text(encoding="utf-8"))
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

    def check_refusals(self) -> None:
        """Raise SettingsError where the endpoint refused all of five questions or more: then no single session was too long for it, and
        what it did not read would pass for done."""
        counts = self.client.counts
        refused = sum(count for name, count in counts.items() if name.startswith(REFUSED))
        if refused >= FAILURES_IN_A_ROW and not (counts["asked"] or counts["cached"]):
            raise SettingsError(
                f"The judge's endpoint {self.client.endpoint.url} refused all of {refused} questions ({str(self.client.refused)[:200]}): "
                "correct judge.parameters, lower judge.max_characters, or take llm out of decided_by."
            ) from self.client.refused

    def _opinion(self, context: EvaluationContext) -> Opinion:
        fields = _fields(context)
        record = hash_json(
            [fields["messages"], fields["tools"]]
        )  # whoever writes either of them cannot know it
        text = _rendered(
            self._rubric, fields | {"calls": context.calls, "boundary": f"=== {record[:12]} ==="}
        )
        text += f"\nAnswer with one JSON object and nothing else: {_EXAMPLE}\n"
        if len(text) > self._max_characters:
            self.client.count(TOO_LONG)
            return Opinion(None, TOO_LONG)
        about = make_alias(str(context.metadata.get("session_id")))
        answer = self.client.ask(text, _SCHEMA, lambda answer: _parsed(answer) is not None, about)
        if (parsed := _parsed(answer.text)) is None:
            return Opinion(None, answer.problem, pending=answer.pending)
        return Opinion(VERDICTS.get(parsed.verdict), parsed.reason, self.client.endpoint.model)


def _parsed(answer: str | None) -> _Verdict | None:
    """The answer in its form; `None` where there is none, or it has another form."""
    if answer is None:
        return None
    try:
        parsed = msgspec.json.decode(answer.strip(), type=_Verdict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    parsed.reason = parsed.reason.strip().replace("\0", "\ufffd")[:_LONGEST_REASON]
    return parsed


def read_rubric(path: Path) -> str:
    """A rubric of the user's.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The rubric {path} cannot be read ({error}): let judge.rubric name a Jinja template in UTF-8."
        ) from error


def _fields(context: EvaluationContext) -> dict[str, Any]:
    """A session as a template is given it. Call ids only bind calls to results, which stand beside them already."""
    shown = []
    for message in context.messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        shown.append(
            {"role": message["role"], "content": message["content"]}
            | ({"tool_calls": calls} if calls else {})
        )
    return {
        "messages": shown,
        "tools": context.tools,
        "final_answer": context.final_answer,
        "metadata": context.metadata,
    }


def _template(text: str) -> Any:
    """A template in a sandbox, in which a name that does not exist is an error."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    environment.filters["json"] = dump_canonical_json
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise SettingsError(
            f"The judge's rubric is not a Jinja template ({error}): correct it."
        ) from error


def _rendered(template: Any, fields: dict[str, Any]) -> str:
    try:
        return str(template.render(fields))
    except Exception as error:  # a user's template may divide by zero
        names = ", ".join(sorted(fields))
        raise SettingsError(
            f"The judge's rubric cannot be filled in ({type(error).__name__}: {error}): it is given {names}."
        ) from error
