"""The turns and the episodes of a page, in which two models differ.

The tables of figures belong to `figure_tables`, and the page to `page`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agent_pipeline.evaluation.stored_entries import SampleEntry, Transcript
from agent_pipeline.evaluation.stored_kinds import describe_kind
from agent_pipeline.reports.answers import (
    DiffPart,
    compare_texts,
    read_answer,
    read_expected,
)
from agent_pipeline.reports.chat import ShownTurn, make_turns
from agent_pipeline.reports.figure_tables import Split, pair_entries, take_sides
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.transcript import shorten_text

MOST_TURNS, MOST_EPISODES = 500, 100
LONGEST = 6_000
"""The maximum number of characters of a text on the page."""
CONTEXT_TURNS = 6
"""Number of turns before an answer that the page shows."""
LONGEST_CONTEXT = 3_000
LONGEST_LINE = 300
"""The maximum number of characters of the line of an episode."""
OUTCOMES = {
    (True, False): "lost",
    (False, True): "gained",
    (False, False): "both wrong",
    (True, True): "both right",
}
"""The change that the candidate made, from the worst to the best, by whether the baseline and the
candidate are right.
"""
UNDECIDED = "undecided"
"""The outcome if the replayed world does not know whether one of the two models is right."""
RANKING = ("lost", UNDECIDED, "gained", "both wrong", "both right")
"""The outcomes in the order of the page."""
_TAIL = re.compile(r"(system|user|assistant|tool): ", re.DOTALL)

StoredRow = Mapping[str, Any]
"""A held-out row, whose messages a page shows."""


class ShownAnswer(msgspec.Struct, frozen=True):
    """An answer to one turn.

    Attributes:
        player: The player: `expected`, `base`, `champion` or `candidate`.
        parts: The text, with the parts that differ.
        right: Whether the answer is right. It is None for the expected answer.
    """

    player: str
    parts: Sequence[DiffPart]
    right: bool | None = None

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(part.text for part in self.parts)


class ShownTranscript(msgspec.Struct, frozen=True):
    """The episode of one player.

    Attributes:
        player: The player.
        outcome: The outcome in words.
        done: Whether the task was done; None if the replayed world does not know it.
        harm: The wrong changes of the world.
        turns: The turns of the episode.
    """

    player: str
    outcome: str
    done: bool | None
    harm: Sequence[str]
    turns: Sequence[ShownTurn]


class PageItem(msgspec.Struct, frozen=True, kw_only=True):
    """A turn or an episode on a page.

    Attributes:
        kind: Whether it is a turn or an episode.
        outcome: One of `RANKING`.
        harm: Whether the candidate changed the world wrongly.
        where: The task, and the session or the trial.
        line: The item in one short line.
        anchor: The id of the item on the page.
        split: The split of a turn.
        turn_class: The class of the recorded turn.
        tool: The first tool that was expected.
        session_id: The session of a turn.
        message: The position of the turn among the messages of its row, from 1.
        context: The last turns before the answer.
        earlier: The number of messages before `context`.
        answers: The answers: the expected answer, the candidate's, and those of the others.
        transcripts: The episodes of all players.
    """

    kind: Literal["turn", "episode"]
    outcome: str
    harm: bool = False
    where: str = ""
    line: str = ""
    anchor: str = ""
    split: str = ""
    turn_class: str = ""
    tool: str = ""
    session_id: str = ""
    message: int = 0
    context: Sequence[ShownTurn] = ()
    earlier: int = 0
    answers: Sequence[ShownAnswer] = ()
    transcripts: Sequence[ShownTranscript] = ()


def differing_turns(split: Split, rows: Mapping[str, StoredRow]) -> list[PageItem]:
    """Return the turns at which the baseline and the candidate give different answers.

    `rows` are the held-out rows by id. If a row does not exist anymore, only the end of its prompt
    is shown.
    """
    turns: list[PageItem] = []
    for new, old in pair_entries(split):
        baseline_answer = old["adapter_answer"] if split.champion else new["base_answer"]
        if baseline_answer.strip() == new["adapter_answer"].strip():
            continue
        baseline, candidate = (bool(side["right"]) for (side,) in take_sides(split, [(new, old)]))
        row = rows.get(new["row_id"], {})
        before = row["messages"][: new["turn_index"]] if row else _read_tail(new["prompt_tail"])
        context = make_turns(before, where="the table sft_dataset", limit=LONGEST_CONTEXT)
        shown = context[-CONTEXT_TURNS:]
        players = [("candidate", new["adapter_answer"], candidate)]
        if split.champion:
            players.append(("champion", baseline_answer, baseline))
        players.append(("base", new["base_answer"], bool(new["base"]["right"])))
        answers, line = _show_answers(new, players, row.get("tools") or (), split.path)
        turns.append(
            PageItem(
                kind="turn",
                outcome=OUTCOMES[baseline, candidate],
                where=f"task {new['task_key']}, session {new['session_id']}, message "
                f"{new['turn_index'] + 1}",
                line=line,
                anchor=f"turn-{split.name}-{new['row_id']}-{new['turn_index']}",
                split=split.name,
                turn_class=new["expected_class"] or "nothing",
                tool=new["expected_tool"] or "",
                session_id=new["session_id"],
                message=new["turn_index"] + 1,
                context=shown,
                earlier=max(0, shown[0].message - 1) if row and shown else 0,
                answers=answers,
            )
        )
    return turns


def _show_answers(
    entry: SampleEntry,
    players: Sequence[tuple[str, str, bool]],
    tools: Sequence[Any],
    path: str,
) -> tuple[list[ShownAnswer], str]:
    """Return the answers in one form, each with its difference from the expected answer.

    Also return a line that tells the expected answer and a wrong answer.

    Args:
        entry: The turn.
        players: The name, the answer and its rightness of each model, the candidate first.
        tools: The tools of the row.
        path: The place that has whole answers.
    """
    expected = read_expected(entry["expected"], entry["expected_class"])
    wanted = shorten_text(expected.text, LONGEST, path)
    shown: list[ShownAnswer] = []
    lines: list[str] = []
    for player, text, right in players:
        answer = read_answer(text, tools)
        lines.append(answer.line)
        differences = compare_texts(wanted, shorten_text(answer.text, LONGEST, path))
        if not shown:  # the candidate, which comes first
            parts = [part for part in differences if part.change != "added"]
            shown.append(ShownAnswer("expected", parts))
        parts = [part for part in differences if part.change != "removed"]
        shown.append(ShownAnswer(player, parts, right))
    baseline_player, candidate_is_right = players[1][0], players[0][2]
    if candidate_is_right:
        return shown, f"{lines[0]} ({baseline_player}: {lines[1]})"
    return shown, f"{expected.line} → {lines[0]}"


def _read_tail(tail: str) -> list[Message]:
    """Return the end of a prompt as one message."""
    role = _TAIL.match(tail)
    if role is None:
        return [{"role": "user", "content": tail}] if tail else []
    content = tail[role.end() :]
    return [{"role": "assistant" if role[1] == "assistant" else "user", "content": content}]


def episode_items(played: Mapping[str, Sequence[Transcript]], path: str) -> list[PageItem]:
    """Return the episodes of all players, grouped by task, seed and trial.

    The first player is the baseline, and the second player is the candidate.
    """
    baseline, candidate = list(played)[:2]
    tasks: defaultdict[tuple[str, int | None, int], dict[str, Transcript]] = defaultdict(dict)
    for player, episodes in played.items():
        for episode in episodes:
            tasks[episode["task_key"], episode["seed"], episode["trial"]][player] = episode
    items = []
    for (task, seed, trial), players in tasks.items():
        if baseline not in players or candidate not in players:
            continue
        harm = players[candidate]["wrong_changes"] or []
        items.append(
            PageItem(
                kind="episode",
                outcome=compare_outcomes(players[baseline], players[candidate]),
                harm=bool(harm),
                where=f"task {task}, trial {trial}" + ("" if seed is None else f", seed {seed}"),
                line=summarize_episode(players[candidate], path),
                anchor=f"episode-{task}-{seed}-{trial}",
                transcripts=[
                    show_transcript(player, transcript, path)
                    for player, transcript in players.items()
                ],
            )
        )
    return items


def variant_items(
    plain: Sequence[Transcript], varied: Sequence[Transcript], path: str
) -> list[PageItem]:
    """Return the episodes that went wrong in variants, each with its episode without the variant.

    An episode went wrong if it did harm, or if the task was done only without the variant. Harm
    comes first.

    Args:
        plain: A model's episodes without variants.
        varied: The model's episodes in variants.
        path: The file of all transcripts.
    """
    by_variant: defaultdict[str, list[Transcript]] = defaultdict(list)
    for episode in varied:
        by_variant[episode["variant"]].append(episode)
    items = [
        msgspec.structs.replace(
            item,
            where=f"variant {variant}, {item.where}",
            line=shorten_text(f"{variant}, {item.line}", LONGEST_LINE, path),
            anchor=f"{item.anchor}-{variant}",
        )
        for variant, episodes in by_variant.items()
        for item in episode_items({"task as it is": plain, f"variant {variant}": episodes}, path)
        if item.harm or item.outcome == OUTCOMES[True, False]
    ]
    return sorted(items, key=lambda item: not item.harm)


def show_transcript(player: str, transcript: Transcript, path: str) -> ShownTranscript:
    """Return an episode of a player without its instructions."""
    messages = [
        {**message, "content": message.get("content") or ""}
        for message in transcript["messages"]
        if message["role"] != "system"
    ]
    return ShownTranscript(
        player=player,
        outcome=describe_episode(transcript),
        done=None if transcript.get("unsettled") else transcript["done"],
        harm=transcript["wrong_changes"] or [],
        turns=make_turns(messages, where=path, limit=LONGEST),  # type: ignore[arg-type]
    )


def compare_outcomes(baseline: Transcript, candidate: Transcript) -> str:
    """Return the change that the candidate made in an episode, or that nobody knows it."""
    if baseline.get("unsettled") or candidate.get("unsettled"):
        return UNDECIDED
    return OUTCOMES[baseline["done"], candidate["done"]]


def describe_episode(episode: Transcript) -> str:
    """Return the outcome of an episode: done, why it is not done, or why nobody knows it."""
    if unsettled := episode.get("unsettled"):
        suspicion = ", probably harmful" if unsettled["harm_suspected"] else ""
        return f"undecided: {describe_kind(unsettled['kind'])}{suspicion}"
    return "done" if episode["done"] else f"not done ({episode['complaint'] or episode['end']})"


def summarize_episode(episode: Transcript, path: str) -> str:
    """Return an episode in one short line: its task, and its harm or its outcome.

    Args:
        episode: The episode.
        path: The file of all transcripts.
    """
    words = "; ".join(episode["wrong_changes"] or []) or describe_episode(episode)
    if unsettled := episode.get("unsettled"):
        words += f": {unsettled['text']}"
    return shorten_text(f"{episode['task_key']}: {words}", LONGEST_LINE, path)


def bounded(
    items: Iterable[PageItem], most: int, what: str, path: str
) -> tuple[list[PageItem], list[str]]:
    """Limit the items of a page to `most` items.

    Also return a note about the items that are left out.

    Items with harm come first, then the candidate's losses.

    Args:
        items: The items.
        most: The maximum number of items.
        what: The name of the items, for the note.
        path: The path where all items are stored, for the note.
    """
    ranked = sorted(items, key=lambda item: (not item.harm, RANKING.index(item.outcome)))
    left = len(ranked) - most
    return ranked[:most], [
        f"{left:,} more {what} are not on this page. They are in {path}."
    ] if left > 0 else []
