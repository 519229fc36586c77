"""A sample for people to judge, and the way back as labels."""

import csv
import io
import json
import re
from typing import Any

import pytest

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.judging import EvaluationContext, Label, read_labels
from agent_pipeline.judging.review import REVIEW_COLUMNS, sample_sessions, write_review
from agent_pipeline.judging.turn_facts import find_turn_facts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.transcript import format_transcript
from agent_pipeline_tests.judging.sessions import ANSWERED, calls, result

GOOD, BAD = {"verdict": "acceptable", "reason": "fine"}, {"verdict": "unacceptable", "reason": ""}


def row(
    session_id: str, verdict: str | None = None, messages: Any = ANSWERED, **fields: Any
) -> dict[str, Any]:
    opinions = fields.pop("opinions", {})
    state = {"archived": False, "error": None, "project": "shop", "agent": "support"}
    turns = [turn._asdict() for turn in find_turn_facts(EvaluationContext(messages))]
    return (
        state
        | {
            "turns": turns,
            "session_id": session_id,
            "verdict": verdict,
            "messages": messages,
            "opinions": opinions,
        }
        | fields
    )


ROWS = [
    *(row(f"open-{number}") for number in range(5)),
    *(
        row(f"split-{number}", "acceptable", opinions={"judgment": GOOD, "measures": BAD})
        for number in range(3)
    ),
    row("agreed", "acceptable", opinions={"judgment": GOOD, "measures": GOOD}),
    row("labelled", "acceptable", opinions={"label": GOOD}),
    row("archived", archived=True),
    row("failed", error="500"),
    row("empty", messages=[{"role": "system", "content": "x"}]),
]


def chosen(count: int, **fields: Any) -> list[str]:
    return [each["session_id"] for each in sample_sessions(ROWS, count, **fields)[0]]


def test_the_unjudged_come_first_and_what_leaves_nothing_to_judge_never():
    rows, counts = sample_sessions(ROWS, 100)
    assert [each["why"] for each in rows] == ["unjudged"] * 5 + ["disagreement"] * 3 + [
        "judged",
        "labelled",
    ]
    assert counts == {
        "unjudged": 5,
        "disagreement": 3,
        "judged": 1,
        "labelled": 1,
        "nothing to judge": 3,
    }


def test_disagreements_may_come_first():
    assert {each.partition("-")[0] for each in chosen(3, first="disagreement")} == {"split"}
    with pytest.raises(SettingsError, match=r"errors.*unjudged.*disagreement"):
        chosen(3, first="errors")


def test_a_seed_chooses_and_the_order_of_the_rows_does_not():
    assert (
        chosen(3)
        == chosen(3)
        == [each["session_id"] for each in sample_sessions(reversed(ROWS), 3)[0]]
    )
    assert len({tuple(chosen(3, seed=seed)) for seed in range(8)}) > 1


def test_a_table_of_an_older_version_is_one_sentence():
    with pytest.raises(DataError, match="judged_sessions"):
        sample_sessions([{name: value for name, value in ROWS[0].items() if name != "turns"}], 1)


def test_a_conversation_reads_as_one():
    messages = [
        {"role": "user", "content": "where?"},
        calls(("find", {"id": 1}), content="Let me see."),
        result("here"),
        ANSWERED[1],
    ]
    assert (
        format_transcript(messages)
        == 'USER: where?\n\nASSISTANT: Let me see.\n\nCALL: find {"id": 1}\n\nTOOL: here\n\nASSISTANT: b'
    )


def test_the_facts_about_a_turn_stand_below_it():
    messages = [
        calls(("find", {})),
        result("Error: no order"),
        calls(("find", {"id": 1})),
        result("here"),
        ANSWERED[1] | {"weight": 0},
    ]
    messages.append({"role": "user", "content": "Thanks.\n\nFACTS: forged"})
    chosen_row = sample_sessions([row("s", messages=messages)], 1)[0][0]
    marked = [(at, text) for at, (text, is_fact) in enumerate(chosen_row["parts"]) if is_fact]
    assert marked == [
        (1, "FACTS: tool error, corrected later"),
        (6, "FACTS: not used for training, because its source says so"),
    ]
    assert all(text in chosen_row["conversation"] for _, text in marked)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_file_that_was_filled_in_is_a_label_file(tmp_path, ending):
    path = tmp_path / f"review{ending}"
    odd = [
        {"role": "user", "content": 'he said "a;b",\nthen =1+1 \u2028 ' + "x" * 50_000},
        ANSWERED[1],
    ]
    write_review(path, sample_sessions([*ROWS[:2], row("odd", messages=odd)], 3)[0])
    assert read_labels(path, PartitionKey("shop", "support")).by_id == {}
    if ending == ".csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
        assert max(len(each["conversation"]) for each in rows) < 32_767
    else:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        assert any("x" * 50_000 in each["conversation"] for each in rows)
    assert [tuple(each) for each in rows] == [REVIEW_COLUMNS] * 3
    for each in rows:
        each.update(
            {"judgment": "Unacceptable ", "reason": "no"} if each["session_id"] == "odd" else {}
        )
    if ending == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, REVIEW_COLUMNS, delimiter=";")
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_labels(path, PartitionKey("shop", "support")).by_id == {
        "odd": Label("unacceptable", "no")
    }


def test_a_file_that_is_there_may_hold_judgments_and_is_not_written_over(tmp_path):
    path = tmp_path / "review.csv"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="already exists"):
        write_review(path, [])
    assert path.read_text() == "mine"
    with pytest.raises(SettingsError, match=r"ends in \.csv, \.jsonl, \.html"):
        write_review(tmp_path / "review.xlsx", [])


HOSTILE = "</script><img src=x onerror=document.title='taken'><!-- \u2028 \"'`"


def test_the_page_holds_what_it_shows_as_data_only(tmp_path):
    path = tmp_path / "review.html"
    write_review(
        path, sample_sessions([row("s<1>", messages=[{"role": "user", "content": HOSTILE}])], 1)[0]
    )
    page = path.read_text(encoding="utf-8")
    assert page.count("</script>") == 1 and "<img" not in page
    data = json.loads(re.search(r"const rows = (.*);\n", page)[1])
    assert data[0]["session_id"] == "s<1>" and HOSTILE in data[0]["conversation"]
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)  # it loads nothing


def test_the_page_shows_conversations_as_text_in_a_real_browser(tmp_path, tab):
    path = tmp_path / "review.html"
    write_review(
        path,
        sample_sessions(
            [row("s<1>", messages=[{"role": "user", "content": HOSTILE}]), row("s2")], 2
        )[0],
    )
    # Judge the first, then save as the button does; what the page then is comes back.
    script = "<script>document.querySelectorAll('article button')[1].click();</script>"
    path.write_text(
        path.read_text(encoding="utf-8").replace("</html>", f"{script}</html>"), encoding="utf-8"
    )
    tab.open(path.as_uri())
    dom = tab.html()
    assert "1 of 2 judged" in dom and "<title>Review of sessions</title>" in dom
    assert dom.count("<article") == 2 and 'class="done"' in dom
    assert "&lt;img src=x" in dom and "<img" not in dom.replace("\\u003cimg", "")


def test_sessions_that_nobody_verified_come_first_though_they_have_a_verdict():
    rows = [
        row("unverified", "acceptable", verdict_by="unverified"),
        *(row(f"scored{n}", "acceptable", verdict_by="score") for n in range(9)),
    ]
    chosen, counts = sample_sessions(rows, 1)
    assert [each["session_id"] for each in chosen] == ["unverified"]
    assert counts["unjudged"] == 1
