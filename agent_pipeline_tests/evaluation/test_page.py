"""The page of an evaluation: what it says, what hostile texts do to it, and its filters in a real browser."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.reports.page import (
    MOST_TURNS,
    Page,
    Split,
    bounded,
    differing_turns,
    episode_items,
    figure_rows,
    group_rows,
    render,
)
from agent_pipeline_tests.browser import Elements, opened
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


def page_of(items: list[dict[str, Any]], text: str = "plain", notes: tuple[str, ...] = ()) -> str:
    tables, curves = [(text, [["figure", text], [text, "1"]])], [(text, [(1, 2.0), (2, 1.0)])]
    return render(Page(text, {text: text}, text, [text], tables, items, curves, [text, *notes]))


def hostile_items(text: str) -> list[dict[str, Any]]:
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
    split = Split(text, {}, entries, text)
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


def test_no_script_of_a_session_runs_in_a_browser(tmp_path: Path) -> None:
    text = " ".join(HOSTILE)
    page = page_of(hostile_items(text), text)
    # As if the template had forgotten to escape: the policy names the page's own script and no other.
    (tmp_path / "report.html").write_text(
        page.replace("</h1>", f"</h1>{HOSTILE[0]}{HOSTILE[1]}", 1), encoding="utf-8"
    )
    dom = opened((tmp_path / "report.html").as_uri(), tmp_path / "profile")
    assert "<title>taken" not in dom and "3 of 3 shown" in dom


def test_the_filters_of_the_page_choose_by_class_tool_outcome_and_text(tmp_path: Path) -> None:
    items = differing_turns(split_of(CALLS, GOOD), {})
    assert {(item["class"], item["outcome"]) for item in items} == {("answer", "lost")}
    items += differing_turns(split_of(GOOD), {})
    assert {(item["class"], item["tool"], item["outcome"]) for item in items[60:]} == {
        ("call", "find", "gained")
    }
    (tmp_path / "report.html").write_text(page_of(items), encoding="utf-8")
    shown = {
        "": 90,
        "#class=call": 30,
        "#tool=find&outcome=gained": 30,
        "#class=answer&outcome=gained": 0,
        "#text=TASK+T41%2C": 2,
    }
    for chosen, count in shown.items():
        dom = opened((tmp_path / "report.html").as_uri() + chosen, tmp_path / "profile")
        articles = [attributes for tag, attributes in Elements(dom).found if tag == "article"]
        assert [len(articles), sum("hidden" not in each for each in articles)] == [90, count], (
            chosen
        )
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
        ({**item, "outcome": each} for each in said), MOST_TURNS, "turns", "their/samples.json"
    )
    assert {each["outcome"] for each in shown} == {"lost"}
    page = page_of(shown, notes=tuple(notes))
    assert "700 more turns are left out of this page: they lie in their/samples.json." in page
    assert (
        "994,000 characters are left out here: their/samples.json has them" in page
        and len(page) < 10_000_000
    )


def test_the_tables_show_base_champion_and_candidate_and_the_difference_to_the_rival() -> None:
    alone, beside = (
        {row[0]: row[1:] for row in figure_rows(split_of(GOOD, rival))} for rival in (None, FAIR)
    )
    assert alone["exact call accuracy"][:2] == ["0.500", "1.000"] and alone["exact call accuracy"][
        -2:
    ] == ["60", "60"]
    assert beside["exact call accuracy"][:3] == ["0.500", "0.500", "1.000"] and beside[
        "exact call accuracy"
    ][3].startswith("+0.500 [")
    rows = {row[0]: row[1:] for row in group_rows(split_of(CALLS, GOOD))}
    assert rows["call: find"][:4] == ["0.500", "1.000", "1.000", "+0.000 [-0.063, +0.063]"]
    assert rows["answer"][:3] == ["1.000", "1.000", "0.000"] and rows["answer"][3].startswith(
        "-1.000"
    )


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
    assert [(each["where"], each["outcome"], each["harm"]) for each in items] == [
        ("task b, trial 0, seed 7", "lost", True),
        ("task a, trial 0, seed 7", "both right", False),
    ]
    assert not notes and [name for name, _, _ in items[1]["texts"]] == [
        "champion: done",
        "candidate: done",
        "base: done",
    ]
    assert items[0]["texts"][1][:2] == (
        "candidate: not done (answered); wrong changes: a refund of 9",
        "USER: Where?\n\nASSISTANT: ",
    )
    assert "secret" not in json.dumps(items)
