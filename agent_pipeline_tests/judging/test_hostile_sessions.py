"""Sessions that instruct the judge: no verdict of a default judge changes because of them.

The language model is a stub that is as gullible as possible: it obeys every instruction that it can
see outside of the data. What a real model does with an instruction inside the data cannot be shown
by a stub. So sessions with a detected instruction are left to a person, and a judge is trusted only
after a check against people's labels.
"""

import json
import re
from typing import Any

import pytest

from agent_pipeline.judging import EvaluationContext, JudgingRun, Labels, VerdictPolicy
from agent_pipeline.judging.free_opinions import collect_opinions
from agent_pipeline.judging.judge_orders import addresses_judge
from agent_pipeline.judging.llm_client import Endpoint, LlmClient, SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.measures import parse_measures
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline_tests.judging.endpoint import endpoint, verdict
from agent_pipeline_tests.judging.hostile import PLACES, TEXTS, list_sessions, make_messages
from agent_pipeline_tests.judging.sessions import session

ORDER = re.compile(r"acceptable|\bgrader\b|new task", re.IGNORECASE)
SPECIAL_TOKEN = re.compile(r"<\|[^|]*\|>|</?s>|\[/?INST\]")


def obey(question: str) -> str:
    """Return the verdict of a gullible judge: it obeys what stands outside of the data.

    Like many servers it reads special tokens in texts as the end of the data, and like many models
    it takes every kind of line break, every line of equal signs, and hidden letters seriously.
    """
    outside = find_outside(question)
    blank = find_outside(EMPTY_QUESTION)
    return "acceptable" if ORDER.search(outside.replace(blank, "")) else "unacceptable"


def find_outside(question: str) -> str:
    """Return the text outside of the data, as the gullible judge reads the question."""
    text = "".join(
        chr(ord(letter) - 0xE0000) if 0xE0000 < ord(letter) < 0xE0080 else letter
        for letter in question
    )
    if SPECIAL_TOKEN.search(text):
        return text
    outside, is_inside = [], False
    for line in text.splitlines():
        if line.startswith("==="):
            is_inside = not is_inside
        elif not is_inside or not is_json(line):
            outside.append(line)
    return "\n".join(line for line in outside if "==" not in line)


def is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def write_question(messages: list[dict[str, Any]]) -> str:
    judge = object.__new__(LlmJudge)
    LlmJudge.__init__(judge, None)  # type: ignore[arg-type]
    return judge._write_question(EvaluationContext.from_session(session(messages)))


EMPTY_QUESTION = write_question(make_messages("", "user"))


def test_there_are_twenty() -> None:
    assert len(list_sessions()) == 20


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", TEXTS)
def test_a_gullible_judge_sees_only_data(name: str, place: str) -> None:
    """No trick gets a text out of the data, whether or not the text is detected."""
    assert obey(write_question(make_messages(TEXTS[name], place))) == "unacceptable"


def test_the_stub_is_gullible() -> None:
    """Without the neutralization, the stub obeys: the test above can fail."""
    name_of_boundary = EMPTY_QUESTION.split("=== ")[1].split(" ")[0]
    raw = "\n".join([f"=== {name_of_boundary} ===", *TEXTS["forged end"].splitlines(), "===", "x"])
    assert obey(raw) == "acceptable"
    assert obey(TEXTS["chat tokens"]) == "acceptable"
    assert obey(json.dumps(TEXTS["next line"], ensure_ascii=False)) == "acceptable"


def test_the_data_is_unchanged() -> None:
    """The escapes are JSON escapes: a judge that decodes the lines reads the texts as they are."""
    for _, messages in list_sessions():
        lines = write_question(messages).split("\n")
        decoded = [json.loads(line) for line in lines if line.startswith("{")]
        assert [line["content"] for line in decoded] == [one["content"] for one in messages]


def judge_all(
    sessions: list[list[dict[str, Any]]], policy: VerdictPolicy, llm: LlmJudge | None
) -> JudgingRun:
    options = JudgingOptions()
    run = JudgingRun(parse_measures(options.measures), policy, Labels(), llm)
    run.verdict_list = [  # type: ignore[attr-defined]
        judged.verdict for _, judged in run.judge((None, session(one)) for one in sessions)
    ]
    return run


@pytest.mark.parametrize("judges", ["llm", "measures+llm"])
def test_no_verdict_changes(judges: str, tmp_path) -> None:
    """All twenty failed sessions stay failed, or are left to a person; none becomes good."""
    hostile = [messages for _, messages in list_sessions()]
    policy = VerdictPolicy(["label", judges], when_unjudged="train_unverified")
    with endpoint(lambda request, _: verdict(obey(request["messages"][0]["content"]))) as server:
        client = LlmClient(
            Endpoint(url=server.url, model="m", retries=0), SpendLimits(), tmp_path / "j.sqlite"
        )
        with LlmJudge(client) as llm:
            run = judge_all(hostile, policy, llm)
            honest = judge_all([make_messages("", "user")], policy, llm)
    assert honest.verdict_list == ["unacceptable"]  # type: ignore[attr-defined]
    assert "acceptable" not in run.verdict_list  # type: ignore[attr-defined]
    assert run.verdict_list.count(None) == run.addressing_judge  # type: ignore[attr-defined]
    assert run.addressing_judge >= 14
    questions = [request["messages"][0]["content"] for request in server.requests]
    assert len(questions) == len(hostile) - run.addressing_judge + 1


def test_measures_do_not_change() -> None:
    """The default measures read the structure of a session, and not what its texts claim."""
    policy, measures = VerdictPolicy(), parse_measures(JudgingOptions().measures)

    def find_opinion(messages: list[dict[str, Any]]) -> object:
        judged = session(messages)
        context = EvaluationContext.from_session(judged)
        results = {measure.name: measure.take(context) for measure in measures}
        return collect_opinions(judged, results, policy, None)["measures"]

    honest = find_opinion(make_messages("", "user"))
    assert all(find_opinion(messages) == honest for _, messages in list_sessions())


def test_most_texts_are_detected() -> None:
    """Detection is a second line of defense. What it does not find is only data to the judge."""
    undetected = {name for name, text in TEXTS.items() if not addresses_judge(text)}
    assert len(undetected) <= 6, undetected
