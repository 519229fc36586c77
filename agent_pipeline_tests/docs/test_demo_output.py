"""The output of the demo on the pages is what the program prints of the demo's reports."""

import json
import re

import msgspec
import pytest

from agent_pipeline.cli.report import _comparison, _episodes
from agent_pipeline.evaluation.evaluation_report import parse_evaluation_report
from agent_pipeline.governance.agent_status import describe_training
from agent_pipeline.promotion.decision import Decision
from agent_pipeline.promotion.decision_wording import summarize
from agent_pipeline.reports.episode_report import parse_episode_report
from agent_pipeline.training.report import parse_step_report
from agent_pipeline_tests.docs.demo_output import KEY, PAGES, REPORTS

MARKUP = re.compile(r"\[/?[a-z ]+\]")
COUNTED = re.compile(r"  (sessions|SFT rows|template) +\S|  [a-z_]+ +lake/models/|Done in |\s*$")
"""Lines that do not come from the reports: counts of tables, paths, times and blank lines."""

RECORDED = json.loads(REPORTS.read_text(encoding="utf-8"))
EPISODES = parse_episode_report(RECORDED["episodes"])


def printed() -> set[str]:
    lines = [
        *_comparison(parse_evaluation_report(RECORDED["evaluation"])),
        *_episodes(EPISODES),
        f"sft        {describe_training(parse_step_report(RECORDED['sft_adapter']))}",
        f"decision   {summarize(msgspec.convert(RECORDED['decision'], Decision))}",
    ]
    return {MARKUP.sub("", line).strip() for line in lines}


def block(text: str) -> list[str]:
    match = re.search(r"```text\n(.*?tasks done: .*?)\n```", text, re.DOTALL)
    assert match, "the page has no output of the demo"
    return match[1].splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_printed_lines(page) -> None:
    """Every line of the block is printed from the reports, or is a path or a count."""
    known = printed()
    others = [
        line
        for line in block(page.read_text(encoding="utf-8"))
        if line.strip() not in known and not COUNTED.match(line)
    ]
    # What was decided, and what to do next.
    endings = re.compile(
        rf"{KEY}(: .*)?|Look at what the model does: .*|\d+ of \d+ tasks are held out .*|Next: .* chat {KEY}"
    )
    assert [line for line in others if not endings.fullmatch(line)] == []


def test_figures_of_the_readme() -> None:
    """The rows of the table have the figures of the recorded episodes, and of the variants."""
    text = PAGES[0].read_text(encoding="utf-8")
    table = text[text.index("| the demo's model |") :].splitlines()[:4]
    parts = ("done", "must_act", "must_not", "harm")
    expected = [
        [EPISODES.players[player].part(name) for name in parts]
        for player in ("model", "base", "recorded")
    ]
    expected.append([EPISODES.in_all_variants(name) for name in parts])
    for row, (*shares, harm) in zip(table, expected, strict=True):
        cells = [cell.strip(" *") for cell in row.split("|")[2:6]]
        assert cells[:3] == list(map(str, shares))
        assert harm is not None and cells[3] == str(harm.n)
