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
from agent_pipeline.plugins import set_module_folder
from agent_pipeline.sessions.session import Message

_LOGGED = (
    "id", "call_type", "trace_id", "model_parameters", "status", "startTime", "endTime",
    "response_cost", "prompt_tokens", "completion_tokens", "total_tokens", "messages", "response",
    "request_tags",
)  # fmt: skip
"""The fields of LiteLLM's own log record that are kept."""

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

        A request without a session id, and a request for a stream, go to the large model: the first
        could change its model between two turns, and the second cannot be checked in time.
        """
        agent = str(data.get("model"))
        rules = self._read_rules().get(agent)
        session = find_session(data)
        if rules and session and not data.get("stream") and is_chosen(session, rules):
            data["model"] = f"{agent}{CHAMPION}"
        return data

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
        model = f"{agent}@{rules.champion}" if group != agent else record.get("model")
        metadata = requester_metadata(record) | {
            "agent_name": name,
            "user_api_key_team_alias": project,
        }
        line = {field: record.get(field) for field in _LOGGED if field in record}
        session = find_session(kwargs.get("litellm_params") or {}) or record.get("trace_id")
        line |= {"session_id": session, "model": model, "metadata": metadata}
        self._write(agent, "traffic", line)

    def _read_rules(self) -> dict[str, TrafficRules]:
        """Return the rules by agent. If the file is missing or damaged, no champion answers."""
        try:
            changed_at = self._file.stat().st_mtime_ns
            if changed_at != self._read_at:
                content = self._file.read_bytes()
                rules = msgspec.json.decode(content, type=dict[str, TrafficRules])
                for agent_rules in rules.values():
                    set_module_folder(Path(agent_rules.modules) if agent_rules.modules else None)
                self._preconditions = {
                    agent: Preconditions.parse(agent_rules.preconditions)
                    for agent, agent_rules in rules.items()
                }
                self._rules, self._read_at = rules, changed_at
        except Exception as error:  # a user's module may raise anything
            _logger.error("%s cannot be used, so no champion answers: %s", self._file, error)
            self._rules, self._read_at = {}, 0
        return self._rules

    def _find_objection(
        self, agent: str, request: Mapping[str, Any], response: Any
    ) -> Objection | None:
        rules = self._read_rules().get(agent, TrafficRules())
        choice = response.choices[0]
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
        turn = ChampionTurn(
            message,
            choice.finish_reason,
            read_confidence(choice, message, is_greedy=not request.get("temperature")),
        )
        messages, tools = plain_messages(request.get("messages") or ()), request.get("tools") or []
        preconditions = self._preconditions.get(agent, Preconditions({}))
        return find_objection(turn, messages, tools, rules, preconditions)

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
        metadata = request.get(field) or {}
        if not metadata.get("session_id_generated"):
            named.append(metadata.get("session_id"))
    return next((str(value) for value in named if value), "")


def find_group(request: Mapping[str, Any]) -> str:
    """Return the model group that a request was sent to."""
    metadata = request.get("metadata") or request.get("litellm_metadata") or {}
    return str(metadata.get("model_group") or "")


def requester_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that the client sent with a request."""
    return dict((record.get("metadata") or {}).get("requester_metadata") or {})
