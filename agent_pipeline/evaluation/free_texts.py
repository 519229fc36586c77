"""The arguments of writes that are free texts, such as the subject of a message.

This module decides whether two writes with different words are the same write. The words of an
answer to the user belong to `wording`.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent_pipeline.evaluation.answer_scoring import values
from agent_pipeline.evaluation.tape import Step
from agent_pipeline.evaluation.wording import Wording
from agent_pipeline.sessions.session import dump_canonical_json

MIN_SHARE_OF_WORDS = 0.75
"""Minimum share of the words that all good wordings of a free text have in common, which another
wording must have.
"""


@dataclass
class FreeTexts:
    """The arguments of writes that are free texts, from the good sessions of a task.

    The wording of an argument is free if it has several words, and if good sessions of the task
    make the same call with different wordings. The numbers and ids in such an argument are not
    free.

    Attributes:
        wording: The words that do not carry content.
        wordings: By tool and argument, the wordings of the good sessions.
        prose: By tool, the arguments that have several words in a good session.
    """

    wording: Wording
    wordings: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    prose: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def find(cls, good_writes: Sequence[tuple[str, Step]], wording: Wording) -> "FreeTexts":
        """Find the free texts among the writes of good sessions, each with its session id."""
        free = cls(wording)
        for _, step in good_writes:
            for name, value in object_of(step.arguments).items():
                if isinstance(value, str) and len(value.split()) > 1:
                    free.prose[step.tool].add(name)
        wordings: defaultdict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
        for session_id, step in good_writes:
            arguments = object_of(step.arguments)
            core = free.drop_prose(step.tool, step.arguments)
            for name in arguments.keys() & free.prose[step.tool]:
                by_session = wordings[step.tool, core, name]
                by_session.setdefault(session_id, str(arguments[name]))
        for (tool, _, name), by_session in wordings.items():
            if len(set(by_session.values())) > 1:
                free.wordings.setdefault((tool, name), []).extend(by_session.values())
        return free

    def drop_prose(self, tool: str, arguments: str) -> str:
        """Return the arguments of a call without those that have several words."""
        prose = self.prose.get(tool, set())
        return dump_canonical_json(
            {name: value for name, value in object_of(arguments).items() if name not in prose}
        )

    def reduce(self, tool: str, arguments: str) -> str:
        """Return the arguments of a call without the wording of free texts."""
        reduced = {
            name: "…" if (tool, name) in self.wordings else value
            for name, value in object_of(arguments).items()
        }
        return dump_canonical_json(reduced) if reduced else arguments

    def says_something_else(self, tool: str, arguments: str, known: Collection[str]) -> bool:
        """Return whether a free text differs in more than its wording from the good sessions.

        It must have most of the words that all their wordings have in common, and no number or id
        that neither they nor the user stated.

        Args:
            tool: The tool.
            arguments: The canonical arguments.
            known: The numbers and ids that the user stated.
        """
        for name, value in object_of(arguments).items():
            wordings = self.wordings.get((tool, name))
            if wordings is None:
                continue
            if values([str(value)]) - values(wordings) - set(known):
                return True
            common = frozenset.intersection(*map(self.wording.content, wordings))
            common -= values(wordings)
            shared = common & self.wording.content(str(value))
            if len(shared) < MIN_SHARE_OF_WORDS * len(common):
                return True
        return False


def object_of(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; empty if they are not an object."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
