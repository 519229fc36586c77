"""Which tools of an agent only look things up, and which may change the world.

A setting names the tools that only read. Without it, the tools are inferred from recorded sessions,
and the metadata `tools` of the asset `tape` shows them for confirmation. A tool about which nothing
is known counts as one that writes.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.transcript import is_failed

_READ_NAME = re.compile(
    r"(?:^|[./]|__|-)(?i:get|find|list|search|read|look|lookup|check|show|fetch|query|view|count"
    r"|describe|retrieve|calculate)(?:$|_(?!in$|out$|off$|in_|out_|off_)|-|(?=[A-Z]))"
    r"(?!.*(?:and_|or_|And[A-Z]|Or[A-Z]))"
)
"""Names of tools that look things up: the verb comes first, or after the name of a server. In
`mark_as_read`, `check_out` and `get_or_create`, the word says nothing.
"""
_READ_DESCRIPTION = re.compile(
    r"\W*(?:gets?|finds?|lists?|searche?s?|reads?|looks? up|shows?|fetche?s?|returns?|retrieves?"
    r"|views?|counts?|calculates?)\b",
    re.IGNORECASE,
)

MIN_CHANGES = 2
"""How often a look-up must have another result after a tool that is named like a look-up, before
the tool counts as one that writes. Once may be chance.
"""
MIN_SHARE_CHANGING = 0.1
"""The same as a share of the tool's calls."""
CHANGED_READ = "an equal look-up had another result after it"
READ_NAME = "its name says that it looks something up"
READ_DESCRIPTION = "its description says that it looks something up"
UNKNOWN = "nothing shows that it only reads"
DECLARED = "by the setting reads"
"""Reasons why a tool counts as reading or as writing. The tape stores these values, so they never
change: a tape of an earlier version would count as one whose reads are not declared.
"""
_DESCRIPTIONS = {
    CHANGED_READ: "the same look-up had a different result after a call of this tool",
    READ_NAME: "its name says that it only reads",
    READ_DESCRIPTION: "its description says that it only reads",
    DECLARED: "because of the setting reads",
}


@dataclass(frozen=True)
class ToolEffect:
    """What a tool does to the world.

    Attributes:
        tool: The name of the tool.
        writes: Whether the tool may change the world.
        reason: Why, as the tape stores it.
        calls: The number of recorded calls.
    """

    tool: str
    writes: bool
    reason: str
    calls: int = 0

    @property
    def described_reason(self) -> str:
        """Return the reason in words that reports show."""
        return _DESCRIPTIONS.get(self.reason, self.reason)


@dataclass
class ToolEffects:
    """Counts over recorded sessions from which the effects of tools are inferred.

    Attributes:
        calls: The number of calls by tool.
        changing: By tool, how often an equal look-up had another result after a call of this tool,
            and of no other tool that may write.
        described: The tools whose description says that they look something up.
    """

    calls: Counter[str] = field(default_factory=Counter)
    changing: Counter[str] = field(default_factory=Counter)
    described: set[str] = field(default_factory=set)
    _last_tools: Sequence[Tool] = ()
    """The tools of the last session, which the next session usually shares."""

    def add(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Count the calls of a session."""
        if tools is not self._last_tools:
            self._last_tools = tools
            for tool in tools:
                description = tool["function"].get("description") or ""
                if _READ_DESCRIPTION.match(description):
                    self.described.add(tool["function"]["name"])
        names = [
            call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls") or ()
        ]
        for name in names:
            self.calls[name] += 1
        once = {name for name in names if names.count(name) == 1}
        # Only a tool that is called again can show that an equal look-up has another result now.
        if len(once) < len(names):
            self._compare_reads(messages, once)

    def _compare_reads(self, messages: Sequence[Message], once: Collection[str]) -> None:
        """Count the tools after which an equal look-up has another result.

        Args:
            messages: The messages of a session.
            once: The tools that the session calls once.
        """
        results = {
            message["tool_call_id"]: message
            for message in messages
            if message["role"] == "tool" and "tool_call_id" in message
        }
        last_result: dict[tuple[str, bytes], str] = {}
        called_since: dict[tuple[str, bytes], set[str]] = {}
        for message in messages:
            for call in message.get("tool_calls") or ():
                name = call["function"]["name"]
                result = results.get(call.get("id", ""))
                if result is None or is_failed(result):
                    continue
                if name in once:
                    for others in called_since.values():
                        others.add(name)
                    continue
                read = (name, _encode_sorted(call["function"]["arguments"]))
                called = called_since.get(read, set())
                # A tool that is not named like a look-up is the likelier cause.
                suspects = {tool for tool in called if not self.names_a_read(tool)} or called
                if len(suspects) == 1 and last_result[read] != result["content"]:
                    self.changing.update(suspects)
                for other_read, others in called_since.items():
                    if other_read[0] != name:
                        others.add(name)
                last_result[read] = result["content"]
                called_since[read] = set()

    def names_a_read(self, tool: str) -> bool:
        """Return whether a tool's name or description says that it looks something up."""
        return _READ_NAME.search(tool) is not None or tool in self.described

    def _has_changed_reads(self, tool: str) -> bool:
        """Return whether look-ups had another result after a tool often enough."""
        if not self.names_a_read(tool):
            return self.changing[tool] > 0
        least = max(MIN_CHANGES, MIN_SHARE_CHANGING * self.calls[tool])
        return self.changing[tool] >= least

    def list_effects(self, declared: Iterable[str] = ()) -> list[ToolEffect]:
        """Return the effect of every tool that was called, ordered by name.

        Args:
            declared: The tools that only read, according to the settings. If any are declared,
                every other tool writes.
        """
        reads = set(declared)
        effects = []
        for tool, calls in sorted(self.calls.items()):
            if reads:
                effect = ToolEffect(tool, tool not in reads, DECLARED, calls)
            elif self._has_changed_reads(tool):
                effect = ToolEffect(tool, True, CHANGED_READ, calls)
            elif _READ_NAME.search(tool):
                effect = ToolEffect(tool, False, READ_NAME, calls)
            elif tool in self.described:
                effect = ToolEffect(tool, False, READ_DESCRIPTION, calls)
            else:
                effect = ToolEffect(tool, True, UNKNOWN, calls)
            effects.append(effect)
        return effects


def _encode_sorted(arguments: str) -> bytes:
    """Return a text that is equal for arguments that differ only in their JSON notation.

    It is compared within a session only, so it need not be the canonical text, which is slower.
    """
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return arguments.encode("utf-8", "surrogatepass")
