"""The players of episodes: a model in memory, a model behind an OpenAI-compatible endpoint, and the
recorded agent.
"""

import json
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.generation import BATCH, CACHE_BYTES, bytes_per_token, generate
from agent_pipeline.engine.scoring import ReadTokens
from agent_pipeline.errors import InfrastructureError, first_line
from agent_pipeline.evaluation.confidence import read_confidence
from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply, Player
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.families import parse_reply
from agent_pipeline.sessions.json_text import replace_surrogates
from agent_pipeline.sessions.session import Message, Tool, ToolCall

_REFUSED = (400, 413, 422)
"""HTTP status codes of an endpoint that refuses this request but may accept another request."""

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def model_player(
    model: "PreTrainedModel",
    renderer: ChatRenderer,
    max_new_tokens: int = 96,
    max_length: int = 2048,
) -> Player:
    """Return a player for a model in memory, which answers greedily and measures no confidence.

    If all conversations fit into one batch and into the cache, the player keeps the keys and values
    that it has computed for them.

    Args:
        model: The model.
        renderer: The renderer of the model's chat template.
        max_new_tokens: The maximum number of tokens in a reply.
        max_length: The maximum number of tokens in a conversation, including the reply.
    """
    read: dict[tuple[int, int], ReadTokens] = {}

    def reply(conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        prompts = [
            renderer.prompt_ids(conversation.messages, conversation.tools)
            for conversation in conversations
        ]
        fitting = [
            index
            for index, prompt in enumerate(prompts)
            if len(prompt) + max_new_tokens <= max_length
        ]
        names = [(conversations[index].number, conversations[index].trial) for index in fitting]
        limits, before = [max_new_tokens] * len(fitting), [read.get(name) for name in names]
        size = sum(len(prompts[index]) + max_new_tokens for index in fitting) * bytes_per_token(
            model
        )
        kept: list[ReadTokens | None] | None = (
            [] if len(fitting) <= BATCH and size <= CACHE_BYTES else None
        )
        answers = generate(
            model,
            [prompts[index] for index in fitting],
            limits,
            renderer.answer_end_ids,
            read=before,
            keep=kept,
        )
        read.clear()
        read.update({name: new for name, new in zip(names, kept or (), strict=False) if new})
        replies = [EpisodeReply(None)] * len(conversations)
        for conversation_index, tokens in zip(fitting, answers, strict=True):
            text = renderer.decode_reply(tokens, conversations[conversation_index].tools)
            cut = "length" if len(tokens) == max_new_tokens else None
            replies[conversation_index] = EpisodeReply(
                message_of(text, conversations[conversation_index].tools),
                len(prompts[conversation_index]),
                len(tokens),
                cut,
            )
        return replies

    return reply


def message_of(text: str, tools: Sequence[Tool]) -> Message:
    """Convert the text that a model generated into an assistant message.

    If the text contains calls that can be parsed, the message has the calls, and its `content` is
    the text before them. If a call cannot be parsed, the whole text is the content, which ends an
    episode.
    """
    reply = parse_reply(text, tools)
    if not reply.calls:
        return {"role": "assistant", "content": text.strip() if reply.invalid else reply.text}
    calls: list[ToolCall] = [
        {
            "id": f"call_{secrets.token_hex(8)}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": replace_surrogates(
                    json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
                ),
            },
        }
        for call in reply.calls
    ]
    return {"role": "assistant", "content": reply.text, "tool_calls": calls}


def endpoint_player(
    endpoint: Endpoint, called: str = "The model", one_of_several: bool = False
) -> Player:
    """Return a player for a model behind an OpenAI-compatible endpoint, such as vLLM, Ollama or
    llama.cpp's server.

    A request for trial k of a task has the `seed` k, so that trials with a temperature differ. An
    episode ends if the endpoint refuses its conversation, or if the model does not finish a call
    (llama.cpp's server answers such a call with an error).

    Args:
        endpoint: The endpoint. Its `parameters` are added to every request. With `logprobs`, each
            reply has the confidence of its turn, if the server returns log-probabilities.
        called: The name of the model in error messages.
        one_of_several: Whether other players use the same model. A refused first request is then
            not an error, because another player may have received answers.

    Raises:
        InfrastructureError: The endpoint fails in another way, or refuses a conversation before it
            has answered any.
    """
    client, answered = endpoint.connect(called), one_of_several

    def ask(conversation: Conversation) -> EpisodeReply:
        import openai

        request: dict[str, Any] = {
            "model": endpoint.model,
            "messages": conversation.messages,
            "seed": conversation.trial,
            **endpoint.parameters,
        }
        if conversation.tools:
            request["tools"] = conversation.tools
        try:
            answer: Any = client.chat.completions.create(**request)
            choice, used = answer.choices[0], answer.usage
            message: Message = {"role": "assistant", "content": choice.message.content or ""}
            calls: list[ToolCall] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in choice.message.tool_calls or ()
            ]
        except (openai.APIError, ValueError, AttributeError, TypeError, IndexError) as error:
            if isinstance(error, openai.BadRequestError) and (
                "context" in str(error) or "too long" in str(error)
            ):
                return EpisodeReply(None)
            if isinstance(error, openai.InternalServerError) and "Failed to parse tool call" in str(
                error
            ):
                return EpisodeReply(None, finish_reason="length")
            problem = (
                f"{called} at {endpoint.url} (model {endpoint.model}) did not answer "
                f"({type(error).__name__}: {first_line(error)})"
            )
            if isinstance(error, openai.APIStatusError) and error.status_code in _REFUSED:
                return EpisodeReply(None, refused=problem)
            # A server that is not an OpenAI-compatible endpoint may answer 200 with any content.
            raise InfrastructureError(
                f"{problem}: start the server, or correct its URL, model or key."
            ) from error
        if calls:
            message["tool_calls"] = calls
        return EpisodeReply(
            message,
            used.prompt_tokens if used else 0,
            used.completion_tokens if used else 0,
            choice.finish_reason,
            confidence=read_confidence(
                choice, message, is_greedy=not endpoint.parameters.get("temperature")
            ),
        )

    def reply(conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        nonlocal answered
        with ThreadPoolExecutor(endpoint.concurrency) as threads:
            replies = list(threads.map(ask, conversations))
        answered = answered or not all(reply.refused for reply in replies)
        if not answered and replies:
            raise InfrastructureError(
                "The server did not answer any conversation (first error: "
                f"{replies[0].refused.rstrip('.')}): check the model and the settings of the "
                "server."
            )
        return replies

    return reply


def recorded_player(sessions: Sequence[Sequence[Message]]) -> Player:
    """Return a player that repeats the recorded agent.

    Episode i gets the assistant messages of session i in order, and then empty messages.
    """
    turns = [
        iter([message for message in session if message["role"] == "assistant"])
        for session in sessions
    ]
    silence: Message = {"role": "assistant", "content": ""}
    return lambda conversations: [
        EpisodeReply(next(turns[conversation.number], silence)) for conversation in conversations
    ]
