"""A conversation as a page shows it: turns with their calls, and each call with its result.

The templates that draw the turns are in `templates`. The choice of the conversation does not belong
here.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent_pipeline.judging.turn_facts import describe_facts
from agent_pipeline.reports.rendering import format_json
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Message, Thought, is_trained
from agent_pipeline.sessions.transcript import is_failed, pair_calls, shorten_text

MAX_TEXT = 40_000
"""Maximum number of characters of one text on a page."""
MAX_PAGE_TEXT = 3_000_000
"""Number of characters on a page above which every text is shortened further."""
MIN_TEXT = 600
FOLDED_TEXT = 2_400
"""Number of characters of a message above which the page folds the rest of the message."""
MESSAGES_PER_PART = 400
"""Maximum number of messages that a page of a session shows at once."""
_MAX_SUMMARY = 90


class ShownText(msgspec.Struct, frozen=True):
    """A text on a page.

    Attributes:
        head: The beginning, or the whole text if it is short.
        rest: The folded rest.
    """

    head: str
    rest: str = ""


class ShownCall(msgspec.Struct, frozen=True):
    """A tool call on a page, with its result.

    Attributes:
        name: The called tool.
        summary: The arguments in one short line.
        arguments: The arguments, as indented JSON.
        result: The result, as indented JSON if it is JSON. None means that there is no result.
        failed: Whether the result is an error.
        message: The position of the result among the messages, from 1.
    """

    name: str
    summary: str
    arguments: str
    result: str | None = None
    failed: bool = False
    message: int | None = None


class ShownTurn(msgspec.Struct, frozen=True):
    """A message on a page.

    Attributes:
        message: The position of the message in the session, from 1.
        role: The role of the message.
        text: The text.
        calls: The calls of the message.
        thought: The recorded thought before the message.
        facts: Facts about the turn, such as `tool error`.
    """

    message: int
    role: str
    text: ShownText
    calls: Sequence[ShownCall] = ()
    thought: str = ""
    facts: Sequence[str] = ()


def make_turns(
    messages: Sequence[Message],
    facts: Iterable[Mapping[str, object]] = (),
    reasoning: Iterable[Thought] = (),
    where: str = "the table",
    limit: int = MAX_TEXT,
) -> list[ShownTurn]:
    """Return the turns of a conversation. A result is shown with its call.

    Args:
        messages: The messages.
        facts: The facts about the assistant's messages, in order (the column `turns`).
        reasoning: The recorded thoughts.
        where: The place that has the whole text of a message that is too long for a page.
        limit: The maximum number of characters of one text.
    """
    limit = min(limit, _limit_texts(messages))
    fact_rows = iter(facts)
    thoughts: dict[int, list[str]] = {}
    for thought in reasoning:
        thoughts.setdefault(thought["message"], []).append(thought["text"])
    turns = []
    shown_results: set[int] = set()
    for index, message in enumerate(messages):
        if index in shown_results:
            continue
        calls = _pair(messages, index, shown_results, limit, where)
        described: list[str] = []
        if message["role"] == "assistant":
            described = describe_facts(fact_row) if (fact_row := next(fact_rows, None)) else []
            if not is_trained(message):
                described.append("not trained, by its source")
        elif message["role"] == "tool":
            described = ["result without a call"]
        content = shorten_text(message.get("content") or "", limit, where)
        if message["role"] == "tool":
            content = format_json(content)
        turns.append(
            ShownTurn(
                message=index + 1,
                role=message["role"],
                text=fold_text(content),
                calls=calls,
                thought=shorten_text("\n\n".join(thoughts.get(index, ())), limit, where),
                facts=described,
            )
        )
    return turns


def fold_text(text: str) -> ShownText:
    """Divide a text into a beginning and a folded rest, at the end of a line if possible."""
    if len(text) <= FOLDED_TEXT + 400:
        return ShownText(text)
    end = text.rfind("\n", FOLDED_TEXT // 2, FOLDED_TEXT)
    end = FOLDED_TEXT if end < 0 else end + 1
    return ShownText(text[:end], text[end:])


def summarize_arguments(raw: str) -> str:
    """Return the arguments of a call in one line, such as `order_id: W-1, reason: late`."""
    arguments = parse_object(raw)
    if arguments is None:
        line = " ".join(raw.split())
    else:
        line = ", ".join(
            f"{name}: {value if isinstance(value, str | int | float) else '…'}"
            for name, value in arguments.items()
        )
        line = " ".join(line.split())
    return line if len(line) <= _MAX_SUMMARY else f"{line[: _MAX_SUMMARY - 1]}…"


def _limit_texts(messages: Sequence[Message]) -> int:
    """Return the maximum length of a text, so that the whole page stays small enough to open."""
    total = sum(min(len(message.get("content") or ""), MAX_TEXT) for message in messages)
    if total <= MAX_PAGE_TEXT:
        return MAX_TEXT
    return max(MIN_TEXT, MAX_PAGE_TEXT // len(messages))


def _pair(
    messages: Sequence[Message], index: int, shown_results: set[int], limit: int, where: str
) -> list[ShownCall]:
    """Return the calls of a message, and add the indices of their results to `shown_results`."""
    if not messages[index].get("tool_calls"):
        return []
    end = index + 1
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    results = list(range(index + 1, end))
    calls = []
    for call in pair_calls(messages[index:end]):
        position = next(
            (
                result
                for result in results
                if call.result is not None and messages[result]["content"] == call.result
            ),
            None,
        )
        if position is not None:
            results.remove(position)
            shown_results.add(position)
        result_text = None
        if call.result is not None:
            result_text = format_json(shorten_text(call.result, limit, where))
        calls.append(
            ShownCall(
                name=call.name,
                summary=summarize_arguments(call.raw),
                arguments=format_json(shorten_text(call.raw, limit, where)),
                result=result_text,
                failed=call.failed or (position is not None and is_failed(messages[position])),
                message=None if position is None else position + 1,
            )
        )
    return calls
