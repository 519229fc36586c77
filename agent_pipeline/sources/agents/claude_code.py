"""Sessions of Claude Code: a file of JSON lines, or a folder of such files.

A line is `{type, uuid, parentUuid, isSidechain, sessionId, timestamp, message}`. The lines of one
API message (`message.id`) are joined. Lines form a tree by `parentUuid`; the reader takes the
branch that ends in the last line. Side chains (the work of a sub-agent) are separate sessions that
name their parent. A side chain that starts at a line of the main conversation is a request of
Claude Code itself, such as the summary before a compaction. It is counted but not read, because the
file does not repeat the conversation that the request refers to.

A compaction replaces the conversation by a summary. The messages before the compaction become a
separate session (`ID:before-compaction-1`), so that no training row contains messages that the
model did not see. Text that the user typed while the agent worked is placed at the point where the
model saw it. `claude_lines.py` defines the types of lines.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import read_text
from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.agents.claude_lines import (
    SPOKEN,
    is_boundary,
    is_interruption,
    is_shown,
    lost_in_queue,
    message_of,
    replacements_in,
    unknown_line,
)
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import cut_last_turn
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, chosen, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_CONTEXT = ("cwd", "gitBranch", "version", "agentId")
IFLOW_SESSION = re.compile(r"session-[0-9a-f]{8}-[0-9a-f-]{27}")
"""Session ids of iFlow. Its lines look like Claude Code's, but `qwen_code.py` reads them."""


class ClaudeCodeSource(FileSource):
    """A reader of a Claude Code session file, or of a folder such as ~/.claude/projects.

    The working folder's name is the project.
    """

    name = "claude_code"
    looks_like = "Claude Code sessions: lines of type user or assistant with sessionId and message"
    version = 4
    merges = True

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self._left = 0

    @classmethod
    def accepts(cls, record: Record) -> bool:
        message = record.get("message")
        is_spoken = (
            record.get("type") in SPOKEN and isinstance(message, dict) and "content" in message
        )
        return (
            is_spoken
            and "sessionId" in record
            and not IFLOW_SESSION.fullmatch(str(record["sessionId"]))
        )

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(
            record.get("type"), str
        )  # lines such as summaries are counted and are not an error

    def loses(self, record: Record) -> bool:
        return unknown_line(record) is not None or record.get("type") in SPOKEN

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        session = text(record.get("sessionId"))
        return (
            Ident(session, session, folder_name(record.get("cwd")), self.name.replace("_", "-"))
            if session
            else None
        )

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        self._left = 0
        yield from super().sessions(key)
        if self._left:
            sentence = (
                f"{self.path}: {self._left} messages of {key} are on conversation branches that "
                f"were left"
            )
            add_note(
                self.notes, f"{sentence}; of each session the branch with the last line was taken."
            )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        return sorted(self._chains(session_id, records), key=itemgetter(0))

    def _chains(
        self, session_id: str, records: list[tuple[RecordLocation, Record]]
    ) -> Iterator[tuple[str, Record]]:
        """Yield the fields of the main conversation and of each side chain."""
        main: list[Record] = []
        sides: dict[str, list[Record]] = {}
        roots: dict[object, str] = {}
        distinct: dict[object, Record] = {}
        contradicting = 0
        for _, line in records:  # the file of a resumed session repeats earlier lines
            known = distinct.setdefault(text(line.get("uuid")) or id(line), line)
            contradicting += known is not line and _message(known).get("content") != _message(
                line
            ).get("content")
        replaced = replacements_in(distinct.values())
        for line in distinct.values():
            if line.get("isSidechain") is True:
                parent, line_id = text(line.get("parentUuid")), text(line.get("uuid"))
                chain = text(line.get("agentId")) or roots.get(parent) or line_id or "side"
                roots[line_id] = chain
                sides.setdefault(chain, []).append(line)
            else:
                main.append(line)
        forked_from = {line_id for line in main if (line_id := text(line.get("uuid")))}
        forks = [
            chain
            for chain, lines in sides.items()
            if text(lines[0].get("parentUuid")) in forked_from
        ]
        left_out = sum(len(sides.pop(chain)) for chain in forks)
        if main:
            for name, session_fields in self._conversations(
                main, session_id, None, distinct, replaced[0]
            ):
                if name == session_id:
                    session_fields["skipped"]["line:fork"] = left_out
                    session_fields["history"] += [mark_unread("queued words")] * lost_in_queue(main)
                    session_fields["history"] += [mark_unread("content-replacement")] * replaced[1]
                    session_fields["history"] += [
                        mark_unread("another line's uuid")
                    ] * contradicting
                yield name, session_fields
        for chain, lines in sorted(sides.items()):
            yield from self._conversations(
                lines, f"{session_id}:{chain}", session_id, distinct, replaced[0]
            )

    def _conversations(
        self,
        lines: list[Record],
        name: str,
        parent: str | None,
        names: Container[object],
        replaced: dict[str, str],
    ) -> Iterator[tuple[str, Record]]:
        """Yield the fields of a chain of lines, and of each stretch before a compaction."""
        taken, others = _branch(lines)
        self._left += others
        *before, last = _stretches(lines, taken)
        for stretch_number, stretch in enumerate(before, 1):
            session_fields = _conversation(stretch, lines, replaced) | {
                "parent_session_id": parent or name
            }
            yield (
                f"{name}:before-compaction-{stretch_number}",
                session_fields | {"ends_on_tool": True},
            )
        session_fields = _conversation(last, lines, replaced)
        kinds = (
            f"line:{text(line.get('type')) or 'unknown'}"
            for line in lines
            if line.get("type") not in SPOKEN
        )
        unknown = [mark_unread(kind) for line in lines if (kind := unknown_line(line))]
        broken = bool(taken) and taken[-1].get("isApiErrorMessage") is True
        session_fields["history"] += unknown + [mark_unread("missing line")] * _missing_parents(
            taken, names
        )
        session_fields["skipped"] += Counter(kinds) + Counter(other_branch=others)
        session_fields["parent_session_id"] = parent
        session_fields["error"] = (
            (text(read_text(_message(taken[-1]).get("content"))[0]) or "the API gave an error")
            if broken
            else None
        )
        yield name, session_fields


def _conversation(taken: list[Record], lines: list[Record], replaced: dict[str, str]) -> Record:
    spoken = [line for line in taken if not _synthetic(line)]
    usage = {
        _message_id(line) or id(line): _message(line).get("usage")
        for line in spoken
        if line.get("type") == "assistant"
    }
    return {
        "history": _history(taken, replaced),
        "skipped": Counter(synthetic_message=len(taken) - len(spoken)),
        "context": chosen(next((line for line in lines if "cwd" in line), lines[0]), _CONTEXT),
        "usage": usage.values(),
        "costs": [line.get("costUSD") for line in spoken],
        "times": [line.get("timestamp") for line in taken],
        "models": [
            _message(line).get("model") for line in spoken if line.get("type") == "assistant"
        ],
    }


def _branch(lines: list[Record]) -> tuple[list[Record], int]:
    """Return the conversation that ends in the last line, and the number of lines outside it.

    The path leads from the last line upwards by `parentUuid` (`logicalParentUuid` across a
    compaction). If a parent is not in the file, the previous line is used, and `_missing_parents`
    counts the parent. All lines that belong to a message on the path are included: the other lines
    of the same API message, the results of its calls, and the attachments of its lines.
    """
    shown = [line for line in lines if is_shown(line)]
    index_by_id = {
        line_id: line_index
        for line_index, line in enumerate(lines)
        if (line_id := text(line.get("uuid")))
    }
    parents = {text(line.get("parentUuid")) for line in lines}
    chain: set[int] = set()
    here = max(
        (line_index for line_index, line in enumerate(lines) if line.get("type") in SPOKEN),
        default=-1,
    )
    while here >= 0 and here not in chain:
        chain.add(here)
        line = lines[here]
        parent = text(line.get("parentUuid")) or text(line.get("logicalParentUuid"))
        is_first = (
            parent is None and "parentUuid" in line
        )  # lines without the field do not form a tree, but follow one another
        if is_first and not (is_boundary(line) or line.get("isCompactSummary") is True):
            break
        here = index_by_id.get(parent, here - 1) if parent else here - 1
    on_way = [lines[line_index] for line_index in sorted(chain) if is_shown(lines[line_index])]
    messages = {_message_id(line) for line in on_way if line.get("type") == "assistant"} - {None}
    taken_ids = {id(line) for line in on_way} | {
        id(line) for line in shown if _message_id(line) in messages
    }
    blocks = [block for line in shown if id(line) in taken_ids for block in _blocks(line)]
    answered = {
        text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"
    }
    waiting = {
        text(block.get("id")) for block in blocks if block.get("type") == "tool_use"
    } - answered
    taken_ids |= {id(line) for line in shown if _answers(line, waiting)}
    names = {text(line.get("uuid")) for line in lines if id(line) in taken_ids} - {None}
    attached = (
        line
        for line in shown
        if line.get("type") not in SPOKEN and text(line.get("uuid")) not in parents
    )
    taken_ids |= {id(line) for line in attached if text(line.get("parentUuid")) in names}
    taken = [line for line in _parents_first(lines) if id(line) in taken_ids]
    return taken, sum(line.get("type") in SPOKEN for line in shown) - sum(
        line.get("type") in SPOKEN for line in taken
    )


def _parents_first(lines: list[Record]) -> Iterator[Record]:
    """Yield lines in file order, except that every line comes after its parent line.

    Claude Code may write several lines at once, so their order in the file can differ.
    """
    by_name = {line_id: line for line in lines if (line_id := text(line.get("uuid")))}
    yielded_ids: set[int] = set()
    for line in lines:
        way: list[Record] = []
        here: Record | None = line
        while here is not None and id(here) not in yielded_ids:
            yielded_ids.add(id(here))
            way.append(here)
            here = by_name.get(text(here.get("parentUuid")) or "")
        yield from reversed(way)


def _missing_parents(taken: list[Record], names: Container[object]) -> int:
    """Count the parent ids of a conversation that no file of the session contains."""
    parents = {text(line.get("parentUuid")) for line in taken} - {None}
    return sum(parent not in names for parent in parents)


def _stretches(lines: list[Record], taken: list[Record]) -> list[list[Record]]:
    """Return the lines that the model saw, split at each compaction of the conversation.

    The last stretch ends the session. After a compaction, the model saw the summary, the messages
    that Claude Code kept (`preservedSegment`), and the lines that followed.
    """
    stretches: list[list[Record]] = [[]]
    kept: list[Record] = []
    needs_summary = False
    for line in taken:
        if is_boundary(line):
            stretches.append([])
            kept, needs_summary = _preserved(lines, section(line, "compactMetadata")), True
        elif line.get("isCompactSummary") is True:
            if _has_answer(stretches[-1]):
                stretches.append([])
            stretches[-1] += [line, *kept]
            kept, needs_summary = [], False
        else:
            if needs_summary and line.get("type") in SPOKEN:
                stretches[-1].append(_UNKNOWN_COMPACTION)
                kept, needs_summary = [], False
            stretches[-1].append(line)
    return [*filter(_has_answer, stretches[:-1]), stretches[-1]]


def _has_answer(lines: list[Record]) -> bool:
    return any(line.get("type") == "assistant" for line in lines)


_UNKNOWN_COMPACTION: Record = {
    "type": "system",
    "subtype": "compaction",
    "content": "of an unknown form",
}


def _preserved(lines: list[Record], metadata: Record) -> list[Record]:
    """Return the messages that a compaction kept unchanged, marked as copies.

    If the messages are missing, return a line that counts as damage.
    """
    if not metadata.get("preservedSegment"):
        return [_UNKNOWN_COMPACTION] if metadata.get("preservedMessages") else []
    first, last = (
        text(section(metadata, "preservedSegment").get(name)) for name in ("headUuid", "tailUuid")
    )
    by_name = {line_id: line for line in lines if (line_id := text(line.get("uuid")))}
    kept: list[Record] = []
    while last in by_name and len(kept) <= len(lines):
        kept.append(by_name[last])
        if last == first:
            return [line | {"forkedFrom": first} for line in reversed(kept) if is_shown(line)]
        last = text(by_name[last].get("parentUuid"))
    return [_UNKNOWN_COMPACTION]


def _history(taken: list[Record], replaced: dict[str, str]) -> list[object]:
    """Return the messages of Claude Code lines. The parts of an API message are joined.

    A joined message is at the position of its first part. A part that occurs twice is used once.
    """
    history: list[Any] = []
    whole: dict[str, Record] = {}
    for line in taken:
        message, name = _message(line), _message_id(line)
        if line.get("type") not in SPOKEN:
            if (shown := message_of(line)) is not None:
                history.append(shown)
        elif line.get("isCompactSummary") is True:
            history.append({"role": "user", "content": message.get("content")})
        elif _synthetic(line):
            if (
                line.get("isApiErrorMessage") is True
                and history
                and section(history[-1]).get("role") == "assistant"
            ):
                cut_last_turn(history)  # the API failed in the middle of this message
        elif line.get("type") == "user":
            if is_interruption(message):
                cut_last_turn(history)
            if line.get("imagePasteIds") and not any(
                block.get("type") in ("image", "document") for block in _blocks(line)
            ):
                history.append(mark_unread("pasted picture"))
            history.append(
                _with_replacements(message, replaced)
                | {"role": text(message.get("role")) or "user"}
            )
        elif name is None or name not in whole:
            history.append(message | {"role": "assistant", "content": list(_parts(message))})
            if line.get(
                "forkedFrom"
            ):  # copied from the session that this one was branched from: not trained again
                history[-1]["weight"] = 0
            if name is not None:
                whole[name] = history[-1]
        else:
            whole[name]["content"] += [
                part for part in _parts(message) if part not in whole[name]["content"]
            ]
            if message.get("stop_reason") is not None:
                whole[name]["stop_reason"] = message["stop_reason"]
    return history


def _with_replacements(message: Record, replaced: dict[str, str]) -> Record:
    """Replace long tool results in a message by the short texts that the model saw."""
    content = message.get("content")
    if not replaced or not isinstance(content, list):
        return message
    shown = [
        block | {"content": replaced[call]}
        if isinstance(block, dict) and (call := text(block.get("tool_use_id"))) in replaced
        else block
        for block in content
    ]
    return message | {"content": shown}


def _answers(line: Record, calls: set[Any]) -> bool:
    blocks = _blocks(line)
    return bool(blocks) and all(
        block.get("type") == "tool_result" and text(block.get("tool_use_id")) in calls
        for block in blocks
    )


def _parts(message: Record) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [] if content is None else [content]


def _message(line: Record) -> Record:
    return section(line, "message")


def _blocks(line: Record) -> list[Record]:
    return objects(_message(line).get("content"))


def _message_id(line: Record) -> str | None:
    return text(_message(line).get("id"))


def _synthetic(line: Record) -> bool:
    """Return whether Claude Code wrote a message only for the screen.

    Such a message is an API error, or a note that nothing was requested.
    """
    return _message(line).get("model") == "<synthetic>" or line.get("isApiErrorMessage") is True
