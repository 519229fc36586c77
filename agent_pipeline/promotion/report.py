"""A decision in words and as a table."""

from collections.abc import Iterable, Sequence

from agent_pipeline.evaluation.intervals import shown
from agent_pipeline.evaluation.scores import Decision, Figure, Reason
from agent_pipeline.promotion.rules import DONE
from agent_pipeline.reports.episode_report import SEE_MORE
from agent_pipeline.sessions.transcript import format_markdown_table

SANITY = "canary: "
LESS_IS_BETTER = {"over-call", "loss", "harm"}
_MEASURES = {"gain", "gain on newer tasks", "call recall", *DONE, *LESS_IS_BETTER}


def headline(decision: Decision) -> str:
    """The outcome; with the tasks that are missing where they are."""
    return (
        decision.outcome
        if decision.outcome != "cannot decide"
        else f"cannot decide: {decision.more_tasks} more tasks are needed"
    )


def sentence(reason: Reason) -> str:
    """What a reason says, with its numbers."""
    now, before, limit = (_share(value) for value in (reason.candidate, reason.rival, reason.limit))
    if reason.kind in ("guard", "within chance") and reason.name == "loss":
        now, before, limit = (
            f"{value or 0.0:.3f}" for value in (reason.candidate, reason.rival, reason.limit)
        )
    count, most = (f"{value or 0:.0f}" for value in (reason.candidate, reason.limit))
    direction = "higher" if reason.name in LESS_IS_BETTER else "lower"
    change = f"{_named(reason.name)} is {now}, and was {before}: {direction} by more than {limit}"
    if reason.name.startswith(SANITY):
        questions = reason.name.removeprefix(SANITY)
        change = f"it answers {now} of the sanity questions ({questions}) well, and its base {before}: lower by more than {limit}"
    return {
        "gain": f"it is better, and chance explains that with {_chance(reason.candidate)} (at most {_chance(reason.limit)} is allowed)",
        "no gain": f"no gain is shown: chance explains what was seen with {_chance(reason.candidate)} ({_chance(reason.limit)} is allowed)",
        "worse": f"it is worse, and chance explains that with only {_chance(reason.candidate)}",
        "same answers": "both answer every turn equally well",
        "too few tasks": "there are too few tasks to see the gain that is sought"
        + (
            f": one of {now} could be seen, one of {limit} is sought"
            if reason.candidate is not None
            else ""
        ),
        "separation": f"it hardly tells turns that need a call from others: {reason.name} is {now}, at least {limit} is required",
        "guard": change,
        "not a number": f"{_named(reason.name)} is not a number for one of the two",
        "within chance": f"{change}, which may be chance",
        "harm": f"{now} of its episodes change the world wrongly, at most {limit} may",
        "harm beside the base": f"{now} of its episodes change the world wrongly, {before} of its base's: a person has to decide",
        "unseen harm": f"its episodes are so few that harm in {now} of them may have gone unseen, at most {limit} may: let it play more",
        "hidden harm": f"with those that were cut off, {now} of its episodes may change the world wrongly, at most {limit} may: {SEE_MORE}",
        "hidden harm beside the rival": f"with those that were cut off, {now} more of its episodes may change the world wrongly than "
        f"of its rival's, at most {limit} may: {SEE_MORE}",
        "no task done": f"{reason.name}: 0 of {most}; see in the transcripts whether it fails, or the episodes end too early",
        "base": reason.name,
        "held": "a person holds it back",
        "confirmed": f"it is better by {now} on {most} tasks that came after the champion was trained",
        "not confirmed": f"on {most} tasks that came after the champion was trained, it is not better: the gain is {now}",
        "too few newer tasks": f"not confirmed: {count} tasks came after the champion was trained, {most} are needed",
        "contradicted": f"on newer tasks it is worse than the champion before it; chance explains that with {_chance(reason.candidate)}",
        "not contradicted": f"newer tasks do not contradict it: chance explains a loss as seen with {_chance(reason.candidate)}",
        "turned": f"{now} of the sessions that the champion was trained on are judged bad now, at most {limit} may be: check the verdicts",
        "no world": "it played no episode in a world, so only a person can promote it: run `agent-pipeline promote`",
        "unverified": f"{count} of {most} verdicts on the sessions that it was trained on are by a person, a score or a judge: nobody "
        "verified the others, so only a person can promote it"
        if reason.limit
        else "it is not known who judged the sessions that it was trained on, so only a person can promote it",
        "unverified held-out tasks": f"nobody verified the sessions of {count} of the held-out tasks that decide",
    }[reason.kind]


def sentences(decision: Decision) -> list[str]:
    """What the reasons of a decision say, the deciding ones first."""
    return [sentence(reason) for reason in decision.reasons]


def summary(decision: Decision) -> str:
    """The outcome and the reasons for it, in a line."""
    return f"{headline(decision)}: {'; '.join(sentence(reason) for reason in decision.reasons if reason.against == decision.outcome)}"


def figure_rows(figures: Sequence[Figure], rival: str) -> list[list[str]]:
    """Figures of both models, their difference with its interval over tasks, and the least gain that could be seen; the head first."""
    rows = [
        [
            "figure",
            rival,
            "candidate",
            f"candidate − {rival} (95 %)",
            "least visible difference",
            "turns or episodes",
            "tasks",
        ]
    ]
    for figure in figures:
        visible = "–" if figure.visible is None else f"{figure.visible:.3f}"
        values = (
            f"{figure.rival:.3f}",
            f"{figure.candidate:.3f}",
            shown(figure.difference, *interval(figure)),
            visible,
        )
        rows.append([_named(figure.name), *values, str(figure.samples), str(figure.tasks)])
    return rows


def interval(figure: Figure) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a figure's difference. Older versions wrote intervals of shares that went beyond −1 and 1."""
    if figure.low is None or figure.high is None or figure.name == "loss":
        return figure.low, figure.high
    return max(figure.low, -1.0), min(figure.high, 1.0)


def page(decision: Decision, test: Iterable[Figure], rival: str) -> str:
    """The decision for a person: outcome, reasons, the figures that decide, and those of the split `test`."""
    parts = [f"**{headline(decision)}**", *(f"- {text}" for text in sentences(decision))]
    parts += [
        "",
        "Split `select`, which decides:",
        "",
        format_markdown_table(figure_rows(decision.figures, rival)),
    ]
    if test := list(test):
        parts += [
            "",
            "Split `test`, which is only reported:",
            "",
            format_markdown_table(figure_rows(test, rival)),
        ]
    return "\n".join(parts)


def _named(name: str) -> str:
    """A figure's name; of a class of turns, or of a tool, it says what is counted."""
    return name if name in _MEASURES or name.startswith(SANITY) else f"right turns ({name})"


def _share(value: float | None) -> str:
    return "nothing" if value is None else f"{100 * value:.1f} %"


def _chance(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.2g}"
