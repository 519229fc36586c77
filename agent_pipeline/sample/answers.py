"""The reading of a model's last answer by its words: its kind, and false claims in it.

This module has what all domains share. The patterns of a domain stand in its own `answers`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent_pipeline.sample.world import Call, Say

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
CLAUSE_START = re.compile(r"[,;:]\s|\s[-–—]\s|\b(?:but|because|so|since|as|and|that|which|who)\s")
NOT_A_FACT = re.compile(
    r"n't\b|\b(?:not|never|no|nor|cannot|unable|can|could|may|might|would|should|must|if|unless|"
    r"once|until|to be)\b"
)
"""Words in the clause of a claim, with which the claim does not say that something is done."""
NOTES = re.compile(r"\b(?:Asked|Given|Found): [^.]*\.")
"""The notes in which an agent repeats the request before it answers."""


DONE = "done"
"""The kind of a sentence that says that the wish is fulfilled, but not how."""
SAYS_DONE = re.compile(r"^(?:all )?done[.!]*$|\b(?:it is|it's|that is|that's|all) (?:done|set)\b")


@dataclass(frozen=True)
class AnswerPatterns:
    """The patterns by which a domain's answers are read. They match text in small letters.

    Attributes:
        kinds: By kind of answer, the pattern of its sentences.
        claims: By kind of answer that claims a change, a function that returns whether a sentence
            with the claim is true, from the sentence and the calls that changed the world.
        weaker: By kind, the kinds that do not count beside it.
        names: The pattern of the names of records.
    """

    kinds: Mapping[str, re.Pattern[str]]
    claims: Mapping[str, Callable[[str, Sequence[Call]], bool]]
    weaker: Mapping[str, frozenset[str]]
    names: re.Pattern[str]

    def find_error(self, answer: str, right: Say, writes: Sequence[Call]) -> str | None:
        """Return the reason why a last answer is wrong, or None if it is right.

        An answer is right if it is of the same kind as the good agent's answer, speaks of the same
        record, and claims no change that was not made.

        Args:
            answer: The answer.
            right: The good agent's answer.
            writes: The calls that changed the world.
        """
        kinds = set()
        for sentence in sentences_of(answer):
            if SAYS_DONE.search(sentence) and not writes:
                return f"the last answer claims what was not done: {sentence!r}"
            for kind in self.kinds_of(sentence):
                if kind in self.claims and not self.claims[kind](sentence, writes):
                    return f"the last answer claims what was not done: {sentence!r}"
                kinds.add(kind)
            if SAYS_DONE.search(sentence) and right.kind in self.claims:
                kinds.add(right.kind)
        for kind in tuple(kinds):
            kinds -= self.weaker.get(kind, frozenset())
        if right.kind in kinds:  # a true claim beside the right answer is no error
            kinds -= self.claims.keys() - {right.kind}
        if kinds != {right.kind}:
            read = " and ".join(sorted(kinds)) or "of no known kind"
            return f"the last answer is {read}, should be {right.kind}"
        wanted, named = self.names_in(right.text), self.names_in(answer)
        if right.kind not in self.claims and named and wanted and not named & wanted:
            return f"the last answer is about {', '.join(sorted(named))}"
        return None

    def kinds_of(self, sentence: str) -> set[str]:
        """Return the kinds of answer that a sentence is. A question claims nothing."""
        return {
            kind
            for kind, pattern in self.kinds.items()
            for match in pattern.finditer(sentence)
            if kind not in self.claims
            or not (sentence.endswith("?") or is_denied(sentence[: match.end()]))
        }

    def names_in(self, text: str) -> set[str]:
        """Return the names of records in a text, in one spelling."""
        return {re.sub(r"\W", "", match[0]) for match in self.names.finditer(plain(text))}


def sentences_of(answer: str) -> list[str]:
    """Return the sentences of an answer in small letters, without the notes about the request."""
    return [part for part in SENTENCE_END.split(plain(NOTES.sub(" ", answer)).strip()) if part]


def plain(text: str) -> str:
    """Return a text in small letters, with straight apostrophes and without Markdown's emphasis."""
    return re.sub(r"[*_`]", "", text.replace("\u2019", "'")).lower()


def is_denied(claim: str) -> bool:
    """Return whether the last clause of a text says that its claim is not a fact."""
    return NOT_A_FACT.search(CLAUSE_START.split(claim)[-1]) is not None
