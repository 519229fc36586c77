"""The HTML page of an evaluation or a decision. The page is a single file that loads nothing and
runs only its own filter script.

All text on the page was written by models, users and tools. The template escapes it. Control
characters that would hide or reverse text are made visible, and a content security policy allows
only the page's own script, by its hash.
"""

import base64
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypedDict

from agent_pipeline.evaluation.answer_scoring import AnswerScore
from agent_pipeline.evaluation.evaluation_report import EvaluationReport
from agent_pipeline.evaluation.intervals import ReportedDifference, report_difference, shown
from agent_pipeline.evaluation.model_comparison import METRICS, compare_answers
from agent_pipeline.evaluation.paired import paired
from agent_pipeline.evaluation.stored_entries import SampleEntry, ScoredAnswer, Transcript
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.transcript import format_transcript, shorten_text
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.chain import describe_used_template
from agent_pipeline.training.report import TrainingReport, read_step_report

PAGE = "report.html"
MOST_TURNS, MOST_EPISODES = 500, 100
LONGEST = 6_000
"""The maximum number of characters of a text on the page."""
OUTCOMES = {
    (True, False): "lost",
    (False, True): "gained",
    (False, False): "both wrong",
    (True, True): "both right",
}
"""The change that the candidate made, from the worst to the best, by whether the baseline and the
candidate are right.
"""
_HIDING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Row = list[str]
Text = tuple[str, str, bool | None]
"""A player's name, its text, and whether the text is right. For the expected text, the last value
is None.
"""

PageItem = TypedDict(
    "PageItem",
    {
        "split": str,
        "class": str,
        "tool": str,
        "outcome": str,
        "harm": bool,
        "where": str,
        "tail": str,
        "prompt": str,
        "texts": list[Text],
    },
)
"""A turn or an episode on a page. The keys are those of the page's template."""


StoredRow = Mapping[str, Any]
"""A held-out row, whose messages a page shows."""


class Split(NamedTuple):
    """The measurements on one split. Without a champion, the baseline is the base model.

    Attributes:
        name: The name of the split.
        report: The report of the candidate's evaluation.
        samples: The samples of the candidate's evaluation.
        path: The path of the candidate's samples, which the page names.
        champion: The report of the champion's evaluation, if there is a champion.
        champion_samples: The samples of the champion's evaluation.
    """

    name: str
    report: EvaluationReport
    samples: Sequence[SampleEntry] = ()
    path: str = ""
    champion: EvaluationReport | None = None
    champion_samples: Sequence[SampleEntry] = ()

    @property
    def baseline(self) -> str:
        return "champion" if self.champion else "base"


class Page(NamedTuple):
    """The content of an HTML page about an evaluation or a decision.

    Attributes:
        title: The title.
        facts: Facts by name, at the top of the page.
        headline: The main statement.
        reasons: The reasons for the headline.
        tables: Tables with a title and rows. The first row is the head.
        items: Turns and then episodes.
        curves: Curves with a title and points (step, loss).
        notes: Notes about content that is left out, and where it is stored.
    """

    title: str
    facts: Mapping[str, str]
    headline: str
    reasons: Sequence[str]
    tables: Sequence[tuple[str, Sequence[Row]]]
    items: Sequence[PageItem]
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    notes: Sequence[str]


def render(page: Page) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("agent_pipeline.reports")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.from_string(folder.joinpath("page.jinja").read_text(encoding="utf-8"))
    curves = [drawn for title, points in page.curves if (drawn := _drawn(title, points))]
    choices = {name: sorted({item[name] for item in page.items if item[name]}) for name in FILTERS}
    return template.render(
        page._asdict()
        | {"curves": curves, "choices": choices, "script": Markup(script), "hash": hashed}
    )


FILTERS: tuple[Literal["split", "class", "tool", "outcome"], ...] = (
    "split",
    "class",
    "tool",
    "outcome",
)


MADE_UP = {"private values": "made up, where the tables have pseudonyms"}
"""A note for readers that the models saw made-up values, so that readers do not take the values for
real people's data.
"""


def evaluation_page(
    partition: str,
    split: Split,
    rows: Mapping[str, StoredRow],
    adapters: Sequence[Artifact],
    with_surrogates: bool = False,
) -> str:
    """Return the page of an evaluation on which no decision was made yet. It compares the candidate
    with its base model.

    Args:
        partition: The partition.
        split: The measurements.
        rows: The held-out rows by id.
        adapters: The chain of the candidate's adapters. The last adapter is the candidate.
        with_surrogates: Whether the models saw made-up values.
    """
    turns, notes = bounded(differing_turns(split, rows), MOST_TURNS, "turns", split.path)
    adapter = f"{adapters[-1].asset} {adapters[-1].identity}" if adapters else ""
    facts = {
        "partition": partition,
        "adapter": adapter,
        "chat template": describe_used_template(adapters),
        "split": split.name,
    }
    facts |= MADE_UP if with_surrogates else {}
    return render(
        Page(
            f"Evaluation of {partition}",
            facts,
            "",
            [],
            split_tables(split),
            turns,
            training_curves(adapters),
            notes,
        )
    )


def training_curves(adapters: Sequence[Artifact]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the training loss by step of each adapter."""
    curves = []
    for adapter in adapters:
        report = read_step_report(adapter)
        points: list[tuple[float, float]] = []
        if isinstance(report, TrainingReport):
            points = [(entry["step"], entry["loss"]) for entry in report.log_history]
        curves.append((f"Training loss: {adapter.asset}", points))
    return curves


def split_tables(split: Split) -> list[tuple[str, list[Row]]]:
    """Return the figures of an evaluation with their intervals, and the share of right turns by
    class and by tool.
    """
    return [
        (f"Figures on the split {split.name}", figure_rows(split)),
        (f"Right turns by class and tool, {split.name}", group_rows(split)),
    ]


def figure_rows(split: Split) -> list[Row]:
    """Return one table row per metric.

    A row has the models' values, the difference candidate − baseline with its 95 % interval over
    tasks, and the smallest difference that the evaluation could detect.
    """
    reports = [
        split.report.base,
        *([split.champion.adapter] if split.champion else []),
        split.report.adapter,
    ]
    compared = split.report.differences
    if split.champion:
        both = list(_both(split))
        compared = compare_answers(
            [new["task_key"] for new, _ in both],
            *([_score(side) for side in sides] for sides in _sides(split, both)),
        )
    rows = [
        [
            "figure",
            *_models(split),
            f"candidate − {split.baseline} (95 %)",
            "least visible difference",
            "turns or rows",
            "tasks",
        ]
    ]
    for name in ("heldout_loss", "decision_auc", "verified_calls", *METRICS):
        values = [report.figure(name) for report in reports]
        if any(value is not None for value in values):
            means = ["–" if value is None else f"{value:.3f}" for value in values]
            rows.append([name.replace("_", " "), *means, *_interval(compared.get(name))])
    if any(report.truncated for report in reports):
        rows.append(
            [
                "wrong turns that max_new_tokens ended",
                *(str(report.truncated) for report in reports),
                *_interval(None),
            ]
        )
    return rows


def group_rows(split: Split) -> list[Row]:
    """Return one table row per class and per tool, with the share of its turns that each model gets
    right.
    """
    groups: defaultdict[str, list[tuple[SampleEntry, SampleEntry]]] = defaultdict(list)
    for new, old in _both(split):
        groups[new["expected_class"] or "nothing"].append((new, old))
        if new["expected_tool"]:
            groups[f"call: {new['expected_tool']}"].append((new, old))
    rows = [
        [
            "turns with",
            *_models(split),
            f"candidate − {split.baseline} (95 %)",
            "least visible difference",
            "turns",
            "tasks",
        ]
    ]
    for name, both in sorted(groups.items()):
        baseline, candidate = (
            [float(bool(side["right"])) for side in sides] for sides in _sides(split, both)
        )
        sides = [
            [float(bool(new["base"]["right"])) for new, _ in both],
            *([baseline] if split.champion else []),
            candidate,
        ]
        difference = report_difference(
            paired([new["task_key"] for new, _ in both], candidate, baseline, shares=True)
        )
        rows.append(
            [name, *(f"{sum(side) / len(side):.3f}" for side in sides), *_interval(difference)]
        )
    return rows


def differing_turns(split: Split, rows: Mapping[str, StoredRow]) -> list[PageItem]:
    """Return the turns at which the baseline and the candidate give different answers.

    `rows` are the held-out rows by id. If a row does not exist anymore, only the end of its prompt
    is shown.
    """
    turns: list[PageItem] = []
    for new, old in _both(split):
        baseline_answer = old["adapter_answer"] if split.champion else new["base_answer"]
        if baseline_answer.strip() == new["adapter_answer"].strip():
            continue
        baseline, candidate = (bool(side["right"]) for (side,) in _sides(split, [(new, old)]))
        texts: list[Text] = [
            ("expected", new["expected"], None),
            ("base", new["base_answer"], bool(new["base"]["right"])),
        ]
        texts += [("champion", baseline_answer, baseline)] if split.champion else []
        before = (
            rows[new["row_id"]]["messages"][: new["turn_index"]] if new["row_id"] in rows else []
        )
        turns.append(
            {
                "split": split.name,
                "class": new["expected_class"] or "nothing",
                "tool": new["expected_tool"] or "",
                "outcome": OUTCOMES[baseline, candidate],
                "harm": False,
                "where": f"task {new['task_key']}, session {new['session_id']}, message {new['turn_index'] + 1}",
                "tail": new["prompt_tail"],
                "prompt": shorten_text(format_transcript(before), LONGEST, "the table sft_dataset"),
                "texts": [
                    (name, shorten_text(text, LONGEST, split.path), right)
                    for name, text, right in (
                        *texts,
                        ("candidate", new["adapter_answer"], candidate),
                    )
                ],
            }
        )
    return turns


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
    order = list(OUTCOMES.values())
    ranked = sorted(items, key=lambda item: (not item["harm"], order.index(item["outcome"])))
    left = len(ranked) - most
    return ranked[:most], [
        f"{left:,} more {what} are left out of this page: they lie in {path}."
    ] if left > 0 else []


def episode_items(played: Mapping[str, Sequence[Transcript]], path: str) -> list[PageItem]:
    """Return the episodes of all players, grouped by task, seed and trial.

    The first player is the baseline, and the second player is the candidate.
    """
    baseline, candidate = list(played)[:2]
    tasks: defaultdict[tuple[str, int | None, int], dict[str, Transcript]] = defaultdict(dict)
    for player, episodes in played.items():
        for episode in episodes:
            tasks[episode["task_key"], episode["seed"], episode["trial"]][player] = episode
    return [
        {
            "split": "",
            "class": "",
            "tool": "",
            "tail": "",
            "prompt": "",
            "outcome": OUTCOMES[players[baseline]["done"], players[candidate]["done"]],
            "harm": bool(players[candidate]["wrong_changes"]),
            "where": f"task {task}, trial {trial}" + ("" if seed is None else f", seed {seed}"),
            "texts": [
                (
                    f"{player}: {_outcome(transcript)}",
                    shorten_text(_transcript(transcript["messages"]), LONGEST, path),
                    transcript["done"],
                )
                for player, transcript in players.items()
            ],
        }
        for (task, seed, trial), players in tasks.items()
        if baseline in players and candidate in players
    ]


def _outcome(episode: Transcript) -> str:
    harm = (
        f"; wrong changes: {'; '.join(episode['wrong_changes'])}"
        if episode["wrong_changes"]
        else ""
    )
    return (
        "done" if episode["done"] else f"not done ({episode['complaint'] or episode['end']})"
    ) + harm


def _transcript(messages: Sequence[Message]) -> str:
    return format_transcript(
        message | {"content": message.get("content") or ""}
        for message in messages
        if message["role"] != "system"
    )


def _both(split: Split) -> Iterable[tuple[SampleEntry, SampleEntry]]:
    """Yield the candidate's and the baseline's entries of each turn that both models answered.

    If the baseline is the base model, its answers are in the candidate's entries.
    """
    champion = (
        {
            (champion_sample["row_id"], champion_sample["turn_index"]): champion_sample
            for champion_sample in split.champion_samples
        }
        if split.champion
        else None
    )
    for new in split.samples:
        old = new if champion is None else champion.get((new["row_id"], new["turn_index"]))
        if old is not None:
            yield new, old


def _sides(
    split: Split, both: Sequence[tuple[SampleEntry, SampleEntry]]
) -> tuple[list[ScoredAnswer], list[ScoredAnswer]]:
    """Return the scored answers of the baseline and of the candidate to one turn."""
    return [old["adapter" if split.champion else "base"] for _, old in both], [
        new["adapter"] for new, _ in both
    ]


def _score(entry: ScoredAnswer) -> AnswerScore:
    return AnswerScore(
        expected=entry["expected"],
        actual=entry["actual"],
        called=entry["called"],
        right_class=entry["right_class"],
        tool_name=entry["tool_name"],
        arguments=entry["arguments"],
        exact=entry["exact"],
        lenient=entry["lenient"],
        answer=entry["answer"],
        invalid_call=entry["invalid_call"],
        truncated=entry["truncated"],
    )


def _models(split: Split) -> list[str]:
    return ["base", *(["champion"] if split.champion else []), "candidate"]


def _interval(difference: ReportedDifference | None) -> Row:
    if difference is None:
        return ["–"] * 4
    least = "–" if difference.least_visible is None else f"{difference.least_visible:.3f}"
    change = shown(difference.difference, difference.low, difference.high)
    return [change, least, str(difference.samples), str(difference.tasks)]


def _drawn(title: str, points: Sequence[tuple[float, float]]) -> dict[str, object] | None:
    """Scale a curve to a field of 600 × 120 units."""
    known = [(x, y) for x, y in points if math.isfinite(y)]
    if len(known) < 2:
        return None
    first, last, low, top = (
        known[0][0],
        known[-1][0],
        min(y for _, y in known),
        max(y for _, y in known),
    )
    line = " ".join(
        f"{600 * (x - first) / (last - first or 1):.1f},{120 * (top - y) / (top - low or 1):.1f}"
        for x, y in known
    )
    ends = {
        "low": f"{low:.3f}",
        "top": f"{top:.3f}",
        "end": f"{known[-1][1]:.3f}",
        "first": f"{first:g}",
        "last": f"{last:g}",
    }
    return {"title": title, "line": line, **ends}


def _visible(value: object) -> object:
    """Return a text in which control characters are visible: terminal colors, marks that reverse
    the direction of text, and lone surrogates.
    """
    return (
        _HIDING.sub(lambda match: f"\\x{ord(match[0]):02x}", value)
        if isinstance(value, str) and _HIDING.search(value)
        else value
    )
