"""How far each judge agrees with people, on the sessions of which both have an opinion."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from agent_pipeline.judging.labels import VERDICTS, Verdict
from agent_pipeline.judging.policy import Judged


class AgreementRow(NamedTuple):
    """One judge against people: a confusion table's four cells, and Cohen's kappa (`None` where chance alone would agree always)."""

    name: str
    both_acceptable: int
    both_unacceptable: int
    too_kind: int
    too_strict: int
    kappa: float | None

    @property
    def sessions(self) -> int:
        return self.both_acceptable + self.both_unacceptable + self.too_kind + self.too_strict

    @property
    def share(self) -> float:
        """The share of the sessions on which the two agree."""
        return (self.both_acceptable + self.both_unacceptable) / self.sessions


class Agreement:
    """Counts verdicts of people (a label, else the source's judgment) beside those of every other judge and every measure."""

    def __init__(self) -> None:
        self._pairs: dict[str, Counter[tuple[Verdict, Verdict]]] = defaultdict(Counter)

    def add(self, judged: Judged) -> None:
        opinions = {name: opinion.verdict for name, opinion in judged.opinions.items()}
        if people := opinions.pop("label", None) or opinions.get("judgment"):
            opinions.pop("judgment", None)
            of_measure: dict[bool | None, Verdict] = {True: "acceptable", False: "unacceptable"}
            for name, verdict in (
                opinions
                | {name: of_measure.get(result.passed) for name, result in judged.measures.items()}
            ).items():
                if verdict is not None:
                    self._pairs[name][people, verdict] += 1

    def rows(self) -> Iterator[AgreementRow]:
        """A row a judge, then a row a measure."""
        good, bad = VERDICTS["acceptable"], VERDICTS["unacceptable"]
        for name, pairs in self._pairs.items():
            yield AgreementRow(
                name,
                pairs[good, good],
                pairs[bad, bad],
                pairs[bad, good],
                pairs[good, bad],
                _kappa(pairs),
            )


def _kappa(pairs: Counter[tuple[Verdict, Verdict]]) -> float | None:
    from sklearn.metrics import cohen_kappa_score

    if len({verdict for pair in pairs for verdict in pair}) < 2:
        return None
    people, judge = zip(*pairs, strict=True)
    kappa = float(cohen_kappa_score(people, judge, sample_weight=list(pairs.values())))
    return kappa if math.isfinite(kappa) else None
