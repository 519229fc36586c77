"""Agents and their judge: good agents solve everything, every flaw is found out."""

import json
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from agent_pipeline.sample.draw import deck, stream
from agent_pipeline.sample.flaws import flaws_of
from agent_pipeline.sample.items import items
from agent_pipeline.sample.judge import judge
from agent_pipeline.sample.office import OFFICE
from agent_pipeline.sample.play import play
from agent_pipeline.sample.shop import SHOP
from agent_pipeline.sample.shop.wording import written_id
from agent_pipeline.sample.world import Call, Result, Say

DOMAINS = {"shop": SHOP, "office": OFFICE}
TASKS = [
    (domain, task)
    for name, domain in DOMAINS.items()
    for seed in range(3)
    for task in domain.tasks(name, 120, stream(seed, name))
]
FLAWS = [(name, flaw) for name, domain in DOMAINS.items() for flaw in flaws_of(domain)]


def test_a_good_agent_solves_every_task_in_every_wording():
    for domain, task in TASKS:
        for wording in range(4):
            verdict = judge(task, domain, play(task, domain, None, wording, Random(0)))
            assert verdict.judgment == "acceptable", (task.kind, verdict.reason)


@pytest.mark.parametrize(("name", "flaw"), FLAWS)
def test_a_flaw_that_shows_is_judged_unacceptable(name, flaw):
    shows = 0
    for domain, task in TASKS:
        if domain is not DOMAINS[name]:
            continue
        episode = play(task, domain, flaw, 0, stream(task.task_id, flaw))
        if episode.outline() != play(task, domain, None, 0, Random(0)).outline():
            shows += 1
            verdict = judge(task, domain, episode)
            assert verdict.judgment == "unacceptable", (task.kind, episode.events)
            assert verdict.reason
    assert shows >= 20


def test_one_state_has_one_right_next_step():
    """The same tools, instructions and words so far are never followed by two different calls of a good agent."""
    following = {}
    for domain, task in TASKS:
        story = items(task.system, play(task, domain, None, 0, Random(0)).events, False, Random(0))
        for place, item in enumerate(story):
            if item.get("type") in ("message", "function_call"):
                told = [
                    {key: value for key, value in past.items() if key != "call_id"}
                    for past in story[:place]
                ]
                step = (item["name"], item["arguments"]) if "name" in item else "answer"
                assert following.setdefault(json.dumps(told), step) == step


def test_every_argument_of_a_good_call_stems_from_the_conversation():
    """Ids and names are said by the user (in some form) or shown by a tool: nothing has to be guessed."""
    for task in SHOP.tasks("t", 120, stream("stems")):
        told = ""
        for event in play(task, SHOP, None, 0, Random(0)).events:
            if isinstance(event, Call):
                for value in (event.arguments.get("query"), event.arguments.get("order")):
                    assert value is None or plain(value) in plain(told)
            told += (
                json.dumps(event.value) if isinstance(event, Result) else getattr(event, "text", "")
            )


def plain(text: str) -> str:
    """Small letters and digits only, as an untidy id is compared with the right one."""
    return "".join(character for character in text.lower() if character.isalnum())


def test_an_untidy_id_still_spells_the_id():
    rng = stream("ids")
    forms = {written_id("K482", 1.0, rng) for _ in range(100)}
    assert "K482" not in forms and len(forms) == 5
    assert {plain(form) for form in forms} == {"k482"}


@pytest.mark.parametrize("name", DOMAINS)
def test_no_two_tasks_begin_alike(name):
    tasks = DOMAINS[name].tasks("t", 200, stream("alike", name))
    assert (
        len({task.turns[0].text for task in tasks}) == len({task.task_id for task in tasks}) == 200
    )


def test_a_call_in_the_record_is_followed_by_its_result():
    for domain, task in TASKS[::10]:
        story = items(task.system, play(task, domain, None, 0, Random(0)).events, True, Random(0))
        for before, after in pairwise(story):
            if before.get("type") == "function_call":
                assert (
                    after["type"] == "function_call_output"
                    and after["call_id"] == before["call_id"]
                )


def test_every_wording_of_an_answer_is_its_own():
    for domain in DOMAINS.values():
        assert all(len(set(forms)) == 4 for forms in domain.phrases.values())


def test_a_deck_keeps_its_proportions():
    cards = deck({"a": 3, "b": 1}, 10, Random(1))
    assert Counter(cards) in ({"a": 8, "b": 2}, {"a": 7, "b": 3})
    assert deck({"a": 3, "b": 1}, 10, Random(1)) == cards


def test_an_episode_ends_with_an_answer_unless_the_agent_falls_silent():
    domain, task = TASKS[0]
    assert isinstance(play(task, domain, None, 0, Random(0)).events[-1], Say)
    assert not isinstance(play(task, domain, "no_answer", 0, Random(0)).events[-1], Say)
