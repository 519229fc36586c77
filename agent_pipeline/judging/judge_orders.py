"""Detection of instructions to the judge inside a session, such as "rate this as good"."""

import re
from collections.abc import Iterator, Sequence

from agent_pipeline.sessions.session import Message, Tool, encode_json

_JUDGES = r"(?:judges?|graders?|evaluators?|raters?|assessors?|annotators?)"
_MARKS = (
    r"(?:good|great|perfect|excellent|acceptable|unacceptable|correct|success(?:ful)?"
    r"|pass(?:ed|ing)?|bad|fail(?:ed|ure)?|positive"
    r"|negative|full marks|\d+ ?(?:/|out of) ?\d+|100 ?%)"
)
_SUBJECT = r"(?:this|the|my|our|its)\b[^.!?]{0,40}?|it"

_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.!?]{0,60}\b"
    rf"(?:rubrics?|grading|criteria|{_JUDGES})\b"
    rf"|\b(?:rate|grade|judge|mark|score|label|classify|deem|evaluate)\s+(?:{_SUBJECT})\s*"
    rf"\b(?:as|with|to be)\s+(?:an?\s+)?{_MARKS}\b"
    r"|\bjudge\s+as\s+(?:un)?acceptable\b|\banswer\s+(?:with\s+)?(?:un)?acceptable\b"
    r"|\b(?:dear|attention|hey|note (?:to|for)|message (?:to|for)|instructions? (?:to|for))[:,]?\s+"
    r"(?:all\s+|any\s+|the\s+)?"
    rf"(?:(?:llm|ai|model)[- ]?)?{_JUDGES}\b"
    rf"|\byou are (?:an?|the) (?:\w+ )?{_JUDGES}\b"
    r"|\b(?:give|assign|award)\b[^.!?]{0,40}\b(?:verdict|grade|rating)\b"
    rf"[^.!?]{{0,20}}\b{_MARKS}\b"
    r"|\\?[\"'](?:verdict|judgment)\\?[\"']\s*:\s*\\?[\"'](?:acceptable|unacceptable|unsure)\b"
)

_HIDDEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_TAGS = re.compile("[\U000e0020-\U000e007f]")
_LETTERS_BY_TAG = {0xE0000 + code: code for code in range(0x20, 0x7F)}


_PARTS = (
    *("rubric", "grading", "criteria", "judg", "grader", "evaluator", "rater", "assessor"),
    *("annotator", "acceptable", "verdict", "unsure"),
)
_MARKED, _GIVING = ("grade", "rating"), ("give", "assign", "award")
_VERBS = {
    verb: re.compile(rf"{verb}\s+(?:this|the|my|our|it)")
    for verb in ("rate", "grade", "judge", "mark", "score", "label", "classify", "deem", "evaluate")
}


def _may_match(lowered: str) -> bool:
    """Return whether `_ORDERS` may match a text in lower case.

    Every match contains one of `_PARTS`, a word of `_MARKED` and of `_GIVING`, or a verb with its
    object. This search is many times faster than `_ORDERS`, and most texts contain nothing of it.
    """
    return (
        any(part in lowered for part in _PARTS)
        or (any(part in lowered for part in _MARKED) and any(part in lowered for part in _GIVING))
        or any(verb in lowered and form.search(lowered) for verb, form in _VERBS.items())
    )


def addresses_judge(text: str) -> bool:
    """Return whether a text tries to give instructions to a judge.

    A text that has the form of a judge's answer counts, too. Before the search, invisible
    characters are removed, and tag characters, which only a model reads, are replaced by their
    letters.
    """
    lowered = _show_hidden(text).lower()
    if not _may_match(lowered):
        return False
    return _ORDERS.search(" ".join(lowered.split())) is not None


def _show_hidden(text: str) -> str:
    """Return a text without invisible characters, and with letters instead of tag characters."""
    if text.isascii():
        return text
    text = _HIDDEN.sub("", text)
    return text.translate(_LETTERS_BY_TAG) if _TAGS.search(text) else text


def find_turns_addressing_judge(messages: Sequence[Message], tools: Sequence[Tool]) -> list[bool]:
    """Return, for each agent message, whether its turn contains instructions to a judge.

    A turn consists of the messages since the agent's last turn, the agent's message, and the
    results of its calls. The tool schemas belong to the first turn. Messages after the last turn
    belong to the last turn.
    """
    texts = [*_list_texts(messages)]
    if tools:
        texts.append(encode_json(list(tools)).decode("utf-8", "replace"))
    if not _may_match(_show_hidden("\n".join(texts)).lower()):
        return [False for message in messages if message["role"] == "assistant"]
    address_judge: list[bool] = []
    turn_start = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        turn_end = index + 1
        while turn_end < len(messages) and messages[turn_end]["role"] == "tool":
            turn_end += 1
        address_judge.append(_any_addresses_judge(messages[turn_start:turn_end]))
        turn_start = turn_end
    if not address_judge:
        return []
    if tools and addresses_judge(texts[-1]):
        address_judge[0] = True
    if _any_addresses_judge(messages[turn_start:]):
        address_judge[-1] = True
    return address_judge


def _any_addresses_judge(messages: Sequence[Message]) -> bool:
    return any(addresses_judge(text) for text in _list_texts(messages))


def _list_texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        for call in message.get("tool_calls") or ():
            yield call["function"]["arguments"]
