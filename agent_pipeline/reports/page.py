"""The page of an evaluation or of a decision: one HTML file that a person opens. It loads nothing, and runs nothing but its own filters.

Everything on it is text that models, users and tools wrote. The template escapes it, controls that would hide or turn text around are made
visible, and a content security policy names the one script by its hash.
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
"""Characters of a text on the page."""
OUTCOMES = {
    (True, False): "lost",
    (False, True): "gained",
    (False, False): "both wrong",
    (True, True): "both right",
}
"""Whether the baseline and the candidate are right → what the candidate changed, the worst first."""
_HIDING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Row = list[str]
Text = tuple[str, str, bool | None]
"""The name of a player, its text, and whether it is right; None for what was expected."""

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
"""A turn or an episode on a page. Its keys are those of the page's template."""


StoredRow = Mapping[str, Any]
"""A held-out row, of which a page shows the messages."""


class Split(NamedTuple):
    """What was measured on a split: the report and the samples of the candidate's evaluation, and those of the champion's, if there is
    one; without it the baseline is the base model. `path` is the candidate's samples, to be named."""

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
    """What a page shows. `tables`: a title and its rows, the first being the head; `items`: turns, then episodes; `curves`: a title and
    points (step, loss); `notes`: what is left out, and where it lies."""

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
"""The fact of a page whose models saw surrogates: a reader must not take them for somebody's."""


def evaluation_page(
    partition: str,
    split: Split,
    rows: Mapping[str, StoredRow],
    adapters: Sequence[Artifact],
    with_surrogates: bool = False,
) -> str:
    """The page of an evaluation of which nothing was decided yet: the candidate beside its base. `adapters` are the candidate's, the last
    being its own."""
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
    """The training loss by step of each adapter."""
    curves = []
    for adapter in adapters:
        report = read_step_report(adapter)
        points: list[tuple[float, float]] = []
        if isinstance(report, TrainingReport):
            points = [(entry["step"], entry["loss"]) for entry in report.log_history]
        curves.append((f"Training loss: {adapter.asset}", points))
    return curves


def split_tables(split: Split) -> list[tuple[str, list[Row]]]:
    """The figures of an evaluation with their intervals, and the share of right turns by class and by tool."""
    return [
        (f"Figures on the split {split.name}", figure_rows(split)),
        (f"Right turns by class and tool, {split.name}", group_rows(split)),
    ]


def figure_rows(split: Split) -> list[Row]:
    """A row a metric: the models, candidate − baseline with its 95 % interval over tasks, and the least difference that could be seen."""
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
    """A row a class and a tool: the share of its turns that each model gets right."""
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
    """The turns at which baseline and candidate say different things. `rows` are the held-out rows by their ids; of one that is not there
    any more, only the prompt's end is shown."""
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
    """At most so many, what the candidate lost first; and the sentence that says how many are left out, and where they lie."""
    order = list(OUTCOMES.values())
    ranked = sorted(items, key=lambda item: (not item["harm"], order.index(item["outcome"])))
    left = len(ranked) - most
    return ranked[:most], [
        f"{left:,} more {what} are left out of this page: they lie in {path}."
    ] if left > 0 else []


def episode_items(played: Mapping[str, Sequence[Transcript]], path: str) -> list[PageItem]:
    """The episodes of all players side by side, by task, seed and trial. The first player is the baseline, the second the candidate."""
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
    """The candidate's and the baseline's entry of each turn that both were asked; the base's is the candidate's own."""
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
    """How the baseline and the candidate did."""
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
    """A curve in a field of 600 × 120, from its lowest to its highest value."""
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
    """A text whose controls are seen: colours of a terminal, marks that turn the direction of what follows, halves of characters."""
    return (
        _HIDING.sub(lambda match: f"\\x{ord(match[0]):02x}", value)
        if isinstance(value, str) and _HIDING.search(value)
        else value
    )
