"""The page of the nights of one agent: its decisions, and the moves of its served model."""

from collections.abc import Sequence

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision_wording import describe_outcome, describe_reasons
from agent_pipeline.promotion.ledger import EXPORT, open_ledger
from agent_pipeline.reports.rendering import shorten_id
from agent_pipeline.storage.lake import Lake


class NightEvent(msgspec.Struct, frozen=True):
    """A decision, or a move of the served model.

    Attributes:
        when: The time.
        what: What happened, in a few words.
        model: The beginning of the identity of the model.
        who: The run or the person.
        sentences: The reasons.
    """

    when: str
    what: str
    model: str
    who: str
    sentences: Sequence[str]


class NightPage(msgspec.Struct, frozen=True):
    """The nights of one agent.

    Attributes:
        headline: Which model is served now.
        events: What happened, newest first.
    """

    headline: str
    events: Sequence[NightEvent]


def make_night_page(lake: Lake, key: PartitionKey) -> NightPage:
    """Return the decisions on an agent's models and the moves of its served model, newest first.

    Raises:
        DamageError: The ledger or the history is damaged.
    """
    events = [
        NightEvent(
            when=entry.when,
            what=f"decision {entry.number}: {describe_outcome(entry.decision)}",
            model=shorten_id(entry.candidate),
            who=entry.who,
            sentences=[*describe_reasons(entry.decision), *([entry.why] if entry.why else [])],
        )
        for entry in open_ledger(lake, key).records()
    ]
    history = lake.history(EXPORT, key)
    events += [
        NightEvent(
            when=entry.when,
            what="the served model changed"
            if entry.moved == "champion"
            else "a model was exported",
            model=shorten_id((entry.champion if entry.moved == "champion" else entry.latest) or ""),
            who=entry.who,
            sentences=[entry.why] if entry.why else [],
        )
        for entry in history
        if entry.moved
    ]
    events.sort(key=lambda event: event.when, reverse=True)
    moves = [entry for entry in history if entry.moved == "champion"]
    headline = "No model of this agent is served yet."
    if moves:
        last = moves[-1]
        headline = (
            f"The model {shorten_id(last.champion or '')} has been served since {last.when[:10]}, "
            f"when {last.who} made it the champion."
        )
    return NightPage(headline, events)
