"""The hook that runs inside LiteLLM's proxy.

The configuration that `traffic` writes names this hook. It does three things:

- It gives a share of the conversations to the champion. A hash of the session id chooses, so that a
  conversation stays with one model. The rules are read again when their file changes.
- It refuses turns of the champion that fail a check. LiteLLM then asks the large model.
- It logs every answer in the form that the reader `litellm` reads.
"""

import hashlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import litellm
import msgspec
from litellm.integrations.custom_guardrail import CustomGuardrail

from agent_pipeline.evaluation.confidence import read_confidence
from agent_pipeline.gateway.turn_checks import (
    CHAMPION,
    RULES_FILE,
    ChampionTurn,
    Objection,
    TrafficRules,
    find_objection,
    plain_messages,
)
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.sessions.session import CHOSEN_MODEL, Message
from agent_pipeline.structs import decode_json

_LOGGED = (
    "id", "call_type", "trace_id", "model_parameters", "status", "startTime", "endTime",
    "response_cost", "prompt_tokens", "completion_tokens", "total_tokens", "messages", "response",
    "request_tags",
)  # fmt: skip
"""The fields of LiteLLM's own log record that are kept."""

_ASKED = {"temperature": 0, "logprobs": True, "top_logprobs": 1}
"""Parameters of a request to the champion. Its episodes were played with them, too."""
_NOT_ASKED = ("presence_penalty", "frequency_penalty", "logit_bias")
"""Parameters of clients that would change the champion's likeliest token."""
_CHAMPION_FIELD = "agent_pipeline_champion"
"""The metadata of a request that names the champion that was chosen."""

_logger = logging.getLogger(__name__)


class TrafficHook(CustomGuardrail):
    """The hook of all agents of a folder.

    LiteLLM lets only a guardrail stop an answer, and only through exceptions.
    """

    def __init__(self, folder: Path) -> None:
        """Read the rules of a folder.

        Args:
            folder: The folder with the rules, which `agent-pipeline traffic` writes.
        """
        super().__init__(guardrail_name="agent-pipeline", default_on=True)
        self._file = folder / RULES_FILE
        self._read_at = 0
        self._rules: dict[str, TrafficRules] = {}
        self._preconditions: dict[str, Preconditions] = {}

    async def async_pre_call_hook(
        self, user_api_key_dict: object, cache: object, data: dict[str, Any], call_type: object
    ) -> dict[str, Any]:
        """Choose the model of a request by its session.

        A request without a session id goes to the large model, because it could change its model
        between two turns. A request whose answer cannot be checked in time goes there, too.
        """
        agent = str(data.get("model")).removesuffix(CHAMPION)
        rules = self._read_rules().get(agent)
        if rules is None:
            return data
        session = find_session(data)
        # A client that names the champion itself gets the model of its share, too.
        data["model"] = agent
        if session and is_checkable(data, call_type) and is_chosen(session, rules):
            data["model"] = f"{agent}{CHAMPION}"
            data["metadata"] = {**read_metadata(data), _CHAMPION_FIELD: rules.champion}
        return data

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: object
    ) -> dict[str, Any]:
        """Ask the champion in the way in which its episodes were played.

        The parameters of the client, such as a temperature, are for the large model.
        """
        if not find_group(kwargs).endswith(CHAMPION):
            return kwargs
        kept = {name: value for name, value in kwargs.items() if name not in _NOT_ASKED}
        return kept | _ASKED

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, call_type: object
    ) -> None:
        """Refuse a turn of the champion that fails a check.

        Raises:
            litellm.BadRequestError: The turn fails a check, so LiteLLM asks the large model.
        """
        agent = find_group(request_data).removesuffix(CHAMPION)
        if agent == find_group(request_data):
            return
        objection = self._find_objection(agent, request_data, response)
        if objection is None:
            return
        self._write(agent, "handed-over", self._describe(agent, request_data, objection))
        raise litellm.BadRequestError(
            message=f"The champion's turn is not used ({objection}).",
            model=agent,
            llm_provider="agent-pipeline",
        )

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Log an answer that the agent received."""
        record: Mapping[str, Any] = kwargs.get("standard_logging_object") or {}
        group = str(record.get("model_group") or "")
        agent = group.removesuffix(CHAMPION)
        rules = self._read_rules().get(agent)
        if rules is None:
            return
        project, _, name = agent.partition("/")
        request = kwargs.get("litellm_params") or {}
        chosen = find_champion(request)
        model = f"{agent}@{chosen or rules.champion}" if group != agent else record.get("model")
        metadata = requester_metadata(record) | {
            "agent_name": name,
            "user_api_key_team_alias": project,
            **({CHOSEN_MODEL: f"{agent}@{chosen}"} if chosen else {}),
        }
        line = {field: record.get(field) for field in _LOGGED if field in record}
        session = find_session(request) or record.get("trace_id")
        line |= {"session_id": session, "model": model, "metadata": metadata}
        self._write(agent, "traffic", line)

    def _read_rules(self) -> dict[str, TrafficRules]:
        """Return the rules by agent. If the file is missing or damaged, no champion answers."""
        try:
            changed_at = self._file.stat().st_mtime_ns
            if changed_at != self._read_at:
                content = self._file.read_bytes()
                rules = decode_json(content, dict[str, TrafficRules])
                self._rules = {name: self._load_agent(name, rules[name]) for name in rules}
                self._read_at = changed_at
        except (OSError, msgspec.DecodeError, UnicodeError) as error:
            _logger.error(
                "%s cannot be used, so the large model answers everything: %s", self._file, error
            )
            self._rules, self._read_at = {}, 0
        return self._rules

    def _load_agent(self, agent: str, rules: TrafficRules) -> TrafficRules:
        """Load the preconditions of an agent, and return its rules.

        If a precondition cannot be loaded, the champion of this agent does not answer.
        """
        self._preconditions.pop(agent, None)
        folder = Path(rules.modules) if rules.modules else None
        try:
            self._preconditions[agent] = Preconditions.parse(rules.preconditions, folder)
        except Exception as error:  # a user's module may raise anything
            _logger.error("The champion of %s does not answer: %s", agent, error)
            return msgspec.structs.replace(rules, share=0.0)
        return rules

    def _find_objection(
        self, agent: str, request: Mapping[str, Any], response: Any
    ) -> Objection | None:
        """Return the reason why a turn of the champion is not used. Without rules, no turn is."""
        rules, preconditions = self._read_rules().get(agent), self._preconditions.get(agent)
        if rules is None or preconditions is None:
            return Objection("no_rules")
        if find_champion(request) != rules.champion:
            return Objection("champion_moved")
        try:
            turn = read_turn(request, response)
            messages = plain_messages(request.get("messages") or ())
            return find_objection(turn, messages, request.get("tools") or [], rules, preconditions)
        except Exception as error:  # such as a tool whose schema is no JSON schema
            return Objection("check_failed", type(error).__name__)

    def _describe(
        self, agent: str, request: Mapping[str, Any], objection: Objection
    ) -> dict[str, str]:
        """Return the record of a turn that is handed over. It has no words of the conversation."""
        return {
            "time": datetime.now(UTC).isoformat(),
            "agent": agent,
            "session_id": find_session(request),
            "reason": objection.kind,
            "detail": objection.detail,
        }

    def _write(self, agent: str, name: str, record: Mapping[str, Any]) -> None:
        """Append a record to the file of the day. A full disk must not stop the traffic."""
        rules = self._read_rules().get(agent)
        if rules is None or not rules.log:
            return
        day = datetime.now(UTC).date()
        folder = Path(rules.log if name == "traffic" else f"{rules.log}.{name}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{name}-{day}.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(record, enc_hook=str) + b"\n")
        except OSError as error:
            _logger.error("The log of %s cannot be written: %s", agent, error)


def is_checkable(request: Mapping[str, Any], call_type: object) -> bool:
    """Return whether the answer to a request can be checked: it is one whole chat message."""
    is_chat = getattr(call_type, "value", call_type) in ("completion", "acompletion")
    return is_chat and not request.get("stream") and request.get("n") in (None, 1)


def read_turn(request: Mapping[str, Any], response: Any) -> ChampionTurn:
    """Return the turn in a response of LiteLLM.

    Raises:
        ValueError: The response has no choice, or more than one choice.
    """
    [choice] = response.choices
    message: Message = {"role": "assistant", "content": choice.message.content or ""}
    calls = choice.message.tool_calls or ()
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in calls
        ]
    is_greedy = not request.get("temperature")
    return ChampionTurn(
        message, choice.finish_reason, read_confidence(choice, message, is_greedy=is_greedy)
    )


def is_chosen(session: str, rules: TrafficRules) -> bool:
    """Return whether the champion answers a session.

    If the share grows, the sessions that were chosen before stay chosen.
    """
    digits = hashlib.sha256(session.encode()).digest()[:8]
    return bool(rules.champion) and int.from_bytes(digits) < rules.share * 2**64


def find_session(request: Mapping[str, Any]) -> str:
    """Return the session id that the client sent, or an empty text."""
    named = [request.get("litellm_session_id")]
    for field in ("metadata", "litellm_metadata"):
        metadata = read_metadata(request, field)
        if not metadata.get("session_id_generated"):
            named.append(metadata.get("session_id"))
    return next((str(value) for value in named if value), "")


def read_metadata(request: Mapping[str, Any], field: str = "metadata") -> Mapping[str, Any]:
    """Return the metadata of a request. A client may send anything in this field."""
    metadata = request.get(field)
    return metadata if isinstance(metadata, Mapping) else {}


def find_champion(request: Mapping[str, Any]) -> str:
    """Return the champion that was chosen for a request, or an empty text."""
    return str(read_metadata(request).get(_CHAMPION_FIELD) or "")


def find_group(request: Mapping[str, Any]) -> str:
    """Return the model group that a request was sent to."""
    return str(read_metadata(request).get("model_group") or "")


def requester_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that the client sent with a request."""
    return dict((record.get("metadata") or {}).get("requester_metadata") or {})
