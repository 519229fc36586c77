"""Sessions made from the fields of records, with every field in a form that can be stored."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.json_text import make_storable
from agent_pipeline.sessions.session import Session
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


def new_session(
    source: str,
    key: PartitionKey,
    session_id: str,
    history: Any,
    *,
    skipped: Mapping[str, int] | None = None,
    damage: Mapping[str, int] | None = None,
    tools: Any = None,
    context: Record | None = None,
    usage: Iterable[Any] = (),
    scores: Record | None = None,
    times: Iterable[Any] = (),
    costs: Iterable[Any] = (),
    models: Iterable[Any] = (),
    **further_fields: Any,
) -> Session:
    """Return the session that a record describes.

    Args:
        source: The name of the reader.
        key: The partition.
        session_id: The session's id.
        history: The messages in any spelling, or the chat made from them.
        skipped: Counts, by type, of harmless content that the reader left out.
        damage: Counts, by kind of `sessions.damage.KINDS`, of what is wrong with the record.
        tools: The tool schemas.
        context: Any other information about the session.
        usage: The token counts of its calls, which are summed.
        scores: Recorded scores by name. Only `score` and `judgment` decide whether the session
            is good.
        times: The times of its steps in order. The first and the last time are used.
        costs: The costs of its calls, which are summed.
        models: The models of its steps in order. The last model is used.
        **further_fields: Further fields of the session. A run that the infrastructure failed
            gets no score and no judgment.
    """
    chat = history if isinstance(history, Chat) else read_chat(history)
    if skipped:
        chat.skipped.update(skipped)
    if damage:
        chat.damage.update(damage)
    schemas, strange = function_tools(_storable(tools, chat)) if tools is not None else ([], 0)
    if strange:
        chat.damage["invalid_tools"] += strange
    known, paid = (
        [time for time in times if time],
        [cost for recorded_cost in costs if (cost := number(recorded_cost)) is not None],
    )
    fields: Record = {"created_at": known[0], "ended_at": known[-1]} if known else {}
    fields |= {"cost_usd": sum(paid)} if paid else {}
    fields["model_id"] = next((model for model in reversed([*models]) if model), None)
    fields |= {
        name: value
        for name, value in further_fields.items()
        if value is not None and (name not in _FLAGS or isinstance(value, bool))
    }
    for name, value in fields.items():
        if form := _FORMS.get(name):
            formed = form(value)
            fields[name] = (
                clean_text(make_storable(formed, chat.damage))
                if isinstance(formed, str)
                else formed
            )
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
            for name, value in (scores or {}).items()
            if (score := number(value)) is not None
        },
        usage={clean_text(name) or "": value for name, value in counts(usage).items()},
        reasoning=(_storable(chat.reasoning, chat) or []) if chat.reasoning else [],
        context=(_storable(context, chat) or {}) if context else {},
        damage=dict(+chat.damage) if chat.damage else {},
        skipped=dict(+chat.skipped) if chat.skipped else {},
        **fields,
    )


def _storable(value: Any, chat: Chat) -> Any:
    """Return a value without half emoji.

    A value that is nested too deeply is left out and counted.
    """
    try:
        return make_storable(value, chat.damage)
    except ValueError:
        chat.damage["invalid_context"] += 1
        return None
