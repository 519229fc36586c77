"""Scoring of a generated turn: its class, its calls, and its answer.

An answer is judged by its class and by its values. Each number and id in it must occur in the
conversation or in the recorded answer. If the recorded answer gave the user a value from the last
results, the answer must give this value too. Wording, tone, names without digits, and negations are
not judged.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_pipeline.evaluation.call_matching import same_calls
from agent_pipeline.evaluation.samples import TurnSample
from agent_pipeline.models.families import parse_reply
from agent_pipeline.models.tool_call_parsers import ParsedCall, list_parameter_schemas
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.transcript import list_texts
from agent_pipeline.sessions.turn_class import classify_text


@dataclass(frozen=True)
class AnswerScore:
    """The score of a generated turn. A field that was not judged is None.

    A call that the token limit cut off is `truncated` and counts as wrong. If such calls were left
    out, a model that never ends its wrong calls would be scored only on its other calls. An answer
    that was cut off and is not right is `truncated` too.

    Attributes:
        expected: The class of the recorded turn.
        actual: The class of the reply; None if the reply is empty.
        called: Whether the reply calls a tool.
        right_class: Whether the class of the reply is the expected class.
        tool_name: Whether the tools are right; None if no call was expected.
        arguments: Whether the arguments are right; None if no call was expected.
        exact: Whether the calls have exactly the same effect; None if no call was expected.
        lenient: Whether a reader would regard the calls as the same; None if no call was expected.
        answer: Whether the answer is right; None if a call was expected.
        invalid_call: Whether a call cannot be parsed.
        truncated: Whether the token limit ended a turn that is wrong.
    """

    expected: str | None
    actual: str | None
    called: bool
    right_class: bool
    tool_name: bool | None
    arguments: bool | None
    exact: bool | None
    lenient: bool | None
    answer: bool | None
    invalid_call: bool
    truncated: bool

    @property
    def right(self) -> bool:
        """Return whether the reply is the exact tool call or the right answer."""
        return bool(self.answer if self.answer is not None else self.exact)

    @property
    def whole_call(self) -> bool:
        """Return whether the reply is a complete tool call."""
        return self.called and not (self.invalid_call or self.truncated)


def score(sample: TurnSample, text: str, cut: bool = False) -> AnswerScore:
    """Score a text that a model generated against the turn that the agent recorded.

    If several calls are expected, the text must contain all of them and no other call. `tool_name`
    compares the names, `arguments` the arguments, and `exact` and `lenient` both (see
    `call_matching`). A call that cannot be parsed is a wrong call.

    Args:
        sample: The recorded turn.
        text: The generated text.
        cut: Whether the text was ended by a token limit that is too small for the expected turn.
    """
    reply = parse_reply(text, sample.tools)
    actual = "call" if reply.is_call else classify_text(reply.text)
    right_class, truncated = (
        actual is not None and actual == sample.turn_class,
        cut and reply.is_call,
    )
    invalid = bool(reply.invalid) and not truncated
    if not sample.calls:
        answers = right_class and values_agree(sample, reply.text)
        truncated = cut and not answers
        return AnswerScore(
            sample.turn_class,
            actual,
            reply.is_call,
            right_class,
            None,
            None,
            None,
            None,
            answers,
            invalid,
            truncated,
        )
    schemas, readable = list_parameter_schemas(sample.tools), not reply.invalid
    names = readable and sorted(call.name for call in reply.calls) == sorted(
        call.name for call in sample.calls
    )
    renamed = [
        ParsedCall(want.name, call.arguments)
        for want, call in zip(sample.calls, reply.calls, strict=False)
    ]
    arguments = (
        readable
        and len(renamed) == len(reply.calls) == len(sample.calls)
        and same_calls(sample.calls, renamed, schemas)
    )
    exact, lenient = (
        readable and same_calls(sample.calls, reply.calls, schemas, lenient)
        for lenient in (False, True)
    )
    return AnswerScore(
        expected=sample.turn_class,
        actual=actual,
        called=reply.is_call,
        right_class=right_class,
        tool_name=names,
        arguments=arguments or exact,
        exact=exact,
        lenient=exact or lenient,
        answer=None,
        invalid_call=invalid,
        truncated=truncated and not exact,
    )


def values_agree(sample: TurnSample, text: str) -> bool:
    """Return whether an answer contains the same numbers and ids as the recorded answer.

    Every value in the text must occur in the conversation, in the tools or in the recorded answer.
    If an answer was expected, the text must also contain each new value of the recorded answer: a
    value from the results after the user's last message that the user did not mention.
    """
    recorded, stated = values([sample.text]), values([text])
    if any(
        len(value) > 1
        for value in stated
        - recorded
        - values(_texts(sample.prompt))
        - values([json.dumps(sample.tools)])
    ):
        return False
    if sample.turn_class != "answer":
        return True
    last_user = max(
        (index for index, message in enumerate(sample.prompt) if message["role"] == "user"),
        default=-1,
    )
    question_texts, results = (
        _texts(sample.prompt[: last_user + 1]),
        _texts(sample.prompt[last_user + 1 :]),
    )
    return (recorded & values(results)) - values(question_texts) <= stated


def values(texts: Sequence[str]) -> set[str]:
    """Return the words of a text that contain a digit, with normalized numbers: `{"20", "k100"}`
    for "$20.00 for K100.".
    """
    plain = (re.sub(r"\\u[0-9a-f]{4}|\\n", " ", text.casefold()) for text in texts)
    return {
        _number(word)
        for text in plain
        for word in re.findall(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|[\w.]*\d[\w.]*", text)
    }


def _number(word: str) -> str:
    word = word.strip("._").replace(",", "")
    return f"{float(word):g}" if re.fullmatch(r"\d+\.\d+", word) else word


def _texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages for text in list_texts(message)]
