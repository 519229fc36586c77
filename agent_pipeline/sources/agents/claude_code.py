"""Claude Code sessions: JSON lines of `{type, uuid, parentUuid, isSidechain, sessionId, timestamp, message}`, a file or a folder of them.

The lines of one API message (`message.id`) are joined. Lines form a tree by `parentUuid`: of its branches, the one with the last line is
taken. Side chains (a sub-agent's work) are sessions of their own that name their parent. One that goes on from a line of the main
conversation is what Claude Code itself asked about that (a summary before a compaction): it is counted and no session, since what it is
about is not in it. Lines of other types are counted and passed over.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import text_of
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, chosen, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, Said
from agent_pipeline.sources.formats.record_files import Place

_SPOKEN = ("user", "assistant")
_CONTEXT = ("cwd", "gitBranch", "version", "agentId")


class ClaudeCodeSource(FileSource):
    """A session's file, or a folder of them (such as ~/.claude/projects): the working folder's name is the project."""

    name = "claude_code"
    looks_like = "Claude Code sessions: lines of user and assistant with sessionId and message"
    version = 2
    merges = True

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self._left = 0

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return record.get("type") in _SPOKEN and isinstance(record.get("message"), dict) and "sessionId" in record

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)  # summaries and the like are counted, not strange

    def identify(self, record: Record, place: Place) -> Ident | None:
        session = text(record.get("sessionId"))
        return Ident(session, session, folder_name(record.get("cwd")), self.name.replace("_", "-")) if session else None

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        self._left = 0
        yield from super().sessions(key)
        if self._left:
            sentence = f"{self.path}: {self._left} messages of {key} are on conversation branches that were left"
            add_note(self.notes, f"{sentence}; of each session the branch with the last line was taken.")

    def build(self, session_id: str, records: list[tuple[Place, Record]]) -> Said:
        main: list[Record] = []
        sides: dict[str, list[Record]] = {}
        roots: dict[Any, str] = {}
        distinct: dict[Any, Record] = {}
        for _, line in records:  # the file of a resumed session repeats lines
            distinct.setdefault(text(line.get("uuid")) or id(line), line)
        for line in distinct.values():
            if line.get("isSidechain") is True:
                parent, own = text(line.get("parentUuid")), text(line.get("uuid"))
                chain = text(line.get("agentId")) or roots.get(parent) or own or "side"
                roots[own] = chain
                sides.setdefault(chain, []).append(line)
            else:
                main.append(line)
        forked_from = {own for line in main if (own := text(line.get("uuid")))}
        forks = [chain for chain, lines in sides.items() if text(lines[0].get("parentUuid")) in forked_from]
        left_out = sum(len(sides.pop(chain)) for chain in forks)
        if main:
            said = self._conversation(main, None)
            said["skipped"]["line:fork"] = left_out
            yield session_id, said
        for chain, lines in sorted(sides.items()):
            yield f"{session_id}:{chain}", self._conversation(lines, session_id)

    def _conversation(self, lines: list[Record], parent: str | None) -> Record:
        taken, others = _branch(lines)
        self._left += others
        spoken = [line for line in taken if not _synthetic(line)]
        skipped = Counter(f"line:{text(line.get('type')) or 'unknown'}" for line in lines if line.get("type") not in _SPOKEN)
        usage = {_message_id(line) or id(line): section(line, "message", "usage") for line in spoken if line.get("type") == "assistant"}
        broken = bool(taken) and taken[-1].get("isApiErrorMessage") is True
        return {
            "history": _merged(spoken),
            "skipped": skipped | {"other_branch": others, "synthetic_message": len(taken) - len(spoken)},
            "context": chosen(next((line for line in lines if "cwd" in line), lines[0]), _CONTEXT),
            "usage": usage.values(),
            "costs": [line.get("costUSD") for line in spoken],
            "times": [line.get("timestamp") for line in taken],
            "models": [section(line, "message").get("model") for line in spoken if line.get("type") == "assistant"],
            "parent_session_id": parent,
            "error": text(text_of(section(taken[-1], "message").get("content"))[0]) or "the API gave an error" if broken else None,
        }


def _branch(lines: list[Record]) -> tuple[list[Record], int]:
    """The conversation that ends in the last line, in order, and how many lines of others were left out.

    From the last line up by `parentUuid` (`logicalParentUuid` over a compaction; the line before where a parent is not in the file). What
    belongs to a message on the way is taken too: the other lines of the same API message, and the results that its calls
    still miss.
    """
    spoken = [line for line in lines if line.get("type") in _SPOKEN]
    at = {own: number for number, line in enumerate(lines) if (own := text(line.get("uuid")))}
    chain: set[int] = set()
    here = max((number for number, line in enumerate(lines) if line.get("type") in _SPOKEN), default=-1)
    while here >= 0 and here not in chain:
        chain.add(here)
        line = lines[here]
        parent = text(line.get("parentUuid")) or text(line.get("logicalParentUuid"))
        if parent is None and "parentUuid" in line:  # the beginning; without the field the lines are no tree, but follow one another
            break
        here = at.get(parent, here - 1) if parent else here - 1
    on_way = [lines[number] for number in sorted(chain) if lines[number].get("type") in _SPOKEN]
    messages = {_message_id(line) for line in on_way if line.get("type") == "assistant"} - {None}
    taken_ids = {id(line) for line in on_way} | {id(line) for line in spoken if _message_id(line) in messages}
    blocks = [block for line in spoken if id(line) in taken_ids for block in _blocks(line)]
    answered = {text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"}
    waiting = {text(block.get("id")) for block in blocks if block.get("type") == "tool_use"} - answered
    taken = [line for line in spoken if id(line) in taken_ids or _answers(line, waiting)]
    return taken, len(spoken) - len(taken)


def _answers(line: Record, calls: set[Any]) -> bool:
    blocks = _blocks(line)
    return bool(blocks) and all(block.get("type") == "tool_result" and text(block.get("tool_use_id")) in calls for block in blocks)


def _merged(lines: list[Record]) -> list[Any]:
    """The messages, the parts of each API message in one, where its first part was; a part that is there twice is taken once."""
    merged: list[Any] = []
    whole: dict[str, Record] = {}
    for line in lines:
        message, name = section(line, "message"), _message_id(line)
        if name is None or line.get("type") != "assistant":
            merged.append({**message, "role": text(message.get("role")) or line["type"]})
        elif name not in whole:
            whole[name] = {"role": "assistant", "content": list(_parts(message))}
            merged.append(whole[name])
        else:
            whole[name]["content"] += [part for part in _parts(message) if part not in whole[name]["content"]]
    return merged


def _parts(message: Record) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [] if content is None else [content]


def _blocks(line: Record) -> list[Record]:
    return objects(section(line, "message").get("content"))


def _message_id(line: Record) -> str | None:
    return text(section(line, "message").get("id"))


def _synthetic(line: Record) -> bool:
    """Whether Claude Code wrote a message itself: an error of the API, a note that nothing was asked, the summary after a compaction."""
    of_model = section(line, "message").get("model") == "<synthetic>"
    return of_model or line.get("isApiErrorMessage") is True or line.get("isCompactSummary") is True
