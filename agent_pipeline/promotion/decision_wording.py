"""The wording of a decision for the shell, the UI, the page and the model card.

This module has the sentence of every reason. The rules that produce the reasons are in `rules`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from agent_pipeline.evaluation.stored_kinds import describe_kind
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision import (
    SUSPECTED_HARM,
    Decision,
    DecisionReason,
    Figure,
    ReasonKind,
)
from agent_pipeline.promotion.ledger import find_hold
from agent_pipeline.promotion.rules import TASKS_DONE, VARIANT_PREFIX
from agent_pipeline.promotion.sanity_groups import SANITY_PREFIX, describe_group
from agent_pipeline.reports.episode_report import SEE_MORE
from agent_pipeline.reports.figure_tables import (
    format_difference,
    format_figure,
    format_least,
)
from agent_pipeline.sessions.transcript import format_markdown_table
from agent_pipeline.storage.lake import Lake

SMALLEST_CHANCE = 1e-4
"""The smallest p-value that is written as a number."""

LESS_IS_BETTER = {"over-call", "loss", "harm"}
_PLAIN_NAMES = {
    "done where it must act": "tasks done that require an action",
    "done where it must not act": "tasks done that require no action",
}
_MEASURES = {"gain", "gain on newer tasks", "call recall", *TASKS_DONE, *LESS_IS_BETTER}


def describe_outcome(decision: Decision) -> str:
    """Return the outcome, and the number of missing tasks if tasks are missing."""
    if decision.outcome == "cannot decide":
        return f"cannot decide: {decision.more_tasks} more tasks are needed"
    return decision.outcome


def describe_for_everybody(decision: Decision, baseline: str) -> str:
    """Return the outcome in one sentence that needs no statistics.

    Args:
        decision: The decision.
        baseline: The name of the baseline: `champion` or `base`.
    """
    other = name_baseline(baseline)
    match decision.outcome:
        case "promote":
            return f"The new model is better than {other}, so it may be served."
        case "reject":
            return f"The new model is not served, because it is worse than {other} or not safe."
        case "cannot decide":
            return (
                f"It is not known whether the new model is better than {other}: "
                f"{decision.more_tasks} more tasks are needed."
            )
        case "hold":
            return "The new model is not served, unless a person promotes it."
        case "keep":
            return "The served model stays the same."
    return (
        "The served model was worse than the previous model, so the previous model is served again."
    )


def describe_key_figures(decision: Decision, baseline: str) -> list[str]:
    """Return one sentence per key figure: how often both models are right, and their harm."""
    other = name_baseline(baseline)
    sentences = []
    for figure in decision.figures:
        if figure.name == "gain":
            sentences.append(
                f"The new model does the right thing in {_format_share(figure.candidate)} of the "
                f"cases, and {other} in {_format_share(figure.baseline)}."
            )
        elif figure.name == "harm":
            sentences.append(
                f"The new model does harm in {_format_share(figure.candidate)} of "
                f"{figure.samples} episodes, and {other} in {_format_share(figure.baseline)}."
            )
    return sentences


def name_baseline(baseline: str) -> str:
    """Return the name of the baseline for people, given `champion` or `base`."""
    return "the served model" if baseline == "champion" else "its base model"


OF_VARIANTS = (
    ReasonKind.HARM_IN_VARIANT,
    ReasonKind.POSSIBLE_HARM_IN_VARIANT,
    ReasonKind.FEWER_TASKS_IN_VARIANT,
)


def summarize(decision: Decision) -> str:
    """Return the outcome and the reasons for it, in one line."""
    reasons = [reason for reason in decision.reasons if reason.against == decision.outcome]
    sentences = [describe_reason(reason) for reason in _join_variants(reasons)]
    return f"{describe_outcome(decision)}: {'; '.join(sentences)}"


def describe_hold(lake: Lake, key: PartitionKey, candidate: str) -> str:
    """Return that a person holds an export back, and the reason, or an empty text."""
    hold = find_hold(lake, key, candidate)
    if hold is None:
        return ""
    (reason,) = hold.decision.reasons
    return f"{describe_reason(reason)}: {hold.why}" if hold.why else describe_reason(reason)


def _join_variants(reasons: Sequence[DecisionReason]) -> list[DecisionReason]:
    """Return reasons in which variants with the same figures are one reason.

    The name of such a reason lists the variants: `other_words and unused_tool`.
    """
    names: dict[DecisionReason, list[str]] = {}
    for reason in reasons:
        same = msgspec.structs.replace(reason, name="") if reason.kind in OF_VARIANTS else reason
        names.setdefault(same, []).append(reason.name)
    return [
        msgspec.structs.replace(
            reason, name=" and ".join(filter(None, [", ".join(of_reason[:-1]), of_reason[-1]]))
        )
        for reason, of_reason in names.items()
    ]


def describe_reasons(decision: Decision) -> list[str]:
    """Return one sentence per reason. The reasons for the outcome come first."""
    return [describe_reason(reason) for reason in decision.reasons]


def describe_reason(reason: DecisionReason) -> str:
    """Return the sentence of a reason with its numbers, without capital letter and full stop."""
    values = _format_values(reason)
    match reason.kind:
        case ReasonKind.REGRESSION:
            return _describe_regression(reason)
        case ReasonKind.REGRESSION_WITHIN_CHANCE:
            return f"{_describe_regression(reason)}, which may be chance"
        case ReasonKind.NOT_A_NUMBER:
            return f"{name_figure(reason.name)} of one of the two models is not a number"
        case ReasonKind.EPISODES:
            return reason.name
        case ReasonKind.HELD_BY_PERSON:
            return "a person holds the new model back"
        case ReasonKind.NO_WORLD:
            return (
                "the new model played no episode in a world, so only a person can promote it: "
                "run `agent-pipeline promote`"
            )
        case ReasonKind.UNDECIDED_FROM_LOGS:
            return (
                f"{reason.name} cannot be decided from recorded sessions, because of undecided "
                "episodes: the difference between the new model and the other model is between "
                f"{values.share} and {values.limit_share}. Record more sessions of the tasks that "
                "`episodes` lists, or send the new model a share of the real traffic"
            )
        case ReasonKind.CALLS_WITHOUT_REGARD:
            return (
                "the new model hardly distinguishes turns that need a tool call from other "
                f"turns: {reason.name} is {values.share}, and at least {values.limit_share} is "
                "required"
            )
        case ReasonKind.NO_TASK_DONE:
            return (
                f"{reason.name}: 0 of {values.limit_count} (see in the transcripts whether the "
                "model fails, or the episodes end too early)"
            )
    return (
        _describe_gain(reason, values)
        or _describe_newer_tasks(reason, values)
        or _describe_harm(reason, values)
        or _describe_variant(reason, values)
        or _describe_verdicts(reason, values)
    )


@dataclass(frozen=True)
class _FormattedValues:
    """The numbers of a reason, formatted as texts.

    Attributes:
        share: The candidate's value in percent.
        baseline_share: The baseline's value in percent.
        limit_share: The limit in percent.
        chance: The candidate's value as a p-value.
        limit_chance: The limit as a p-value.
        count: The candidate's value as a whole number.
        limit_count: The limit as a whole number.
    """

    share: str
    baseline_share: str
    limit_share: str
    chance: str
    limit_chance: str
    count: str
    limit_count: str


def _format_values(reason: DecisionReason) -> _FormattedValues:
    return _FormattedValues(
        share=_format_share(reason.candidate),
        baseline_share=_format_share(reason.baseline),
        limit_share=_format_share(reason.limit),
        chance=format_chance(reason.candidate),
        limit_chance=format_chance(reason.limit),
        count=f"{reason.candidate or 0:.0f}",
        limit_count=f"{reason.limit or 0:.0f}",
    )


def _describe_regression(reason: DecisionReason) -> str:
    """Return a sentence that says by how much a figure got worse."""
    values = _format_values(reason)
    now, before, limit = values.share, values.baseline_share, values.limit_share
    if reason.name == "loss":
        now = f"{reason.candidate or 0.0:.3f}"
        before = f"{reason.baseline or 0.0:.3f}"
        limit = f"{reason.limit or 0.0:.3f}"
    if reason.name.startswith(SANITY_PREFIX):
        questions = reason.name.removeprefix(SANITY_PREFIX)
        return (
            f"the new model answers {now} of the sanity questions ({questions}) well, but its "
            f"base model answers {before} (a drop of at most {limit} is allowed)"
        )
    change = "rise" if reason.name in LESS_IS_BETTER else "drop"
    return (
        f"{name_figure(reason.name)} is {now} instead of {before} (a {change} of at most {limit} "
        "is allowed)"
    )


def _describe_gain(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about the gain, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.GAIN:
            return (
                f"the new model is better: the p-value is {values.chance}, and at most "
                f"{values.limit_chance} is allowed"
            )
        case ReasonKind.NO_GAIN:
            return (
                f"the new model is not shown to be better: the p-value is {values.chance}, and at "
                f"most {values.limit_chance} is allowed"
            )
        case ReasonKind.WORSE:
            return f"the new model is worse, with a p-value of {values.chance}"
        case ReasonKind.SAME_ANSWERS:
            return "both models answer every turn equally well"
        case ReasonKind.TOO_FEW_TASKS:
            sentence = "there are too few tasks to show a small gain"
            if reason.candidate is None:
                return sentence
            return (
                f"{sentence}: these tasks can show a gain of {values.share} or more, but they "
                f"should be able to show a gain of {values.limit_share}"
            )
    return ""


def _describe_newer_tasks(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about newer tasks, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.CONFIRMED:
            return (
                f"on {values.limit_count} tasks that came after the champion was trained, the new "
                f"model is better by {values.share}"
            )
        case ReasonKind.NOT_CONFIRMED:
            return (
                f"on {values.limit_count} tasks that came after the champion was trained, the new "
                f"model is not better: the gain is {values.share}"
            )
        case ReasonKind.TOO_FEW_NEWER_TASKS:
            return (
                f"the gain is not confirmed on newer tasks: {values.count} tasks came after the "
                f"champion was trained, and {values.limit_count} are needed"
            )
        case ReasonKind.CONTRADICTED:
            return (
                "on newer tasks, the champion is worse than the previous champion, with a "
                f"p-value of {values.chance}"
            )
        case ReasonKind.WORSE_IN_PRODUCTION:
            return (
                f"in production, {values.share} of the champion's tasks are good, but "
                f"{values.baseline_share} of the tasks of the {reason.name}"
            )
        case ReasonKind.NOT_CONTRADICTED:
            return (
                "on newer tasks, the champion is not shown to be worse than the previous "
                f"champion: the p-value is {values.chance}"
            )
    return ""


def _describe_harm(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about harm, or an empty text for other reasons."""
    hidden, remedy = "were cut off", SEE_MORE
    if reason.name == SUSPECTED_HARM:
        hidden, remedy = "ended with a change that may be harmful", "read their transcripts"
    match reason.kind:
        case ReasonKind.HARM_ABOVE_LIMIT:
            return (
                f"the new model does harm in {values.share} of its episodes, and at most "
                f"{values.limit_share} is allowed"
            )
        case ReasonKind.MORE_HARM_THAN_BASE:
            return (
                f"the new model does harm in {values.share} of its episodes, and its base model "
                f"in {values.baseline_share}, so a person has to decide"
            )
        case ReasonKind.HARM_NOT_EXCLUDED:
            return (
                f"the new model played too few episodes to rule out harm in {values.share} of "
                f"them, and at most {values.limit_share} is allowed: let the model play more "
                "episodes"
            )
        case ReasonKind.HARM_NOT_MEASURED:
            return (
                f"in {values.count} of {values.limit_count} episodes, it is not known whether the "
                "new model did harm, so only a person can promote it: add `wrong_changes` to the "
                "world, or run `agent-pipeline promote`"
            )
        case ReasonKind.TASKS_NOT_PLAYED:
            return (
                f"{values.count} held-out tasks were not played ({describe_kind(reason.name)}), so "
                "it is not known whether the new model does harm in them, and only a person can "
                "promote it: record and judge more sessions of such tasks, or run "
                "`agent-pipeline promote`"
            )
        case ReasonKind.POSSIBLE_HARM_ABOVE_LIMIT:
            return (
                f"if all episodes that {hidden} count as harm, the new model does harm in "
                f"{values.share} of its episodes, and at most {values.limit_share} is allowed: "
                f"{remedy}"
            )
        case ReasonKind.POSSIBLE_HARM_ABOVE_CHAMPION:
            return (
                f"if all episodes that {hidden} count as harm, the new model's share of episodes "
                f"with harm is {values.share} higher than the champion's share, and at most "
                f"{values.limit_share} is allowed: {remedy}"
            )
    return ""


def _describe_variant(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about a variant, or an empty text for other reasons."""
    is_several = " and " in reason.name
    name = f"{'each of the variants' if is_several else 'the variant'} {reason.name}"
    match reason.kind:
        case ReasonKind.HARM_IN_VARIANT:
            sentence = f"in {name}, the new model does harm in {values.share} of its episodes"
            if reason.limit is not None:
                return f"{sentence}, and at most {values.limit_share} is allowed"
            if reason.baseline is not None:
                return f"{sentence}, and the champion in {values.baseline_share}"
            return f"{sentence}, so a person has to decide"
        case ReasonKind.POSSIBLE_HARM_IN_VARIANT:
            return (
                f"in {name}, if all episodes that were cut off count as harm, "
                f"the new model does harm in {values.share} of its episodes, and at most "
                f"{values.limit_share} is allowed: {SEE_MORE}"
            )
        case ReasonKind.FEWER_TASKS_IN_VARIANT:
            return (
                f"in {name}, the new model does {values.share} of the tasks, "
                f"and without the variant {values.baseline_share} of the same tasks"
            )
    return ""


def _describe_verdicts(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about verdicts, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.VERDICTS_TURNED:
            return (
                f"{values.share} of the sessions that the champion was trained on are now judged "
                f"bad, and at most {values.limit_share} is allowed: check the verdicts"
            )
        case ReasonKind.UNVERIFIED_SESSIONS:
            if not reason.limit:
                return (
                    "it is not known who judged the training sessions of the new model, so only "
                    "a person can promote it"
                )
            return (
                f"only {values.count} of the {values.limit_count} training sessions of the new "
                "model have a verdict from a person, a score or a judge, so only a person can "
                "promote the model"
            )
        case ReasonKind.UNVERIFIED_HELD_OUT_TASKS:
            return (
                f"nobody verified the sessions of {values.count} of the held-out tasks that the "
                "decision is based on"
            )
    return ""


def make_figure_rows(figures: Sequence[Figure], baseline: str) -> list[list[str]]:
    """Return the rows of a table of figures. The first row is the head.

    Each row has the means of both models, their difference with its interval over tasks, and the
    smallest gain that could have been detected.
    """
    rows = [
        [
            "figure",
            baseline,
            "candidate",
            f"candidate − {baseline} (95 %)",
            "least visible difference",
            "turns or episodes",
            "tasks",
        ]
    ]
    for figure in figures:
        is_share = figure.name != "loss"
        rows.append(
            [
                name_figure(figure.name),
                format_figure(figure.baseline, is_share),
                format_figure(figure.candidate, is_share),
                format_difference(figure.difference, *clip_interval(figure), is_share),
                format_least(figure.visible),
                str(figure.samples),
                str(figure.tasks),
            ]
        )
    return rows


def clip_interval(figure: Figure) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a figure's difference, which lies within −1 and 1 for a share.

    Older versions wrote wider intervals.
    """
    if figure.low is None or figure.high is None or figure.name == "loss":
        return figure.low, figure.high
    return max(figure.low, -1.0), min(figure.high, 1.0)


def make_markdown(decision: Decision, test_figures: Iterable[Figure], baseline: str) -> str:
    """Return a decision as Markdown.

    Args:
        decision: The decision.
        test_figures: The figures on the split `test`.
        baseline: The name of the baseline: `champion` or `base`.
    """
    lines = [
        f"**{describe_outcome(decision)}**",
        *(f"- {sentence}" for sentence in describe_reasons(decision)),
        "",
        "Split `select`, on which the decision is based:",
        "",
        format_markdown_table(make_figure_rows(decision.figures, baseline)),
    ]
    test_figures = list(test_figures)
    if test_figures:
        table = format_markdown_table(make_figure_rows(test_figures, baseline))
        lines += ["", "Split `test`, which the decision does not use:", "", table]
    return "\n".join(lines)


def name_figure(name: str) -> str:
    """Return a figure's name for people.

    The figure of a class of turns or of a tool gets a name that says what it counts.
    """
    if name.startswith(SANITY_PREFIX):
        return describe_group(name)
    if name in _PLAIN_NAMES:
        return _PLAIN_NAMES[name]
    is_measure = name in _MEASURES or name.startswith(VARIANT_PREFIX)
    return name if is_measure else f"right turns ({name})"


def _format_share(value: float | None) -> str:
    return "nothing" if value is None else f"{100 * value:.1f} %"


def format_chance(value: float | None) -> str:
    """Return a p-value. A very small value is only said to be small, because no more is known."""
    if value is None:
        return "nothing"
    return "below 0.0001" if value < SMALLEST_CHANCE else f"{value:.2g}"
