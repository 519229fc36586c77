"""Agreement between each judge and people, on the sessions that both have judged."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from agent_pipeline.judging.labels import Verdict
from agent_pipeline.judging.verdict_policy import JudgedSession

VerdictPairs = Counter[tuple[Verdict, Verdict]]
"""Number of sessions for each combination of a person's verdict and a judge's verdict."""


@dataclass(frozen=True)
class AgreementRow:
    """The agreement between one judge or measure and people.

    Attributes:
        name: The judge or the measure.
        both_acceptable: Number of sessions that both find acceptable.
        both_unacceptable: Number of sessions that both find unacceptable.
        too_kind: Number of sessions that only the judge finds acceptable.
        too_strict: Number of sessions that only people find acceptable.
        kappa: Cohen's kappa, or `None` if all verdicts are equal, because kappa is then undefined.
    """

    name: str
    both_acceptable: int
    both_unacceptable: int
    too_kind: int
    too_strict: int
    kappa: float | None

    @property
    def sessions(self) -> int:
        """Return the number of sessions that both people and the judge have judged."""
        return self.both_acceptable + self.both_unacceptable + self.too_kind + self.too_strict

    @property
    def share(self) -> float:
        """Return the share of the jointly judged sessions on which people and the judge agree."""
        return (self.both_acceptable + self.both_unacceptable) / self.sessions


class Agreement:
    """Counts of people's verdicts compared with the verdicts of all other judges and measures.

    A person's label counts as the verdict of people. If there is no label, the source's judgment
    counts.
    """

    def __init__(self) -> None:
        self._pairs_by_name: dict[str, VerdictPairs] = defaultdict(Counter)

    def add(self, judged: JudgedSession) -> None:
        """Count the verdicts on a session if people have judged it."""
        verdicts = {judge: opinion.verdict for judge, opinion in judged.opinions.items()}
        label, judgment = verdicts.pop("label", None), verdicts.pop("judgment", None)
        people = label or judgment
        if people is None:
            return
        for name, result in judged.measures.items():
            if result.passed is None:
                verdicts[name] = None
            else:
                verdicts[name] = "acceptable" if result.passed else "unacceptable"
        for name, verdict in verdicts.items():
            if verdict is not None:
                self._pairs_by_name[name][people, verdict] += 1

    def list_rows(self) -> Iterator[AgreementRow]:
        """Yield one row per judge or measure."""
        for name, pairs in self._pairs_by_name.items():
            yield AgreementRow(
                name=name,
                both_acceptable=pairs["acceptable", "acceptable"],
                both_unacceptable=pairs["unacceptable", "unacceptable"],
                too_kind=pairs["unacceptable", "acceptable"],
                too_strict=pairs["acceptable", "unacceptable"],
                kappa=compute_kappa(pairs),
            )


def compute_kappa(pairs: VerdictPairs) -> float | None:
    """Return Cohen's kappa, or `None` if all verdicts are equal.

    Kappa is undefined in this case.
    """
    from sklearn.metrics import cohen_kappa_score

    if len({verdict for pair in pairs for verdict in pair}) < 2:
        return None
    people, judge = zip(*pairs, strict=True)
    kappa = float(cohen_kappa_score(people, judge, sample_weight=list(pairs.values())))
    return kappa if math.isfinite(kappa) else None
