"""The values that lakes, ledgers and Dagster's history hold, compared with a frozen copy.

Code compares stored values with `==`, so another wording of a value is a silent data error. An
example: the kind of a task got another wording, and the episodes of all agents with that kind were
out of force after the upgrade.
"""

from collections.abc import Iterable
from typing import get_args, get_type_hints

import pytest

from agent_pipeline.datasets.formats import NO_FORM_REASONS
from agent_pipeline.datasets.preferences import _REASONS_FOR_NO_PAIR
from agent_pipeline.datasets.requests import RequestChange
from agent_pipeline.datasets.splits import Split
from agent_pipeline.evaluation import tool_effects
from agent_pipeline.evaluation.episodes import PLAYED, EpisodeEnd
from agent_pipeline.evaluation.stored_kinds import (
    ACTING,
    NOT_ACTING,
    NOT_RECORDED,
    TaskKind,
    UndecidedKind,
)
from agent_pipeline.evaluation.variants import GENERAL_VARIANTS
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.gateway.turn_checks import ObjectionKind
from agent_pipeline.judging.decisions import DropReason, SessionUse
from agent_pipeline.judging.llm_client import REFUSED, UNPARSABLE
from agent_pipeline.judging.llm_judge import TOO_LONG
from agent_pipeline.judging.verdict_policy import JudgeName, VerdictSource
from agent_pipeline.promotion.decision import SUSPECTED_HARM, Outcome, ReasonKind
from agent_pipeline.promotion.decision_wording import LESS_IS_BETTER
from agent_pipeline.promotion.production import Rival
from agent_pipeline.promotion.production_sessions import Server
from agent_pipeline.promotion.rules import TASKS_DONE, VARIANT_PREFIX
from agent_pipeline.promotion.sanity_groups import SANITY_PREFIX
from agent_pipeline.readiness.report import BlockerKind, VerdictOrigin
from agent_pipeline.selection.buffer import BufferChange
from agent_pipeline.selection.duplicates import DuplicateKind
from agent_pipeline.selection.pool import Reason
from agent_pipeline.sessions.damage import DAMAGE_KINDS, RepairAction
from agent_pipeline.sessions.session import ToolsOrigin
from agent_pipeline.sessions.turn_class import TurnClass
from agent_pipeline.tokenization.encoding import DropReason as RowDropReason
from agent_pipeline.tokenization.loss_masks import MaskDefect

VALUES: dict[str, Iterable[str]] = {
    "kinds of tasks": [*get_args(TaskKind), NOT_RECORDED],
    "kinds of undecided episodes": UndecidedKind,
    "reasons of a tool's effect": [
        tool_effects.CHANGED_READ,
        tool_effects.READ_NAME,
        tool_effects.READ_DESCRIPTION,
        tool_effects.UNKNOWN,
        tool_effects.DECLARED,
    ],
    "ends of episodes": get_args(EpisodeEnd),
    "variants": GENERAL_VARIANTS,
    "names of worlds and ids": [REPLAYED, PLAYED],
    "outcomes of decisions": get_args(Outcome),
    "reasons of decisions": ReasonKind,
    "figures of decisions": [
        *TASKS_DONE,
        *sorted(LESS_IS_BETTER),
        SUSPECTED_HARM,
        VARIANT_PREFIX,
        SANITY_PREFIX,
    ],
    "servers of sessions": [*get_args(Server), *get_args(Rival)],
    "damage of sessions": [*DAMAGE_KINDS, *get_args(RepairAction)],
    "classes of turns": get_args(TurnClass),
    "origins of tools": get_args(ToolsOrigin),
    "judges": [*get_args(JudgeName), *get_args(VerdictSource), *get_args(VerdictOrigin)],
    "outcomes of questions to the judge": [TOO_LONG, REFUSED, UNPARSABLE],
    "uses of sessions": [*SessionUse, *DropReason],
    "splits": get_args(Split),
    "reasons for no pair": _REASONS_FOR_NO_PAIR,
    "reasons for no row of a form": NO_FORM_REASONS,
    "reasons of the coreset": [*Reason, *get_args(DuplicateKind)],
    "changes of the replay buffer": BufferChange,
    "rows that training leaves out": [*get_args(RowDropReason), *get_args(MaskDefect)],
    "changes of requests": get_args(get_type_hints(RequestChange)["kind"]),
    "blockers": get_args(BlockerKind),
    "objections of the gateway": get_args(ObjectionKind),
}
FROZEN: dict[str, list[str]] = {
    "kinds of tasks": [
        "a change is asked for",
        "no change, or only in some sessions",
        "no good recording",
    ],
    "kinds of undecided episodes": [
        "look-up not recorded",
        "unknown tool",
        "write not recorded",
        "answer without a recorded reply",
        "no good recording",
        "question that no session asks",
        "repeated call",
        "write without its look-up",
        "other last answer",
        "like a bad session, too",
    ],
    "reasons of a tool's effect": [
        "an equal look-up had another result after it",
        "its name says that it looks something up",
        "its description says that it looks something up",
        "nothing shows that it only reads",
        "by the setting reads",
    ],
    "ends of episodes": [
        "answered",
        "silent",
        "unread call",
        "too many turns",
        "too long",
        "cut off",
        "refused",
        "undecided",
    ],
    "variants": ["tool_order", "unused_tool", "renamed_tool"],
    "names of worlds and ids": ["replayed", "played-"],
    "outcomes of decisions": ["promote", "hold", "reject", "cannot decide", "keep", "roll back"],
    "reasons of decisions": [
        "gain",
        "no gain",
        "worse",
        "same answers",
        "too few tasks",
        "separation",
        "guard",
        "within chance",
        "not a number",
        "harm",
        "harm beside the base",
        "unseen harm",
        "hidden harm",
        "hidden harm beside the rival",
        "no task done",
        "base",
        "held",
        "turned",
        "confirmed",
        "not confirmed",
        "too few newer tasks",
        "contradicted",
        "not contradicted",
        "worse in production",
        "no world",
        "harm not measured",
        "tasks not played",
        "unverified",
        "unverified held-out tasks",
        "harm in a variant",
        "hidden harm in a variant",
        "fewer tasks in a variant",
        "undecided from logs",
    ],
    "figures of decisions": [
        "tasks done",
        "done where it must act",
        "done where it must not act",
        "harm",
        "loss",
        "over-call",
        "suspected harm",
        "harm in the variant ",
        "canary: ",
    ],
    "servers of sessions": [
        "champion",
        "previous champion",
        "agent",
        "other",
        "agent",
        "previous champion",
    ],
    "damage of sessions": [
        "invalid_item",
        "unread",
        "torn_record",
        "cut_text",
        "missing_media",
        "several_speakers",
        "cut_message",
        "invalid_context",
        "invalid_arguments",
        "orphan_output",
        "mismatched_call_id",
        "invalid_tools",
        "empty_call_id",
        "reused_call_id",
        "double_encoded_arguments",
        "invalid_unicode",
        "empty_message",
        "duplicated_history",
        "call_said_twice",
        "trailing_user",
        "trailing_tool",
        "unanswered_call",
        "drop_session",
        "drop_turn",
        "repair",
        "keep",
    ],
    "classes of turns": ["call", "ask", "cannot", "answer"],
    "origins of tools": ["none", "source", "settings", "inferred"],
    "judges": [
        "label",
        "judgment",
        "score",
        "metrics",
        "measures",
        "llm",
        "label",
        "judgment",
        "score",
        "metrics",
        "measures",
        "llm",
        "checked_measures",
        "policy",
        "unverified",
        "person",
        "benchmark",
        "store",
        "score",
        "metrics",
        "model",
        "policy",
        "nobody",
    ],
    "outcomes of questions to the judge": [
        "the session is too long to ask about",
        "the endpoint refused the request",
        "the answer could not be parsed",
    ],
    "uses of sessions": [
        "positive",
        "negative",
        "neither",
        "archived",
        "empty",
        "broken",
        "infrastructure_error",
        "attack_succeeded",
        "verdict_leak",
        "too_long",
        "served_model",
        "unjudged",
        "unacceptable",
        "precondition",
        "measure",
        "unmeasured",
        "duplicate",
        "continued",
        "begins_badly",
        "max_sessions",
    ],
    "splits": ["train", "select", "test"],
    "reasons for no pair": [
        "no_negative_of_the_task",
        "no_positive_of_the_task",
        "no_partner_with_the_same_prompt",
        "left_out_as_infrastructure_error",
        "left_out_as_attack_succeeded",
        "not_better_by_the_margin",
        "equal_answers",
        "one_is_a_beginning_of_the_other",
        "a_user_or_tool_differs_first",
        "no_common_request",
        "a_turn_is_not_to_be_trained",
    ],
    "reasons for no row of a form": [
        "rows_without_an_answer",
        "rows_with_a_name_that_openai_refuses",
    ],
    "reasons of the coreset": [
        "all_fit",
        "drawn",
        "cluster_centre",
        "typical",
        "high_loss",
        "farthest",
        "exact_duplicate",
        "near_duplicate",
        "crowded_cluster",
        "common_phrase",
        "crowded_task",
        "crowded_source",
        "crowded_day",
        "same_embedding",
        "outlier",
        "no_loss",
        "not_picked",
        "exact",
        "near",
    ],
    "changes of the replay buffer": [
        "new",
        "of earlier nights",
        "of earlier nights, gone from the store",
        "removed: no longer a training row",
        "removed: other rows have lower hashes",
        "removed: held out",
        "removed: judged bad under another id",
    ],
    "rows that training leaves out": [
        "too_long",
        "no_source",
        "not_rendered",
        "not_shown",
        "not_proven",
        "nothing_trained",
        "other_turn_trained",
        "no_stop_token",
        "tool_result_trained",
        "other_words",
        "other_calls",
        "trained_after_end",
    ],
    "changes of requests": ["system prompt", "tool added", "tool removed", "parameters", "wording"],
    "blockers": [
        "no_sessions",
        "no_agent",
        "no_request",
        "unread_metrics",
        "unjudged",
        "all_bad",
        "all_dropped",
        "leaks",
        "overlap",
        "split",
        "length",
    ],
    "objections of the gateway": [
        "cut_off",
        "no_answer",
        "unreadable_call",
        "write",
        "unsure_write",
        "precondition",
        "champion_moved",
        "no_rules",
        "check_failed",
    ],
}


@pytest.mark.parametrize("vocabulary", VALUES)
def test_frozen(vocabulary: str) -> None:
    """A stored value never changes. Word it in a description that is shown, such as `describe_kind`.

    If a value is new, add it to `FROZEN`. If a value has to change, the version of its artifact
    has to change too, and readers have to know both values.
    """
    assert list(VALUES[vocabulary]) == FROZEN[vocabulary]


def test_task_kinds() -> None:
    """The constants are the kinds, because code uses the constants and types use the kinds."""
    assert get_args(TaskKind) == (ACTING, NOT_ACTING)
