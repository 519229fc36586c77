"""Preference pairs: a good and a bad trial of the same task, with the same prompt.

The schema of `preference_dataset` and the pairing of trials belong here. Comparing two
conversations belongs to `comparison`.

The two trials of a pair must have the same system prompt, tools and request. The request is
everything before the agent answers the first user message that is more than a greeting. Call ids
are numbered first, because every run has its own ids. The two conversations are split at the first
message that differs, and both must continue with a message of the agent. If the first difference is
in a message of a user or a tool, the agents did not have the same prompt, and there is no pair.

There is also no pair if the two trials have equal answers, if the answers of one trial are the
beginning of the other's answers, or if their scores are equal. A trial with an infrastructure
failure, or in which the agent obeyed an injection, is neither good nor bad.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import sha256
from heapq import merge
from itertools import groupby, islice, product
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from agent_pipeline.datasets.comparison import (
    SplitPair,
    cut_after_last_answer,
    find_equal_answers,
    hash_answers,
    measure_answers,
    normalize_calls,
    split_at_first_difference,
)
from agent_pipeline.datasets.splits import LineageRow, TaskSplit
from agent_pipeline.sessions.greetings import find_request_end
from agent_pipeline.sessions.session import Message, Session, Tool, encode_json, hash_json
from agent_pipeline.sessions.tables import define_optional, define_required

PREFERENCES = pa.schema(
    [
        *define_required(
            pa.string(),
            row_id="id of the pair, made of both session ids",
            case_id="task of both sessions",
            session_id="the good session",
            rejected_session_id="the bad session",
            content_sha256="sha256 (hex) of the good session's messages and tools",
            rejected_content_sha256="sha256 (hex) of the bad session's messages and tools",
            task_key="key of the task of both sessions",
            split="permanent split of the task: train, select or test",
        ),
        *define_optional(
            pa.float64(),
            margin=(
                "score of the good session minus score of the bad session; null if a score is "
                "missing"
            ),
        ),
        *define_required(
            pa.json_(),
            prompt="chat messages with which both sessions begin",
            chosen="messages of the good session, from the first message that differs",
            rejected="messages of the bad session, from the first message that differs",
            tools="tools that the agent had, as OpenAI function schemas",
        ),
        *define_optional(
            pa.string(),
            verdict_by="judge of the good session; unverified if nobody checked this session",
            rejected_verdict_by=(
                "judge of the bad session; unverified if nobody checked this session"
            ),
        ),
        *define_optional(
            pa.bool_(),
            served_model=(
                "whether the good session contains an answer of a model that this pipeline trained"
            ),
        ),
    ]
)
"""Columns of the table `preference_dataset`."""


class PreferenceRow(LineageRow):
    """A row of `preference_dataset`."""

    case_id: str
    rejected_session_id: str
    rejected_content_sha256: str
    margin: float | None
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    tools: list[Tool]
    verdict_by: str | None
    rejected_verdict_by: str | None
    served_model: bool | None


PairingStrategy = Literal["margin", "best_worst", "all_pairs", "nearest_length"]


class Pairing(NamedTuple):
    """Rules for pairing the good and bad trials of a task.

    Attributes:
        strategy: The order of the pairs. `margin`: largest score difference first, with each
            session once. `best_worst`: only the pair with the largest score difference.
            `all_pairs`: every pair. `nearest_length`: most similar lengths first, with each session
            once, so that the length says little about which answer is better.
        min_margin: The smallest allowed score difference of a pair.
        max_per_case: Maximum number of pairs per task. 0 means no limit.
    """

    strategy: PairingStrategy = "margin"
    min_margin: float = 0.0
    max_per_case: int = 8


DEFAULT_PAIRING = Pairing()

TRIALS_IN_MEMORY = 64
"""Maximum number of a task's trials whose sessions are held in memory at the same time."""

Trial = Callable[[], Session]
"""Function that returns the session of a trial, which may have to be read from disk first."""


@dataclass
class TaskTrials:
    """The good trials (`good`) and the bad trials (`bad`) of one task."""

    task_key: str
    good: list[Trial] = field(default_factory=list)
    bad: list[Trial] = field(default_factory=list)


@dataclass(frozen=True)
class _OpenedTrial:
    """The session of a trial that is in memory, and its messages in a form that can be compared."""

    session: Session
    messages: list[Message]


OpenTrial = Callable[[Trial], _OpenedTrial]


@dataclass(frozen=True)
class _TrialSummary:
    """The facts about a trial that stay in memory while its session is on disk.

    `answers` holds a hash of 16 bytes for each of the agent's messages (`hash_answers`).
    """

    session_id: str
    score: float | None
    length: int
    answers: bytes
    trial: Trial


@dataclass
class _SamePrompt:
    """The good and bad trials of a task that begin with the same prompt."""

    good: list[_TrialSummary] = field(default_factory=list)
    bad: list[_TrialSummary] = field(default_factory=list)


@dataclass(frozen=True)
class _PairCandidate:
    """A good and a bad trial that may become a pair."""

    chosen: _TrialSummary
    rejected: _TrialSummary
    margin: float | None

    @property
    def ids(self) -> tuple[str, str]:
        """Return the session ids of the good and the bad trial."""
        return self.chosen.session_id, self.rejected.session_id

    @property
    def width(self) -> float:
        """Return the difference between the scores of the trials, or 1 if a score is missing."""
        return _measure_width(self.margin)

    @property
    def length_difference(self) -> int:
        """Return the difference between the lengths of the two trials in characters."""
        return abs(self.chosen.length - self.rejected.length)


@dataclass(frozen=True)
class _ScoreGroup:
    """Good trials that all have the same score, and bad trials that all have the same score.

    Both lists are ordered by id.
    """

    margin: float | None
    good: list[_TrialSummary]
    bad: list[_TrialSummary]

    @property
    def width(self) -> float:
        """Return the difference between the two scores, or 1 if a score is missing."""
        return _measure_width(self.margin)

    def list_candidates(self) -> Iterator[_PairCandidate]:
        """Yield every pair of a good trial and a bad trial in the group."""
        for chosen, rejected in product(self.good, self.bad):
            yield _PairCandidate(chosen, rejected, self.margin)

    def count_unused(self, used_ids: set[str]) -> int:
        """Count the pairs in which neither trial has been used in another pair."""
        good_count = sum(summary.session_id not in used_ids for summary in self.good)
        bad_count = sum(summary.session_id not in used_ids for summary in self.bad)
        return good_count * bad_count


def _measure_width(margin: float | None) -> float:
    """Return the difference between two scores.

    Verdicts without scores count as the largest difference, which is 1.
    """
    return 1.0 if margin is None else margin


def pair_sessions(
    good: Iterable[Session],
    bad: Iterable[Session],
    task_split: TaskSplit,
    counts: Counter[str] | None = None,
    pairing: Pairing = DEFAULT_PAIRING,
) -> Iterator[PreferenceRow]:
    """Pair good and bad sessions that are in memory, and yield the pairs.

    The rows are those of `pair_trials`. The order of the sessions does not matter.

    Args:
        good: The good sessions.
        bad: The bad sessions.
        task_split: Determines the split of a task.
        counts: Receives the counts of `pair_trials`.
        pairing: The rules of pairing.
    """
    trials_by_task: dict[str, TaskTrials] = {}
    for sessions, is_good in ((good, True), (bad, False)):
        for session in sessions:
            task_key = session.task_key
            trials = trials_by_task.setdefault(task_key, TaskTrials(task_key))
            (trials.good if is_good else trials.bad).append(partial(_return_session, session))
    sorted_trials = (trials_by_task[task_key] for task_key in sorted(trials_by_task))
    return pair_trials(sorted_trials, task_split, counts, pairing)


def _return_session(session: Session) -> Session:
    return session


def pair_trials(
    tasks: Iterable[TaskTrials],
    task_split: TaskSplit,
    counts: Counter[str] | None = None,
    pairing: Pairing = DEFAULT_PAIRING,
) -> Iterator[PreferenceRow]:
    """Yield rows of `preference_dataset`, ordered by task, and within a task by the strategy.

    A row's `margin` is the difference of the two scores. It is `None` if a session has no score;
    the verdicts alone then show which session is better.

    Args:
        tasks: The trials of each task.
        task_split: Determines the split of a task.
        counts: Receives `pairs`, and counts by reason of trials without a pair. Two trials that
            were compared: `equal_answers`, `one_is_a_beginning_of_the_other`,
            `a_user_or_tool_differs_first`, `no_common_request`, `a_turn_is_not_to_be_trained`,
            `not_better_by_the_margin`. Two trials that were not compared:
            `pairings_over_the_limit`. Sessions: `left_out_as_infrastructure_error`,
            `left_out_as_attack_succeeded`, and `sessions_without_a_partner`, which KTO can still
            use. They are also counted by reason: `no_negative_of_the_task`,
            `no_positive_of_the_task` and `no_partner_with_the_same_prompt`. `reasoning_left_out`
            counts the recorded thoughts of pairs that are not in their messages.
        pairing: The rules of pairing.
    """
    counts = Counter() if counts is None else counts
    for trials in tasks:
        # Several pairs read the same trial, and a task may have more trials than fit into memory.
        open_trial: OpenTrial = lru_cache(maxsize=TRIALS_IN_MEMORY)(_open_trial)
        prompts = _group_by_prompt(trials, open_trial, counts)
        _count_missing_partners(trials, prompts, counts)
        groups: list[_ScoreGroup] = []
        for same_prompt in prompts:
            groups += _group_by_score(same_prompt, pairing.min_margin, counts)
        paired_ids: set[str] = set()
        for candidate, parts in _choose_pairs(groups, pairing, open_trial, counts):
            counts["pairs"] += 1
            paired_ids |= set(candidate.ids)
            chosen = open_trial(candidate.chosen.trial).session
            rejected = open_trial(candidate.rejected.trial).session
            thought_count = len(chosen.reasoning) + len(rejected.reasoning)
            if thought_count:
                counts["reasoning_left_out"] += thought_count
            yield {
                "row_id": f"{chosen.session_id}|{rejected.session_id}",
                "case_id": trials.task_key,
                "session_id": chosen.session_id,
                "rejected_session_id": rejected.session_id,
                "content_sha256": chosen.hash_content(),
                "rejected_content_sha256": rejected.hash_content(),
                "task_key": trials.task_key,
                "split": task_split.find_split(trials.task_key),
                "margin": candidate.margin,
                "prompt": parts.prompt,
                "chosen": parts.chosen,
                "rejected": parts.rejected,
                "tools": chosen.tools,
                "verdict_by": None,
                "rejected_verdict_by": None,
                "served_model": None,
            }
        counts["sessions_without_a_partner"] -= len(paired_ids)


def _open_trial(trial: Trial) -> _OpenedTrial:
    session = trial()
    return _OpenedTrial(session, cut_after_last_answer(normalize_calls(session.messages)))


def find_unfit_reason(session: Session) -> str | None:
    """Return the reason why a session can be neither a good nor a bad example, or `None`.

    The reason applies whatever the verdict is.
    """
    if session.error is not None:
        return "infrastructure_error"
    return "attack_succeeded" if session.attack_succeeded else None


def _group_by_prompt(
    trials: TaskTrials, open_trial: OpenTrial, counts: Counter[str]
) -> list[_SamePrompt]:
    """Return the trials that may be paired, grouped by their prompt."""
    prompts: dict[str, _SamePrompt] = defaultdict(_SamePrompt)
    for trial, is_good in [(trial, True) for trial in trials.good] + [
        (trial, False) for trial in trials.bad
    ]:
        opened = open_trial(trial)
        session = opened.session
        unfit_reason = find_unfit_reason(session)
        if unfit_reason is not None:
            counts[f"left_out_as_{unfit_reason}"] += 1
            continue
        counts["sessions_without_a_partner"] += 1
        summary = _TrialSummary(
            session.session_id,
            session.score,
            measure_answers(session.messages),
            hash_answers(opened.messages),
            trial,
        )
        same_prompt = prompts[_hash_prompt(session)]
        (same_prompt.good if is_good else same_prompt.bad).append(summary)
    return list(prompts.values())


def _hash_prompt(session: Session) -> str:
    """Return a hash of the tools and of all messages before the agent answers the first request.

    If the user greets first, the request comes after the agent's greeting. Otherwise, any two
    sessions that begin with "Hi" would have the same prompt. The order of the tools does not count,
    because servers of tools list them in any order.
    """
    messages = normalize_calls(session.messages)
    answer_index = find_request_end(messages) or 0
    while answer_index < len(messages) and messages[answer_index]["role"] != "assistant":
        answer_index += 1
    tools = sorted(session.tools, key=encode_json)
    return sha256(encode_json([messages[:answer_index], tools])).hexdigest()


def _count_missing_partners(
    trials: TaskTrials, prompts: list[_SamePrompt], counts: Counter[str]
) -> None:
    """Count the trials for which no trial with the opposite verdict can be a partner."""
    if trials.good and trials.bad:
        reason = "no_partner_with_the_same_prompt"
    elif trials.bad:
        reason = "no_positive_of_the_task"
    else:
        reason = "no_negative_of_the_task"
    for same_prompt in prompts:
        if not (same_prompt.good and same_prompt.bad):
            counts[reason] += len(same_prompt.good) + len(same_prompt.bad)


def _group_by_score(
    same_prompt: _SamePrompt, min_margin: float, counts: Counter[str]
) -> Iterator[_ScoreGroup]:
    """Yield groups of trials in which the good score exceeds the bad score by the margin."""
    good_by_score = _index_by_score(same_prompt.good)
    bad_by_score = _index_by_score(same_prompt.bad)
    for good_score, good in good_by_score.items():
        for bad_score, bad in bad_by_score.items():
            margin = None
            if good_score is not None and bad_score is not None:
                margin = good_score - bad_score
            if margin is None or (margin > 0 and margin >= min_margin):
                yield _ScoreGroup(margin, good, bad)
            else:
                counts["not_better_by_the_margin"] += len(good) * len(bad)


def _index_by_score(summaries: list[_TrialSummary]) -> dict[float | None, list[_TrialSummary]]:
    by_score: dict[float | None, list[_TrialSummary]] = defaultdict(list)
    for summary in sorted(summaries, key=lambda summary: summary.session_id):
        by_score[summary.score].append(summary)
    return by_score


def _order_candidates(
    groups: list[_ScoreGroup], strategy: PairingStrategy
) -> Iterator[_PairCandidate]:
    """Yield the candidate pairs of a task in the order of the strategy.

    The strategies `margin` and `best_worst` create candidates lazily, because a task may have
    millions of them.
    """
    if strategy in ("margin", "best_worst"):
        by_width = sorted(groups, key=lambda group: -group.width)
        for _, same_width in groupby(by_width, key=lambda group: group.width):
            streams = [group.list_candidates() for group in same_width]
            yield from merge(*streams, key=lambda candidate: candidate.ids)
        return
    candidates = [candidate for group in groups for candidate in group.list_candidates()]
    if strategy == "nearest_length":
        candidates.sort(key=lambda candidate: (candidate.length_difference, candidate.ids))
    else:
        # A hash orders the pairs of one margin. If they were ordered by id, a limit would leave
        # only pairs of the first good session.
        candidates.sort(key=lambda candidate: (-candidate.width, hash_json(candidate.ids)))
    yield from candidates


def _choose_pairs(
    groups: list[_ScoreGroup],
    pairing: Pairing,
    open_trial: OpenTrial,
    counts: Counter[str],
) -> Iterator[tuple[_PairCandidate, SplitPair]]:
    """Yield the pairs of a task in the order of the strategy.

    Candidates that are not a pair are counted by reason.
    """
    limit = 1 if pairing.strategy == "best_worst" else pairing.max_per_case
    each_session_once = pairing.strategy in ("margin", "nearest_length")
    used_ids: set[str] = set()
    pair_count = 0
    for tried_count, candidate in enumerate(_order_candidates(groups, pairing.strategy)):
        if limit and pair_count == limit:
            barred_ids = used_ids if each_session_once else set()
            counts["pairings_over_the_limit"] += _count_untried(
                groups, pairing.strategy, tried_count, barred_ids
            )
            return
        if each_session_once and used_ids & set(candidate.ids):
            continue
        parts = _compare(candidate, open_trial)
        if isinstance(parts, str):
            counts[parts] += 1
            continue
        pair_count += 1
        used_ids |= set(candidate.ids)
        yield candidate, parts


def _compare(candidate: _PairCandidate, open_trial: OpenTrial) -> SplitPair | str:
    """Split the two conversations of a candidate pair at the first difference.

    If they cannot be a pair, the reason is returned.
    """
    reason = find_equal_answers(candidate.chosen.answers, candidate.rejected.answers)
    if reason is not None:
        return reason
    chosen = open_trial(candidate.chosen.trial)
    rejected = open_trial(candidate.rejected.trial)
    return split_at_first_difference(chosen.messages, rejected.messages)


def _count_untried(
    groups: list[_ScoreGroup], strategy: PairingStrategy, tried_count: int, barred_ids: set[str]
) -> int:
    """Count the candidate pairs that were not tried and do not contain a barred session."""
    unused_count = sum(group.count_unused(barred_ids) for group in groups)
    tried = islice(_order_candidates(groups, strategy), tried_count)
    return unused_count - sum(not barred_ids & set(candidate.ids) for candidate in tried)


_REASONS_FOR_NO_PAIR = {
    "no_negative_of_the_task": "sessions have no bad session of the same task",
    "no_positive_of_the_task": "sessions have no good session of the same task",
    "no_partner_with_the_same_prompt": (
        "sessions have no other session with the same system prompt, tools and first request"
    ),
    "left_out_as_infrastructure_error": "sessions ended because the infrastructure failed",
    "left_out_as_attack_succeeded": "sessions obeyed a prompt injection",
    "not_better_by_the_margin": "pairs have scores that differ by less than the margin",
    "equal_answers": "pairs have equal answers",
    "one_is_a_beginning_of_the_other": (
        "pairs have an answer that is the beginning of the other answer"
    ),
    "a_user_or_tool_differs_first": "pairs first differ in a message of a user or a tool",
    "no_common_request": "pairs have no request in common",
    "a_turn_is_not_to_be_trained": (
        "pairs have an answer with a turn that is excluded from training"
    ),
}


def explain_missing_pairs(counts: Mapping[str, int]) -> str:
    """Return a sentence that explains why there are no pairs, with the most frequent reason first.

    Args:
        counts: The counts of `pair_trials`.
    """
    reasons = [
        (counts[name], text) for name, text in _REASONS_FOR_NO_PAIR.items() if counts.get(name)
    ]
    texts = [f"{count:,} {text}" for count, text in sorted(reasons, reverse=True)]
    return f"There are no pairs, because {'; '.join(texts) or 'there are no judged sessions'}."


def compute_length_ratio(row: Mapping[str, Any]) -> float:
    """Return the length of a pair's chosen answer divided by the length of its rejected answer.

    If most ratios are far from 1, a model first learns the length.
    """
    return measure_answers(row["chosen"]) / max(1, measure_answers(row["rejected"]))
