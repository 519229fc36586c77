"""The sessions that a person should label next, so that a few labels are informative.

A proposal has three parts:

- Sessions that were drawn at random. Only they say how precise a judge is (`judging.judge_checks`).
- Sessions on which judges disagree, because at least one judge is wrong.
- Sessions whose requests are typical, one per cluster of requests, so that no kind of request is
  missed.

The two last parts are chosen on purpose, so they never count in an estimate. Writing the file for
the person belongs to `judging.review`.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from agent_pipeline.judging.judge_checks import draw_number
from agent_pipeline.judging.review import (
    ReviewRow,
    ReviewSample,
    check_version,
    find_group,
    make_review_row,
    sample_sessions,
)
from agent_pipeline.judging.rows import JudgedRow
from agent_pipeline.judging.verdict_policy import Opinion, VerdictPolicy
from agent_pipeline.selection.clusters import cluster
from agent_pipeline.selection.embeddings import embed

RANDOM_SHARE = 0.6
"""Share of a proposal that is drawn at random. 30 of 50 sessions can show a precision of 0.9, which
needs 25.
"""

DISAGREEING_SHARE = 0.2
CLUSTERED_SESSIONS = 2000
"""Maximum number of sessions whose requests are clustered. They are a random sample."""

RANDOM, DISAGREEING, TYPICAL = "random", "judges disagree", "typical request"

_SOURCE_JUDGES = ("judgment", "score", "metrics")


class _LowestRows:
    """The rows with the lowest numbers of a stream, in bounded memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[float, str, JudgedRow]] = []

    def add(self, number: float, row: JudgedRow) -> None:
        """Add a row, and forget the row with the highest number if there are too many."""
        # The ids are unique, so rows are never compared.
        entry = (-number, row["session_id"], row)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def list_rows(self) -> list[JudgedRow]:
        """Return the rows, the lowest number first."""
        return [row for *_, row in sorted(self._heap, key=lambda entry: (-entry[0], entry[1]))]


def propose_sessions(
    rows: Iterable[JudgedRow], count: int, policy: VerdictPolicy, seed: int = 0, salt: str = ""
) -> ReviewSample:
    """Choose the sessions that a person should label next.

    Sessions with a label are left out, as are sessions that have nothing to judge. Sessions that
    the source has judged are proposed only if judges disagree about them. If a machine judge finds
    sessions good, the random part is drawn from these sessions, because only they say whether
    the judge is too kind. Within the file, the random part comes first, in the order of its random
    numbers. So if a person labels only the beginning, these labels are a random sample, too.

    Args:
        rows: The rows of `judged_sessions`.
        count: The number of sessions.
        policy: The order of the judges.
        seed: The seed of the two parts that are not drawn at random.
        salt: The salt of the random numbers, which only a benchmark changes.

    Returns:
        The proposal, and the number of all sessions by group.

    Raises:
        DataError: The rows were written by an older version.
    """
    found_good, undecided = _LowestRows(count + 1), _LowestRows(count + 1)
    disagreeing, clustered = _LowestRows(count), _LowestRows(CLUSTERED_SESSIONS)
    counts: Counter[str] = Counter()
    for row in rows:
        check_version(row)
        group = find_group(row)
        counts[group] += 1
        opinions = {judge: Opinion(**opinion) for judge, opinion in row["opinions"].items()}
        if group == "nothing to judge" or "label" in opinions:
            continue
        verdicts = {opinion.verdict for opinion in opinions.values() if opinion.verdict}
        choice = _hash_choice(row["session_id"], seed)
        if len(verdicts) > 1:
            disagreeing.add(choice, row)
        if any(judge in opinions and opinions[judge].verdict for judge in _SOURCE_JUDGES):
            continue
        number = draw_number(row["session_id"], salt)
        undecided.add(number, row)
        clustered.add(choice, row)
        machine = policy.find_machine_verdict(opinions)
        is_addressed = any(turn["addresses_judge"] for turn in row["turns"])
        if machine and machine.verdict == "acceptable" and not is_addressed:
            found_good.add(number, row)
    parts = _Parts(
        found_good.list_rows() or undecided.list_rows(),
        disagreeing.list_rows()[: ceil(DISAGREEING_SHARE * count)],
        _find_typical(clustered.list_rows(), count - ceil(RANDOM_SHARE * count), seed),
        salt,
    )
    review_rows: list[ReviewRow] = []
    for random_count in range(ceil(RANDOM_SHARE * count), count + 1):
        review_rows = list(parts.make_rows(random_count, count))
        if len(review_rows) == count:
            break
    return ReviewSample(review_rows, counts)


def choose_sessions(
    rows: Iterable[JudgedRow], count: int, policy: VerdictPolicy, seed: int = 0, first: str = ""
) -> ReviewSample:
    """Choose the sessions of a review.

    Args:
        rows: The rows of `judged_sessions`.
        count: The number of sessions.
        policy: The order of the judges.
        seed: The seed of the choice.
        first: The group that comes first. An empty text means a proposal.

    Raises:
        SettingsError: `first` is not a group.
        DataError: The rows were written by an older version.
    """
    if first:
        return sample_sessions(rows, count, seed, first)
    return propose_sessions(rows, count, policy, seed)


@dataclass(frozen=True)
class _Parts:
    """The three parts of a proposal, each in the order in which sessions are chosen.

    Attributes:
        drawn: The sessions with the lowest random numbers.
        disagreeing: Sessions on which judges disagree.
        typical: Sessions with typical requests.
        salt: The salt of the random numbers.
    """

    drawn: list[JudgedRow]
    disagreeing: list[JudgedRow]
    typical: list[JudgedRow]
    salt: str

    def make_rows(self, random_count: int, count: int) -> Iterator[ReviewRow]:
        """Yield at most `count` rows of a review, each session once.

        Args:
            random_count: The number of sessions that are drawn at random.
            count: The number of sessions.
        """
        bound = 1.0
        if random_count < len(self.drawn):
            bound = draw_number(self.drawn[random_count]["session_id"], self.salt)
        proposed: set[str] = set()
        groups = (
            (RANDOM, bound, self.drawn[:random_count]),
            (DISAGREEING, None, self.disagreeing),
            (TYPICAL, None, self.typical),
        )
        for group, probability, rows in groups:
            for row in rows:
                if row["session_id"] not in proposed and len(proposed) < count:
                    proposed.add(row["session_id"])
                    yield make_review_row(row, group, probability)


def _find_typical(rows: list[JudgedRow], count: int, seed: int) -> list[JudgedRow]:
    """Return the row nearest to the center of each cluster of requests, for `count` clusters."""
    if not rows or not count:
        return []
    requests = [
        next((message["content"] for message in row["messages"] if message["role"] == "user"), "")
        for row in rows
    ]
    clusters = cluster(embed(requests, seed), min(count, len(rows)), seed)
    return [rows[int(members[0])] for members in clusters]


def _hash_choice(session_id: str, seed: int) -> float:
    """Return the seeded number by which a session is chosen for a part that is not random."""
    return draw_number(session_id, f" choice {seed}")
