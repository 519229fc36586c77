"""Sessions that Goose wrote into files: a header line, then one line per message.

The database of newer versions is not read. Messages that are hidden from the model, because Goose
summarized the conversation, become a separate session (`ID:before-compaction-1`).
"""

from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import says_something, stretches_of
from agent_pipeline.sources.formats.fields import Record, chosen, section
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_MESSAGE = {"role", "created", "content"}


class GooseSource(FileSource):
    """A reader of a Goose session file, or of a folder such as ~/.local/share/goose/sessions.

    The working folder's name is the project.
    """

    name = "goose"
    looks_like = (
        "Goose sessions: a first line with working_dir and message_count, then lines with role, "
        "created and content"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return {"working_dir", "description"} <= record.keys() or {
            "working_dir",
            "message_count",
        } <= record.keys()

    @classmethod
    def reads(cls, record: Record) -> bool:
        return cls.accepts(record) or record.keys() >= _MESSAGE

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        return Ident(
            str(location.path),
            location.path.stem,
            folder_name(record.get("working_dir")),
            self.name,
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        head = next((record for _, record in records if self.accepts(record)), {})
        messages = [record for _, record in records if not self.accepts(record)]
        hidden = [
            message
            for message in messages
            if section(message, "metadata").get("agentVisible") is False
        ]
        shown = [
            message
            for message in messages
            if section(message, "metadata").get("agentVisible") is not False
        ]
        names = ("input_tokens", "output_tokens", "total_tokens")
        tokens = chosen(head, **{name: f"accumulated_{name}" for name in names}) or chosen(
            head, names
        )
        session_fields: dict[str, object] = {
            "history": shown,
            "context": chosen(head, ("working_dir", "description")),
            "usage": [tokens],
            "times": [message.get("created") for message in messages],
        }
        before = (
            [{"history": hidden}]
            if any(message.get("role") == "assistant" for message in hidden)
            else []
        )
        return stretches_of(session_id, before, session_fields)
