"""The probability that a model calls a tool at a turn, computed from one forward pass without
decoding.

A call may begin at the start of a turn, and after any of its sentences ("Let me see." and then a
call). For each such place, the prefix tree gets a short branch: the words up to this place, and the
tokens with which the chat template opens a call. The branch gives the probability p of a call at
this place. P(call) of a turn is 1 − Π (1 − p) over the places in the recorded words. The AUC of
P(call) over turns needs no threshold, and it does not change if a model merely calls too often.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agent_pipeline.engine.scoring import TokenScores
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, ToolCall
from agent_pipeline.tokenization.loss_masks import Encoded, find_call_positions

if TYPE_CHECKING:
    pass

_OPENING = re.compile(r"\s*(?:<[^<>]*>[^\s<{\[\"]*|\[\w+\]|\S{1,2})")
_ANSWER = "answer_q7"
_CALL: ToolCall = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "tool_q7", "arguments": "{}"},
}


def call_branches(
    renderer: ChatRenderer,
    prompt: Sequence[Message],
    tools: Sequence[Tool] | None,
    words: str,
    thought: str = "",
) -> list[Encoded]:
    """Return one row for each position of a turn at which a tool call may begin.

    Only the tokens that open the call are trained.

    Return an empty list if the template changes the words, or if it fails on a call after words.
    The template of gpt-oss fails on a call after a thought and words. For such turns with a
    thought, only the place before the words is used.

    Args:
        renderer: The renderer of the chat template.
        prompt: The messages before the turn.
        tools: The tools of the turn.
        words: The recorded words of the turn.
        thought: The recorded thought, which precedes the words.
    """
    from jinja2 import TemplateError

    words = words.strip()
    branches = []
    try:
        before = renderer.render(list(prompt), list(tools or ()), add_generation_prompt=True)
        answer = renderer.render(
            [*prompt, {"role": "assistant", "content": _ANSWER, THOUGHT: thought}],
            list(tools or ()),
        )
        begun = answer.partition(_ANSWER)[
            0
        ]  # the tokens with which every turn begins (in Qwen 3, an empty thought)
        for place in find_call_positions(words):
            turn: Message = {
                "role": "assistant",
                "content": words[:place],
                "tool_calls": [_CALL],
                THOUGHT: thought,
            }
            text = renderer.render([*prompt, turn], list(tools or ()))
            shown = renderer.mark_literals(words[:place])
            begin = (
                len(begun) if begun.startswith(before) and text.startswith(begun) else len(before)
            )
            begin = max(begin, len(before) + renderer.thought_end(turn, text[len(before) :]))
            start = text.find(shown, begin) if text.startswith(before) else -1
            opening = _OPENING.match(text, start + len(shown)) if start >= 0 else None
            if opening is None:
                return []
            tokens = renderer.tokenize(text[: opening.end()])
            opens = [end > start + len(shown) for _, end in tokens.offsets]
            branches.append(Encoded(tokens.ids, opens, []))
    except (TemplateError, TypeError):
        return branches if thought else []
    return branches


def call_probability(branches: Sequence[TokenScores | None]) -> float | None:
    """Return P(call), the probability of a tool call at a turn, from the scores of its branches.

    Return None if there are no branches.
    """
    chances = [math.exp(-float(scores.losses.sum())) for scores in branches if scores]
    return 1 - math.prod(1 - chance for chance in chances) if chances else None


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the area under the ROC curve: the probability that a positive turn scores higher than
    a negative turn, with ties counted half.

    Return nan if one of the two classes is missing or a score is nan.
    """
    from sklearn.metrics import roc_auc_score

    undefined = positive.all() or not positive.any() or np.isnan(scores).any()
    return math.nan if undefined else float(roc_auc_score(positive, scores))
