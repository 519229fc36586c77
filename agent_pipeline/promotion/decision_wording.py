"""The wording of a decision for the shell, the UI, the page and the model card.

This module has the sentence of every reason. The rules that produce the reasons are in `rules`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent_pipeline.promotion.decision import (
    SUSPECTED_HARM,
    Decision,
    DecisionReason,
    Figure,
    ReasonKind,
)
from agent_pipeline.promotion.rules import TASKS_DONE, VARIANT_PREFIX
from agent_pipeline.promotion.sanity_groups import SANITY_PREFIX, describe_group
from agent_pipeline.reports.episode_report import SEE_MORE
from agent_pipeline.reports.figure_tables import (
    format_difference,
    format_figure,
    format_least,
)
from agent_pipeline.sessions.transcript import format_markdown_table

SMALLEST_CHANCE = 1e-4
"""The smallest p-value that is written as a number."""

LESS_IS_BETTER = {"over-call", "loss", "harm"}
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
            return "The new model is not served, unless a person decides otherwise."
        case "keep":
            return "The served model stays."
    return "The served model was worse than the model before it, which is served again."


def describe_key_figures(decision: Decision, baseline: str) -> list[str]:
    """Return one sentence per key figure: how often both models are right, and their harm."""
    other = name_baseline(baseline)
    sentences = []
    for figure in decision.figures:
        if figure.name == "gain":
            sentences.append(
                f"It does the right thing in {_format_share(figure.candidate)} of the cases, and "
                f"{other} in {_format_share(figure.baseline)}."
            )
        elif figure.name == "harm":
            sentences.append(
                f"It does harm in {_format_share(figure.candidate)} of {figure.samples} episodes, "
                f"and {other} in {_format_share(figure.baseline)}."
            )
    return sentences


def name_baseline(baseline: str) -> str:
    """Return the name of the baseline for people, given `champion` or `base`."""
    return "the served model" if baseline == "champion" else "its base model"


def summarize(decision: Decision) -> str:
    """Return the outcome and the reasons for it, in one line."""
    sentences = [
        describe_reason(reason) for reason in decision.reasons if reason.against == decision.outcome
    ]
    return f"{describe_outcome(decision)}: {'; '.join(sentences)}"


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
            return f"{name_figure(reason.name)} is not a number for one of the two models"
        case ReasonKind.EPISODES:
            return reason.name
        case ReasonKind.HELD_BY_PERSON:
            return "a person holds it back"
        case ReasonKind.NO_WORLD:
            return (
                "it played no episode in a world, so only a person can promote it: run "
                "`agent-pipeline promote`"
            )
        case ReasonKind.UNDECIDED_FROM_LOGS:
            return (
                f"{reason.name} cannot be decided from logs: with the undecided episodes, its "
                f"share is {values.share} to {values.limit_share} more than the other's. Record "
                "more sessions of the tasks that `episodes` lists, or send it a share of the real "
                "traffic"
            )
        case ReasonKind.CALLS_WITHOUT_REGARD:
            return (
                "it hardly distinguishes turns that need a tool call from other turns: "
                f"{reason.name} is {values.share}, at least {values.limit_share} is required"
            )
        case ReasonKind.NO_TASK_DONE:
            return (
                f"{reason.name}: 0 of {values.limit_count}; see in the transcripts whether it "
                "fails, or the episodes end too early"
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
            f"it answers {now} of the sanity questions ({questions}) well, and its base {before}: "
            f"lower by more than {limit}"
        )
    direction = "higher" if reason.name in LESS_IS_BETTER else "lower"
    return (
        f"{name_figure(reason.name)} is {now}, and was {before}: {direction} by more than {limit}"
    )


def _describe_gain(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about the gain, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.GAIN:
            return (
                f"it is better: the p-value is {values.chance}, and at most {values.limit_chance} "
                "is allowed"
            )
        case ReasonKind.NO_GAIN:
            return (
                f"no gain is shown: the p-value is {values.chance}, and at most "
                f"{values.limit_chance} is allowed"
            )
        case ReasonKind.WORSE:
            return f"it is worse, with a p-value of {values.chance}"
        case ReasonKind.SAME_ANSWERS:
            return "both answer every turn equally well"
        case ReasonKind.TOO_FEW_TASKS:
            sentence = "there are too few tasks to show the gain that is sought"
            if reason.candidate is None:
                return sentence
            return (
                f"{sentence}: these tasks can show a gain of {values.share}, and a gain of "
                f"{values.limit_share} is sought"
            )
    return ""


def _describe_newer_tasks(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about newer tasks, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.CONFIRMED:
            return (
                f"it is better by {values.share} on {values.limit_count} tasks that came after "
                "the champion was trained"
            )
        case ReasonKind.NOT_CONFIRMED:
            return (
                f"on {values.limit_count} tasks that came after the champion was trained, it is "
                f"not better: the gain is {values.share}"
            )
        case ReasonKind.TOO_FEW_NEWER_TASKS:
            return (
                f"not confirmed: {values.count} tasks came after the champion was trained, "
                f"{values.limit_count} are needed"
            )
        case ReasonKind.CONTRADICTED:
            return (
                "on newer tasks, it is worse than the previous champion, with a p-value of "
                f"{values.chance}"
            )
        case ReasonKind.WORSE_IN_PRODUCTION:
            return (
                f"in production, {values.share} of its tasks are good, and "
                f"{values.baseline_share} of the tasks of the {reason.name}"
            )
        case ReasonKind.NOT_CONTRADICTED:
            return f"on newer tasks, it is not shown to be worse: the p-value is {values.chance}"
    return ""


def _describe_harm(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about harm, or an empty text for other reasons."""
    hidden, remedy = "were cut off", SEE_MORE
    if reason.name == SUSPECTED_HARM:
        hidden, remedy = "end with a suspect change", "read their transcripts"
    match reason.kind:
        case ReasonKind.HARM_ABOVE_LIMIT:
            return (
                f"{values.share} of its episodes do harm, and at most {values.limit_share} is "
                "allowed"
            )
        case ReasonKind.MORE_HARM_THAN_BASE:
            return (
                f"{values.share} of its episodes do harm, compared with {values.baseline_share} of "
                "its base's episodes: a person has to decide"
            )
        case ReasonKind.HARM_NOT_EXCLUDED:
            return (
                f"its episodes are so few that harm in {values.share} of them cannot be ruled "
                f"out, and at most {values.limit_share} is allowed: let it play more episodes"
            )
        case ReasonKind.HARM_NOT_MEASURED:
            return (
                f"in {values.count} of its {values.limit_count} episodes, it is not known whether "
                "it did harm, so only a person can promote it: add `wrong_changes` to the world, "
                "or run `agent-pipeline promote`"
            )
        case ReasonKind.TASKS_NOT_PLAYED:
            return (
                f"{values.count} held-out tasks were not played ({reason.name}), so "
                "its harm there is not known, and only a person can promote "
                "it: record and judge more sessions of such tasks, or run `agent-pipeline promote`"
            )
        case ReasonKind.POSSIBLE_HARM_ABOVE_LIMIT:
            return (
                f"with the episodes that {hidden}, {values.share} of its episodes may do harm, "
                f"and at most {values.limit_share} is allowed: {remedy}"
            )
        case ReasonKind.POSSIBLE_HARM_ABOVE_CHAMPION:
            return (
                f"with the episodes that {hidden}, {values.share} more of its episodes may do "
                f"harm than of the champion's episodes, and at most {values.limit_share} more is "
                f"allowed: {remedy}"
            )
    return ""


def _describe_variant(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about a variant, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.HARM_IN_VARIANT:
            sentence = f"in the variant {reason.name}, {values.share} of its episodes do harm"
            if reason.limit is not None:
                return f"{sentence}, and at most {values.limit_share} is allowed"
            if reason.baseline is not None:
                return f"{sentence}, and {values.baseline_share} of the champion's episodes"
            return f"{sentence}: a person has to decide"
        case ReasonKind.POSSIBLE_HARM_IN_VARIANT:
            return (
                f"in the variant {reason.name}, with the episodes that were cut off, "
                f"{values.share} of its episodes may do harm, and at most {values.limit_share} is "
                f"allowed: {SEE_MORE}"
            )
        case ReasonKind.FEWER_TASKS_IN_VARIANT:
            return (
                f"in the variant {reason.name}, it does {values.share} of the tasks, and "
                f"{values.baseline_share} of the same tasks without the variant"
            )
    return ""


def _describe_verdicts(reason: DecisionReason, values: _FormattedValues) -> str:
    """Return the sentence of a reason about verdicts, or an empty text for other reasons."""
    match reason.kind:
        case ReasonKind.VERDICTS_TURNED:
            return (
                f"{values.share} of the sessions that the champion was trained on are judged bad "
                f"now, and at most {values.limit_share} may be: check the verdicts"
            )
        case ReasonKind.UNVERIFIED_SESSIONS:
            if not reason.limit:
                return (
                    "it is not known who judged the sessions that it was trained on, so only a "
                    "person can promote it"
                )
            return (
                f"{values.count} of {values.limit_count} verdicts on the sessions that it was "
                "trained on are by a person, a score or a judge: nobody verified the others, so "
                "only a person can promote it"
            )
        case ReasonKind.UNVERIFIED_HELD_OUT_TASKS:
            return (
                f"nobody verified the sessions of {values.count} of the held-out tasks that decide"
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
        "Split `select`, which decides:",
        "",
        format_markdown_table(make_figure_rows(decision.figures, baseline)),
    ]
    test_figures = list(test_figures)
    if test_figures:
        table = format_markdown_table(make_figure_rows(test_figures, baseline))
        lines += ["", "Split `test`, which is only reported:", "", table]
    return "\n".join(lines)


def name_figure(name: str) -> str:
    """Return a figure's name for people.

    The figure of a class of turns or of a tool gets a name that says what it counts.
    """
    if name.startswith(SANITY_PREFIX):
        return describe_group(name)
    is_measure = name in _MEASURES or name.startswith(VARIANT_PREFIX)
    return name if is_measure else f"right turns ({name})"


def _format_share(value: float | None) -> str:
    return "nothing" if value is None else f"{100 * value:.1f} %"


def format_chance(value: float | None) -> str:
    """Return a p-value. A very small value is only said to be small, because no more is known."""
    if value is None:
        return "nothing"
    return "below 0.0001" if value < SMALLEST_CHANCE else f"{value:.2g}"
