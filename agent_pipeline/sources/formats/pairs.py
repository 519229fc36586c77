"""Training files of prompts and completions: the row formats of TRL, verifiers and OpenAI.

A row has a `completion` (perhaps with a `reward`), or a `chosen` and a `rejected` answer. A row
with a chosen and a rejected answer becomes two sessions of one task: a good one and a bad one.
Together, they express the preference.
"""

from agent_pipeline.sessions.chat import read_items
from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.formats.fields import Record, chosen, decoded, first_text, section, text
from agent_pipeline.sources.formats.file_source import SessionFields
from agent_pipeline.sources.formats.model_calls import (
    messages_of,
    prompt_messages,
    record_stop_reason,
    with_beginning,
    with_reason,
)
from agent_pipeline.sources.formats.plain import PlainSource
from agent_pipeline.sources.formats.record_files import RecordLocation

_ANSWERS = {
    "chosen": ("chosen", "preferred_output", "preferred_completion"),
    "rejected": (
        "rejected",
        "non_preferred_output",
        "non_preferred_completion",
        "dispreferred_output",
    ),
    "": ("completion", "response"),
}
"""Names of the fields that hold an answer, by kind: a good answer, a bad answer, or an answer that
the row itself may judge.
"""

_VERDICTS = {"chosen": "acceptable", "rejected": "unacceptable"}


class PromptCompletionSource(PlainSource):
    """A reader of rows with a prompt and a completion, or a preferred and a rejected answer."""

    name = "prompt_completion"
    version = 2
    looks_like = (
        "rows with prompt and completion, with chosen and rejected, or with input, "
        "preferred_output and non_preferred_output"
    )
    content = ("messages",)

    @classmethod
    def accepts(cls, record: Record) -> bool:
        answers = _answers_in(record)
        has_both = {"chosen", "rejected"} <= answers.keys()
        return has_both or ("" in answers and isinstance(decoded(record.get("prompt")), str | list))

    @classmethod
    def reads(cls, record: Record) -> bool:
        return bool(_answers_in(record))

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        """Yield the sessions of a row: one session per answer to its prompt."""
        for location, record in records:
            answers = _answers_in(record)
            used = {"prompt", *(name for names in _ANSWERS.values() for name in names)}
            used |= {"input"} if isinstance(record.get("input"), dict) else set()
            for which, answer in answers.items():
                row = {name: value for name, value in record.items() if name not in used}
                row |= chosen(section(record, "input"), ("tools",)) | {
                    "messages": _conversation(record, answer)
                }
                if which:
                    row |= {
                        "task_id": first_text(record, "task_id") or session_id,
                        "trial": which,
                        "judgment": _VERDICTS[which],
                    }
                yield (
                    (f"{session_id}~{which}" if which else session_id),
                    self.fields(row, location, session_id),
                )


def _answers_in(record: Record) -> dict[str, object]:
    """Return the answers in a dataset row, by kind.

    If a row has a preference, other answers in it are ignored.
    """
    answers: dict[str, object] = {}
    for which, names in _ANSWERS.items():
        values = (decoded(record.get(name)) for name in names)
        answer = next(
            (value for value in values if isinstance(value, str | list | dict) and value), None
        )
        if answer is not None and not (which == "" and answers):
            answers[which] = answer
    return answers


def _conversation(record: Record, answer: object) -> list[object]:
    """Return the messages of a conversation made from a prompt and an answer.

    If the answer repeats the prompt, the answer is the whole conversation.
    """
    input_fields = section(record, "input")
    prompt = prompt_messages(
        decoded(input_fields.get("messages") if input_fields else record.get("prompt"))
    )
    head = [{"role": "system", "content": system}] if (system := text(record.get("system"))) else []
    answer_messages = (
        prompt_messages(answer) if isinstance(answer, str) else messages_of(answer, "assistant")
    )
    if isinstance(answer, str) and answer_messages and isinstance(answer_messages[0], dict):
        answer_messages = [{"role": "assistant", "content": answer}]
    answer_messages = with_reason(answer_messages, record_stop_reason(record))
    prompt_items, items = read_items(prompt), read_items(answer_messages)
    if not prompt_items:
        return (
            [*head, *answer_messages]
            if any(item.role == "user" for item in items)
            else [*head, mark_unread("prompt"), *answer_messages]
        )
    repeats = [(item.kind, item.role, item.text) for item in items[: len(prompt_items)]]
    if repeats == [(item.kind, item.role, item.text) for item in prompt_items]:
        return [*head, *answer_messages]
    prompt, answer_messages = with_beginning(prompt, answer_messages)
    return [*head, *prompt, *answer_messages]
