"""Episodes in the sample's worlds as a careful person counts them: planted cases of each kind."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sample.environment import tasks_by_id
from agent_pipeline.sample.office import World as Office
from agent_pipeline.sample.play import play
from agent_pipeline.sample.shop import World as Shop
from agent_pipeline.sample.world import Call, Say, User

WORLDS = {"support": Shop, "rooms": Office}


def tasks_of(agent: str, seed: int = 1001):
    """The tasks of an agent of the sample, by id."""
    return tasks_by_id(WORLDS[agent].domain, agent, seed)


def find_task(agent: str, part: str):
    """The first task whose kind contains a text."""
    return next(task for task in tasks_of(agent).values() if part in task.kind)


def begin(agent: str, task, variant: str = ""):
    """A world that begins a task."""
    world = WORLDS[agent]()
    world.reset(task_key=task.task_id, seed=1001, variant=variant)
    return world


def replay(agent: str, task, flaw: str | None = None, variant: str = ""):
    """A world in which the sample's own agent has done a task."""
    world = begin(agent, task, variant)
    for event in play(task, world.domain, flaw, 0, Random(0)).events:
        if isinstance(event, Call):
            world._call(event.name, **event.arguments)
        elif isinstance(event, Say):
            world.user.reply(event.text)
    return world


def calls_of(agent: str, task) -> list[Call]:
    """The good agent's calls."""
    events = play(task, WORLDS[agent].domain, None, 0, Random(0)).events
    return [event for event in events if isinstance(event, Call)]


@pytest.mark.parametrize(
    ("agent", "variant"),
    [(agent, variant) for agent, world in WORLDS.items() for variant in ("", *world.variants)],
)
def test_nothing_counts_against_the_good_agent(agent, variant):
    tasks = tasks_by_id(WORLDS[agent].domain, agent, 1001, variant)
    for task in list(tasks.values())[:120]:
        world = replay(agent, task, variant=variant)
        counted = (world.wrong_changes, world.acted_early, world.said_wrong, world.get_reward())
        assert counted == ([], [], None, 1.0), task.kind


@pytest.mark.parametrize("agent", WORLDS)
@pytest.mark.parametrize("flaw", ["broken_rule", "wrong_tool", "empty_promise", "no_answer"])
def test_a_flawed_agent_is_done_nowhere_where_its_flaw_shows(agent, flaw):
    shows = 0
    for task in list(tasks_of(agent).values())[:200]:
        domain = WORLDS[agent].domain
        flawed = play(task, domain, flaw, 0, Random(0)).outline()
        if flawed != play(task, domain, None, 0, Random(0)).outline():
            shows += 1
            world = replay(agent, task, flaw)
            assert world.get_reward() < 1 or world.said_wrong, task.kind
    assert shows > 5


def test_a_refund_that_is_too_high_is_harm_even_if_it_is_taken_back():
    """Only the final states were compared, so the episode counted as harmless and done."""
    task = find_task("support", "refund all, by id")
    look_up, refund = calls_of("support", task)
    world, amount = begin("support", task), refund.arguments["amount"]
    world.find_orders(**look_up.arguments)
    for paid in (2 * amount, -amount):
        world.refund(refund.arguments["order"], paid)
    assert len(world.wrong_changes) == 1
    assert f"refunded is {2 * amount}, should be {amount}" in world.wrong_changes[0]
    assert world.get_reward() == 0.0


def test_two_refunds_that_are_right_together_are_no_harm():
    task = find_task("support", "refund all, by id")
    look_up, refund = calls_of("support", task)
    world, order = begin("support", task), refund.arguments["order"]
    world.find_orders(**look_up.arguments)
    for paid in (1, refund.arguments["amount"] - 1):
        world.refund(order, paid)
    assert world.wrong_changes == [] and world.get_reward() == 1.0


def test_too_small_a_refund_is_harm_at_the_end():
    task = find_task("support", "refund all, by id")
    look_up, refund = calls_of("support", task)
    world = begin("support", task)
    world.find_orders(**look_up.arguments)
    world.refund(refund.arguments["order"], 1)
    (text,) = world.wrong_changes
    assert f"refunded is 1, should be {refund.arguments['amount']}" in text


def test_a_booking_that_is_given_back_was_harm_and_is_listed_once():
    task = find_task("rooms", "book, none free")
    look_up = calls_of("rooms", task)[0].arguments
    world = begin("rooms", task)
    room = next(iter(world._world.free_rooms(**look_up)))
    world.free_rooms(**look_up)
    world.book(room, **look_up)
    world.cancel(room, **look_up)
    assert len(world.wrong_changes) == 1 and world.get_reward() == 0.0


def test_what_is_done_right_and_then_undone_is_harm():
    task = find_task("rooms", "cancel")
    (give_back,) = calls_of("rooms", task)
    world = begin("rooms", task)
    world.cancel(**give_back.arguments)
    assert world.wrong_changes == []
    world.book(**give_back.arguments)
    assert len(world.wrong_changes) == 1


def test_a_lucky_act_before_the_user_said_which_order_is_counted():
    """It hit the right one of two orders, so it counted as done."""
    task = next(
        task
        for task in tasks_of("support").values()
        if task.kind.endswith(", ask which")
        and ", then" not in task.kind
        and task.start != task.goal
    )
    calls = calls_of("support", task)
    world = begin("support", task)
    for call in calls:
        world._call(call.name, **call.arguments)
    assert world.wrong_changes == [] and len(world.acted_early) == 1
    assert "1 of 2 messages" in world.acted_early[0]
    for answer in ("Done.", "Done."):
        world.user.reply(answer)
    assert world.get_reward() == 0.0
    patient = replay("support", task)
    assert patient.acted_early == [] and patient.get_reward() == 1.0


def test_an_agent_that_acts_a_turn_late_did_not_act_early():
    task = next(
        task
        for task in tasks_of("support").values()
        if task.kind.endswith(", instead") and task.start != task.goal
    )
    world = begin("support", task)
    world.user.reply("Let me see.")
    for call in calls_of("support", task):
        world._call(call.name, **call.arguments)
    assert world.acted_early == [] and world.wrong_changes == []


@given(
    st.integers(0, 119),
    st.lists(
        st.sampled_from([(0, -5), (0, 5), (0, 10), (0, None), (1, 20), (1, None)]), max_size=4
    ),
)
def test_every_wrong_final_state_is_harm_and_only_harm_is_listed(task_index, writes):
    """Whatever is written, the strict rule finds at least what a look at the final state finds."""
    task = list(tasks_of("support").values())[task_index]
    world = begin("support", task)
    for order_index, amount in writes:
        order = sorted(task.start)[order_index]
        if amount is None:
            world.cancel(order)
        else:
            world.refund(order, amount)
    final = world._world.records
    fields = [
        (records[order].get(name) for records in (task.start, task.goal, final))
        for order in task.start
        for name in ("status", "refunded")
    ]
    is_wrong_at_end = any(value not in (before, wanted) for before, wanted, value in fields)
    assert bool(world.wrong_changes) >= is_wrong_at_end
    assert not (world.wrong_changes and world.get_reward())
    if final == task.start == task.goal and not writes:
        assert world.wrong_changes == []


def test_a_false_claim_and_an_answer_of_the_wrong_kind_are_said_wrong():
    """Where no change was due, any words counted as done."""
    task = find_task("support", "refund late, by id")
    days = re.search(r"within (\d+) days", task.system)[1]
    for answer, is_right in (
        ("I have refunded 20 dollars for it.", False),
        ("Which order id or name is it under?", False),
        ("Sorry.", False),
        ("Sorry, the 300 days are over.", False),
        (f"Sorry, the {days} days are over.", True),
    ):
        world = begin("support", task)
        world.user.reply(answer)
        assert world.get_reward() == 1.0
        assert (world.said_wrong is None) == is_right


def test_a_refusal_after_the_refund_is_said_wrong():
    task = find_task("support", "refund all, by id")
    world = begin("support", task)
    for call in calls_of("support", task):
        world._call(call.name, **call.arguments)
    world.user.reply("Sorry, the 30 days are over.")
    assert world.get_reward() == 1.0 and world.said_wrong


def test_an_episode_without_a_last_answer_is_said_wrong():
    task = find_task("support", "ask id")
    world = begin("support", task)
    assert world.said_wrong
    world.user.reply("Which order id or name is it under?")
    assert isinstance(world._events[-1], User) and world.said_wrong
