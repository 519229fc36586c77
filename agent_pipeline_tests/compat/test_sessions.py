"""Sessions by project and agent, and data sets of those that pass."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline import export_traces_for_sft, list_sessions, load_history
from agent_pipeline.errors import DataError, PartitionError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.judging import EvaluationContext
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.chats import calls
from agent_pipeline_tests.stores import (
    call,
    execute,
    omniagents_home,
    result,
    says,
    sessions_db,
    user,
)

ROME = [
    {"role": "system", "content": "Be brief."},
    user("Rome?"),
    call("weather", "c1", '{"city": "Rome"}'),
    result({"sun": True}, "c1"),
    says("Sunny."),
]
SESSIONS: dict[str, list[Any]] = {
    "a-good": ROME,
    "b-bad": [user("Oslo?"), says("No idea.")],
    "c-good": [user("Bonn?"), says("Rain."), user("Thanks, mail me@example.org")],
    "d-archived": [user("Lima?"), says("Sun.")],
    "e-empty": [],
    "f-unanswered": [user("Kyiv?"), call("weather", "c1"), says("Snow.")],
    "g-unjudged": [user("Riga?"), says("Fog.")],
}
VERDICTS = [
    ("a-good", "acceptable"),
    ("b-bad", "unacceptable"),
    ("c-good", "acceptable"),
    ("f-unanswered", "acceptable"),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    home = omniagents_home(tmp_path / "home", SESSIONS, verdicts=VERDICTS)
    execute(sessions_db(home), "UPDATE sessions SET archived = 1 WHERE session_id = 'd-archived'")
    return home


def export(store: Path, **options: Any) -> tuple[Any, Counter[str]]:
    counts: Counter[str] = Counter()
    found = export_traces_for_sft("shop", "support", store=store, counts=counts, **options)
    assert counts["sessions"] == len(SESSIONS) == counts.total() - counts["sessions"], (
        "in = rows + reasons"
    )
    return found, counts


def test_sessions_are_listed_with_their_state_and_length(store):
    found = list_sessions("shop", "support", store=store)
    assert [each.id for each in found] == list(SESSIONS)
    assert [each.message_count for each in found] == [len(items) for items in SESSIONS.values()]
    assert [each.id for each in found if each.archived] == ["d-archived"]


def test_a_history_is_what_the_store_holds(store):
    assert load_history("a-good", "shop", "support", store=store) == ROME
    assert load_history("e-empty", "shop", "support", store=str(store)) == []


def test_the_store_of_the_settings_is_looked_in(store, monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(store))
    assert len(list_sessions("shop", "support")) == len(SESSIONS)


def test_who_is_not_there_is_one_sentence(store):
    with pytest.raises(DataError, match=r"shop/support has no session 'nobody'"):
        load_history("nobody", "shop", "support", store=store)
    with pytest.raises(PartitionError, match="no partition shop/sales"):
        list_sessions("shop", "sales", store=store)


def test_a_store_without_verdicts_says_so(tmp_path):
    with pytest.warns(UserWarning, match="no verdict file"):
        list_sessions("shop", "support", store=omniagents_home(tmp_path, SESSIONS))


def test_archived_empty_and_damaged_sessions_are_left_out_and_counted(store):
    found, counts = export(store)
    assert found["session_id"] == ["a-good", "b-bad", "c-good", "g-unjudged"]
    assert counts == {
        "sessions": 7,
        "rows": 4,
        "archived": 1,
        "empty": 1,
        "broken:unanswered_call": 1,
    }


def test_messages_are_openais_with_no_null_filled_keys(store):
    found, _ = export(store)
    assert found[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rome?"},
        calls(("c1", "weather", {"city": "Rome"})),
        {"role": "tool", "tool_call_id": "c1", "content": '{"sun": true}'},
        {"role": "assistant", "content": "Sunny."},
    ]
    assert found[0]["tools"][0]["function"]["name"] == "weather", (
        "inferred from the calls, where nobody has the schema"
    )
    assert found[1]["messages"][0].keys() == {"role", "content"}


def test_what_is_private_is_redacted_before_anybody_gets_it(tmp_path):
    good = SESSIONS | {"c-good": [user("Mail me@example.org"), says("Rain.")]}
    other = omniagents_home(tmp_path, good, verdicts=VERDICTS)
    found, _ = export(other, filter_fn=lambda items: "me@example.org" in str(items))
    assert found[0]["messages"][0]["content"] == "Mail <EMAIL_1>" and len(found) == 1


def test_filters_keep_what_they_say(store):
    assert export(store, judgment="acceptable")[0]["session_id"] == ["a-good", "c-good"]
    assert export(store, judgment="unacceptable")[0]["session_id"] == ["b-bad"]
    assert export(store, judgment="acceptable")[1]["unjudged"] == 1
    assert export(store, measure="called_tool('weather')")[0]["session_id"] == ["a-good"]
    assert (
        export(store, measure="called_tool('weather')", measure_passed=False)[1]["measure_passed"]
        == 1
    )
    assert export(
        store, filter_fn=lambda items: any(item.get("type") == "function_call" for item in items)
    )[0]["session_id"] == ["a-good"]
    found, counts = export(store, max_sessions=2)
    assert found["session_id"] == ["a-good", "b-bad"] and counts["max_sessions"] == 2
    assert export(store, repair={"unanswered_call": "keep"})[1]["rows"] == 5


def test_a_session_that_was_forgotten_is_trained_on_by_nobody(store, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    BlockList.add(Lake(tmp_path / "lake"), ["a-good"], PartitionKey("shop", "support"))
    found, counts = export(store)
    assert "a-good" not in found["session_id"] and counts["forgotten"] == 1


def test_a_measure_of_ones_own_sees_the_whole_session(store):
    def sunny(context: EvaluationContext) -> tuple[bool, str]:
        return "Sunny" in context.final_answer and context.metadata[
            "session_id"
        ] == "a-good", "because"

    assert export(store, measure=sunny)[0]["session_id"] == ["a-good"]


def test_what_raises_costs_its_own_session_and_is_counted_with_its_text(store):
    def broken(context: EvaluationContext) -> bool:
        if "Oslo" in context.messages[0]["content"]:
            raise KeyError("no city")
        return True

    found, counts = export(store, measure=broken)
    assert len(found) == 3 and counts["measure_not_taken: raised KeyError: 'no city'"] == 1
    found, counts = export(
        store, filter_fn=lambda items: items[0]["content"] != "Be brief." or items[99]
    )
    assert len(found) == 3 and counts["filter_raised: IndexError: list index out of range"] == 1


def test_system_messages_and_calls_go_where_they_are_not_wanted(store):
    found, _ = export(store, include_system=False, include_tool_calls=False)
    assert found[0]["messages"] == [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": "Sunny."},
    ]
    assert found[0]["tools"] == []


def test_prompt_and_completion_are_texts_or_messages(store):
    found, counts = export(store, format="prompt_completion")
    assert (
        counts["rows"] == 4
        and found[1]["prompt"] == "USER: Oslo?\n\nASSISTANT:"
        and found[1]["completion"] == " No idea."
    )
    found, _ = export(store, format="prompt_completion_messages")
    assert (
        found[0]["completion"] == [{"role": "assistant", "content": "Sunny."}]
        and len(found[0]["prompt"]) == 4
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"format": "chatml"}, "'chatml' does not exist.*conversational, prompt_completion"),
        ({"measure": 3}, "measure has the type int"),
        ({"judgment": "good"}, "'acceptable' or 'unacceptable'"),
    ],
)
def test_an_argument_that_there_is_not_is_a_value_error(store, options, what):
    with pytest.raises(ValueError, match=what):
        export_traces_for_sft("shop", "support", store=store, **options)


def test_no_session_at_all_is_a_value_error_that_says_which_filter_took_how_many(store):
    with pytest.raises(
        ValueError,
        match=r"None of 7 sessions of shop/support.*not_unacceptable 3.*measure_failed 1.*unjudged 1",
    ) as error:
        export_traces_for_sft(
            "shop", "support", store=store, judgment="unacceptable", measure="called_tool('fly')"
        )
    assert isinstance(error.value, DataError) and "\n" not in str(error.value)
