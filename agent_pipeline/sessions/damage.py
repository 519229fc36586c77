"""Kinds of damage that a session can have, and the policy that decides how each kind is treated.

The list of kinds and the policy belong here. `repair` finds the damage and applies the policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean

RepairAction = Literal["drop_session", "drop_turn", "repair", "keep"]
RepairPolicy = Mapping[str, RepairAction]
"""Mapping from each kind of damage to the action that is taken if it occurs."""


@dataclass(frozen=True)
class DamageKind:
    """A kind of damage that a session can have.

    Attributes:
        default: The action if no setting changes it. The default is a repair if the repair is
            certain. If a repair would be a guess, the default drops the session.
        allowed: The actions that a setting may choose.
        meaning: What is wrong with the record, for the documentation.
    """

    default: RepairAction
    allowed: tuple[RepairAction, ...]
    meaning: str


_ANY: tuple[RepairAction, ...] = ("drop_session", "drop_turn", "repair", "keep")
_NOT_KEPT: tuple[RepairAction, ...] = ("drop_session", "drop_turn", "repair")
_NO_TURN: tuple[RepairAction, ...] = ("drop_session", "repair", "keep")
_LOST: tuple[RepairAction, ...] = ("drop_session", "keep")

DAMAGE_KINDS: dict[str, DamageKind] = {
    "invalid_item": DamageKind(
        "drop_session",
        _LOST,
        "an item that could not be read, or an item that is neither a message nor a call; its "
        "content is lost",
    ),
    "unread": DamageKind(
        "drop_session",
        _LOST,
        "a part that the reader does not understand, with text, a call or a result; `skipped` "
        "counts such parts by type",
    ),
    "torn_record": DamageKind(
        "drop_session",
        _LOST,
        "an incomplete record of the session; the content of the record is lost",
    ),
    "cut_text": DamageKind(
        "drop_session",
        _LOST,
        "a text that a logger or an exporter cut off or hid, although the agent saw the whole text",
    ),
    "missing_media": DamageKind(
        "drop_session",
        _LOST,
        "a picture or a file before an answer; only a mark such as [image] is left, and `keep` "
        "trains on the mark",
    ),
    "several_speakers": DamageKind(
        "drop_session",
        _LOST,
        "messages of several users, or answers of several agents, which have different names in "
        "the record; a row has no names, and `keep` trains on all answers as those of one agent",
    ),
    "cut_message": DamageKind(
        "repair",
        ("drop_session", "repair"),
        "a message of the assistant that a token limit, a filter or the user cut off; repair "
        "gives the message weight 0, so the model is not trained on it",
    ),
    "invalid_context": DamageKind(
        "drop_session",
        _LOST,
        "a context that could not be read; the context may have named the task, and the task "
        "decides the split",
    ),
    "invalid_arguments": DamageKind(
        "drop_session",
        _ANY,
        "arguments that are not a JSON object; repair removes the call and its result",
    ),
    "orphan_output": DamageKind(
        "drop_session",
        _NOT_KEPT,
        "a result without a call; every action removes the result",
    ),
    "mismatched_call_id": DamageKind(
        "drop_session",
        _NOT_KEPT,
        "a result whose id or tool matches no open call; the result goes to the oldest open call, "
        "which is a guess",
    ),
    "invalid_tools": DamageKind(
        "keep",
        _LOST,
        "a tool schema that is not valid; the schema is lost",
    ),
    "empty_call_id": DamageKind(
        "repair",
        _NOT_KEPT,
        "a call or a result without an id; the call and the result are matched by the name of the "
        "tool or by position, and the call gets an id",
    ),
    "reused_call_id": DamageKind(
        "repair",
        _NOT_KEPT,
        "an id that an earlier call already has; repair gives the later call a new id",
    ),
    "double_encoded_arguments": DamageKind(
        "repair",
        _NOT_KEPT,
        "arguments that are JSON inside a JSON string; repair decodes the arguments",
    ),
    "invalid_unicode": DamageKind(
        "repair",
        _NOT_KEPT,
        "half a character, which UTF-8 cannot store; repair replaces the half character with "
        "U+FFFD",
    ),
    "empty_message": DamageKind(
        "repair",
        _ANY,
        "a message without text and calls; repair removes the message",
    ),
    "duplicated_history": DamageKind(
        "repair",
        _NO_TURN,
        "messages that are recorded twice (the beginning of the history, or a block of calls); "
        "repair keeps one copy",
    ),
    "call_said_twice": DamageKind(
        "repair",
        _NO_TURN,
        "a call that is recorded twice, as a call and as raw text; repair removes the text and "
        "the code fence around it",
    ),
    "trailing_user": DamageKind(
        "keep",
        _ANY,
        "user messages at the end of the session; repair removes them",
    ),
    "trailing_tool": DamageKind(
        "keep",
        _ANY,
        "tool results at the end of the session; repair removes these results and their calls",
    ),
    "unanswered_call": DamageKind(
        "drop_session", _ANY, "a call without a result; repair removes the call"
    ),
}
"""All kinds of damage, by their name.

If several kinds drop a session, the first of them in this order is named as the reason.
"""

DEFAULT_REPAIR_POLICY: dict[str, RepairAction] = {
    name: kind.default for name, kind in DAMAGE_KINDS.items()
}


class RepairPolicyError(SettingsError):
    """Raised if a setting of the repair policy does not exist or is not allowed.

    Attributes:
        kind: The kind of damage in the setting.
        action: The action in the setting.
        allowed: The actions that the kind allows; empty if the kind does not exist.
    """

    def __init__(self, kind: str, action: str) -> None:
        self.kind, self.action = kind, action
        self.allowed = DAMAGE_KINDS[kind].allowed if kind in DAMAGE_KINDS else ()
        if self.allowed:
            choices = ", ".join(self.allowed)
            message = (
                f"The setting `repair` cannot treat {kind} by {action!r}: choose one of {choices}."
            )
        else:
            message = f"The setting `repair` has no kind {kind!r}{did_you_mean(kind, DAMAGE_KINDS)}"
        super().__init__(message, setting="repair")


def make_repair_policy(actions: Mapping[str, str]) -> dict[str, RepairAction]:
    """Return the default repair policy with changed actions for some kinds of damage.

    Raises:
        RepairPolicyError: A kind does not exist, or does not allow its action.
    """
    policy = dict(DEFAULT_REPAIR_POLICY)
    for name, action in actions.items():
        allowed = DAMAGE_KINDS[name].allowed if name in DAMAGE_KINDS else ()
        if action not in allowed:
            raise RepairPolicyError(name, action)
        policy[name] = allowed[allowed.index(action)]
    return policy


def find_breaking_kind(
    damage: Mapping[str, int], policy: RepairPolicy = DEFAULT_REPAIR_POLICY
) -> str | None:
    """Return the first kind of damage because of which a session is dropped, or None."""
    for name in DAMAGE_KINDS:
        if damage.get(name) and policy[name] == "drop_session":
            return name
    return None
