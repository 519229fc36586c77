"""The page of an evaluation: what it says, what hostile texts do to it, and its filters in a real browser."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent_pipeline.evaluation.evaluation_report import EvaluationReport
from agent_pipeline.reports.answers import compare_texts, read_answer, read_expected
from agent_pipeline.reports.episode_page import describe_episodes
from agent_pipeline.reports.episode_report import EpisodeReport, PlayerFigures, Share
from agent_pipeline.reports.page import (
    MOST_TURNS,
    Page,
    PageItem,
    Split,
    bounded,
    differing_turns,
    draw_curve,
    episode_items,
    figure_rows,
    group_rows,
    render,
)
from agent_pipeline.reports.page_items import variant_items
from agent_pipeline.reports.replay_report import ReplayFigures
from agent_pipeline_tests.browser import Elements, Tab
from agent_pipeline_tests.export.test_deciding import CALLS, FAIR, GOOD, report_on, samples

HOSTILE = (
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=document.title='taken'>",
    "\" autofocus onfocus=document.title='taken' x=\"",
    "' onmouseover=document.title='taken' x='",
    "</pre></article><style>*{display:none}</style><!--",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[31mred\x1b[0m \u202egnp.exe\u202c \x00 \ud800",
)


def split_of(kind: str, champion: str | None = None) -> Split:
    entries, theirs = (
        samples(base=FAIR, adapter=kind),
        samples(base=FAIR, adapter=champion) if champion else [],
    )
    return Split(
        "test",
        report_on(entries),
        entries,
        "samples.json",
        report_on(theirs) if champion else None,
        theirs,
    )


def page_of(items: list[PageItem], text: str = "plain", notes: tuple[str, ...] = ()) -> str:
    tables = [(text, [["figure", text], [text, "1"]])] * 2
    return render(
        Page(
            title=text,
            headline=text,
            summary=[text],
            reasons=[text],
            tables=tables,
            items=items,
            curves=[(text, [(1, 2.0), (2, 1.0)])],
            facts={text: text},
            notes=[text, *notes],
        )
    )


def hostile_items(text: str) -> list[PageItem]:
    names = (
        "row_id",
        "session_id",
        "task_key",
        "prompt_tail",
        "expected",
        "expected_class",
        "expected_tool",
        "base_answer",
        "adapter_answer",
    )
    entries = samples(base=FAIR, adapter=GOOD)[:2]
    entries = [
        entry | dict.fromkeys(names, text) | {"adapter_answer": f"{text}!", "turn_index": 1}
        for entry in entries
    ]
    split = Split(text, EvaluationReport, entries, text)  # type: ignore[arg-type]
    message = {
        "role": "user",
        "content": text,
        "tool_calls": [{"function": {"name": text, "arguments": text}}],
    }
    episode = {
        "task_key": text,
        "seed": None,
        "trial": 0,
        "done": False,
        "wrong_changes": [text],
        "complaint": text,
        "end": text,
    }
    played = {player: [episode | {"messages": [message]}] for player in ("base", "candidate")}
    return differing_turns(split, {text: {"messages": [message]}}) + episode_items(played, text)


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_session_says_the_page_has_the_same_elements_and_attributes(text: str) -> None:
    plain, hostile = (
        Elements(page_of(hostile_items(each), each)).found for each in ("plain", text)
    )
    assert [(tag, list(attributes)) for tag, attributes in hostile] == [
        (tag, list(attributes)) for tag, attributes in plain
    ]
    assert not any(name.startswith("on") for _, attributes in hostile for name in attributes)
    page_of(hostile_items(text), text).encode()


def test_controls_that_hide_or_turn_text_around_are_seen() -> None:
    assert r"\x1b[31mred\x1b[0m \x202egnp.exe\x202c \x00 \xd800" in page_of(
        hostile_items(HOSTILE[-1])
    )


def test_no_script_of_a_session_runs_in_a_browser(tmp_path: Path, tab: Tab) -> None:
    text = " ".join(HOSTILE)
    page = page_of(hostile_items(text), text)
    # As if the template had forgotten to escape: the policy names the page's own script and no other.
    (tmp_path / "report.html").write_text(
        page.replace("</h1>", f"</h1>{HOSTILE[0]}{HOSTILE[1]}", 1), encoding="utf-8"
    )
    tab.open((tmp_path / "report.html").as_uri())
    assert tab.wait_for("document.body.innerText.includes('3 of 3 shown')")
    assert "<title>taken" not in tab.html()


def test_the_filters_of_the_page_choose_by_class_tool_outcome_and_text(
    tmp_path: Path, tab: Tab
) -> None:
    items = differing_turns(split_of(CALLS, GOOD), {})
    assert {(item.turn_class, item.outcome) for item in items} == {("answer", "lost")}
    items += differing_turns(split_of(GOOD), {})
    assert {(item.turn_class, item.tool, item.outcome) for item in items[60:]} == {
        ("call", "find", "gained")
    }
    (tmp_path / "report.html").write_text(page_of(items), encoding="utf-8")
    shown = {
        "": 50,
        "#class=call": 30,
        "#tool=find&outcome=gained": 30,
        "#class=answer&outcome=gained": 0,
        "#text=TASK+T41%2C": 2,
    }
    for chosen, count in shown.items():
        tab.open("about:blank")
        tab.open((tmp_path / "report.html").as_uri() + chosen)
        dom = tab.html()
        listed = [each for name, each in Elements(dom).found if each.get("class") == "item"]
        assert [len(listed), sum("hidden" not in each for each in listed)] == [90, count], chosen
        assert f"{count} of 90 shown" in dom


def test_a_page_is_bounded_and_says_what_is_left_out_and_where_it_lies() -> None:
    said = ("lost" if number % 2 else "both right" for number in range(1200))
    long = {"row": {"messages": [{"role": "user", "content": "x" * 1_000_000}]}}
    entry = samples(base=FAIR, adapter=GOOD)[2] | {
        "row_id": "row",
        "turn_index": 1,
        "base_answer": "y" * 1_000_000,
    }
    (item,) = differing_turns(Split("test", {}, [entry], "their/samples.json"), long)
    shown, notes = bounded(
        (replace(item, outcome=each) for each in said), MOST_TURNS, "turns", "their/samples.json"
    )
    assert {each.outcome for each in shown} == {"lost"}
    page = page_of(shown, notes=tuple(notes))
    assert "700 more turns are not on this page. They are in their/samples.json." in page
    assert (
        "994,000 characters are left out here: their/samples.json has them" in page
        and "997,000 characters are left out here: the table sft_dataset has them" in page
        and len(page) < 15_000_000
    )


def test_the_tables_show_base_champion_and_candidate_and_the_difference_to_the_rival() -> None:
    alone, beside = (
        {row[0]: row[1:] for row in figure_rows(split_of(GOOD, rival))} for rival in (None, FAIR)
    )
    exact = alone["exact call accuracy"]
    assert exact[:2] == ["50.0 %", "100.0 %"] and exact[-2:] == ["60", "60"]
    exact = beside["exact call accuracy"]
    assert exact[:3] == ["50.0 %", "50.0 %", "100.0 %"] and exact[3].startswith("+50.0 [")
    rows = {row[0]: row[1:] for row in group_rows(split_of(CALLS, GOOD))}
    assert rows["call: find"][:4] == ["50.0 %", "100.0 %", "100.0 %", "+0.0 [-6.3, +6.3] points"]
    assert rows["answer"][:3] == ["100.0 %", "100.0 %", "0.0 %"]
    assert rows["answer"][3].startswith("-100.0 [-100.0, ")


def test_episodes_that_went_wrong_in_a_variant_stand_beside_the_same_task_as_it_is() -> None:
    episode = {
        "seed": None,
        "trial": 0,
        "done": True,
        "wrong_changes": [],
        "complaint": "",
        "end": "answered",
        "messages": [{"role": "user", "content": "Where?"}],
    }
    plain = [episode | {"task_key": task} for task in "abc"]
    varied = [
        plain[0] | {"variant": "tool_order"},
        plain[1] | {"variant": "tool_order", "done": False},
        plain[2] | {"variant": "tool_order", "done": False, "wrong_changes": ["a refund of 9"]},
        plain[2] | {"variant": "unused_tool", "done": False},
    ]
    items = variant_items(plain, varied, "")
    assert [(item.where.split(",")[0], item.harm) for item in items] == [
        ("variant tool_order", True),
        ("variant tool_order", False),
        ("variant unused_tool", False),
    ]
    assert [shown.player for shown in items[0].transcripts] == [
        "task as it is",
        "variant tool_order",
    ]
    assert len({item.anchor for item in items}) == 3


def test_harmful_episodes_come_first_and_every_players_transcript_is_there() -> None:
    said = [
        {"role": "system", "content": "secret"},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None},
    ]
    episode = {
        "seed": 7,
        "trial": 0,
        "done": True,
        "wrong_changes": None,
        "complaint": "",
        "end": "answered",
        "messages": said,
    }
    both = [episode | {"task_key": "a"}, episode | {"task_key": "b"}]
    harmful = [both[0], both[1] | {"done": False, "wrong_changes": ["a refund of 9"]}]
    items, notes = bounded(
        episode_items({"champion": both, "candidate": harmful, "base": both[:1]}, ""),
        9,
        "episodes",
        "",
    )
    assert [(each.where, each.outcome, each.harm) for each in items] == [
        ("task b, trial 0, seed 7", "lost", True),
        ("task a, trial 0, seed 7", "both right", False),
    ]
    assert not notes
    assert [(each.player, each.outcome) for each in items[1].transcripts] == [
        ("champion", "done"),
        ("candidate", "done"),
        ("base", "done"),
    ]
    candidate = items[0].transcripts[1]
    assert (candidate.outcome, candidate.harm) == ("not done (answered)", ["a refund of 9"])
    assert [(turn.role, turn.text.head) for turn in candidate.turns] == [
        ("user", "Where?"),
        ("assistant", ""),
    ]
    assert b"secret" not in msgspec.json.encode(items)


def test_undecided_episodes() -> None:
    """An episode that no recording continues is neither right nor wrong, and says why."""
    messages = [{"role": "user", "content": "Cancel K1."}]
    done = {"seed": None, "trial": 0, "done": True, "wrong_changes": None, "complaint": ""}
    done |= {"end": "answered", "messages": messages, "task_key": "a"}
    deviation = {"kind": "write not recorded", "text": "cancel('K1')", "harm_suspected": True}
    undecided = done | {"done": False, "end": "unsettled", "unsettled": deviation}
    harmful = done | {"done": False, "wrong_changes": ["a refund"]}
    for baseline, candidate, outcome in (
        (done, undecided, "undecided"),
        (undecided, done, "undecided"),
        (undecided | {"task_key": "a"}, harmful, "undecided"),
        (done | {"unsettled": None}, harmful, "lost"),
    ):
        (item,) = episode_items({"base": [baseline], "model": [candidate]}, "")
        assert item.outcome == outcome
        assert [shown.done for shown in item.transcripts] == [
            None if episode.get("unsettled") else episode["done"]
            for episode in (baseline, candidate)
        ]
    (item,) = episode_items({"base": [done], "model": [undecided]}, "")
    assert item.line == "a: undecided: write not recorded, probably harmful: cancel('K1')"
    assert item.transcripts[1].outcome == "undecided: write not recorded, probably harmful"
    lost = PageItem(kind="episode", outcome="lost")
    assert [shown.outcome for shown in bounded([item, lost], 9, "episodes", "")[0]] == [
        "lost",
        "undecided",
    ]


def test_headline_of_replayed_episodes() -> None:
    """The headline has bounds: an undecided episode may be done, or may not."""
    replay = ReplayFigures(episodes=4, undecided=2, suspected=1, harm_seen=0, done=1)
    figures = PlayerFigures(done=Share(1, 2), replay=replay)
    headline = describe_episodes(EpisodeReport({"model": figures}))
    assert "1 to 3 of 4 tasks" in headline and "0 to 1 of 4 episodes" in headline
    assert "2 of 4 episodes" in headline


def test_one_form() -> None:
    """The recorded call and the same call in a model's notation are the same text."""
    call = {"name": "find", "arguments": {"b": 1, "a": "ü"}}
    recorded = json.dumps(call, ensure_ascii=False)
    generated = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    assert read_expected(recorded, "call") == read_answer(generated)
    assert read_answer(generated).line == "find(b: 1, a: ü)"
    assert read_expected(recorded, "answer").text == recorded, "an answer may be JSON"
    broken = "<tool_call>{broken</tool_call>"
    assert read_answer(broken).text == broken


@given(st.text(max_size=200), st.text(max_size=200))
def test_difference(expected: str, actual: str) -> None:
    """The parts of a difference form both texts again."""
    parts = compare_texts(expected, actual)
    assert "".join(part.text for part in parts if part.change != "added") == expected
    assert "".join(part.text for part in parts if part.change != "removed") == actual


def test_changed_word() -> None:
    parts = compare_texts("refund 40 dollars for T936", "refund 50 dollars for T936")
    assert [(part.change, part.text) for part in parts if part.change != "same"] == [
        ("removed", "40"),
        ("added", "50"),
    ]


def test_curve() -> None:
    """The axes of a curve have values, and the vertical axis begins at 0."""
    curve = draw_curve("loss", [(0, 2.0), (10, 1.0), (20, 0.5)])
    assert curve is not None
    assert [tick.label for tick in curve.columns] == ["0", "5", "10", "15", "20"]
    assert [tick.label for tick in curve.rows] == ["0.00", "0.50", "1.00", "1.50", "2.00"]
    assert curve.line == "60.0,10.0 385.0,110.0 710.0,160.0"
    assert draw_curve("loss", [(0, math.nan), (1, 1.0)]) is None


def test_page_is_short(tmp_path: Path, tab: Tab) -> None:
    """A page with 500 turns is a list of one line per turn, not 57,000 pixels long."""
    items = [
        replace(item, anchor=f"turn-{number}")
        for number, item in enumerate(differing_turns(split_of(CALLS, GOOD), {}) * 9)
    ][:MOST_TURNS]
    (tmp_path / "report.html").write_text(page_of(items), encoding="utf-8")
    tab.open((tmp_path / "report.html").as_uri())
    tab.wait_for("document.getElementById('count')?.textContent.startsWith('50 of')")
    height = tab.evaluate("document.documentElement.scrollHeight")
    assert 1_000 < height < 4_500
    # A link to a turn that is not among the first opens it.
    tab.open("about:blank")
    tab.open((tmp_path / "report.html").as_uri() + "#turn-450")
    tab.wait_for("document.getElementById('turn-450')?.hidden === false")
    tab.wait_for("document.querySelector('#turn-450 details').open")
