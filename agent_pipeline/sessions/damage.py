"""The kinds of damage that a record may have, and the policy that says what is done about each."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean

RepairAction = Literal["drop_session", "drop_turn", "repair", "keep"]


class DamageKind(NamedTuple):
    """A kind of damage: what is done without a setting, what else may be, and what it is."""

    default: RepairAction
    allowed: tuple[RepairAction, ...]
    meaning: str


_ANY: tuple[RepairAction, ...] = ("drop_session", "drop_turn", "repair", "keep")
_NOT_KEPT: tuple[RepairAction, ...] = ("drop_session", "drop_turn", "repair")
_LOST: tuple[RepairAction, ...] = ("drop_session", "keep")

DAMAGE_KINDS: dict[str, DamageKind] = {
    "invalid_item": DamageKind(
        "drop_session",
        _LOST,
        "an item that could not be read, or a message or call that is none; it is lost",
    ),
    "unread": DamageKind(
        "drop_session",
        _LOST,
        "something that shows a call, a result or words, but that the reader does not understand; `skipped` counts its types",
    ),
    "torn_record": DamageKind(
        "drop_session",
        _LOST,
        "a record of the session that was only half written; what it said is lost",
    ),
    "cut_text": DamageKind(
        "drop_session",
        _LOST,
        "a text that a logger or an exporter cut off or blacked out; the agent saw the whole",
    ),
    "missing_media": DamageKind(
        "drop_session",
        _LOST,
        "a picture or a file before an answer; a mark such as [image] stands in its place, and keep trains on that",
    ),
    "cut_message": DamageKind(
        "repair",
        ("drop_session", "repair"),
        "an assistant's message that a token limit, a filter or the user cut off; repair gives it weight 0",
    ),
    "invalid_context": DamageKind(
        "drop_session",
        _LOST,
        "a context that could not be read; it may have named the task, and so the split",
    ),
    "invalid_arguments": DamageKind(
        "drop_session",
        _ANY,
        "arguments that are no JSON object; repair takes the call and its result out",
    ),
    "orphan_output": DamageKind(
        "drop_session", _NOT_KEPT, "a result without a call; it is left out"
    ),
    "mismatched_call_id": DamageKind(
        "drop_session",
        _NOT_KEPT,
        "a result that names no open call; it is put to the oldest one, a guess",
    ),
    "invalid_tools": DamageKind("keep", _LOST, "a tool schema that is none; it is lost"),
    "empty_call_id": DamageKind(
        "repair",
        _NOT_KEPT,
        "a call or a result without an id; paired by position, and the call given an id",
    ),
    "reused_call_id": DamageKind(
        "repair",
        _NOT_KEPT,
        "an id that an earlier call has; the later call is given one of its own",
    ),
    "double_encoded_arguments": DamageKind(
        "repair", _NOT_KEPT, "arguments that are JSON inside a JSON string; decoded"
    ),
    "invalid_unicode": DamageKind(
        "repair", _NOT_KEPT, "half a character, which no UTF-8 can hold; replaced by U+FFFD"
    ),
    "empty_message": DamageKind(
        "repair", _ANY, "a message without text and calls; repair leaves it out"
    ),
    "duplicated_history": DamageKind(
        "repair",
        ("drop_session", "repair", "keep"),
        "messages that stand twice, the history's beginning or a block of calls; repair keeps one",
    ),
    "call_said_twice": DamageKind(
        "repair",
        ("drop_session", "repair", "keep"),
        "the raw text of a call beside the same call; repair takes the text out, with the code fence around it",
    ),
    "trailing_user": DamageKind(
        "keep", _ANY, "the session ends on user messages; repair cuts them off"
    ),
    "trailing_tool": DamageKind(
        "keep",
        _ANY,
        "the session ends on a tool's result; repair cuts the calls and results at the end off",
    ),
    "unanswered_call": DamageKind(
        "drop_session", _ANY, "a call without a result; repair takes it out"
    ),
}
"""The kinds in the order in which the first one that drops the session is named. What is certain is repaired; what would be a guess
drops the session."""

RepairPolicy = Mapping[str, RepairAction]
DEFAULT_REPAIR_POLICY: dict[str, RepairAction] = {
    kind: each.default for kind, each in DAMAGE_KINDS.items()
}


def make_repair_policy(actions: Mapping[str, str]) -> dict[str, RepairAction]:
    """The defaults with some kinds' actions changed.

    Raises:
        SettingsError: there is no such kind, or such a kind cannot be treated so.
    """
    policy = dict(DEFAULT_REPAIR_POLICY)
    for kind, action in actions.items():
        if kind not in DAMAGE_KINDS:
            raise SettingsError(f"repair has no kind {kind!r}{did_you_mean(kind, DAMAGE_KINDS)}")
        chosen = next((each for each in DAMAGE_KINDS[kind].allowed if each == action), None)
        if chosen is None:
            raise SettingsError(
                f"repair cannot treat {kind} by {action!r}: choose one of {', '.join(DAMAGE_KINDS[kind].allowed)}."
            )
        policy[kind] = chosen
    return policy


def find_breaking_kind(
    damage: Mapping[str, int], policy: RepairPolicy = DEFAULT_REPAIR_POLICY
) -> str | None:
    """The first kind of a session's damage that drops it; `None` where none does."""
    return next(
        (kind for kind in DAMAGE_KINDS if damage.get(kind) and policy[kind] == "drop_session"), None
    )
