"""The reasons why an agent cannot be trained yet, from the facts about its sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_pipeline.datasets.splits import EmptySplit, SplitSizes
from agent_pipeline.judging.verdict_policy import advise_on_judging
from agent_pipeline.keys import PartitionKey
from agent_pipeline.readiness.report import (
    Blocker,
    Contents,
    Judges,
)


@dataclass(frozen=True)
class EmptySplits:
    """The splits without a row, and how to fill them.

    Attributes:
        splits: The splits without a row.
        fuller: Sizes with which no split is empty; None if no sizes help.
    """

    splits: Sequence[EmptySplit]
    fuller: SplitSizes | None = None

    def describe(self, empty_split: EmptySplit) -> str:
        """Return why a split is a blocker, and what to do."""
        sentence = f"{empty_split.describe()} Log sessions of more tasks"
        if self.fuller is not None:
            sizes = (
                f"`split.test` = {self.fuller.test:g} and `split.select` = {self.fuller.select:g}"
            )
            return f"{sentence}, or set {sizes}."
        if empty_split.split == "train":
            return f"{sentence}."
        return f"{sentence}, or raise `split.{empty_split.split}`."


def find_blockers(
    contents: Contents,
    judges: Judges,
    dropped: Mapping[str, int],
    empty_splits: EmptySplits,
    key: PartitionKey,
) -> list[Blocker]:
    """Return the reasons why an agent cannot be trained, except for leaks and lengths.

    Args:
        contents: What the sessions contain.
        judges: Who judged the sessions.
        dropped: Number of sessions that cannot be trained on, by reason.
        empty_splits: Splits without a row.
        key: The partition.
    """
    if not contents.sessions:
        return [Blocker("no_sessions", f"{key} has no sessions: check the setting `store`.")]
    if not contents.turns:
        return [
            Blocker(
                "no_agent",
                f"No agent answers in the sessions of {key}: check that the export contains the "
                "agent's messages.",
            )
        ]
    if contents.sessions == contents.without_request == contents.without_system_prompt:
        return [
            Blocker(
                "no_request",
                f"No session of {key} has a user's message or a system prompt, so nothing shows "
                "what the agent was asked: export the messages too, not only the calls.",
            )
        ]
    if contents.sessions == sum(dropped.values()):
        return [_explain_no_rows(contents, judges, dropped, key)]
    return [
        Blocker("split", empty_splits.describe(empty_split)) for empty_split in empty_splits.splits
    ]


def _explain_no_rows(
    contents: Contents, judges: Judges, dropped: Mapping[str, int], key: PartitionKey
) -> Blocker:
    """Return why no session can be trained on: nobody judged, all are bad, or another reason."""
    if not judges.acceptable and not judges.unacceptable:
        if judges.undeclared_metrics:
            return Blocker("unread_metrics", _explain_metrics(contents, judges, key))
        sentence = f"Nobody judged the sessions ({contents.sessions:,}): {advise_on_judging(key)}."
        return Blocker("unjudged", sentence)
    if not judges.acceptable:
        return Blocker(
            "all_bad",
            f"All judged sessions ({judges.unacceptable:,}) are unacceptable: a model needs good "
            "sessions to imitate.",
        )
    reason = next((name for name in dropped if name not in ("unjudged", "unacceptable")), "")
    return Blocker(
        "all_dropped",
        f"None of the {judges.acceptable} acceptable sessions can be used for training (the most "
        f"frequent reason is {reason}): see the reasons in docs/explanation/judging.md.",
    )


def _explain_metrics(contents: Contents, judges: Judges, key: PartitionKey) -> str:
    """Return why the metrics of a store give no verdict, and what to do."""
    metrics = "; ".join(
        f"{name}: {facts.sessions:,} of {contents.sessions:,} sessions, "
        f"from {facts.low:g} to {facts.high:g}"
        for name, facts in judges.undeclared_metrics.items()
    )
    return (
        f"The store has metrics that could give verdicts ({metrics}), but no setting says whether "
        "a higher value is better: copy the table under `settings` into pipeline.toml, and "
        "remove the # before the right metric. Or judge a sample with `agent-pipeline review "
        f"{key}`."
    )
