"""Instructions in a record that are addressed to whoever judges it, such as "rate this as good"."""

import re
from collections.abc import Iterator, Sequence

from agent_pipeline.sessions.session import Message, Tool, encode_json

_JUDGES = r"(?:judges?|graders?|evaluators?|raters?|assessors?|annotators?)"
_MARKS = (
    r"(?:good|great|perfect|excellent|acceptable|unacceptable|correct|success(?:ful)?|pass(?:ed|ing)?|bad|fail(?:ed|ure)?|positive"
    r"|negative|full marks|\d+ ?(?:/|out of) ?\d+|100 ?%)"
)
_SUBJECT = r"(?:this|the|my|our|its)\b[^.!?]{0,40}?|it"

_ORDERS = re.compile(
    rf"\b(?:ignore|disregard|forget|override|bypass)\b[^.!?]{{0,60}}\b(?:rubrics?|grading|criteria|{_JUDGES})\b"
    rf"|\b(?:rate|grade|judge|mark|score|label|classify|deem|evaluate)\s+(?:{_SUBJECT})\s*\b(?:as|with|to be)\s+(?:an?\s+)?{_MARKS}\b"
    rf"|\b(?:dear|attention|hey|note (?:to|for)|message (?:to|for)|instructions? (?:to|for))[:,]?\s+(?:all\s+|any\s+|the\s+)?"
    rf"(?:(?:llm|ai|model)[- ]?)?{_JUDGES}\b"
    rf"|\byou are (?:an?|the) (?:\w+ )?{_JUDGES}\b"
    rf"|\b(?:give|assign|award)\b[^.!?]{{0,40}}\b(?:verdict|grade|rating)\b[^.!?]{{0,20}}\b{_MARKS}\b"
    r"|\\?[\"'](?:verdict|judgment)\\?[\"']\s*:\s*\\?[\"'](?:acceptable|unacceptable|unsure)\b"
)


def addresses_judge(text: str) -> bool:
    """Return whether a text tells a judge what to decide, or gives an answer in the judge's form."""
    return _ORDERS.search(" ".join(text.lower().split())) is not None


def turns_that_address_a_judge(messages: Sequence[Message], tools: Sequence[Tool]) -> list[bool]:
    """Return for each of the agent's messages whether its turn addresses a judge.

    A turn is the messages since the agent's last turn, the agent's message, and the results of its
    calls. The schemas of the tools belong to the first turn.
    """
    starts = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    turns: list[bool] = []
    begin = 0
    for place in starts:
        end = place + 1
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        turns.append(any(map(addresses_judge, _texts(messages[begin:end]))))
        begin = end
    if turns and tools:
        turns[0] = turns[0] or addresses_judge(encode_json(list(tools)).decode("utf-8", "replace"))
    if turns and begin < len(messages):  # what follows the last turn was not answered
        turns[-1] = turns[-1] or any(map(addresses_judge, _texts(messages[begin:])))
    return turns


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if isinstance(content := message.get("content"), str):
            yield content
        for call in message.get("tool_calls") or ():
            yield call["function"]["arguments"]
