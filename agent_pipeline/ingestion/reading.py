"""Reading of a partition as canonical sessions, including the steps after the store's reader.

The steps are repair, a system prompt and tools from the settings if the source has none, the task
key, and redaction. If neither the source nor the settings have tools, tool schemas are inferred
from the calls. Writing a table belongs to `ingestion`.
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

_GUESSED_TASK_PREFIXES = ("text:", "session:")
"""Prefixes of task keys that the pipeline guessed because neither the settings nor the source
define the task.
"""

_PACKAGE = Path(__file__).parents[1]
_ROOMS_OF_TABLE = ("ingestion", "redaction", "sessions", "sources", "storage")
"""Folders whose code determines the content of the table `sessions`."""


@dataclass(frozen=True)
class ReadingOptions:
    """The settings for reading one agent's sessions.

    Attributes:
        system_prompt: The system prompt for sessions without one.
        tools: The tools for sessions without tools.
        task_pattern: A regular expression that is searched in the session id. Its groups, or the
            whole match, name the task.
        task_field: A key of the session's context that names the task.
        repair: The action for each kind of damage.
        redaction: The options that define what is private.
    """

    system_prompt: str = ""
    tools: tuple[Tool, ...] = field(default=())
    task_pattern: str = ""
    task_field: str = ""
    repair: RepairPolicy = field(default_factory=lambda: DEFAULT_REPAIR_POLICY)
    redaction: RedactionOptions = field(default_factory=RedactionOptions)


@dataclass(frozen=True)
class PreparedSession:
    """Facts about a session that has been prepared.

    Attributes:
        redacted: Counts of the redacted values, by kind.
        calls: The shapes of the session's calls, if its source has no tools.
        private_id: Whether the id looks private.
        task: A hash of the task, as it was before redaction.
    """

    redacted: Counter[str]
    calls: frozenset[CallShape]
    private_id: bool
    task: str


class Preparation:
    """The preparation of a partition's sessions, with counts over all sessions.

    Attributes:
        options: The settings.
        redacted: Counts of the redacted values, by kind.
        private_ids: Number of session ids that look private.
        redactor: Finds and replaces private values.
    """

    def __init__(self, options: ReadingOptions) -> None:
        """Create a preparation without any sessions.

        Raises:
            SettingsError: An option has a value that is not allowed.
            RedactionError: The detectors of private data cannot be used.
        """
        self.options = options
        self.redacted: Counter[str] = Counter()
        self.private_ids = 0
        self.redactor = Redactor(options.redaction)
        self._task_pattern = compile_task_pattern(options.task_pattern)
        self._sessions = 0
        self._sessions_without_match = 0

    def prepare(
        self,
        session: Session,
        extra_values: Mapping[str, str] | None = None,
        known: dict[str, Known] | None = None,
    ) -> PreparedSession:
        """Complete and redact one session in place.

        Inferred tools are not added here.

        Args:
            session: The session, as the source read it.
            extra_values: Private values that other trials of the task revealed, with their kinds.
            known: Receives the private values of the session, by the hash of its task.
        """
        self.complete(session)
        task = hash_json(session.task_key)[:16]
        is_named_task = not session.task_key.startswith(_GUESSED_TASK_PREFIXES)
        # Redaction comes last, because the task key is computed from the original text.
        redacted = self.redactor.redact(session, extra_values)
        if known is not None and self.redactor.values:
            known.setdefault(task, Known()).add(self.redactor.values, is_named_task)
        calls = frozenset() if session.tools else find_call_shapes(session.messages)
        return PreparedSession(redacted, calls, self.redactor.private_id, task)

    def complete(self, session: Session) -> None:
        """Repair a session, add missing data from the settings, and set its task key."""
        options = self.options
        repair_session(session, options.repair)
        if not session.tools and options.tools:
            session.tools, session.tools_origin = list(options.tools), "settings"
        has_system_prompt = any(message["role"] == "system" for message in session.messages)
        if options.system_prompt and not has_system_prompt:
            session.messages = [
                {"role": "system", "content": options.system_prompt},
                *session.messages,
            ]
            session.reasoning = [
                {"message": thought["message"] + 1, "text": thought["text"]}
                for thought in session.reasoning
            ]
        session.task_key = find_task_key(session, self._task_pattern, options.task_field)

    def note(self, session_id: str, redacted: Mapping[str, int], private_id: bool) -> None:
        """Count a session that was prepared in this run or in an earlier run.

        Args:
            session_id: The session.
            redacted: Counts of its redacted values, by kind.
            private_id: Whether its id looks private.
        """
        self._sessions += 1
        if self._task_pattern is not None and not _match_task(self._task_pattern, session_id):
            self._sessions_without_match += 1
        self.redacted.update(redacted)
        self.private_ids += private_id

    def notes(self, key: PartitionKey) -> Iterator[str]:
        """Yield sentences about the whole partition that a user should read."""
        if self._sessions_without_match:
            yield (
                f"The setting `task_pattern` ({self.options.task_pattern!r} names no task in "
                f"{self._sessions_without_match} of the {self._sessions} session ids of {key}."
            )
        if self.private_ids:
            yield (
                f"{self.private_ids} session ids of {key} look like private data. Ids are not "
                "redacted, so give these sessions other ids in the store."
            )


def read_sessions(
    source: TraceSource, key: PartitionKey, options: ReadingOptions
) -> Iterator[Session]:
    """Yield every session of a partition, complete and redacted.

    Args:
        source: The store.
        key: The partition.
        options: The settings of the partition.

    Raises:
        PipelineError: Reading or preparing fails; see `TraceSource.sessions` and `Preparation`.
    """
    yield from prepare_sessions(source.sessions(key), key, options, source.notes)


def prepare_sessions(
    stored_sessions: Iterable[Session],
    key: PartitionKey,
    options: ReadingOptions,
    notes: list[str],
) -> Iterator[Session]:
    """Yield the sessions of a partition, complete and redacted.

    All sessions are held in memory, because the last one may show a tool of the first one.
    `ingestion` writes a table without holding them.

    Args:
        stored_sessions: The sessions, as the store has them.
        key: The partition.
        options: The settings of the partition.
        notes: Receives sentences that a person should read.

    Raises:
        PipelineError: Reading or preparing fails; see `TraceSource.sessions` and `Preparation`.
    """
    preparation = Preparation(options)
    known: dict[str, Known] = {}
    originals: list[Session] = []
    sessions: list[Session] = []
    prepared: list[PreparedSession] = []
    for session in stored_sessions:
        originals.append(copy(session))
        prepared.append(preparation.prepare(session, known=known))
        sessions.append(session)
    trials_by_task = Counter(facts.task for facts in prepared)
    schemas = ToolSchemas()
    for index, original in enumerate(originals):
        task = prepared[index].task
        if task in known and trials_by_task[task] > 1:
            redactor = preparation.redactor
            extra_values = redactor.private_elsewhere(sessions[index], known[task])
            if extra_values:
                sessions[index] = original
                prepared[index] = preparation.prepare(original, extra_values)
        facts = prepared[index]
        preparation.note(sessions[index].session_id, facts.redacted, facts.private_id)
        schemas.add(facts.calls)
    notes.extend(preparation.notes(key))
    tools = schemas.tools()
    for session in sessions:
        if tools and not session.tools:
            session.tools, session.tools_origin = tools, "inferred"
        yield session


def find_task_key(session: Session, pattern: re.Pattern[str] | None, context_field: str) -> str:
    """Return the key of the task that a session is a trial of.

    All trials of a task are in the same split.

    The task is the first of these that exists:

    1. the match of the pattern in the session id
    2. the named field of the session's context
    3. the source's task id
    4. the hash of the first user message that says more than a greeting, without regard to case
       and white space; a hash, so that no key holds a text of a conversation
    5. the session itself

    Args:
        session: The session.
        pattern: The setting `task_pattern`.
        context_field: The setting `task_field`.
    """
    matched_task = _match_task(pattern, session.session_id) if pattern is not None else ""
    if matched_task:
        return matched_task
    value = session.context.get(context_field) if context_field else None
    if value is not None and value != "":
        return value if isinstance(value, str) else dump_canonical_json(value)
    if session.task_id:
        return session.task_id
    request_end = find_request_end(session.messages)
    if request_end is None:
        return f"session:{session.session_id}"
    request = session.messages[request_end - 1]["content"]
    return f"text:{hash_json(' '.join(request.lower().split()))[:16]}"


def fingerprint_partition(stored_sessions: Iterable[Stored]) -> tuple[str, int]:
    """Return the data version of a partition, and its number of sessions.

    The version is the sha256 of the sessions' ids and digests, in order. The version changes if any
    data changes that the reader uses. Copying or vacuuming a file does not change it.
    """
    fingerprint = hashlib.sha256()
    sessions = 0
    for stored in stored_sessions:
        entry = [stored.session_id, stored.digest.hex()]
        fingerprint.update(dump_canonical_json(entry).encode())
        sessions += 1
    return fingerprint.hexdigest(), sessions


def _match_task(pattern: re.Pattern[str], session_id: str) -> str:
    """Return the task that a pattern finds in a session id.

    Return an empty text if it finds none.
    """
    match = pattern.search(session_id)
    if match is None:
        return ""
    if not match.re.groups:
        return match.group()
    return "-".join(group for group in match.groups() if group)


class TaskPatternError(SettingsError):
    """Raised if the setting `task_pattern` is not a regular expression.

    Attributes:
        pattern: The setting.
    """

    def __init__(self, pattern: str, error: re.error) -> None:
        self.pattern = pattern
        super().__init__(
            f"The setting `task_pattern` ({pattern!r}) is not a regular expression ({error}): "
            "correct it in pipeline.toml.",
            setting="task_pattern",
        )


def compile_task_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the setting `task_pattern` as a regular expression, or None if it is empty.

    Raises:
        TaskPatternError: The setting is not a regular expression.
    """
    if not pattern:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TaskPatternError(pattern, error) from error


def hash_makers(options: ReadingOptions, source: TraceSource) -> str:
    """Return a hash of everything that determines the table's content except for the store.

    This includes the code, the settings, and the readers with their versions and their own code.
    """
    readers = [source.reader_versions(), _hash_foreign_code(type(source))]
    return hash_json([_hash_code(), readers, repr(options)])


@cache
def _hash_foreign_code(reader: type) -> list[str]:
    """Return the hashes of files outside this package that define a reader's classes."""
    files = set()
    for base in reader.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if file and not file.startswith(str(_PACKAGE)) and Path(file).is_file():
            files.add(file)
    return [sha256_file(Path(file)) for file in sorted(files)]


@cache
def _hash_code() -> str:
    """Return a hash of the code and the libraries that determine the bytes of the table."""
    files = []
    for room in _ROOMS_OF_TABLE:
        for path in sorted((_PACKAGE / room).rglob("*.*")):
            if path.suffix in (".py", ".yaml"):
                files.append([path.name, sha256_file(path)])
    libraries = [version(name) for name in ("pyarrow", "msgspec", *LIBRARIES)]
    return hash_json([files, libraries])
