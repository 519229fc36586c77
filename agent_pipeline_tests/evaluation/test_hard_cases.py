"""The scorer against the hand-labelled cases."""

from collections import Counter

from agent_pipeline.evaluation.answer_scoring import score
from agent_pipeline.evaluation.samples import TurnSample, expected_calls
from agent_pipeline_tests.evaluation.hard_cases import CASES, TOOLS, Case
from agent_pipeline_tests.training.world import call

AS_LABELLED = 0.97


def sample_of(case: Case) -> TurnSample:
    """The turn that a case describes."""
    prompt = [{"role": "user", "content": case.user}]
    if case.result:
        prompt += [
            {"role": "assistant", "content": "", "tool_calls": [call("search", {"query": "it"})]},
            {"role": "tool", "tool_call_id": "call00001", "content": case.result},
        ]
    expected = {
        "role": "assistant",
        "content": case.recorded if isinstance(case.recorded, str) else "",
    }
    if not expected["content"]:
        expected["tool_calls"] = [call(name, arguments) for name, arguments in case.recorded]
    return TurnSample(
        "row",
        "session",
        "task",
        len(prompt),
        prompt,
        TOOLS,
        expected,
        expected_calls(expected),
        expected["content"],
    )


def labels(case: Case) -> tuple[str, str]:
    """What the scorer says of a case, in the words of its labels."""
    given = score(sample_of(case), case.reply, case.cut)
    cut = given.truncated and given.exact is False
    right = "cut" if cut else "strict" if given.right else "lenient" if given.lenient else "wrong"
    return given.actual or "answer", right


def test_hard_cases_are_scored_as_a_careful_person_labelled_them():
    wrong = [
        (case.name, labels(case), (case.actual, case.right), case.why)
        for case in CASES
        if labels(case) != (case.actual, case.right)
    ]
    assert len(wrong) <= (1 - AS_LABELLED) * len(CASES), wrong


def test_the_cases_cover_every_label_and_have_names_of_their_own():
    assert len(CASES) >= 100 and len({case.name for case in CASES}) == len(CASES)
    assert Counter(case.actual for case in CASES).keys() == {"call", "ask", "cannot", "answer"}
    assert {case.right for case in CASES} == {"strict", "lenient", "wrong", "cut"}
