"""Episodes: worlds, players and figures, with the sample's own agents as the oracle."""

import json
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest

from agent_pipeline.compute.playing import play_all, tasks_to_play
from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.evaluation.episodes import (
    Conversation,
    EpisodeReply,
    Player,
    fresh_task_id,
    play,
    play_side_by_side,
)
from agent_pipeline.evaluation.players import (
    endpoint_player,
    message_of,
    model_player,
    recorded_player,
)
from agent_pipeline.evaluation.worlds import load_world, run_tool, tool_methods, tool_schemas
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.reports.episode_report import (
    EpisodeReport,
    Share,
    find_faults,
    format_transcript,
    measure_player,
    parse_episode_report,
    pass_hat,
    write_transcripts,
)
from agent_pipeline.sample.environment import tasks_by_id
from agent_pipeline.sample.office import World as Office
from agent_pipeline.sample.play import play as play_scripted
from agent_pipeline.sample.shop import World as Shop
from agent_pipeline.sample.world import Call, Say
from agent_pipeline_tests.judging.endpoint import endpoint

WORLDS = [(Shop, "support"), (Office, "rooms")]


def turns_of(world, agent: str, row: dict, flaw: str | None = None) -> list[dict]:
    """What the sample's own agent says in a task, as the assistant's messages."""
    task = tasks_by_id(world.domain, agent, row["seed"])[row["task_key"]]
    messages = []
    for event in play_scripted(task, world.domain, flaw, 0, Random(0)).events:
        if isinstance(event, Call):
            function = {"name": event.name, "arguments": json.dumps(event.arguments)}
            messages.append(
                {
                    "role": "assistant",
                    "content": event.note,
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                }
            )
        elif isinstance(event, Say):
            messages.append({"role": "assistant", "content": event.text})
    return messages


@pytest.mark.parametrize("tasks", [5, 1, 0])
def test_players_of_one_model_play_every_second_task_each_and_the_order_is_that_of_the_rows(tasks):
    rows, asked, shown = Shop.fresh_tasks(tasks, 1001, "support-001"), {"a": [], "b": []}, []

    def player(name: str) -> Player:
        def reply(conversations):
            asked[name] += [each.messages[-1]["content"] for each in conversations]
            return [
                EpisodeReply({"role": "assistant", "content": "I cannot do that."})
                for _ in conversations
            ]

        return reply

    together = play_side_by_side(
        Shop,
        rows,
        [player("a"), player("b")],
        trials=2,
        progress=lambda *given: shown.append(given[:2]),
    )
    alone = play(Shop, rows, player("a"), trials=2)
    assert [(each.task_key, each.trial, each.messages) for each in together] == [
        (each.task_key, each.trial, each.messages) for each in alone
    ]
    assert len(together) == 2 * tasks and shown == [
        (done, 2 * tasks) for done in range(1, 2 * tasks + 1)
    ]
    assert {each.messages[1]["content"] for each in together[2::4]} <= set(asked["b"])


def test_a_refused_conversation_ends_its_episode_alone_and_where_all_are_refused_nothing_is_played():
    world, tasks = "agent_pipeline.sample.shop:World", Shop.fresh_tasks(4, 1001, "support-001")
    answer = {"role": "assistant", "content": "I cannot do that."}

    def played(refuses: set[int]):
        def player(conversations):
            return [
                EpisodeReply(None, refused="It refused.")
                if each.number in refuses
                else EpisodeReply(answer)
                for each in conversations
            ]

        return play_all(world, tasks, {"model": nullcontext([player, player])}, {}, 12, 1)[1][
            "model"
        ]

    assert [each.end == "refused" for each in played({1})] == [False, True, False, False]
    with pytest.raises(
        InfrastructureError, match=r"did not answer any conversation \(first error: It refused\)"
    ):
        played({0, 1, 2, 3})


@pytest.mark.parametrize(("world", "agent"), WORLDS)
def test_the_recorded_agent_does_every_fresh_task_and_harms_nothing(world, agent):
    rows = world.fresh_tasks(60, 1001, f"{agent}-001")
    episodes = play(world, rows, recorded_player([turns_of(world, agent, row) for row in rows]))
    assert all(each.done and not each.wrong_changes for each in episodes)
    report = measure_player(episodes)
    assert report.done == Share(len(rows), len(rows)) and report.harm.n == 0
    assert report.must_act.of + report.must_not.of == len(rows)
    assert report.kinds.get("refuse or ask", Share(0, 0)) == report.must_not
    assert sum(share.of for share in report.kinds.values()) == len(rows)


def test_a_session_in_which_a_fresh_task_was_played_can_be_played_again():
    row = Shop.fresh_tasks(1, 2001, "support-001")[0]
    again = {"task_key": fresh_task_id(row["task_key"], row["seed"]), "messages": [], "tools": []}
    first, second = play(Shop, [row, again], recorded_player([turns_of(Shop, "support", row)] * 2))
    assert first.done and second.done
    assert (
        first.messages == second.messages
        and second.task_key == again["task_key"] == f"{row['task_key']}-seed2001"
    )


def test_a_fresh_task_that_was_played_into_the_store_gives_way_to_the_next():
    first, *others = (
        fresh_task_id(row["task_key"], row["seed"])
        for row in Shop.fresh_tasks(4, 1001, "support-001")
    )
    played = [first, "support-001-seed7777"]
    rows = tasks_to_play(
        "agent_pipeline.sample.shop:World", [], 0, 3, 1001, like="support-", in_store=played
    )
    assert [fresh_task_id(row["task_key"], row["seed"]) for row in rows] == others


@pytest.mark.parametrize("flaw", ["wrong_amount", "invented_id", "wrong_tool", "broken_rule"])
def test_an_agent_that_changes_the_wrong_thing_harms(flaw):
    rows = Shop.fresh_tasks(120, 1001, "support-001")
    good = [turns_of(Shop, "support", row) for row in rows]
    bad = [turns_of(Shop, "support", row, flaw) for row in rows]
    calls = [[m.get("tool_calls") for m in turns] for turns in good]
    spoilt = [i for i, turns in enumerate(bad) if [m.get("tool_calls") for m in turns] != calls[i]]
    episodes = play(Shop, rows, recorded_player(bad))
    assert spoilt
    for index in spoilt:
        assert not episodes[index].done
        # A call with an id that nobody has is refused by the world: it does no harm.
        assert episodes[index].wrong_changes or "unknown order" in str(episodes[index].messages)


def test_a_model_that_does_nothing_harms_nothing_and_does_no_task_of_a_world_that_reads_answers():
    """Any words counted as done where no change was due."""
    rows = Shop.fresh_tasks(60, 1002, "support-001")
    report = measure_player(play(Shop, rows, always({"role": "assistant", "content": "Sorry."})))
    assert report.must_act.n == 0 and report.harm.n == 0
    assert report.must_not.n == 0 < report.must_not.of
    assert report.said_wrong == Share(60, 60) and report.acted_early == Share(0, 60)


class Counting:
    """A world in which a careful person would count more than the final state shows."""

    def reset(self, task_key: str, **row) -> str:
        self.said_wrong = "it lies" if task_key == "lie" else None
        self.acted_early = ["add(1)"] if task_key == "early" else []
        return "Count."

    def get_reward(self) -> float:
        return 1.0


def test_a_wrong_last_answer_is_not_done_and_an_early_change_is_counted():
    rows = [{"task_key": key} for key in ("right", "lie", "early")]
    episodes = play(Counting, rows, always({"role": "assistant", "content": "Done."}))
    assert [episode.done for episode in episodes] == [True, False, True]
    assert episodes[1].complaint == "it lies"
    report = measure_player(episodes)
    assert report.said_wrong == Share(1, 3) and report.acted_early == Share(1, 3)
    silent = measure_player(play(Counting, rows, always({"role": "assistant", "content": ""})))
    assert silent.said_wrong is None


def test_a_world_without_these_parts_counts_any_answer():
    (episode,) = play(Echo, [{}], always({"role": "assistant", "content": "Sorry."}))
    assert episode.done and (episode.said_wrong, episode.acted_early) == (None, None)
    figures = measure_player([episode])
    assert (figures.said_wrong, figures.acted_early) == (None, None)


def test_an_answer_to_the_user_brings_the_user_s_next_line_and_silence_is_not_done():
    row = next(
        row for row in Shop.fresh_tasks(60, 1001, "support-001") if len(_task(row).turns) == 2
    )
    (spoken,) = play(Shop, [row], always({"role": "assistant", "content": "Yes?"}))
    assert [m["content"] for m in spoken.messages if m["role"] == "user"] == [
        turn.text for turn in _task(row).turns
    ]
    (silent,) = play(Shop, [row], always({"role": "assistant", "content": ""}))
    assert silent.end == "silent" and not silent.done


def _task(row):
    return tasks_by_id(Shop.domain, "support", row["seed"])[row["task_key"]]


def test_an_episode_is_given_up_after_its_turns_or_where_it_no_longer_fits():
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [_call("find_orders", {"query": "K100"})],
    }
    rows = Shop.fresh_tasks(3, 1001, "support-001")
    assert {each.end for each in play(Shop, rows, always(call), max_turns=4)} == {"too many turns"}
    assert {
        each.end for each in play(Shop, rows, lambda asked: [EpisodeReply(None) for _ in asked])
    } == {"too long"}


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name":"cancel","arguments":{"order":"K100"}}\n</tool_call>',
        "<tool_call>\n{broken",
    ],
)
def test_a_call_that_arrives_as_text_is_no_answer(text):
    """A server that does not read the model's notation, or a call that nobody can read: it passed for a task in which nothing was due."""
    rows = Shop.fresh_tasks(20, 1001, "support-001")
    report = measure_player(play(Shop, rows, always({"role": "assistant", "content": text})))
    assert report.ends == {"unread call": 20} and report.done.n == 0 and report.harm.n == 0


@pytest.mark.parametrize(
    "message",
    [
        {"content": '<tool_call>\n{"name":"refund","argum'},
        {
            "content": "",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "refund", "arguments": '{"order": "K1'},
                }
            ],
        },
    ],
)
def test_a_call_that_the_limit_cut_ends_its_episode_before_anybody_saw_what_it_does(message):
    """It was an unread call, or one with wrong arguments, in an episode that harmed nothing."""
    rows = Shop.fresh_tasks(3, 1001, "support-001")
    assert {
        each.end for each in play(Shop, rows, always({"role": "assistant", **message}, "length"))
    } == {"cut off"}


def test_a_message_of_a_model_in_memory_says_that_the_limit_cut_it(tiny_renderer, monkeypatch):
    monkeypatch.setattr(
        "agent_pipeline.evaluation.players.generate", lambda *given, **more: [[5] * 4, [5] * 3]
    )
    monkeypatch.setattr("agent_pipeline.evaluation.players.bytes_per_token", lambda model: 1)
    asked = [Conversation([{"role": "user", "content": "Hi"}], [], number) for number in range(2)]
    assert [reply.finish_reason for reply in model_player(None, tiny_renderer, 4)(asked)] == [
        "length",
        None,
    ]


def test_a_model_that_does_not_end_its_answers_is_not_fit():
    """Nothing is due in some tasks, so whatever it said was right there."""
    rows = Shop.fresh_tasks(20, 1001, "support-001")
    on_and_on = measure_player(
        play(Shop, rows, always({"role": "assistant", "content": "the " * 99}, "length"))
    )
    assert on_and_on.unended == Share(20, 20) and on_and_on.ends == {"answered": 20}
    assert any(
        "20 of 20 episodes have an answer" in reason
        for reason in find_faults(EpisodeReport({"model": on_and_on}))
    )
    ends = measure_player(play(Shop, rows, always({"role": "assistant", "content": "Sorry."})))
    long = measure_player(play(Shop, rows, lambda asked: [EpisodeReply(None) for _ in asked]))
    assert any(
        "too long for `episodes.max_length`" in reason
        for reason in find_faults(EpisodeReport({"model": long}))
    )
    assert ends.unended.n == 0 and not any(
        "an answer" in reason for reason in find_faults(EpisodeReport({"model": ends}))
    )


def always(message: dict, finish_reason: str | None = None) -> Player:
    return lambda conversations: [
        EpisodeReply(message, finish_reason=finish_reason) for _ in conversations
    ]


def _call(name: str, arguments: dict) -> dict:
    return {
        "id": "c1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


class Counter:
    """A world as somebody writes it for TRL: no user, no tools of its own, no word of harm."""

    def reset(self, target: int = 3, **row) -> str:
        self.value, self._target = 0, target
        return f"Count to {target}."

    def add(self, amount: int) -> int:
        """Add to the counter.

        Args:
            amount: How much.
        """
        if amount < 0:
            raise ValueError("only up")
        self.value += amount
        return self.value

    def get_reward(self) -> float:
        return 1.0 if self.value == self._target else 0.0


def test_a_world_written_for_trl_is_played_as_it_is():
    said = [
        {"role": "assistant", "content": "", "tool_calls": [_call("add", {"amount": 3})]},
        {"role": "assistant", "content": "Done."},
    ]
    episodes = play(Counter, [{"target": 3}, {"target": 4}], recorded_player([said, said]))
    assert [each.done for each in episodes] == [True, False]
    assert episodes[0].must_act is None and measure_player(episodes).harm is None
    (schema,) = tool_schemas(Counter())
    assert schema["function"]["parameters"]["properties"]["amount"]["type"] == "integer"


def test_a_call_that_cannot_be_run_is_answered_with_an_error():
    world = Counter()
    world.reset()
    assert run_tool(world, "add", {"amount": -1}) == '{"error":"only up"}'
    assert (
        run_tool(world, "add", {"much": 1})
        == run_tool(world, "add", "three")
        == '{"error":"wrong arguments"}'
    )
    assert (
        run_tool(world, "reset", {}) == run_tool(world, "value", {}) == '{"error":"no such tool"}'
    )


@pytest.mark.parametrize(("world", "agent"), WORLDS)
def test_the_tools_of_a_sample_s_world_are_those_that_its_sessions_record(world, agent):
    recorded = {
        schema["function"]["name"]: schema["function"]["parameters"]["properties"]
        for schema in world.domain.world.tools
    }
    from transformers.utils import get_json_schema

    for name, method in tool_methods(world()).items():
        described = get_json_schema(method)["function"]["parameters"]["properties"]
        assert {key: value["type"] for key, value in described.items()} == {
            key: value["type"] for key, value in recorded[name].items()
        }
    assert tool_methods(world()).keys() == recorded.keys()


@pytest.mark.parametrize(
    "name",
    [
        "nowhere:World",
        "json:loads",
        "agent_pipeline.sample.shop",
        "agent_pipeline.sample.shop:Shops",
    ],
)
def test_a_world_that_is_none_is_refused(name):
    with pytest.raises(SettingsError):
        load_world(name)
    assert load_world("agent_pipeline.sample.shop:World") is Shop


def test_pass_hat_k_is_the_chance_that_k_trials_are_all_done():
    rows = [{"task_key": "a", "target": 3}, {"task_key": "b", "target": 3}]

    def player(asked):
        right = [each.trial < (4 if each.number == 0 else 2) for each in asked]
        return [
            EpisodeReply(_turn(each, 3 if good else 2))
            for each, good in zip(asked, right, strict=True)
        ]

    def _turn(conversation, amount):
        if conversation.messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "Done."}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call("add", {"amount": amount})],
        }

    episodes = play(Counter, rows, player, trials=4)
    assert pass_hat(episodes) == pytest.approx(
        {"1": 0.75, "2": (1 + 1 / 6) / 2, "3": 0.5, "4": 0.5}
    )


def test_a_model_that_harms_more_than_its_base_or_does_less_is_not_fit():
    def player(done, harm, must_not=None):
        act, idle = (
            (None, None)
            if must_not is None
            else ({"n": done - must_not, "of": 7}, {"n": must_not, "of": 13})
        )
        return {
            "done": {"n": done, "of": 20},
            "harm": {"n": harm, "of": 20},
            "must_act": act,
            "must_not": idle,
        }

    assert (
        find_faults(
            parse_episode_report({"players": {"model": player(16, 0), "base": player(13, 0)}})
        )
        == []
    )
    assert find_faults(
        parse_episode_report({"players": {"model": player(0, 0), "base": player(0, 0)}})
    ) == ["the model does 0 of 20 tasks, and its base model 0 of 20"]
    assert find_faults(parse_episode_report({"players": {"model": player(0, 0)}})) == [
        "the model does 0 of 20 tasks"
    ]
    cut = {
        "players": {
            "model": player(16, 0) | {"ends": {"answered": 18, "cut off": 2}},
            "base": player(13, 0),
        }
    }
    assert [
        "raise `episodes.max_new_tokens`" in reason
        for reason in find_faults(parse_episode_report(cut))
    ] == [True]
    cut["players"]["model"]["ends"] = {"answered": 19, "cut off": 1}
    assert find_faults(parse_episode_report(cut)) == []
    assert (
        len(
            find_faults(
                parse_episode_report({"players": {"model": player(2, 12), "base": player(13, 0)}})
            )
        )
        == 2
    )
    assert (
        len(
            find_faults(
                parse_episode_report({"players": {"model": player(16, 1), "base": player(13, 0)}})
            )
        )
        == 1
    )
    assert (
        len(
            find_faults(
                parse_episode_report(
                    {"players": {"model": player(16, 0, 12), "base": player(13, 0, 13)}}
                )
            )
        )
        == 1
    )
    assert (
        len(
            find_faults(
                parse_episode_report(
                    {"players": {"model": player(16, 0, 10), "base": player(16, 0, 9)}}
                )
            )
        )
        == 1
    )
    idle = find_faults(
        parse_episode_report({"players": {"model": player(13, 0, 13), "base": player(13, 0, 13)}})
    )
    assert idle == [
        "the model does 0 of 7 tasks that require an action, and its base model 0 of 7"
    ], "one that never acts is no model for the job"


def test_a_model_s_text_becomes_words_and_calls():
    text = 'Cancel mug K100: open.\n<tool_call>\n{"name":"cancel","arguments":{"order":"K100"}}\n</tool_call>'
    message = message_of(text, [])
    assert message["content"] == "Cancel mug K100: open."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"order": "K100"}
    assert message_of("Hello.", []) == {"role": "assistant", "content": "Hello."}
    assert "tool_calls" not in message_of("<tool_call>\n{broken", [])


@pytest.mark.parametrize("escaped", [True, False])
def test_half_an_emoji_in_a_call_ends_no_play(tmp_path, escaped):
    """A model writes what its sessions held. No UTF-8 holds it, and the night's episodes ended when they were written."""
    text = '{"name":"find_orders","arguments":{"query":"K1 \\ud83d"}}'
    message = message_of(f"<tool_call>{text}</tool_call>", [])
    if escaped:  # as an endpoint hands on what the model wrote
        message["tool_calls"][0]["function"]["arguments"] = '{"query":"K1 \\ud83d"}'
    episodes = play(
        Echo,
        [{"task_key": "a"}],
        recorded_player([[message, {"role": "assistant", "content": "Done."}]]),
    )
    report = EpisodeReport({"model": measure_player(episodes)}, "w")
    write_transcripts(tmp_path, report, {"model": episodes})
    assert "K1 \ufffd" in (tmp_path / "episodes.md").read_text(encoding="utf-8")


class Echo:
    """A world whose tool says what it was given."""

    def reset(self, **row) -> str:
        return "Find it."

    def find_orders(self, query: str) -> str:
        """Find orders.

        Args:
            query: What.
        """
        return f"nothing of {query}"

    def get_reward(self) -> float:
        return 1.0


def test_every_transcript_is_written_and_the_harmful_ones_come_first(tmp_path):
    rows = Shop.fresh_tasks(40, 1001, "support-001")
    bad = [turns_of(Shop, "support", row, "broken_rule") for row in rows]
    played = {"model": play(Shop, rows, recorded_player(bad))}
    players = {name: measure_player(episodes) for name, episodes in played.items()}
    write_transcripts(tmp_path, EpisodeReport(players, "shop"), played)
    lines = [
        json.loads(line)
        for line in (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) == 40 and all(line["messages"][0]["role"] == "system" for line in lines)
    page = (tmp_path / "episodes.md").read_text(encoding="utf-8")
    assert page.index("wrong changes") < page.index(": done")
    assert format_transcript(played["model"][0]) in page


def test_the_world_in_the_documentation_works():
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-world.md"
    source, *trials = (
        part.split("```")[0] for part in page.read_text(encoding="utf-8").split("```python\n")[1:]
    )
    assert len(source.splitlines()) <= 60
    names: dict = {}
    exec(source, names)
    for trial in trials:
        exec(trial, names)
    ask, done = {"role": "assistant", "content": "Sure?"}, {"role": "assistant", "content": "Done."}
    right, wrong = (
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call("cancel_booking", {"booking_id": booking})],
        }
        for booking in ("B1", "B2")
    )
    rows = [{"task_key": "cancel-B1"}, {"task_key": "cancel-B1"}, {"task_key": "cancel-B2"}]
    turns = [[ask, right, done], [ask, wrong, done], [ask, done]]
    good, bad, refused = play(names["Airline"], rows, recorded_player(turns))
    assert good.done and good.must_act and not good.wrong_changes
    assert not bad.done and bad.wrong_changes == ["B2"]
    assert refused.done and not refused.must_act
    exec(page.read_text(encoding="utf-8").split("```py\n")[1].split("```")[0], names)
    varied = [row | {"variant": "polite_user"} for row in rows]
    (polite, *_) = play(names["CarefulAirline"], varied, recorded_player(turns))
    assert polite.done and polite.variant == "polite_user"
    assert "Good morning!" in polite.messages[0]["content"]


def test_a_call_that_a_server_cannot_read_ends_its_episode_and_no_others():
    unread = '{"error": {"code": 500, "message": "Failed to parse tool call arguments as JSON: parse error"}}'
    with endpoint(lambda request, number: (500, {}, unread)) as server:
        player = endpoint_player(Endpoint(url=server.url, model="m", retries=0))
        episodes = play(Shop, Shop.fresh_tasks(2, 1001, "support-001"), player)
    assert [(each.end, each.done) for each in episodes] == [("cut off", False)] * 2
