"""The contents of the sample as a manifest with counts, for tests, and as a page for people. Both
are made from the written sessions.
"""

from collections import Counter
from typing import Any

from agent_pipeline.sample.record import Recorded

COMMAND = "python -m agent_pipeline.sample"


def manifest(sessions: dict[str, list[Recorded]], seed: int) -> dict[str, Any]:
    """Return the true facts about the sample: counts by partition, and the facts of each session by
    id.

    `acceptable` + `unacceptable` + `unjudged` = `sessions`. Archived, broken and duplicate sessions
    are included. `clean_acceptable` counts the sessions that curation with default settings should
    keep: acceptable sessions that are not archived, broken or duplicate.
    """
    return {
        "made_by": COMMAND,
        "seed": seed,
        "simulated": True,
        "partitions": {partition: counts(recorded) for partition, recorded in sessions.items()},
        "sessions": {s.session_id: facts(s) for recorded in sessions.values() for s in recorded},
    }


def counts(sessions: list[Recorded]) -> dict[str, Any]:
    """Return the counts of one partition. See `manifest` for their meaning."""
    judgments = Counter(session.judgment or "unjudged" for session in sessions)
    return {
        "sessions": len(sessions),
        "items": sum(len(session.texts) for session in sessions),
        "tasks": len({session.task.task_id for session in sessions if session.task}),
        **{
            judgment: judgments[judgment] for judgment in ("acceptable", "unacceptable", "unjudged")
        },
        "archived": sum(session.archived for session in sessions),
        "broken": by_name(session.broken for session in sessions),
        "duplicates": sum(session.copy_of is not None for session in sessions),
        "rejudged": sum(len(session.verdicts) > 1 for session in sessions),
        "personal": by_name(session.task and session.task.personal for session in sessions),
        "flaws": by_name(session.flaw for session in sessions),
        "clean_acceptable": sum(
            is_clean(session) and session.judgment == "acceptable" for session in sessions
        ),
    }


def by_name(names: Any) -> dict[str, int]:
    """Return how often each name occurs, sorted by name. Empty names (None, "") are not counted."""
    return dict(sorted(Counter(name for name in names if name).items()))


def is_clean(session: Recorded) -> bool:
    """Return whether a session is not archived, not damaged and not a copy."""
    return not (session.archived or session.broken or session.copy_of)


def facts(session: Recorded) -> dict[str, Any]:
    """Return the facts of one session. Facts that do not apply are left out."""
    everything = {
        "partition": session.partition,
        "task_id": session.task and session.task.task_id,
        "kind": session.task and session.task.kind,
        "trial": session.trial,
        "judgment": session.judgment,
        "flaw": session.flaw,
        "archived": session.archived or None,
        "broken": session.broken,
        "duplicate_of": session.copy_of,
    }
    return {key: value for key, value in everything.items() if value is not None}


def readme(truth: dict[str, Any]) -> str:
    """Return the text of the sample's README page."""
    rows = (
        "sessions",
        "items",
        "tasks",
        "acceptable",
        "unacceptable",
        "unjudged",
        "archived",
        "broken",
        "duplicates",
        "rejudged",
        "personal",
        "flaws",
        "clean_acceptable",
    )
    partitions = truth["partitions"]
    table = [
        f"| | {' | '.join(f'`{partition}`' for partition in partitions)} |",
        f"|---|{'---|' * len(partitions)}",
    ]
    table += [
        f"| {row.replace('_', ' ')} | "
        f"{' | '.join(cell(truth[row]) for truth in partitions.values())} |"
        for row in rows
    ]
    return README.format(command=truth["made_by"], seed=truth["seed"], table="\n".join(table))


def cell(value: int | dict[str, int]) -> str:
    """Return the table cell for a count, or for several counts by name."""
    return (
        ", ".join(f"{name} {count}" for name, count in value.items()) or "0"
        if isinstance(value, dict)
        else str(value)
    )


README = """# Sample sessions: simulated

Made by `{command}` (seed {seed}; the same seed gives the same sessions). No person and no language model wrote
any of it: users follow scripts, agents are programs of different skill, the tools really run on small simulated worlds, and
the world's final state (with the house rules) gives the verdict. Names, addresses, numbers and cards belong to nobody.

The layout is that of an omniagents home: `sessions/<project>/<agent>/sessions.db` and `traces/<project>.db`. Point the
pipeline at it with `OMNIAGENTS_HOME`. Each session's `context_json` carries `task_id`, `trial`, `model` and `tools` (OpenAI
schemas).

{table}

- *unjudged*: half have a row with NULL, half have none. *rejudged*: an earlier row says the opposite; the last one counts.
- *broken*: `cut_json` an item cut off in the middle; `orphan_output` a result whose call is missing; `unanswered_call` a call
  whose result never came; `empty` a session without items. All but the empty ones were done well and are judged acceptable.
- *duplicates*: exact copies of another session, verdict included, under an id of their own.
- *personal*: sessions whose first message holds an e-mail address, a phone number or a card number, for redaction to find.
- *flaws*: what the unacceptable sessions were made to do wrong.
- *clean acceptable*: acceptable, and not archived, broken or a duplicate.

`manifest.json` holds these counts and the facts of each session by id, for tests.
"""
