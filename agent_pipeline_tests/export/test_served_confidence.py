"""The log-probabilities of llama.cpp's server, with and without a grammar that forces a token."""

import copy
import math
from pathlib import Path

import pytest

from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply
from agent_pipeline.evaluation.players import endpoint_player
from agent_pipeline.export.llama import LlamaCpp
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline_tests.export.test_conversations import CONVERSATION, PAY, write_parrot

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_converter")]


@pytest.fixture(scope="module")
def parrot(once, tiny) -> Path:
    return once("parrot", lambda folder: write_parrot(tiny["base"], folder)) / "parrot.gguf"


def ask(llama: LlamaCpp, tools: list[dict], **parameters: object) -> EpisodeReply:
    url, key = llama.endpoint
    options = {"temperature": 0, "max_tokens": 64, **parameters}
    player = endpoint_player(Endpoint(url, "parrot", key, options, concurrency=1))
    return player([Conversation(CONVERSATION["messages"][:1], tools)])[0]


def test_a_renamed_tool_is_seen_as_a_forced_token(parrot):
    """The grammar allows only the request's names, so it forces a name that the model never saw."""
    renamed = copy.deepcopy(PAY)
    renamed[0]["function"]["name"] = "transfer"
    logprobs = {"logprobs": True, "top_logprobs": 1}
    with LlamaCpp(parrot, n_ctx=1024) as llama:
        learned = ask(llama, PAY, **logprobs)
        forced = ask(llama, renamed, **logprobs)
        unmeasured = ask(llama, PAY)
    assert learned.message["tool_calls"] and not learned.confidence.forced
    assert -0.5 < learned.confidence.words <= 0 and not learned.confidence.is_unsure
    if forced.message and forced.message.get("tool_calls"):
        assert forced.message["tool_calls"][0]["function"]["name"] == "transfer"
    assert forced.confidence.forced and forced.confidence.least < math.log(0.5)
    assert unmeasured.message["tool_calls"] and unmeasured.confidence is None
