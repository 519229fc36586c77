"""The kinds of tasks and of undecided episodes that lakes store, and the words that describe them.

Episodes and ledgers of earlier versions contain these values, and are compared with new ones. So
the values never change. To word a kind better, change its description here.
"""

from enum import StrEnum
from typing import Literal

TaskKind = Literal["a change is asked for", "no change, or only in some sessions"]
"""What the good sessions of a task do: all of them write, or not. Lakes store these values."""
ACTING: TaskKind = "a change is asked for"
NOT_ACTING: TaskKind = "no change, or only in some sessions"
NOT_RECORDED = "no good recording"
"""The group of held-out tasks that cannot be replayed, whatever their kind. Lakes store it."""


class UndecidedKind(StrEnum):
    """Kinds of first turns that no recording settles. Lakes store these values.

    Two models count as equally good at a task if both deviate by a turn of the same kind and text.
    """

    READ_NOT_RECORDED = "look-up not recorded"
    UNKNOWN_TOOL = "unknown tool"
    WRITE_NOT_RECORDED = "write not recorded"
    NO_REPLY = "answer without a recorded reply"
    NO_GOOD_RECORDING = "no good recording"
    QUESTION = "question that no session asks"
    REPEATED_CALL = "repeated call"
    NO_LOOK_UP = "write without its look-up"
    OTHER_ANSWER = "other last answer"
    LIKE_BAD = "like a bad session, too"


_DESCRIPTIONS: dict[str, str] = {
    ACTING: "tasks that ask for a change",
    NOT_ACTING: "tasks that ask for no change, or only in some sessions",
    UndecidedKind.NO_REPLY: "answer to which no recorded user replied",
    UndecidedKind.QUESTION: "question that no recorded session asks",
    UndecidedKind.NO_LOOK_UP: "write without the look-up that good sessions make first",
    UndecidedKind.LIKE_BAD: "similar to a bad session, too",
}


def describe_kind(kind: str) -> str:
    """Return a kind in words. A kind that needs no other words, or is unknown, stays as it is."""
    return _DESCRIPTIONS.get(kind, kind)
