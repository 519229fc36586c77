"""An agent behind an OpenAI-compatible endpoint, with Python functions for tools.

A tool's schema follows from its signature, and its arguments are checked against it. What it returns or raises goes to the model, so that
the agent can repair a wrong call. An endpoint that does not answer is a failure of the infrastructure (InfrastructureError).
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.client import Endpoint
from agent_pipeline.notebook.trajectories.collecting import InfrastructureError, task_of
from agent_pipeline.notebook.trajectories.model import TrajectoryStep, decoded_input
from agent_pipeline.sessions.session import Message, Tool

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENDS = {"length": "was cut off at its longest answer: raise max_tokens in parameters", "content_filter": "was kept back by a filter"}


class EndpointAgent:
    """A model that calls tools until it answers in words; a context manager. Yields a step for each call and one for the answer.

    Who runs it sets the limit of steps (`TrajectoryCollector`).

    Raises:
        SettingsError: the URL is none, or a function can be no tool.
    """

    def __init__(self, endpoint: Endpoint, tools: Iterable[Callable[..., Any]] = (), system_prompt: str = "") -> None:
        self._functions = {function.__name__: function for function in tools}
        self.tool_schemas = [tool_schema(function) for function in self._functions.values()]
        self.model_id, self.system_prompt, self._endpoint = endpoint.model, system_prompt, endpoint
        self._client = endpoint.connect("The agent's endpoint")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def __call__(self, task: Any) -> Iterator[TrajectoryStep]:
        """Work on one task.

        Raises:
            InfrastructureError: the endpoint did not answer, or not in full.
        """
        messages: list[Message] = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        messages.append({"role": "user", "content": task_of(task).instruction})
        while True:
            reply = self._asked(messages)
            words, calls = reply.content or "", [call for call in reply.tool_calls or () if call.type == "function"]
            if not calls:
                yield TrajectoryStep(words)
                return
            requested = [
                {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}
                for call in calls
            ]
            messages.append({"role": "assistant", "content": words, "tool_calls": requested})
            for place, call in enumerate(calls):
                step = TrajectoryStep(
                    "" if place else words, call.function.name, **decoded_input(call.function.arguments), parallel=place > 0
                )
                step.observation = self._observed(step)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": step.observation})
                yield step

    def _asked(self, messages: list[Message]) -> Any:
        import openai

        body = self._endpoint.parameters | ({"tools": self.tool_schemas} if self.tool_schemas else {})
        where = f"The agent's endpoint {self._endpoint.url} (model {self.model_id})"
        try:
            done = self._client.chat.completions.create(model=self.model_id, messages=messages, extra_body=body)  # type: ignore[arg-type]
            choice = done.choices[0]
            reply, ended = choice.message, choice.finish_reason
            if reply is None:
                raise ValueError("no message")
        except (openai.APIError, ValueError, AttributeError, TypeError, IndexError) as error:
            # A server that is none of these answers 200 with anything.
            raise InfrastructureError(
                f"{where} did not answer ({type(error).__name__}: {str(error)[:200]}): start it, or correct its URL, model or key."
            ) from error
        if ended in _ENDS:
            raise InfrastructureError(f"An answer of the model {self.model_id} {_ENDS[ended]}.")
        return reply

    def _observed(self, step: TrajectoryStep) -> str:
        """What the tool answered, or what was wrong with the call."""
        from pydantic import ValidationError, validate_call

        function = self._functions.get(step.action)
        if function is None:
            return f"Error: there is no tool {step.action!r}; there are {', '.join(self._functions) or 'none'}."
        if step.invalid_input:
            return "Error: the arguments are no JSON object."
        try:
            return _text(validate_call(function)(**step.action_input))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
            return f"Error: {wrong}."
        except InfrastructureError:
            raise
        except Exception as error:  # a tool may raise anything, and the model is to go on from there
            return f"Error: {type(error).__name__}: {error}"


def tool_schema(function: Callable[..., Any]) -> Tool:
    """The OpenAI schema of a Python function: its name, the whole docstring, and its parameters by their types.

    Raises:
        SettingsError: it has no name that an endpoint takes, or parameters that no JSON object can fill.
    """
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    name = getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"The tool {name or function!r} has no name that an endpoint takes: give a function with letters, digits, _ and -."
        )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]
        parameters = adapter.json_schema(schema_generator=Untitled)
    except (PydanticUserError, NameError) as error:
        raise SettingsError(f"The tool {name} has a parameter that JSON cannot hold: give it another type.") from error
    if parameters.get("type") != "object":
        raise SettingsError(f"The tool {name} has parameters without names: let each be given by its name.")
    # A template that renders tools wants `properties`, empty or not.
    parameters.setdefault("properties", {})
    return {"type": "function", "function": {"name": name, "description": inspect.getdoc(function) or "", "parameters": parameters}}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    from pydantic_core import to_jsonable_python

    return json.dumps(to_jsonable_python(value), ensure_ascii=False)
