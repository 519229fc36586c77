"""Files that contain only messages, without records around them.

A list of messages is a conversation. A file whose records are messages is also a conversation.
"""

from collections.abc import Iterable
from pathlib import Path

from agent_pipeline.sessions.chat import ROLES, is_message
from agent_pipeline.sources.formats.fields import Record
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_MESSAGES = "messages"


class BareMessagesSource(FileSource):
    """A reader of files that contain only messages.

    A file holds a list of messages, several lists (as lines or in a list), or one message per line.
    """

    name = "bare_messages"
    looks_like = "a list of messages with role and content, or one message per line"

    @classmethod
    def record_of(cls, value: object) -> Record | None:
        return {_MESSAGES: value} if isinstance(value, list) else super().record_of(value)

    @classmethod
    def accepts(cls, record: Record) -> bool:
        messages = record[_MESSAGES] if record.keys() == {_MESSAGES} else [record]
        first = messages[0] if isinstance(messages, list) and messages else None
        role = first.get("role") if isinstance(first, dict) else None
        return isinstance(role, str) and role in ROLES and is_message(first)

    @classmethod
    def reads(cls, record: Record) -> bool:
        """Return True, because every record in a file of messages belongs to the conversation.

        A record that is not a message counts as damage.
        """
        return True

    def _records_in(self, path: Path, torn: list[bytes]) -> Iterable[tuple[RecordLocation, object]]:
        """Return the records of a file of messages.

        In a folder, files of other kinds are left out with a note.
        """
        return super()._records_in(path, torn) if self._is_mine(path) else ()

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        if record.keys() == {_MESSAGES}:
            name = f"{location.path.stem}:{location.position:012d}"
            return Ident(f"{location.path}:{location.position}", name)
        return Ident(str(location.path), location.path.stem)

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        messages = [
            message
            for _, record in records
            for message in (record[_MESSAGES] if record.keys() == {_MESSAGES} else [record])
        ]
        yield session_id, {"history": messages}
