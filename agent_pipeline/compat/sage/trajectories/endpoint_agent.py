"""An agent behind an OpenAI-compatible endpoint, with Python functions as tools.

The schema of a tool is made from the signature of its function, and arguments are checked against
the signature. The model reads what a function returns or raises, so that it can correct a call.
If the endpoint does not answer, the infrastructure has failed.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_pipeline.compat.sage.trajectories.collector import parse_task
from agent_pipeline.compat.sage.trajectories.trajectory import AgentTrajectory, make_trajectory
from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply, play
from agent_pipeline.evaluation.players import endpoint_player
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.sessions.session import Session, Tool

TOOL_NAME = re.compile(r"(?!_|(?:reset|get_reward|system|tools)$)[A-Za-z0-9_-]{1,64}")
"""Pattern of tool names that an endpoint accepts and that have no special meaning in a world."""

INCOMPLETE_REASONS = {
    "context": "does not fit into the context: start the server with a longer context",
    "length": "was cut off at its longest answer: raise max_tokens in parameters",
    "content_filter": "was blocked by a filter",
}
"""Descriptions of incomplete answers, by the finish reason of the endpoint."""


class EndpointAgent:
    """An agent that calls tools until it answers with text or has written `max_turns` messages.

    A task is an episode in a world whose tools are the functions.

    Args:
        endpoint: The endpoint.
        tools: The functions.
        system_prompt: The system prompt.
        max_turns: The largest number of messages of the agent.

    Raises:
        SettingsError: The URL is invalid, or a function cannot be a tool.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tools: Iterable[Callable[..., object]] = (),
        system_prompt: str = "",
        max_turns: int = 10,
    ) -> None:
        from pydantic import validate_call

        functions = list(tools)
        self.tool_schemas = [make_tool_schema(function) for function in functions]
        self.model_id = endpoint.model
        self.system_prompt = system_prompt
        self.max_turns = max_turns
        self._player = endpoint_player(endpoint, "The agent's endpoint")
        attributes: dict[str, Any] = {
            function.__name__: staticmethod(validate_call(function)) for function in functions
        }
        attributes |= {
            "system": system_prompt,
            "tools": self.tool_schemas,
            "reset": lambda self, words: words,
            "get_reward": lambda self: 0.0,
        }
        self._world = type("FunctionTools", (), attributes)

    def __call__(self, task: object) -> AgentTrajectory:
        """Run the agent on one task.

        Raises:
            InfrastructureError: The endpoint gave no answer or an incomplete answer, or a tool
                raised this error.
        """
        rows = [{"words": parse_task(task).instruction}]
        (episode,) = play(self._world, rows, self._reply, self.max_turns)
        session = Session(
            session_id="",
            project="",
            agent="",
            source="",
            messages=episode.messages,
            tools=self.tool_schemas,
        )
        run = make_trajectory(session)
        run.cut = episode.end == "too many turns"
        return run

    def _reply(self, conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        """Return the answers of the endpoint. Raises an error if an answer is incomplete."""
        replies = self._player(conversations)
        for reply in replies:
            if reply.refused:
                raise InfrastructureError(reply.refused)
            reason = INCOMPLETE_REASONS.get(reply.finish_reason or "")
            if reason is None and not reply.message:
                reason = INCOMPLETE_REASONS["context"]
            if reason is not None:
                raise InfrastructureError(f"An answer of the model {self.model_id} {reason}.")
        return replies


def make_tool_schema(function: Callable[..., object]) -> Tool:
    """Return the OpenAI schema of a function: its name, its docstring and its parameters.

    Raises:
        SettingsError: An endpoint does not accept the name, or JSON cannot hold a parameter.
    """
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        """A JSON schema without titles, because titles do not tell a model anything."""

        def field_title_should_be_set(self, schema: object) -> bool:
            return False

    name = getattr(function, "__name__", "")
    if not TOOL_NAME.fullmatch(name):
        raise SettingsError(
            f"An endpoint does not accept the tool name {name or function!r}: use only letters, "
            "digits, `_` and `-`, and none of the names reset, get_reward, system and tools."
        )
    try:
        adapter: TypeAdapter[object] = TypeAdapter(function)  # type: ignore[arg-type]
        parameters = adapter.json_schema(schema_generator=WithoutTitles)
    except (PydanticUserError, NameError) as error:
        raise SettingsError(
            f"The tool {name} has a parameter that JSON cannot represent: change the type of the "
            "parameter."
        ) from error
    if parameters.get("type") != "object":
        raise SettingsError(
            f"The tool {name} has parameters that cannot be passed by name: give each parameter a "
            "name."
        )
    # Chat templates need the key `properties`, also if it is empty.
    parameters.setdefault("properties", {})
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": inspect.getdoc(function) or "",
            "parameters": parameters,
        },
    }
