"""Patterns that read the task from the ids of sessions."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.ingestion.reading import compile_task_pattern, find_task_key
from agent_pipeline.ingestion.task_patterns import propose_pattern
from agent_pipeline.sessions.session import Session

REQUESTS = [
    "Book a flight from Oslo to Rome",
    "Cancel the order of blue shoes",
    "What is the weather in Lima tomorrow",
    "Translate this letter into French",
    "Refund my broken lamp please",
]


def store(name: str, tasks: int = 5, trials: int = 4, alike: bool = True) -> dict[str, str]:
    """Requests by id; `name` is formatted with the numbers of task and trial."""
    ids = [
        (name.format(task=task, trial=trial), task, trial)
        for task in range(tasks)
        for trial in range(trials)
    ]
    return {
        session_id: f"{REQUESTS[task if alike else (task * trials + trial) % 5]} now {trial}"
        for session_id, task, trial in ids
    }


@pytest.mark.parametrize(
    "name",
    [
        "task{task:03}-trial{trial}",
        "task{task}_run_{trial}",
        "trial{trial}/task{task}",
        "airline:{task}:attempt={trial}:x",
        "q{task}_k{trial}",
        "problem-{task}-{trial}",
        "{trial}_problem-{task}",
        "s{task}~{trial}",
        "Task{task}.Rollout{trial}",
    ],
)
def test_ids_of_trials_are_recognised(name):
    proposal = propose_pattern(store(name))
    assert proposal is not None
    assert len(set(proposal.tasks.values())) == 5
    assert proposal.trials == 20
    groups = re.search(proposal.pattern, name.format(task=3, trial=2)).groups()
    assert (
        "-".join(group for group in groups if group) == proposal.tasks[name.format(task=3, trial=2)]
    )


@pytest.mark.parametrize(
    "name",
    ["user{task}-{trial}", "2026-05-{task}_{trial}", "chat-run-{task}{trial}", "{task}{trial}"],
)
def test_ids_that_only_count_are_no_trials(name):
    """The conversations of a user, or of a day, ask for different things."""
    assert propose_pattern(store(name, alike=False)) is None


def test_a_word_such_as_trial_is_no_evidence_without_equal_requests():
    assert propose_pattern(store("task{task}-trial{trial}", alike=False)) is None


def test_the_lines_can_be_pasted():
    proposal = propose_pattern(store("task{task:03}-trial{trial}"))
    assert proposal is not None
    assert proposal.lines("shop/support").splitlines() == [
        '[agents."shop/support"]',
        r"task_pattern = '^(.+)-trial\d+$'",
    ]


@given(st.permutations(list(store("task{task}-trial{trial}").items())))
def test_the_order_of_sessions_does_not_matter(items):
    assert propose_pattern(dict(items)) == propose_pattern(store("task{task}-trial{trial}"))


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=12))
def test_any_ids_and_requests_are_allowed(requests):
    propose_pattern(requests)


@given(
    tasks=st.integers(3, 12),
    trials=st.integers(2, 5),
    form=st.sampled_from(
        ["{task}-trial{trial}", "{task}_run-{trial}", "{task}.rep{trial}", "{task}/{trial}"]
    ),
    names=st.lists(st.from_regex(r"\A[b-g]{3,8}\Z"), min_size=12, max_size=12, unique=True),
)
def test_a_proposal_groups_exactly_the_trials(
    tasks: int, trials: int, form: str, names: list[str]
) -> None:
    """The ids and the requests show the tasks: the pattern names each task, and mixes no two tasks."""
    requests = {}
    truth = {}
    for task in range(tasks):
        for trial in range(trials):
            session_id = form.format(task=names[task], trial=trial)
            requests[session_id] = (
                f"please {names[task]} the {names[task]} of {names[task]} {task} now"
            )
            truth[session_id] = task
    proposal = propose_pattern(requests)
    assert proposal is not None
    by_task = {}
    for session_id, task in truth.items():
        by_task.setdefault(proposal.tasks[session_id], set()).add(task)
    assert all(len(members) == 1 for members in by_task.values())
    assert len(by_task) == tasks and proposal.trials == tasks * trials
    pattern = compile_task_pattern(proposal.pattern)
    keys = {
        find_task_key(Session(session_id=name, project="p", agent="a", source="s"), pattern, "")
        for name in truth
    }
    assert keys == set(proposal.tasks.values())
