"""The replayed world: what it answers from recordings, and when an episode ends undecided."""

import ast
import inspect
from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.evaluation.episodes import Episode, EpisodeReply, play
from agent_pipeline.evaluation.replayed_world import ReplayedWorld
from agent_pipeline.evaluation.scores import EpisodeScore, Scores
from agent_pipeline.evaluation.stored_kinds import UndecidedKind
from agent_pipeline.evaluation.tape import Recording, SharedRead, TaskTape
from agent_pipeline.evaluation.worlds import (
    REPLAYED,
    REPLAYED_PARTS,
    REPLAYED_WORLD,
    hash_world_source,
    load_world,
)
from agent_pipeline.promotion.decision import ReasonKind
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import check_episodes
from agent_pipeline.reports.episode_report import format_transcript, measure_player
from agent_pipeline.sessions.session import Message
from agent_pipeline_tests.evaluation.test_tape import GOOD, TOOLS, call, say

LOOK = call("find_order", '{"K1":"mug, 20"}', order="K1")
REFUND = call("refund", '{"ok":true}', order="K1", amount=20)
ASKED: list[Message] = [
    {"role": "user", "content": "I want my money back."},
    {"role": "assistant", "content": "What is the order id, or your name?"},
    *say("It is K1.", LOOK, REFUND),
]
REFUSED = say("Refund K1.", LOOK, answer="Sorry, I can't refund K1: it is older than 30 days.")


def replay(
    turns: list[Message],
    *recordings: list[Message],
    verdicts: tuple[str, ...] = (),
    **tape: Any,
) -> Episode:
    """Play these messages of an agent against a tape of these recordings, good unless said otherwise."""
    judged = [*verdicts, *["acceptable"] * (len(recordings) - len(verdicts))]
    recorded = [
        Recording(f"s{index}", verdict, messages)
        for index, (messages, verdict) in enumerate(zip(recordings, judged, strict=True))
    ]
    row = {
        "task_key": "task:1",
        "messages": turns,
        "tools": TOOLS,
        "tape": msgspec.to_builtins(TaskTape(recorded, **{"reads": ["find_order"]} | tape)),
    }
    own = iter([message for message in turns if message["role"] == "assistant"])
    silence: Message = {"role": "assistant", "content": ""}
    [episode] = play(
        load_world(REPLAYED), [row], lambda _: [EpisodeReply(next(own, silence))], max_turns=20
    )
    return episode


def test_recorded_session_is_settled() -> None:
    """A session that does what a good session did is done, and names its sources."""
    episode = replay(GOOD, GOOD)
    assert episode.done and episode.unsettled is None and episode.wrong_changes == []
    assert episode.must_act and episode.sources == ["s0"] * 3
    assert "(from session s0)" in format_transcript(episode)


def test_missing_write_is_settled() -> None:
    episode = replay(say("Refund K1.", LOOK), GOOD)
    assert not episode.done and episode.unsettled is None and episode.wrong_changes == []


def test_look_up_that_nobody_made() -> None:
    episode = replay(say("Refund K1.", call("find_order", "?", order="K2")), GOOD)
    assert episode.end == "undecided" and not episode.done
    assert episode.unsettled and episode.unsettled.kind == "look-up not recorded"
    assert episode.wrong_changes is None


def test_result_depends_on_the_writes_before_it() -> None:
    """The look-up after the refund has the result that was recorded after the refund."""
    episode = replay(GOOD, GOOD)
    results = [message["content"] for message in episode.messages if message["role"] == "tool"]
    assert results == ['{"K1":"mug, 20"}', '{"ok":true}', '{"K1":"refunded"}']


def test_write_in_another_state_is_not_executed() -> None:
    """A second refund was never recorded, although the same call was."""
    episode = replay(say("Refund K1.", LOOK, REFUND, REFUND), GOOD)
    assert episode.unsettled and episode.unsettled.kind == "write not recorded"


class TestSuspectedHarm:
    wrong = say("Refund K1.", LOOK, call("refund", '{"ok":true}', order="K1", amount=99))

    def test_no_good_session_writes(self) -> None:
        episode = replay(say("Refund K1.", LOOK, REFUND), REFUSED)
        assert episode.is_suspect and episode.must_act is False
        assert measure_player([episode]).replay.suspected == 1  # type: ignore[union-attr]

    def test_all_good_sessions_make_another_write(self) -> None:
        assert replay(self.wrong, GOOD, GOOD).is_suspect

    def test_one_good_session(self) -> None:
        """A write that no good session made is suspect, however few good sessions there are."""
        assert replay(self.wrong, GOOD).is_suspect

    def test_write_of_a_good_session_in_another_state(self) -> None:
        """A second refund may be harmful or not: nobody recorded it."""
        episode = replay(say("Refund K1.", LOOK, REFUND, REFUND), GOOD)
        assert episode.wrong_changes is None and not episode.is_suspect

    def test_seen_harm(self) -> None:
        """A write that only a bad session made is executed, and is harm that was seen."""
        episode = replay(self.wrong, GOOD, self.wrong, verdicts=("acceptable", "unacceptable"))
        assert episode.unsettled is None and not episode.done
        assert episode.wrong_changes == ['refund({"amount":99,"order":"K1"})']


class TestUser:
    def test_equivalent_question(self) -> None:
        asked: Message = {"role": "assistant", "content": "Could you give me the order id or name?"}
        episode = replay([ASKED[0], asked, *ASKED[2:]], ASKED)
        assert episode.done and "It is K1." in [m["content"] for m in episode.messages]

    def test_other_question(self) -> None:
        """A user who was asked for something else may say something else."""
        asked: Message = {"role": "assistant", "content": "What is your date of birth?"}
        episode = replay([ASKED[0], asked, *ASKED[2:]], ASKED)
        assert episode.unsettled and episode.unsettled.kind == (UndecidedKind.NO_REPLY)

    @pytest.mark.parametrize(("user_replies", "is_settled"), [(True, False), (False, True)])
    def test_question_that_nobody_asked(self, user_replies: bool, is_settled: bool) -> None:
        """If users of the agent do reply, nobody knows what this user would have said."""
        turns = say("Refund K1.", LOOK, answer="Shall I refund all of K1?")
        episode = replay(turns, GOOD, user_replies=user_replies)
        assert (episode.unsettled is None) == is_settled and not episode.done


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        ("I can't refund K1, because 30 days are over.", True),
        ("Sorry, I can't refund K1: the limit is 50 dollars.", False),
        ("The refund of K1 is done.", False),
    ],
)
def test_answer_where_it_must_not_act(answer: str, done: bool) -> None:
    """Where nothing is written, the answer is the result: other facts settle nothing."""
    episode = replay(say("Refund K1.", LOOK, answer=answer), REFUSED)
    assert episode.done == done and (episode.unsettled is None) == done


def test_write_without_its_look_up() -> None:
    """Every good session looked first, so acting by luck is not settled."""
    episode = replay(say("Refund K1.", REFUND), say("Refund K1.", LOOK, REFUND))
    assert episode.unsettled and episode.unsettled.kind == (UndecidedKind.NO_LOOK_UP)


def test_same_outcome_in_a_bad_session() -> None:
    """If a bad session ended alike, the recordings do not tell good from bad."""
    episode = replay(GOOD, GOOD, GOOD, verdicts=("acceptable", "unacceptable"))
    assert episode.unsettled and episode.unsettled.kind == UndecidedKind.LIKE_BAD


class TestFreeText:
    def sent(self, body: str, to: str = "Ann") -> list[Message]:
        return say("Tell Ann about K1.", call("send", "ok", to=to, body=body))

    good = ("Order K1 has arrived, Ann.", "Dear Ann, your order K1 has arrived.")

    def play(self, turns: list[Message]) -> Episode:
        return replay(turns, *map(self.sent, self.good))

    def test_other_wording(self) -> None:
        assert self.play(self.sent("Hello Ann, K1, your order, has arrived!")).done

    @pytest.mark.parametrize("body", ["Order K2 has arrived, Ann.", "I have no idea of K1."])
    def test_other_facts(self, body: str) -> None:
        assert self.play(self.sent(body)).unsettled

    def test_other_recipient(self) -> None:
        assert self.play(self.sent(self.good[0], to="Bob")).unsettled


def test_shared_look_up() -> None:
    """A look-up of another task is used before the first write, and never after it."""
    other = call("find_order", "?", order="K9")
    shared = [SharedRead("find_order", '{"order":"K9"}', "K9: tent", "other")]
    assert replay(say("Refund K1.", other, LOOK, REFUND), GOOD, shared_reads=shared).done
    late = replay(say("Refund K1.", LOOK, REFUND, other), GOOD, shared_reads=shared)
    assert late.unsettled and late.unsettled.kind == "look-up not recorded"


def test_calls_tied_to_a_session() -> None:
    """Results with pseudonyms of two sessions are never mixed."""
    world = ReplayedWorld()
    one = say("?", call("find_order", "<EMAIL_1>", order="1"))
    two = say("?", call("find_order", "<EMAIL_1>", order="2"))
    recordings = [Recording("a", "acceptable", one, [0]), Recording("b", "acceptable", two, [0])]
    world.reset(TaskTape(recordings, ["find_order"]), TOOLS, one)
    world.run_call("find_order", {"order": "1"})
    assert world.unsettled is None
    world.run_call("find_order", {"order": "2"})
    assert world.unsettled and world.unsettled.kind == "look-up not recorded"


class TestHarm:
    """An episode counts as harmless only if good sessions show it."""

    tools = ("look", "peek", "write", "send")
    steps = st.tuples(st.sampled_from(tools), st.sampled_from(["one", "a b", "b a"]))
    sessions = st.lists(st.tuples(st.booleans(), st.lists(steps, max_size=4)), max_size=5)

    def messages(self, steps: list[tuple[str, str]]) -> list[Message]:
        """A session of these calls."""
        return say("?", *(call(tool, f"result of {tool}", text=text) for tool, text in steps))

    @given(sessions, st.lists(steps, max_size=4), st.booleans())
    def test_is_never_overlooked(
        self,
        sessions: list[tuple[bool, list[tuple[str, str]]]],
        played: list[tuple[str, str]],
        are_declared: bool,
    ) -> None:
        """`peek` writes in truth. If tools are inferred, it passes for a tool that reads."""
        world = ReplayedWorld()
        verdicts = ("unacceptable", "acceptable")
        recordings = [
            Recording(f"s{index}", verdicts[is_good], self.messages(steps))
            for index, (is_good, steps) in enumerate(sessions)
        ]
        reads = ["look"] if are_declared else ["look", "peek"]
        world.reset(
            TaskTape(recordings, reads, reads_are_declared=are_declared),
            [{"type": "function", "function": {"name": tool}} for tool in self.tools],
            self.messages([]),
        )
        for tool, text in played:
            if world.unsettled is None:
                world.run_call(tool, {"text": text})
        if world.unsettled is None:
            world.reply("Done.")
        world.get_reward()
        is_suspect = world.unsettled is not None and world.unsettled.harm_suspected
        if world.wrong_changes != [] or is_suspect:
            return
        writes = [step for step in played if step[0] != "look"]
        by_good = [steps for is_good, steps in sessions if is_good]
        assert all(any(step in steps for steps in by_good) for step in writes)
        if are_declared:
            # One good session made all these writes, in this order.
            remains = [iter(steps) for steps in by_good]
            assert any(all(step in steps for step in writes) for steps in remains)

    def test_tool_that_is_named_like_a_look_up(self) -> None:
        """A look-up that only a bad session made is harmless if a person said that its tool reads."""
        bad = say("Refund K1.", call("find_order", "?", order="K9"), LOOK, REFUND)
        verdicts = ("acceptable", "unacceptable")
        recordings = (say("Refund K1.", LOOK, REFUND), bad)
        turns = say("Refund K1.", call("find_order", "?", order="K9"), LOOK)
        assert replay(turns, *recordings, verdicts=verdicts).wrong_changes is None
        declared = replay(turns, *recordings, verdicts=verdicts, reads_are_declared=True)
        assert declared.wrong_changes == []

    def test_other_order(self) -> None:
        """Two writes may do harm in an order in which only a bad session made them."""
        one, two = (call("refund", "ok", order=order) for order in ("K1", "K2"))
        recordings = (say("?", one, two), say("?", two, one))
        verdicts = ("acceptable", "unacceptable")
        episode = replay(say("?", two, one), *recordings, verdicts=verdicts)
        assert episode.wrong_changes is None

    def test_write_that_failed_in_one_session(self) -> None:
        """A write counts as made if it ever succeeded in this state."""
        failed = call("refund", '{"error":"timeout"}', order="K1")
        done = call("refund", "ok", order="K1")
        bad = say("?", done)
        episode = replay(
            bad, say("?"), say("?", failed), bad, verdicts=("acceptable", *["unacceptable"] * 2)
        )
        assert episode.wrong_changes == ['refund({"order":"K1"})']

    def test_write_before_the_user_has_answered(self) -> None:
        """The good session acted after the reply of the user, and nobody recorded it before."""
        early = [ASKED[0], *say("", LOOK, REFUND)[1:]]
        episode = replay(early, ASKED)
        assert episode.unsettled and episode.unsettled.kind == "write not recorded"
        assert episode.is_suspect


def test_last_words_of_the_user() -> None:
    """Words of the user that nobody answered end a session. They are no request."""
    thanked: list[Message] = [*GOOD, {"role": "user", "content": "Thank you!"}]
    assert replay(GOOD, thanked).done


def test_change_of_any_part_plays_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module of the room that the world imports counts for its hash, if it decides.

    `stored_kinds` has only names, which never change, and their descriptions.
    """
    module, *parts = map(import_module, (REPLAYED_WORLD.partition(":")[0], *REPLAYED_PARTS))
    imported = {
        node.module
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
    }
    room = {name for name in imported if name and name.startswith("agent_pipeline.evaluation.")}
    undeciding = {f"agent_pipeline.evaluation.{name}" for name in ("worlds", "stored_kinds")}
    assert room - undeciding <= set(REPLAYED_PARTS)
    before = hash_world_source(REPLAYED)
    real = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda part: real(part) + "#" * (part is parts[0]))
    assert hash_world_source(REPLAYED) != before


class TestBounds:
    def decide(self, candidate: str, champion: str, first: bool = False) -> set[tuple[str, str]]:
        """The reasons for episodes: `+` done, `-` not done, any other letter an undecided turn."""

        def scores(letters: str) -> Scores:
            episodes = [
                EpisodeScore(
                    task=str(index),
                    trial=0,
                    seed=None,
                    done=letter == "+",
                    harmed=None if letter not in "+-" else False,
                    deviation="" if letter in "+-" else letter,
                )
                for index, letter in enumerate(letters)
            ]
            return Scores("", (), episodes=tuple(episodes))

        findings = check_episodes(scores(candidate), scores(champion), PromotionPolicy(), first)
        return {(reason.kind, reason.against) for f in findings for reason in f.reasons}

    def test_overlap(self) -> None:
        assert self.decide("+" * 15 + "a" * 5, "+" * 20) == {
            (ReasonKind.UNDECIDED_FROM_LOGS, "cannot decide")
        }

    def test_worse_in_any_case(self) -> None:
        reasons = self.decide("-" * 15 + "a" * 5, "+" * 20)
        assert (ReasonKind.REGRESSION, "reject") in reasons

    def test_better_in_any_case(self) -> None:
        assert self.decide("+" * 19 + "a", "-" * 10 + "+" * 5 + "b" * 5) == set()

    def test_same_deviation(self) -> None:
        """Two models that deviate by the same turn are equally good, as far as anybody knows."""
        assert self.decide("+" * 15 + "a" * 5, "+" * 15 + "a" * 5) == set()

    def test_first_champion(self) -> None:
        """An untrained base model, which leaves most undecided, does not block a first champion."""
        assert self.decide("+" * 20, "b" * 20, first=True) == set()
        reasons = self.decide("+" * 15 + "a" * 5, "b" * 20, first=True)
        assert reasons == {(ReasonKind.UNDECIDED_FROM_LOGS, "promote")}
