"""What the words of an answer say: whether a user would reply alike, and whether facts agree.

Only the class of an answer, its numbers and ids, and the words that carry content count. Tone is
not read. The comparison of a generated turn with a recorded turn belongs to `answer_scoring`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from agent_pipeline.evaluation.answer_scoring import values
from agent_pipeline.models.tool_call_parsers import ParameterSchemas
from agent_pipeline.sessions.turn_class import classify_text

MIN_REPLY_WORDS = 3
"""Minimum number of words of a reply that shows what was asked."""
MIN_TASKS_WITH_EXCHANGE = 2
"""Minimum number of tasks in which sessions exchanged a word, before it counts as wording."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_CASE_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SENTENCE_END = re.compile(r"(?<=[.!?？؟])\s+|\n+")
_NEGATIONS = {
    *("cannot", "cant", "couldnt", "except", "hasnt", "neither", "never", "no", "nobody", "none"),
    *("nor", "not", "nothing", "without"),
}
"""Words of scikit-learn's list of stop words that turn the meaning of a text around."""
_NUMERALS = {
    *("two", "three", "four", "five", "six", "eight", "nine", "ten", "eleven", "twelve"),
    *("fifteen", "twenty", "forty", "fifty", "sixty", "hundred", "first", "third"),
    *("few", "least", "less", "more", "most", "several"),
}
"""Words of scikit-learn's list of stop words that say how many."""


@dataclass(frozen=True)
class QuestionTurn:
    """A question of a recorded session, and what the user replied.

    Attributes:
        task_key: The task.
        situation: The user's messages and the writes before the question.
        text: The question.
        reply: The user's reply.
    """

    task_key: str
    situation: tuple[tuple[str, ...], tuple[str, ...]]
    text: str
    reply: str


@cache
def _english_stop_words() -> frozenset[str]:
    """Return scikit-learn's stop words, without those that change what a text says."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS) - _NEGATIONS - _NUMERALS


def list_words(text: str) -> set[str]:
    """Return the words of a text in small letters.

    Example:
        >>> sorted(list_words("I don't know K1."))
        ["don't", 'i', 'k', 'know']
    """
    return {word.replace("’", "'") for word in _WORD.findall(text.casefold())}


def list_slots(schemas: ParameterSchemas) -> frozenset[str]:
    """Return the words in the names of tools and of their parameters, such as `refund` and `id`.

    Args:
        schemas: The parameter schemas by tool.
    """
    names = [name for schema in schemas.values() for name in schema.get("properties") or {}]
    text = _CASE_CHANGE.sub(" ", " ".join([*schemas, *names])).replace("_", " ")
    return frozenset(list_words(text))


@dataclass(frozen=True)
class Wording:
    """The words of an agent's answers that do not carry content.

    Attributes:
        free: The words that sessions of the same task exchange without an effect on the user.
        slots: Words in the names of tools and parameters. They always carry content.
    """

    free: frozenset[str] = frozenset()
    slots: frozenset[str] = frozenset()

    def content(self, text: str) -> frozenset[str]:
        """Return the words of a text that carry content, and its numbers and ids."""
        stop_words = (_english_stop_words() | self.free) - self.slots
        words = {word for word in list_words(text) if len(word) > 1} - stop_words
        return frozenset(words | values([text]))

    def asked_for(self, answer: str) -> frozenset[str]:
        """Return the words that say what a question asks for, and its numbers and ids.

        A question such as "Which one?" is about what was said before it.

        Example:
            >>> sorted(Wording().asked_for("Sure! What is the order id? It is on the bill."))
            ['id', 'order']
            >>> sorted(Wording().asked_for("I see a mug and a tent. Which one?"))
            ['mug', 'tent']
        """
        sentences = [part for part in _SENTENCE_END.split(answer) if part.strip()]
        asking = [
            index for index, part in enumerate(sentences) if classify_text(part) == "ask"
        ] or list(range(len(sentences)))
        content = self.content(" ".join(sentences[index] for index in asking))
        for sentence in reversed(sentences[: asking[0]] if asking else []):
            content = content or self.content(sentence)
        return content or frozenset(list_words(answer))

    def are_equivalent(self, answer: str, recorded: str, known: Collection[str] = ()) -> bool:
        """Return whether a user would reply to an answer as to a recorded one.

        Both have the same class. Questions ask for the same things, and other answers state the
        same numbers and ids.

        Args:
            answer: The answer.
            recorded: The recorded answer.
            known: The numbers and ids that the user stated, so that repeating them says nothing.
        """
        turn_class = classify_text(answer)
        if turn_class != classify_text(recorded):
            return False
        if turn_class == "ask":
            return self.asked_for(answer) == self.asked_for(recorded)
        known = set(known)
        return values([answer]) - known == values([recorded]) - known

    def agrees(self, answer: str, good_answers: Sequence[str], known: Collection[str]) -> bool:
        """Return whether a last answer, which is the whole result of a task, says what good
        sessions say.

        It has the class of a good answer. It has all numbers and ids that the good answers have in
        common, and no others. If the good answers have no number or id that the user did not state,
        the content of an answer must be equal to that of a good one; a refusal needs no facts.

        Args:
            answer: The last answer.
            good_answers: The last answers of the good sessions with the same writes.
            known: The numbers and ids that the user stated.
        """
        answer_class = classify_text(answer)
        same_class = [text for text in good_answers if classify_text(text) == answer_class]
        if not same_class:
            return False
        if answer_class == "ask":
            return any(self.asked_for(answer) == self.asked_for(text) for text in same_class)
        stated = values([answer])
        good_values = [values([text]) for text in same_class]
        common = good_values[0].intersection(*good_values) - set(known)
        if not common and answer_class == "answer":
            return any(self.content(answer) == self.content(text) for text in same_class)
        allowed = set(known).union(*good_values)
        return common <= stated <= allowed


def find_wording(questions: Iterable[QuestionTurn]) -> list[str]:
    """Return the words that sessions of the same task exchange without an effect on the user."""
    return list_exchanged_words(find_exchanges(questions))


def list_exchanged_words(exchanges: Mapping[str, Collection[str]], without: str = "") -> list[str]:
    """Return the words that sessions exchange in several tasks.

    Args:
        exchanges: By word, the tasks in which sessions exchange it.
        without: A task that does not count.
    """
    return sorted(
        word
        for word, tasks in exchanges.items()
        if len(tasks) - (without in tasks) >= MIN_TASKS_WITH_EXCHANGE
    )


def find_exchanges(questions: Iterable[QuestionTurn]) -> dict[str, set[str]]:
    """Return the tasks in which sessions exchange a word without an effect on the user, by word.

    If two sessions of a task ask in the same situation, and the user gives the same reply, the
    words that only one of them has are wording. This works in every language. A reply of one or two
    words, such as "Yes, please", may suit different questions, so it shows nothing unless it has a
    number or an id.
    """
    texts: defaultdict[tuple[str, object, str], set[str]] = defaultdict(set)
    for question in questions:
        if len(question.reply.split()) < MIN_REPLY_WORDS and not values([question.reply]):
            continue
        texts[question.task_key, question.situation, question.reply].add(question.text)
    tasks_by_word: defaultdict[str, set[str]] = defaultdict(set)
    for (task_key, *_), wordings in texts.items():
        word_sets = [list_words(text) for text in wordings]
        exchanged = word_sets[0].union(*word_sets) - word_sets[0].intersection(*word_sets)
        for word in exchanged - _NEGATIONS - _NUMERALS:
            tasks_by_word[word].add(task_key)
    return dict(tasks_by_word)
