"""Answers of ToolBench, one per file.

An answer is `{win, answer_generation{query, function, train_messages, final_answer, finish_type}}`.
`train_messages` are the prompts of the chosen chain. Each prompt extends the previous one, so the
last prompt is the conversation. The other chains of the search tree are left out. An answer without
a finished chain has only its query. A run ends with a call of `Finish`, which has no result.
"""

from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.session import list_calls
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, chosen, elements, judged, section
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.record_files import RecordLocation

_CONTEXT = ("query", "final_answer", "finish_type", "valid_data", "query_count")


class ToolBenchSource(RecordSource):
    """A reader of a folder of ToolBench answers.

    The files are grouped in folders (`G1_answer`) and named `<query>_<method>.json`.
    """

    name = "toolbench"
    looks_like = "answers of ToolBench with win and answer_generation"
    kinds = ("lines", "document", "table")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        answer = record.get("answer_generation")
        return isinstance(answer, dict) and "query" in answer

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        _, _, method = location.path.stem.partition("_")
        return Ident(
            None,
            ":".join([*self.folders_of(location.path), location.path.stem]),
            None,
            method or None,
        )

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        answer = section(record, "answer_generation")
        chains = elements(answer.get("train_messages"))
        messages: object = (
            chains[-1] if chains else [{"role": "user", "content": answer.get("query")}]
        )
        if not chains:
            add_note(
                self.notes,
                f"{location.path} has no finished chain of messages: only its query was read.",
            )
        query, _, method = location.path.stem.partition("_")
        chat = read_chat(messages)
        last_calls = list_calls(chat.messages[-1:])
        return {
            **judged("win", record.get("win")),
            "history": chat,
            "tools": answer.get("function"),
            "context": chosen(answer, _CONTEXT),
            "usage": [{"total_tokens": answer.get("total_tokens")}],
            "task_id": f"{location.path.parent.name}/{query}",
            "model_id": method,
            "ends_on_tool": bool(last_calls) and last_calls[-1][0] == "Finish",
        }
