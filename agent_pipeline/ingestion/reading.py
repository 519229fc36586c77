"""A partition of a store as canonical sessions: what every source needs after its reader.

Repair, system prompt and tools from the settings where the source has none, the task key, redaction; then tool schemas inferred from the
calls where nobody has any.
"""

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.kinds import LIBRARIES
from agent_pipeline.redaction.trials import Known
from agent_pipeline.sessions.damage import DEFAULT_REPAIR_POLICY, RepairPolicy
from agent_pipeline.sessions.greetings import find_request_end
from agent_pipeline.sessions.repair import repair_session
from agent_pipeline.sessions.session import Session, Tool, dump_canonical_json, hash_json
from agent_pipeline.sessions.tool_schemas import CallShape, ToolSchemas, find_call_shapes
from agent_pipeline.sources.base import Stored, TraceSource
from agent_pipeline.storage.lake import sha256_file


@dataclass(frozen=True)
class ReadingOptions:
    """What the settings say about one agent's sessions.

    `task_pattern` is a regular expression searched in the session id; its groups (or the whole match) name the task. `task_field` is a key
    of the session's context. Without either, and without a task id from the source, the first user message that says something
    is the task. `repair` says
    what is done about each kind of damage.
    """

    system_prompt: str = ""
    tools: tuple[Tool, ...] = field(default=())
    task_pattern: str = ""
    task_field: str = ""
    repair: RepairPolicy = field(default_factory=lambda: DEFAULT_REPAIR_POLICY)
    redaction: RedactionOptions = field(default_factory=RedactionOptions)


class PreparedSession(NamedTuple):
    """What was redacted of a session by kind; where it has no tools, the shapes of its calls; whether its id looks private; a hash of its
    task as it was."""

    redacted: Counter[str]
    calls: frozenset[CallShape]
    private_id: bool
    task: str


class Preparation:
    """Makes sessions, as a source gives them, ready to be written; counts what was redacted by kind, and what a person should be told.

    Raises:
        SettingsError: an option has a value that it cannot have.
        RedactionError: private data cannot be looked for.
    """

    def __init__(self, options: ReadingOptions) -> None:
        self.options = options
        self.redacted: Counter[str] = Counter()
        self.private_ids = 0
        self.redactor = Redactor(options.redaction)
        self._pattern = compile_task_pattern(options.task_pattern)
        self._count = self._unmatched = 0

    def prepare(
        self,
        session: Session,
        also: Mapping[str, str] | None = None,
        known: dict[str, Known] | None = None,
    ) -> PreparedSession:
        """Make one session ready, all but the tools that are inferred.

        `also` are private values that other trials of its task gave away; `known`, by the tasks' hashes, is given what this one does.
        """
        self.complete(session)
        task = hash_json(session.task_key)[:16]
        named = not session.task_key.startswith(
            ("text:", "session:")
        )  # by the settings or the source, and not only by its first message
        # Last: the task belongs to what was said, whatever is redacted of it.
        redacted = self.redactor.redact(session, also)
        if known is not None and self.redactor.values:
            known.setdefault(task, Known()).add(self.redactor.values, named)
        return PreparedSession(redacted, _shapes(session), self.redactor.private_id, task)

    def complete(self, session: Session) -> None:
        """Repair a session, give it what the settings have and its source has not, and name its task."""
        options = self.options
        repair_session(session, options.repair)
        if not session.tools and options.tools:
            session.tools, session.tools_origin = list(options.tools), "settings"
        if options.system_prompt and not any(
            message["role"] == "system" for message in session.messages
        ):
            session.messages = [
                {"role": "system", "content": options.system_prompt},
                *session.messages,
            ]
            session.reasoning = [
                each | {"message": each["message"] + 1} for each in session.reasoning
            ]
        session.task_key = find_task_key(session, self._pattern, options.task_field)

    def note(self, session_id: str, redacted: Mapping[str, int], private_id: bool) -> None:
        """Count a session that was prepared, now or by an earlier run."""
        self._count += 1
        self._unmatched += self._pattern is not None and not _named(self._pattern, session_id)
        if redacted:
            self.redacted.update(redacted)
        self.private_ids += private_id

    def notes(self, key: PartitionKey) -> Iterator[str]:
        """What a person should be told about all of them, in sentences."""
        if self._unmatched:
            pattern = self.options.task_pattern
            yield f"task_pattern {pattern!r} names no task in {self._unmatched} of the {self._count} session ids of {key}."
        if self.private_ids:
            yield f"{self.private_ids} session ids of {key} hold what looks private; ids are names and stay: give other ones in the store."


def read_sessions(
    source: TraceSource, key: PartitionKey, options: ReadingOptions
) -> Iterator[Session]:
    """Every session of the partition, complete and redacted.

    All of them are held in memory, since the last one may teach the first one's tools: `ingestion` writes a table without that.
    Raises what `TraceSource.sessions` and `Preparation` raise.
    """
    preparation, schemas, known, sessions = (
        Preparation(options),
        ToolSchemas(),
        dict[str, Known](),
        list[Session](),
    )
    read = [
        (copy(session), session, preparation.prepare(session, known=known))
        for session in source.sessions(key)
    ]
    trials = Counter(prepared.task for _, _, prepared in read)
    for original, session, prepared in read:
        private = known.get(prepared.task) if trials[prepared.task] > 1 else None
        if private and (also := preparation.redactor.private_elsewhere(session, private)):
            session, prepared = original, preparation.prepare(original, also)
        preparation.note(session.session_id, prepared.redacted, prepared.private_id)
        schemas.add(prepared.calls)
        sessions.append(session)
    source.notes.extend(preparation.notes(key))
    tools = schemas.tools()
    for session in sessions:
        if tools and not session.tools:
            session.tools, session.tools_origin = tools, "inferred"
        yield session


def find_task_key(session: Session, pattern: re.Pattern[str] | None, context_field: str) -> str:
    """The task that a session is a trial of: what the split belongs to.

    In order: the pattern on the session id, the named field of its context, the source's task id, the first user message that says
    something, with case and white space folded (as its sha256, so that no text of a conversation travels in a key). A greeting says
    nothing. A session with none of these is its own task.
    """
    if pattern is not None and (named := _named(pattern, session.session_id)):
        return named
    value = session.context.get(context_field) if context_field else None
    if value is not None and value != "":
        return value if isinstance(value, str) else dump_canonical_json(value)
    if session.task_id:
        return session.task_id
    if (end := find_request_end(session.messages)) is None:
        return f"session:{session.session_id}"
    return f"text:{hash_json(' '.join(session.messages[end - 1]['content'].lower().split()))[:16]}"


def fingerprint_partition(stored: Iterable[Stored]) -> tuple[str, int]:
    """A store partition's data version and its number of sessions.

    The version changes when what the reader takes from the store does: it is the sha256 of the sessions' ids and digests, in their order;
    a vacuumed, copied or touched file keeps its version.
    """
    digest, count = hashlib.sha256(), 0
    for each in stored:
        digest.update(dump_canonical_json([each.session_id, each.digest.hex()]).encode())
        count += 1
    return digest.hexdigest(), count


def _shapes(session: Session) -> frozenset[CallShape]:
    """The shapes of a session's calls, where it has no tools."""
    return frozenset() if session.tools else find_call_shapes(session.messages)


def _named(pattern: re.Pattern[str], session_id: str) -> str:
    """The task that a pattern finds in a session id; empty where it finds none."""
    match = pattern.search(session_id)
    if match is None:
        return ""
    return (
        "-".join(group for group in match.groups() if group) if match.re.groups else match.group()
    )


def compile_task_pattern(pattern: str) -> re.Pattern[str] | None:
    """The setting `task_pattern`, compiled; `None` where it is empty. Raises SettingsError."""
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise SettingsError(
            f"task_pattern {pattern!r} is not a regular expression ({error}): correct it in pipeline.toml."
        ) from error


def hash_makers(options: ReadingOptions, source: TraceSource) -> str:
    """What a table follows from beside its store: the code, the settings, and the readers with their versions and their own code."""
    reader = [source.reader_versions(), _reader_code(type(source))]
    return hash_json([_code(), reader, repr(options)])


@cache
def _reader_code(reader: type) -> list[str]:
    """The hashes of the files that hold a reader's classes, where they are not the package's own (another package's reader)."""
    files = {
        file
        for each in reader.__mro__
        if (file := getattr(sys.modules.get(each.__module__), "__file__", None))
    }
    own = str(Path(__file__).parents[1])
    return [
        sha256_file(Path(file))
        for file in sorted(files)
        if not file.startswith(own) and Path(file).is_file()
    ]


@cache
def _code() -> str:
    """The text of the code that makes the table, and the libraries that decide on its bytes."""
    package = Path(__file__).parents[1]
    rooms = ("ingestion", "redaction", "sessions", "sources", "storage")
    files = [
        file
        for room in rooms
        for file in sorted((package / room).rglob("*.*"))
        if file.suffix in (".py", ".yaml")
    ]
    return hash_json(
        [
            [[path.name, sha256_file(path)] for path in files],
            [version(name) for name in ("pyarrow", "msgspec", *LIBRARIES)],
        ]
    )
