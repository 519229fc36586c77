"""A judge that lets a language model judge one session.

The rubric is a Jinja template over the evaluation context. The required form of the answer is added
to the filled rubric. An answer in any other form is not an opinion; it is counted, and its meaning
is not guessed. Calls to the endpoint belong to `llm_client`.

A session is data, and it may contain instructions to the judge. In the question, the session is
between two boundary lines, as one line of JSON per message. The boundary is a hash of 128 bits of
the whole session. So no text in the session can contain its own boundary, and the same session is
always the same question, which is paid for once. The filter `json` escapes every character that
could end a line, begin a special token of a chat template, or hide text.

A language model may still obey an instruction that it reads as data. So no session with a text that
addresses a judge is judged by a machine (`judge_orders`), and a judge is trusted only after a check
against people's labels (`judge_checks`).
"""

import json
import re
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args

import msgspec

from agent_pipeline.errors import SettingsError
from agent_pipeline.ingestion.block_list import make_alias
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.labels import VERDICTS
from agent_pipeline.judging.llm_client import FAILURES_IN_A_ROW, REFUSED, LlmClient
from agent_pipeline.judging.verdict_policy import Opinion
from agent_pipeline.sessions.session import dump_canonical_json, hash_json
from agent_pipeline.structs import decode_json

TOO_LONG = "the session is too long to ask about"

_MAX_REASON_CHARACTERS = 2000


class _JudgeReply(msgspec.Struct, forbid_unknown_fields=True):
    """A judgment of the language model in the required format."""

    reason: str
    verdict: Literal["acceptable", "unacceptable", "unsure"]


_REPLY_VERDICTS = get_args(_JudgeReply.__annotations__["verdict"])
_REPLY_SCHEMA = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "description": "One or two sentences."},
        "verdict": {"type": "string", "enum": list(_REPLY_VERDICTS)},
    },
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
_REPLY_EXAMPLE = json.dumps(
    {"reason": "…", "verdict": " or ".join(_REPLY_VERDICTS)}, ensure_ascii=False
)


class LlmJudge:
    """A judge that asks a language model.

    As a context manager, it closes the client. A session whose question has more than
    `max_characters` characters is not judged, because a shortened question would judge a different
    session.

    Raises:
        SettingsError: The rubric is not a Jinja template.
    """

    def __init__(self, client: LlmClient, rubric: str = "", max_characters: int = 200_000) -> None:
        self.client = client
        default_rubric = files("agent_pipeline.judging").joinpath("rubric.jinja")
        self._rubric = _parse_template(rubric or default_rubric.read_text(encoding="utf-8"))
        self._max_characters = max_characters

    def __enter__(self) -> Self:
        self.client.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.__exit__(*exc)

    def ask_opinion(self, context: EvaluationContext) -> "Future[Opinion]":
        """Ask the model for an opinion of a session, and return its future.

        The future raises SettingsError if the rubric cannot be filled in. The future also raises
        the errors of the client.
        """
        return self.client.pool.submit(self._find_opinion, context)

    def check_refusals(self) -> None:
        """Check that the endpoint has not refused every question.

        The check applies after at least five questions. If all were refused, the cause is not that
        a single session is too long, and unread sessions would count as done.

        Raises:
            SettingsError: The endpoint has refused all questions.
        """
        counts = self.client.counts
        refused_count = sum(count for name, count in counts.items() if name.startswith(REFUSED))
        has_answered = bool(counts["asked"] or counts["cached"])
        if refused_count >= FAILURES_IN_A_ROW and not has_answered:
            raise SettingsError(
                f"The judge's endpoint {self.client.endpoint.url} refused all of {refused_count} "
                f"questions ({str(self.client.refused)[:200]}): correct `judge.parameters`, lower "
                "`judge.max_characters`, or remove llm from `decided_by`."
            ) from self.client.refused

    def _find_opinion(self, context: EvaluationContext) -> Opinion:
        question = self._write_question(context)
        if len(question) > self._max_characters:
            self.client.count(TOO_LONG)
            return Opinion(None, TOO_LONG)
        about = make_alias(str(context.metadata.get("session_id")))
        answer = self.client.ask(
            question, _REPLY_SCHEMA, lambda text: _parse_reply(text) is not None, about
        )
        reply = _parse_reply(answer.text)
        if reply is None:
            return Opinion(None, answer.problem, pending=answer.pending)
        return Opinion(VERDICTS.get(reply.verdict), reply.reason, self.client.endpoint.model)

    def _write_question(self, context: EvaluationContext) -> str:
        fields = _make_template_fields(context)
        # Whoever writes the boundary into a message changes the hash, and so the boundary.
        record_hash = hash_json([fields["messages"], fields["tools"]])
        fields |= {"calls": context.calls, "boundary": f"=== {record_hash[:32]} ==="}
        question = _fill_template(self._rubric, fields)
        return f"{question}\nAnswer with one JSON object and nothing else: {_REPLY_EXAMPLE}\n"


def _parse_reply(text: str | None) -> _JudgeReply | None:
    """Parse an answer of the model.

    Return `None` if the answer is missing or has another format.
    """
    if text is None:
        return None
    try:
        reply = decode_json(text.strip(), _JudgeReply)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    reply.reason = reply.reason.strip().replace("\0", "\ufffd")[:_MAX_REASON_CHARACTERS]
    return reply


def read_rubric(path: Path) -> str:
    """Return the text of a rubric that the user wrote.

    Raises:
        SettingsError: The file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The rubric {path} cannot be read ({error}): set `judge.rubric` to a Jinja template "
            "in UTF-8.",
            setting="judge.rubric",
            path=path,
        ) from error


def _make_template_fields(context: EvaluationContext) -> dict[str, object]:
    """Return the values that a session provides for the fields of the template.

    Call ids are left out, because results directly follow their calls.
    """
    messages: list[dict[str, object]] = []
    for message in context.messages:
        shown: dict[str, object] = {"role": message["role"], "content": message["content"]}
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        if calls:
            shown["tool_calls"] = calls
        messages.append(shown)
    return {
        "messages": messages,
        "tools": context.tools,
        "final_answer": context.final_answer,
        "metadata": context.metadata,
    }


def _parse_template(text: str) -> object:
    """Parse a template in a sandbox that raises an error for an unknown name."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    environment.filters["json"] = _write_data
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise SettingsError(
            f"The judge's rubric is not a valid Jinja template ({error}): correct the template."
        ) from error


_UNSAFE = re.compile(
    "[<\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\U000e0000-\U000e007f]"
    r"|\[(?=/?[A-Z_]{3,}\])|={3,}"
)
"""Characters that could end a line or hide text, the beginnings of the special tokens of chat
templates (`<|im_end|>`, `</s>`, `[INST]`), and rows of equal signs as in the boundary.
"""


def _write_data(value: object) -> str:
    """Return a value as JSON on one line, in which every unsafe character is a JSON escape."""
    return _UNSAFE.sub(lambda match: _escape(match[0]), dump_canonical_json(value))


def _escape(text: str) -> str:
    """Return a text as JSON escapes of UTF-16 code units."""
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _fill_template(template: Any, fields: dict[str, Any]) -> str:
    try:
        return str(template.render(fields))
    except Exception as error:  # a user's template may raise any exception
        names = ", ".join(sorted(fields))
        raise SettingsError(
            f"The judge's rubric cannot be filled in ({type(error).__name__}: {error}): use only "
            f"the variables {names}."
        ) from error
