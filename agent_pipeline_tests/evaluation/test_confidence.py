"""The confidence of turns: what counts as words, the threshold, and the figures of a report."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.evaluation.confidence import (
    ScoredWrite,
    TokenScore,
    TurnConfidence,
    choose_threshold,
    count_word_tokens,
    measure_area,
    measure_turn,
)
from agent_pipeline.evaluation.episodes import Conversation, EpisodeReply, play
from agent_pipeline.evaluation.players import endpoint_player
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.reports.confidence_report import describe_confidence, list_writes
from agent_pipeline.reports.episode_report import (
    EpisodeReport,
    figure_rows,
    measure_player,
    parse_episode_report,
    write_transcripts,
)
from agent_pipeline_tests.judging.endpoint import endpoint, says

WRITES = st.lists(
    st.builds(
        ScoredWrite,
        st.floats(-50, 0, allow_nan=False).map(lambda value: round(value, 1)),
        st.booleans(),
    ),
    max_size=30,
)


def scored(text: str, *probabilities: float) -> list[TokenScore]:
    """One token per letter; the missing probabilities are 1."""
    filled = [*probabilities, *[1.0] * (len(text) - len(probabilities))]
    return [
        TokenScore(letter.encode(), math.log(value), math.log(value))
        for letter, value in zip(text, filled, strict=True)
    ]


@given(WRITES, st.integers(0, 3))
def test_a_threshold_passes_as_many_writes_as_it_may(writes, most_wrong):
    threshold = choose_threshold(writes, most_wrong)

    def wrong_from(confidence: float) -> int:
        return sum(write.is_wrong for write in writes if write.confidence >= confidence)

    assert wrong_from(threshold) <= most_wrong
    lower = [write.confidence for write in writes if write.confidence < threshold]
    assert all(wrong_from(confidence) > most_wrong for confidence in lower)


@given(WRITES, st.integers(0, 3), st.randoms())
def test_a_threshold_depends_on_no_order_and_falls_with_the_errors_that_may_pass(
    writes, most_wrong, random
):
    shuffled = list(writes)
    random.shuffle(shuffled)
    threshold = choose_threshold(writes, most_wrong)
    assert choose_threshold(shuffled, most_wrong) == threshold
    assert choose_threshold(writes, most_wrong + 1) <= threshold


def test_without_a_measured_write_nothing_passes():
    assert choose_threshold([]) == math.inf
    assert choose_threshold([ScoredWrite(-1.0, True)]) == math.inf
    assert choose_threshold([ScoredWrite(-1.0, True), ScoredWrite(-1.0, False)]) == math.inf


def test_a_threshold_stands_above_the_surest_wrong_write():
    writes = [ScoredWrite(-3, False), ScoredWrite(-2, True), ScoredWrite(-1, False)]
    assert choose_threshold(writes) == -1 and choose_threshold(writes, 1) == -3


@given(WRITES)
def test_the_area_is_one_if_every_right_write_is_surer(writes):
    area = measure_area(writes)
    kinds = {write.is_wrong for write in writes}
    assert (area is None) == (len(kinds) < 2)
    surer = [
        ScoredWrite(write.confidence - 100 * write.is_wrong, write.is_wrong) for write in writes
    ]
    assert len(kinds) < 2 or measure_area(surer) == 1.0


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 5))
def test_the_words_end_where_the_call_begins(words, call, size):
    """Tokens may cut a letter of several bytes, and one may begin a call in its middle."""
    written = (words + "<" + call).encode("utf-8", "replace")
    tokens = [
        TokenScore(written[start : start + size], -1.0, -1.0)
        for start in range(0, len(written), size)
    ]
    wanted = words.strip().encode("utf-8", "replace")
    count = count_word_tokens(tokens, wanted.decode())
    if not wanted:
        assert count == len(tokens)
    else:
        kept = b"".join(token.text for token in tokens[:count])
        assert wanted in kept and wanted not in kept[: -len(tokens[count - 1].text)]


def test_the_tokens_of_a_call_count_only_for_the_least_token():
    turn = measure_turn(scored("Yes.<c>", 0.5, 1, 1, 1, 0.25), "Yes.\n", is_greedy=True)
    assert turn.words == pytest.approx(math.log(0.5)) and turn.least == pytest.approx(
        math.log(0.25)
    )
    assert turn.is_unsure and not turn.forced
    assert not measure_turn(scored("Yes", 0.71), "", is_greedy=True).is_unsure


def test_a_call_without_words_is_as_sure_as_all_its_tokens():
    """Without words, the call itself decides. A sum over no token would be full confidence."""
    turn = measure_turn(scored("<c>", 0.5, 0.5), "", is_greedy=True)
    assert turn.words == pytest.approx(math.log(0.25))


@pytest.mark.parametrize(
    ("chosen", "best", "is_greedy", "forced"),
    [
        (-0.7, -0.6, True, True),
        (-0.6, -0.6, True, False),
        (-0.7, -0.6, False, False),
        (-8.0, 0.0, False, True),
    ],
)
def test_a_token_that_greedy_decoding_would_not_choose_was_forced(chosen, best, is_greedy, forced):
    assert measure_turn([TokenScore(b"a", chosen, best)], "", is_greedy).forced == forced


class Till:
    """A world with one tool that looks up, and one that pays."""

    reads = ("look",)
    wrong_changes: list[str] = []

    def reset(self, **row) -> str:
        self.wrong_changes = []
        return "Pay."

    def look(self) -> str:
        """Look."""
        return "1"

    def pay(self, amount: int) -> str:
        """Pay.

        Args:
            amount: How much.
        """
        self.wrong_changes = [] if amount == 1 else [f"paid {amount}"]
        return "ok"

    def get_reward(self) -> float:
        return float(not self.wrong_changes)


def calling(name: str, **arguments) -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "content": "So.", "tool_calls": [call]}


def play_turns(*turns: list[tuple[dict, float | None]]):
    """Let a player write each task's turns with these sums of log-probabilities."""
    scripts = [iter(turn) for turn in turns]

    def player(conversations):
        replies = []
        for conversation in conversations:
            message, words = next(scripts[conversation.number])
            sure = None if words is None else TurnConfidence(words, words)
            replies.append(EpisodeReply(message, confidence=sure))
        return replies

    return play(Till, [{"task_key": f"{index}"} for index in range(len(turns))], player)


DONE = {"role": "assistant", "content": "Done."}


def test_an_episode_is_as_sure_as_its_least_sure_turn_that_writes(tmp_path):
    right = [(calling("look"), -9.0), (calling("pay", amount=1), -0.1), (DONE, -5.0)]
    wrong = [(calling("pay", amount=1), -0.2), (calling("pay", amount=2), -4.0), (DONE, 0.0)]
    reading = [(calling("look"), -1.0), (DONE, 0.0)]
    episodes = play_turns(right, wrong, reading)
    assert list_writes(episodes) == [ScoredWrite(-0.1, False), ScoredWrite(-4.0, True)]
    figures = measure_player(episodes).confidence
    assert (figures.turns, figures.unsure, figures.area, figures.threshold) == (8, 4, 1.0, -0.1)
    assert [(point.harm_left, point.work_kept) for point in figures.curve] == [(1, 1), (0, 1)]
    report = EpisodeReport({"model": measure_player(episodes)}, "till")
    write_transcripts(tmp_path, report, {"model": episodes})
    lines = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[1])["confidence"][1] == {
        "words": -4.0,
        "least": -4.0,
        "forced": False,
        "writes": True,
    }
    page = (tmp_path / "episodes.md").read_text(encoding="utf-8")
    assert "| -4.00 | 1 of 1 | 1 of 1 |" in page and "4 of 8" in page


def test_a_server_without_log_probabilities_is_not_measured():
    episodes = play_turns([(calling("pay", amount=1), None), (DONE, None)])
    player = measure_player(episodes)
    assert player.confidence is None
    rows = dict(map(tuple, figure_rows({"model": player})[1:]))
    assert list(rows.values()).count("not measured") == 2
    assert describe_confidence(None) == "not measured"


def test_a_report_of_an_older_version_has_no_confidence():
    report = parse_episode_report({"players": {"model": {"done": {"n": 1, "of": 1}}}})
    assert report.model.confidence is None


def test_right_writes_alone_have_no_area():
    figures = measure_player(play_turns([(calling("pay", amount=1), -1.0), (DONE, 0.0)])).confidence
    assert figures.area is None and figures.threshold == -1.0
    assert describe_confidence(figures) == "not known: 0 wrong and 1 right writes"


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"content": None},
        {"content": []},
        {"tokens": ["a"], "token_logprobs": [-1.0]},
        {"content": [{"token": "a"}]},
    ],
)
def test_an_endpoint_that_returns_other_log_probabilities_is_played_all_the_same(logprobs):
    status, headers, body = says("Hello.")
    answer = json.loads(body)
    answer["choices"][0]["logprobs"] = logprobs
    with endpoint(lambda request, number: (status, headers, json.dumps(answer))) as server:
        player = endpoint_player(Endpoint(url=server.url, model="m"))
        reply = player([Conversation([{"role": "user", "content": "Hi."}], [])])[0]
    assert reply.message["content"] == "Hello." and reply.confidence is None
