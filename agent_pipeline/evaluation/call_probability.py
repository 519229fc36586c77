"""How likely a model calls at a turn, without decoding: from the same forward pass that computes the loss.

A turn may call at its beginning, and after any sentence of it ("Let me see." and then a call). At each of these places the probability of
the first tokens of a call is that of a short branch of the prefix tree: the words so far, then how the chat template opens a call. P(call)
of a turn is 1 − Π (1 − p) over the places along the recorded words. Its AUC over turns needs no threshold, and does not change where a
model merely calls too often.
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
    """A row for each place of a turn, after its recorded `thought`, at which a call may begin; the trained tokens are those that open it.

    [] where the template does not write the words as they are, or fails on a call after words; gpt-oss's fails on one after a thought and
    words, so its turns with a thought are looked at where the words begin.
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
        ]  # with what every turn begins (an empty thought, in Qwen 3)
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
            at = text.find(shown, begin) if text.startswith(before) else -1
            opening = _OPENING.match(text, at + len(shown)) if at >= 0 else None
            if opening is None:
                return []
            tokens = renderer.tokenize(text[: opening.end()])
            opens = [end > at + len(shown) for _, end in tokens.offsets]
            branches.append(Encoded(tokens.ids, opens, []))
    except (TemplateError, TypeError):
        return branches if thought else []
    return branches


def call_probability(branches: Sequence[TokenScores | None]) -> float | None:
    """P(call) of a turn from the scores of its branches; None where it has none."""
    chances = [math.exp(-float(scores.losses.sum())) for scores in branches if scores]
    return 1 - math.prod(1 - chance for chance in chances) if chances else None


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a positive turn scores higher than another one, ties counting half; nan without both kinds, or where a score is."""
    from sklearn.metrics import roc_auc_score

    undefined = positive.all() or not positive.any() or np.isnan(scores).any()
    return math.nan if undefined else float(roc_auc_score(positive, scores))
