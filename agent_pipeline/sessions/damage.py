"""The kinds of damage that a record may have, and the policy that says what is done about each."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean

Action = Literal["drop_session", "drop_turn", "repair", "keep"]


class Kind(NamedTuple):
    """A kind of damage: what is done without a setting, what else may be, and what it is."""

    default: Action
    allowed: tuple[Action, ...]
    meaning: str


_ANY: tuple[Action, ...] = ("drop_session", "drop_turn", "repair", "keep")
_NOT_KEPT: tuple[Action, ...] = ("drop_session", "drop_turn", "repair")
_LOST: tuple[Action, ...] = ("drop_session", "keep")

KINDS: dict[str, Kind] = {
    "invalid_item": Kind(
        "drop_session",
        _LOST,
        "an item that could not be read, or a message or call that is none; it is lost",
    ),
    "unread": Kind(
        "drop_session",
        _LOST,
        "something that shows a call, a result or words, but that the reader does not understand; `skipped` counts its types",
    ),
    "torn_record": Kind(
        "drop_session",
        _LOST,
        "a record of the session that was only half written; what it said is lost",
    ),
    "cut_text": Kind(
        "drop_session",
        _LOST,
        "a text that a logger or an exporter cut off or blacked out; the agent saw the whole",
    ),
    "missing_media": Kind(
        "drop_session",
        _LOST,
        "a picture or a file before an answer; a mark such as [image] stands in its place, and keep trains on that",
    ),
    "cut_message": Kind(
        "repair",
        ("drop_session", "repair"),
        "an assistant's message that a token limit, a filter or the user cut off; repair gives it weight 0",
    ),
    "invalid_context": Kind(
        "drop_session",
        _LOST,
        "a context that could not be read; it may have named the task, and so the split",
    ),
    "invalid_arguments": Kind(
        "drop_session",
        _ANY,
        "arguments that are no JSON object; repair takes the call and its result out",
    ),
    "orphan_output": Kind("drop_session", _NOT_KEPT, "a result without a call; it is left out"),
    "mismatched_call_id": Kind(
        "drop_session",
        _NOT_KEPT,
        "a result that names no open call; it is put to the oldest one, a guess",
    ),
    "invalid_tools": Kind("keep", _LOST, "a tool schema that is none; it is lost"),
    "empty_call_id": Kind(
        "repair",
        _NOT_KEPT,
        "a call or a result without an id; paired by position, and the call given an id",
    ),
    "reused_call_id": Kind(
        "repair",
        _NOT_KEPT,
        "an id that an earlier call has; the later call is given one of its own",
    ),
    "double_encoded_arguments": Kind(
        "repair", _NOT_KEPT, "arguments that are JSON inside a JSON string; decoded"
    ),
    "invalid_unicode": Kind(
        "repair", _NOT_KEPT, "half a character, which no UTF-8 can hold; replaced by U+FFFD"
    ),
    "empty_message": Kind("repair", _ANY, "a message without text and calls; repair leaves it out"),
    "duplicated_history": Kind(
        "repair",
        ("drop_session", "repair", "keep"),
        "messages that stand twice, the history's beginning or a block of calls; repair keeps one",
    ),
    "call_said_twice": Kind(
        "repair",
        ("drop_session", "repair", "keep"),
        "the raw text of a call beside the same call; repair takes the text out, with the code fence around it",
    ),
    "trailing_user": Kind("keep", _ANY, "the session ends on user messages; repair cuts them off"),
    "trailing_tool": Kind(
        "keep",
        _ANY,
        "the session ends on a tool's result; repair cuts the calls and results at the end off",
    ),
    "unanswered_call": Kind("drop_session", _ANY, "a call without a result; repair takes it out"),
}
"""The kinds in the order in which the first one that drops the session is named. What is certain is repaired; what would be a guess
drops the session."""

Policy = Mapping[str, Action]
DEFAULT_POLICY: dict[str, Action] = {kind: each.default for kind, each in KINDS.items()}


def repair_policy(actions: Mapping[str, str]) -> dict[str, Action]:
    """The defaults with some kinds' actions changed.

    Raises:
        SettingsError: there is no such kind, or such a kind cannot be treated so.
    """
    policy = dict(DEFAULT_POLICY)
    for kind, action in actions.items():
        if kind not in KINDS:
            raise SettingsError(f"repair has no kind {kind!r}{did_you_mean(kind, KINDS)}")
        chosen = next((each for each in KINDS[kind].allowed if each == action), None)
        if chosen is None:
            raise SettingsError(
                f"repair cannot treat {kind} by {action!r}: choose one of {', '.join(KINDS[kind].allowed)}."
            )
        policy[kind] = chosen
    return policy


def broken_by(damage: Mapping[str, int], policy: Policy = DEFAULT_POLICY) -> str | None:
    """The first kind of a session's damage that drops it; `None` where none does."""
    return next(
        (kind for kind in KINDS if damage.get(kind) and policy[kind] == "drop_session"), None
    )
