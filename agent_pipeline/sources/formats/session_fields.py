"""Sessions made from the fields of records.

Every field is converted into a form that can be stored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, Unpack

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.json_text import make_storable
from agent_pipeline.sessions.session import ANSWERING_MODELS, Session
from agent_pipeline.sources.formats.fields import (
    Record,
    clean_text,
    counts,
    error_text,
    function_tools,
    number,
    scalar,
    when,
)

_FORMS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("task_id", "trial", "model_id", "judgment", "parent_session_id"), scalar),
    **dict.fromkeys(("created_at", "ended_at"), when),
    **dict.fromkeys(("score", "cost_usd"), number),
    "error": error_text,
}
_FLAGS = ("archived", "attack_succeeded", "ends_on_tool")


class RecordFields(TypedDict, total=False):
    """The fields of a session that a record can state besides its messages.

    The values may have any form.

    Attributes:
        skipped: Counts, by type, of harmless content that the reader left out.
        damage: Counts, by kind of `sessions.damage.KINDS`, of the damage of the record.
        tools: The tool schemas.
        context: Any other information about the session.
        usage: The token counts of its calls, which are summed.
        scores: Recorded scores by name. Only `score` and `judgment` decide whether the session
            is good.
        times: The times of its steps in order. The first and the last time are used.
        costs: The costs of its calls, which are summed.
        models: The models of its steps in order. The last model is used.
        answering_models: The models whose answers the messages hold; without them, `models`.
        created_at: The start; without it, the first of `times`.
        ended_at: The end; without it, the last of `times`.
        cost_usd: The cost; without it, the sum of `costs`.
        model_id: The model; without it, the last of `models`.
        task_id: The task.
        trial: The trial of the task.
        judgment: The source's verdict.
        score: The source's score. A run that the infrastructure failed gets no score and no
            judgment.
        error: A failure of the infrastructure.
        parent_session_id: The session that started this one.
        archived: Whether the user archived the session.
        attack_succeeded: Whether the agent obeyed an injected instruction.
        ends_on_tool: Whether the last tool call ended the run.
    """

    skipped: Mapping[str, int] | None
    damage: Mapping[str, int] | None
    tools: object
    context: Record | None
    usage: Iterable[object]
    scores: Record | None
    times: Iterable[object]
    costs: Iterable[object]
    models: Iterable[object]
    answering_models: Iterable[object]
    created_at: object
    ended_at: object
    cost_usd: object
    model_id: object
    task_id: object
    trial: object
    judgment: object
    score: object
    error: object
    parent_session_id: object
    archived: object
    attack_succeeded: object
    ends_on_tool: object


_READ_APART = (
    "skipped",
    "damage",
    "tools",
    "context",
    "usage",
    "scores",
    "times",
    "costs",
    "models",
    "answering_models",
)
"""Fields of a record that are combined into other fields of its session."""


def new_session(
    source: str,
    key: PartitionKey,
    session_id: str,
    history: object,
    **record_fields: Unpack[RecordFields],
) -> Session:
    """Return the session that a record describes.

    Args:
        source: The name of the reader.
        key: The partition.
        session_id: The session's id.
        history: The messages in any supported form, or a chat made from them.
        **record_fields: Further fields of the record.
    """
    chat = history if isinstance(history, Chat) else read_chat(history)
    chat.skipped.update(record_fields.get("skipped") or {})
    chat.damage.update(record_fields.get("damage") or {})
    tools = record_fields.get("tools")
    schemas, strange = function_tools(_storable(tools, chat)) if tools is not None else ([], 0)
    if strange:
        chat.damage["invalid_tools"] += strange
    times = [time for time in record_fields.get("times", ()) if time]
    costs = [number(cost) for cost in record_fields.get("costs", ())]
    paid = [cost for cost in costs if cost is not None]
    fields: Record = {"created_at": times[0], "ended_at": times[-1]} if times else {}
    fields |= {"cost_usd": sum(paid)} if paid else {}
    models = [model for model in record_fields.get("models", ()) if model]
    fields["model_id"] = models[-1] if models else None
    for name, value in record_fields.items():
        is_set = value is not None and (name not in _FLAGS or isinstance(value, bool))
        if is_set and name not in _READ_APART:
            fields[name] = value
    for name, value in fields.items():
        if form := _FORMS.get(name):
            formed = form(value)
            fields[name] = (
                clean_text(make_storable(formed, chat.damage))
                if isinstance(formed, str)
                else formed
            )
    context = dict(record_fields.get("context") or {})
    answering_models = [*record_fields.get("answering_models", ())] or models
    names = {model for model in answering_models if isinstance(model, str)}
    if len(names) > 1:
        context[ANSWERING_MODELS] = sorted(names)
    if fields.get("error"):
        fields["score"] = fields["judgment"] = None
    return Session(
        session_id=session_id,
        project=key.project,
        agent=key.agent,
        source=source,
        messages=chat.messages,
        tools=schemas,
        tools_origin="source" if schemas else "none",
        scores={
            clean_text(name) or "": score
            for name, value in (record_fields.get("scores") or {}).items()
            if (score := number(value)) is not None
        },
        usage={
            clean_text(name) or "": value
            for name, value in counts(record_fields.get("usage", ())).items()
        },
        reasoning=(_storable(chat.reasoning, chat) or []) if chat.reasoning else [],
        context=(_storable(context, chat) or {}) if context else {},
        damage=dict(+chat.damage) if chat.damage else {},
        skipped=dict(+chat.skipped) if chat.skipped else {},
        **fields,
    )


def _storable(value: object, chat: Chat) -> Any:
    """Return a value without unpaired surrogates.

    A value that is nested too deeply is left out and counted.
    """
    try:
        return make_storable(value, chat.damage)
    except ValueError:
        chat.damage["invalid_context"] += 1
        return None
