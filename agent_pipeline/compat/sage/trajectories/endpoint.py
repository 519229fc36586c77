"""An agent behind an OpenAI-compatible endpoint, with Python functions for tools.

A tool's schema follows from its signature, and its arguments are checked against it. What it
returns or raises goes to the model, so that the agent can repair a wrong call. An endpoint that
does not answer is a failure of the infrastructure (InfrastructureError).
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_pipeline.compat.sage.trajectories.collecting import task_of
from agent_pipeline.compat.sage.trajectories.model import AgentTrajectory, trajectory_of
from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply, play
from agent_pipeline.evaluation.players import endpoint_player
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.sessions.session import Session, Tool

_NAME = re.compile(r"(?!_|(?:reset|get_reward|system|tools)$)[A-Za-z0-9_-]{1,64}")
"""What an endpoint takes, without the names that mean something in a world."""
_NOT_IN_FULL = {
    "context": "has no room in its context: let its server take longer conversations",
    "length": "was cut off at its longest answer: raise max_tokens in parameters",
    "content_filter": "was kept back by a filter",
}


class EndpointAgent:
    """A model that calls tools until it answers in words, or after `max_turns` messages. It plays
    each task as an episode whose world is the functions.

    Raises:
        SettingsError: the URL is none, or a function can be no tool.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tools: Iterable[Callable[..., Any]] = (),
        system_prompt: str = "",
        max_turns: int = 10,
    ) -> None:
        from pydantic import validate_call

        functions = list(tools)
        self.tool_schemas = [tool_schema(function) for function in functions]
        self.model_id, self.system_prompt, self.max_turns, self._endpoint = (
            endpoint.model,
            system_prompt,
            max_turns,
            endpoint,
        )
        self._player = endpoint_player(endpoint, "The agent's endpoint")
        self._world = type(
            "FunctionTools",
            (),
            {function.__name__: staticmethod(validate_call(function)) for function in functions}
            | {
                "system": system_prompt,
                "tools": self.tool_schemas,
                "reset": lambda self, words: words,
                "get_reward": lambda self: 0.0,
            },
        )

    def __call__(self, task: object) -> AgentTrajectory:
        """Work on one task.

        Raises:
            InfrastructureError: the endpoint did not answer, or not in full; or a tool raised it.
        """
        (episode,) = play(
            self._world, [{"words": task_of(task).instruction}], self._answers, self.max_turns
        )
        session = Session(
            session_id="",
            project="",
            agent="",
            source="",
            messages=episode.messages,
            tools=self.tool_schemas,
        )
        run = trajectory_of(session)
        run.cut = episode.end == "too many turns"
        return run

    def _answers(self, conversations: Sequence[Conversation]) -> list[EpisodeReply]:
        """What the endpoint answers, in full."""
        replies = self._player(conversations)
        for reply in replies:
            if reply.refused:
                raise InfrastructureError(reply.refused)
            if cut := _NOT_IN_FULL.get(reply.finish_reason or "") or (
                "" if reply.message else _NOT_IN_FULL["context"]
            ):
                raise InfrastructureError(f"An answer of the model {self.model_id} {cut}.")
        return replies


def tool_schema(function: Callable[..., object]) -> Tool:
    """The OpenAI schema of a Python function: its name, the whole docstring, and its parameters by
    their types.

    Raises:
        SettingsError: it has no name that an endpoint takes, or parameters that no JSON object can
        fill.
    """
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: object) -> bool:
            return False

    name = getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"The tool {name or function!r} has no name that an endpoint takes: give a function "
            f"with letters, digits, _ and -, not called "
            "reset, get_reward, system or tools."
        )
    try:
        adapter: TypeAdapter[object] = TypeAdapter(function)  # type: ignore[arg-type]
        parameters = adapter.json_schema(schema_generator=Untitled)
    except (PydanticUserError, NameError) as error:
        raise SettingsError(
            f"The tool {name} has a parameter that JSON cannot hold: give it another type."
        ) from error
    if parameters.get("type") != "object":
        raise SettingsError(
            f"The tool {name} has parameters without names: let each be given by its name."
        )
    # A template that renders tools wants `properties`, empty or not.
    parameters.setdefault("properties", {})
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": inspect.getdoc(function) or "",
            "parameters": parameters,
        },
    }
