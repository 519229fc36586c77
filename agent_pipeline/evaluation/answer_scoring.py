"""What is right about a generated text: the class of the turn, its calls, or what it answers.

An answer is judged by its class and by the values that it states: numbers and ids must stand in the conversation or in the recorded
answer, and what the recorded answer told the user from the last results must be told too. Its wording, its tone, names without digits and
negations are not judged.
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
    """What is right about a turn. None: not judged.

    `expected`: the class of the recorded turn; `actual`: that of the reply, None where it says nothing. `called`: whether it calls;
    `right_class`: whether its class is the expected one. `tool_name`, `arguments`, `exact` and `lenient` are judged where a call was
    expected, `answer` where none was. A call that the limit on new tokens ended is `truncated`, and wrong: left out, it would let a model
    that never ends its wrong calls score on the others alone. So is an answer that is not right so far.
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
        """The exact call, or the right answer."""
        return bool(self.answer if self.answer is not None else self.exact)

    @property
    def whole_call(self) -> bool:
        """Whether it calls, and the call is all there."""
        return self.called and not (self.invalid_call or self.truncated)


def score(sample: TurnSample, text: str, cut: bool = False) -> AnswerScore:
    """How a generated text compares with what the agent did; `cut`: a limit on new tokens, too low for what was expected, ended it.

    Of several expected calls all must be there, and no other: `tool_name` compares the names, `arguments` the arguments, `exact` and
    `lenient` both (see `calls`). A call that cannot be read is a wrong call.
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
    """Whether a text states no value that nothing before it gives. Where an answer was expected it also states all that was new in it: the
    values from results after the user's last message that the user had not named."""
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
    asked, results = _texts(sample.prompt[: last_user + 1]), _texts(sample.prompt[last_user + 1 :])
    return (recorded & values(results)) - values(asked) <= stated


def values(texts: Sequence[str]) -> set[str]:
    """The words with a digit, numbers by their value: `{"20", "k100"}` for "$20.00 for K100."."""
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
