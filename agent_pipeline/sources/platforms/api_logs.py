"""Logged calls of a model's API, one call per record.

Gateways and providers store such records. The reader accepts these forms:

- a request next to its response (gateways, batches of Vertex and Bedrock, Bedrock's invocation
  logs)
- stored objects of OpenAI's Responses API with their input
- OpenAI's stored completions with the pages of their messages
- the request and result files of OpenAI's and Anthropic's batches

Calls that name the same session are one session: each call repeats the conversation so far, or
continues a conversation that the service stores. A call counts as damage if its request, its
response or an earlier part of its conversation is missing.
"""

import re
from collections import Counter
from typing import Any, ClassVar

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    decoded,
    decoded_object,
    elements,
    error_text,
    first_of,
    first_text,
    number,
    objects,
    section,
    text,
    when,
)
from agent_pipeline.sources.formats.file_source import Ident, Index, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.span_source import SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of

_PAIRS = (
    ("request", "response"),
    ("request_body", "response_body"),
    ("requestBody", "responseBody"),
    ("modelInput", "modelOutput"),
    ("input", "output"),
)
"""Names of the two fields that hold a request and its response in a record."""

_BODIES = ("body", "inputBodyJson", "outputBodyJson", "json", "payload")
_OF_REQUESTS = {"messages", "contents", "input", "prompt"}
_OF_RESPONSES = {
    "choices",
    "candidates",
    "output",
    "content",
    "error",
    "message",
    "completion",
    "stop_reason",
    "stopReason",
}
_SESSIONS = (
    "session_id",
    "sessionId",
    "conversation_id",
    "thread_id",
    "trace_id",
    "Helicone-Session-Id",
    "helicone-session-id",
)
_PROJECTS = ("project", "project_id", "client_id")
_AGENTS = ("agent", "agent_name", "workload_id")
_TIMES = (
    "timestamp",
    "created_at",
    "request_created_at",
    "created",
    "startTime",
    "start_time",
    "time",
)
_STORED_MESSAGE = re.compile(r"(chatcmpl-.+)-\d+")
"""Pattern of the id of a message in a stored completion: the completion's id and a number."""


class ApiLogSource(SpanSource):
    """A reader of a file of logged API calls, or of a folder of such files."""

    name = "api_logs"
    looks_like = (
        "records with a request and its response, stored Responses or completions of OpenAI, or "
        "batch files with custom_id"
    )
    kinds: ClassVar = ("lines", "document", "table")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if isinstance(record.get("data"), list) and record.get("object") == "list":
            return any(map(_is_stored, objects(record["data"])))
        return _is_stored(record) or _is_batch(record) or _pair_in(record) is not None

    def unpack(self, record: Record) -> list[Record]:
        """Return the records in a result page of OpenAI's API."""
        if isinstance(record.get("data"), list) and record.get("object") == "list":
            return [
                entry if isinstance(entry, dict) and _is_stored(entry) else {"unread": entry}
                for entry in record["data"]
            ]
        return [record]

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        if "unread" in record:
            return None
        if _is_batch(record):
            custom_id = text(record.get("custom_id"))
            return Ident(f"batch {custom_id}", custom_id)
        if completion_id := _stored_message_of(record):
            return Ident(completion_id)  # the completion names its session
        request, response = _call_in(record)
        holders = _places_of_names(record, request)
        call_id = first_text(record, "id", "request_id", "requestId", "recordId") or first_text(
            response, "id"
        )
        if _is_response(response):
            self._previous[text(response.get("id")) or ""] = (
                text(response.get("previous_response_id")) or ""
            )
            call_id = text(response.get("id")) or call_id
        conversation = first_text(section(response, "conversation"), "id") or text(
            response.get("conversation")
        )
        session = (
            next((name for holder in holders if (name := first_text(holder, *_SESSIONS))), None)
            or conversation
        )
        call_id = call_id or f"{location.path.stem}:{location.position:012d}:{location.part}"
        names = [
            next((name for holder in holders if (name := first_text(holder, *named))), None)
            for named in (_PROJECTS, _AGENTS)
        ]
        return Ident(
            call_id if record.get("object") == "chat.completion" else f"{location}",
            session or call_id,
            *names,
        )

    def spans(self, record: Record) -> list[Span]:
        if _stored_message_of(record):
            return []
        request, response = _call_in(record)
        failed = _error_in(record, response)
        span = span_of(
            record, "llm", error=failed, trace=""
        )  # every call has the whole conversation, so the calls are not linked by a trace
        span.started = span.started or _time_in(record, response)
        usage = section(response, "usage") or section(response, "usageMetadata")
        span.exchange(
            request,
            None if failed else response,
            model=response.get("model") or record.get("model"),
            usage=usage,
        )
        span.tools = span.tools or response.get("tools")
        span.cost = number(
            first_of(record, "cost", "cost_usd", "costUSD", "total_cost", "response_cost")
        )
        return [span]

    def metadata(self, record: Record) -> Record:
        recorded = decoded_object(record.get("metadata"))
        return (
            recorded
            | chosen(recorded, ("task_id", "trial"))
            | chosen(record, ("task_id", "trial", "tags"))
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        return super().build(session_id, _joined(records))

    def _new_index(self) -> Index:
        """Return the index, with chains of responses merged into one session.

        A response that continues an earlier response belongs to the session of the first response.
        """
        self._previous: dict[str, str] = {}
        index = super()._new_index()
        for key, sessions in index.items():
            for session_id in [name for name in sessions if self._previous.get(name)]:
                if (first := self._first_of(session_id, sessions)) != session_id:
                    sessions[first] += sessions.pop(session_id)
                    lost = self._losses.pop((key.project, session_id), Counter())
                    self._losses[key.project, first] = (
                        self._losses.get((key.project, first), Counter()) + lost
                    )
        return index

    def _first_of(self, session_id: str, sessions: dict[str, list[RecordLocation]]) -> str:
        """Return the id of the first response in the chain of responses that a response belongs to.

        Only responses in the store count.
        """
        met = {session_id}
        first = session_id
        while (
            (earlier := self._previous.get(first))
            and earlier not in met
            and (earlier in sessions or earlier in self._previous)
        ):
            met.add(earlier)
            first = earlier
        return first if first in sessions else session_id


def _joined(records: list[tuple[RecordLocation, Record]]) -> list[tuple[RecordLocation, Record]]:
    """Combine the partial records of a session into complete calls.

    Files of batches and pages of stored completions contain the two halves of a call separately.
    """
    batch = [record for _, record in records if _is_batch(record)]
    location = records[0][0]
    if batch:
        requests = [
            request
            for half in batch
            if (request := half.get("body", half.get("params"))) is not None
        ]
        results = [
            half for half in batch if "response" in half or "result" in half or half.get("error")
        ]
        if (
            len(requests) > 1 or len(results) > 1
        ):  # two batches use the same id, so it is unknown which halves belong together
            return [
                (
                    location,
                    {
                        "request": {"messages": [mark_unread("custom_id of several batches")]},
                        "response": {},
                    },
                )
            ]
        return [
            (
                location,
                {
                    "request": next(iter(requests), {}),
                    **(_result_of(results[0]) if results else {"response": {}}),
                },
            )
        ]
    return _with_history(_with_stored_messages(records))


def _with_stored_messages(
    records: list[tuple[RecordLocation, Record]],
) -> list[tuple[RecordLocation, Record]]:
    """Return the calls of a session. Each stored completion gets its own stored messages.

    Each message names its completion, so completions of one session are distinguished. Messages
    whose completion is not in the store are an item of damage.
    """
    calls: list[tuple[RecordLocation, Record]] = []
    messages_by_completion: dict[str, dict[int, Record]] = {}
    locations: dict[str, RecordLocation] = {}
    for location, record in records:
        completion_id = _stored_message_of(record)
        if completion_id is None:
            calls.append((location, record))
            continue
        parts = record.get("content_parts")
        message = record | {"content": parts} if parts else record
        position = int(str(record["id"]).rpartition("-")[2])
        messages_by_completion.setdefault(completion_id, {})[position] = message
        locations.setdefault(completion_id, location)
    whole: list[tuple[RecordLocation, Record]] = []
    for location, record in calls:
        completion_id = text(record.get("id")) or ""
        locations.pop(completion_id, None)
        if completion_id in messages_by_completion and not record.get("messages"):
            record = record | {"messages": _in_order(messages_by_completion[completion_id])}
        whole.append((location, record))
    for completion_id, location in locations.items():
        messages = _in_order(messages_by_completion[completion_id])
        request = {"messages": [*messages, mark_unread("stored completion")]}
        whole.append((location, {"request": request, "response": {}}))
    return whole


def _with_history(
    records: list[tuple[RecordLocation, Record]],
) -> list[tuple[RecordLocation, Record]]:
    """Return the calls of a session. Each response gets the whole conversation before it.

    The service stores the conversation and receives only the new messages. A part that is not in
    the store becomes an item of damage.
    """
    calls = {text(_call_in(record)[1].get("id")): _call_in(record) for _, record in records}
    whole: list[tuple[RecordLocation, Record]] = []
    for location, record in records:
        request, response = _call_in(record)
        previous = _previous_of(request, response)
        kept_elsewhere = response.get("conversation") or request.get("conversation")
        if previous is None and not kept_elsewhere:
            whole.append((location, record))
            continue
        earlier: list[object] = (
            [mark_unread("conversation of the service")] if kept_elsewhere else []
        )
        met: set[str] = set()
        while previous is not None:
            if previous in met or previous not in calls:
                earlier = [mark_unread("previous_response_id"), *earlier]
                break
            met.add(previous)
            earlier_request, answered = calls[previous]
            earlier = [*_input_of(earlier_request), *elements(answered.get("output")), *earlier]
            previous = _previous_of(earlier_request, answered)
        whole_request = request | {"input": [*earlier, *_input_of(request)]}
        whole.append(
            (location, record | {"object": None, "request": whole_request, "response": response})
        )
    return whole


def _previous_of(request: Record, response: Record) -> str | None:
    """Return the id of the response that a call continues."""
    return first_text(response, "previous_response_id") or first_text(
        request, "previous_response_id"
    )


def _input_of(request: Record) -> list[object]:
    request_input = decoded(request.get("input"))
    return (
        request_input
        if isinstance(request_input, list)
        else [{"role": "user", "content": request_input}]
        if request_input
        else []
    )


def _in_order(messages_by_position: dict[int, Record]) -> list[object]:
    """Return messages in order, with a damage item for each gap between their positions."""
    messages: list[object] = []
    next_position = 0
    for position, message in sorted(messages_by_position.items()):
        if position > next_position:
            messages.append(mark_unread("stored message"))
        messages.append(message)
        next_position = position + 1
    return messages


def _result_of(line: Record) -> Record:
    """Return the response in a batch result of OpenAI or Anthropic."""
    if line.get("error"):
        return {"response": {}, "error": line["error"]}
    if "response" in line:
        return {
            "response": section(line, "response", "body"),
            "status_code": section(line, "response").get("status_code"),
        }
    result = section(line, "result")
    if result.get("type") == "succeeded":
        return {"response": section(result, "message")}
    return {
        "response": {},
        "error": section(result, "error") or {"message": f"the batch request {result.get('type')}"},
    }


def _call_in(record: Record) -> tuple[Record, Record]:
    """Return the request and the response in a record, or empty objects."""
    if _is_response(record):
        return chosen(
            record, ("instructions", "prompt", "input", "tools", "model", "previous_response_id")
        ), record
    if record.get("object") == "chat.completion":
        return chosen(record, ("messages", "tools", "model")), record
    names = _pair_in(record) or ("request", "response")
    return _body(record.get(names[0])), _body(record.get(names[1]))


def _pair_in(record: Record) -> tuple[str, str] | None:
    """Return the field names of the request and the response in a record that has both."""
    for request_name, response_name in _PAIRS:
        request, response = _body(record.get(request_name)), _body(record.get(response_name))
        is_failed = _status(record, response) >= 400
        if not _OF_REQUESTS.isdisjoint(request) and (
            not _OF_RESPONSES.isdisjoint(response) or is_failed or "streamed" in response
        ):
            return request_name, response_name
    return None


def _body(value: object) -> Record:
    """Return the body of a request or a response.

    Proxies wrap a body in other objects or write it as text. A text of events is a streamed
    response, which is not put together here.
    """
    for _ in range(3):
        value = decoded(value)
        if isinstance(value, str) and value.lstrip().startswith(("data:", "event:")):
            return {"streamed": value}
        if isinstance(value, str) and value.strip():
            return {"content": value}
        if not isinstance(value, dict):
            return {}
        name = next((name for name in _BODIES if value.get(name)), None)
        if name is None or not (_OF_REQUESTS | _OF_RESPONSES).isdisjoint(value):
            break
        value = value[name]
    return value if isinstance(value, dict) else {}


def _error_in(record: Record, response: Record) -> str | None:
    error = error_text(first_of(response, "error")) or error_text(record.get("error"))
    return error or (
        f"the call failed with status {_status(record, response)}"
        if _status(record, response) >= 400
        else None
    )


def _status(record: Record, response: Record) -> int:
    named = first_of(record, "status_code", "response_status", "response_status_code", "statusCode")
    status = number(
        first_of(section(record, "response"), "status_code", "status") if named is None else named
    )
    return int(status) if status is not None else 0


def _time_in(record: Record, response: Record) -> Any:
    return when(first_of(record, *_TIMES)) or when(first_of(response, "created", "created_at"))


def _places_of_names(record: Record, request: Record) -> list[Record]:
    """Return the objects inside a record that may name its session, project and agent."""
    named = (
        record.get("metadata"),
        record.get("request_properties"),
        record.get("properties"),
        request.get("metadata"),
    )
    return [record, *map(decoded_object, named)]


def _is_response(record: Record) -> bool:
    return record.get("object") == "response" and isinstance(record.get("output"), list)


def _is_stored(record: Record) -> bool:
    """Return whether a record is a stored object of OpenAI's API.

    Such an object is a Response, a completion, or a message of a completion.
    """
    is_completion = record.get("object") == "chat.completion" and isinstance(
        record.get("choices"), list
    )
    return _is_response(record) or is_completion or _stored_message_of(record) is not None


def _stored_message_of(record: Record) -> str | None:
    """Return the id of the stored completion to which a stored message belongs."""
    match_ = _STORED_MESSAGE.fullmatch(str(record.get("id"))) if "role" in record else None
    return match_[1] if match_ else None


def _is_batch(record: Record) -> bool:
    """Return whether a record is a line of a batch: a request, a result or an error."""
    is_result = isinstance(record.get("response"), dict) or (
        "response" in record and bool(record.get("error"))
    )
    is_half = (
        is_result
        if "response" in record
        else any(isinstance(record.get(name), dict) for name in ("body", "params", "result"))
    )
    return is_half and text(record.get("custom_id")) is not None
