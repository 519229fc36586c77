"""The owners of e-mail addresses: the names in an address, and the places where a text contains
them.

`ana.lopez+shop@example.com` belongs to Ana Lopez. A text may contain her name as `ana_lopez_4471`,
`LOPEZ, ANA` or `A. Lopez`, or contain the part before the @ as a separate word. The module `names`
decides which single words are names.
"""

import calendar
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent_pipeline.redaction.values import Values

LETTERS = re.compile(r"[\W\d_]+")
"""A pattern that matches everything except letters."""
_WORD = re.compile(r"[^\W\d_]+")
_HYPHENED = re.compile(r"[^\W\d_]+-[^\W\d_]+[^._]*")
_ROLES = re.compile(
    r"(?:^|[\W\d_])(?:info|support|sales|help|customer|service|services|no|reply|noreply|team|manager|admin|contact|office|billing|"
    r"security|hello|news|marketing|tech|hr|events?|travels?|deals|promotions|account|accounts|networking|participants|members|group|"
    r"list|staff|everyone|orders?|shop|store|mail|com|user|test)(?![^\W\d_])"
)
FEWEST_LETTERS = 5
_BEFORE_ID = re.compile(r"[\w.+-]")
_AFTER_ID = re.compile(r"[\w+@-]|\.\w")
_IN_ADDRESS = re.compile(r"[\w.+%'-]*@")
_NEXT_WORD = re.compile(r"(?:[ \u00a0._+-]|, )([^\W\d_]+)")
_INITIAL = re.compile(r"(?<![^\W_])([^\W\d_])(?:\. |[. \u00a0])$")
_LONGEST_INITIAL = 4
_NAME_LABEL = re.compile(
    r"(?:name|user|login|handle|passenger|customer|guest|nick|surname|owner)[\"']?\s?[:=]\s?[\"']?$",
    re.IGNORECASE,
)
_LONGEST_LABEL = 24


_DAYS_AND_MONTHS = frozenset(name.lower() for name in (*calendar.month_name, *calendar.day_name))


class Owner(NamedTuple):
    """The owner of an e-mail address.

    Attributes:
        local_part: The part before the @, without a tag such as `+shop`, in lower case.
        words: The words in `local_part`.
        letters: The letters of `local_part`.
    """

    local_part: str
    words: tuple[str, ...]
    letters: str

    @property
    def is_id(self) -> bool:
        """Return whether `local_part` identifies its owner by itself, because it is not an ordinary
        word.
        """
        return len(self.local_part) > FEWEST_LETTERS and not self.local_part.isalpha()


class Named(NamedTuple):
    """A place in a text that names the owner of an address, by a name or by the part before the @.

    Attributes:
        start: The index of the first character.
        end: The index after the last character.
        address: The address.
        name: The name in lower case; empty if the part before the @ names the owner.
        part: The form of the name: empty for `Ana`, `lower` for `ana`, `upper` for `ANA`, `initial`
            for `A`, and `local` for the part before the @.
    """

    start: int
    end: int
    address: str
    name: str
    part: str


def owner_of(address: str) -> Owner | None:
    """Return the owner of an address, or None if the address belongs to a role such as `support`."""
    local_part = address.partition("@")[0].partition("+")[0]
    small = local_part.lower()
    if _ROLES.search(small) or _HYPHENED.fullmatch(local_part):
        return None
    return Owner(small, tuple(_WORD.findall(small)), LETTERS.sub("", small))


def names_of(owner: Owner, known_names: frozenset[str]) -> tuple[str, str] | None:
    """Return the two names in an address, in lower case and in the order of the address.

    Return None if the address does not contain two names. An address without a separator is split
    into known names. An initial is replaced by the only known name that begins with it.
    """
    words, letters = owner.words, owner.letters
    if len(letters) < FEWEST_LETTERS:
        return None
    if len(words) == 2 and min(map(len, words)) > 1:
        return words[0], words[1]
    for end in range(2, len(letters) - 1):
        if letters[:end] in known_names and letters[end:] in known_names:
            return letters[:end], letters[end:]
    last = letters[1:]
    if last in known_names:
        firsts = [name for name in known_names if name[0] == letters[0] and name != last]
        return (firsts[0], last) if len(firsts) == 1 else None
    return None


class OwnerSearch:
    """A search for places where a text names the owner of an e-mail address.

    `names` are words that are known to be names. `prompts` are texts whose names are kept.
    """

    def __init__(
        self, addresses: Iterable[str], names: Iterable[str], prompts: Iterable[str] = ()
    ) -> None:
        known_names = frozenset(LETTERS.sub("", name).lower() for name in names)
        prompt_words = {word for prompt in prompts for word in _WORD.findall(prompt.lower())}
        prompt_texts = "\n".join(prompts).lower()
        self.names_by_address: dict[str, tuple[str, str]] = {}
        self._partners: dict[str, dict[str, str]] = {}
        self._lasts: dict[str, dict[str, list[tuple[str, str]]]] = {}
        self._single = {}
        local_parts = {}
        for address in addresses:
            owner = owner_of(address)
            if owner is None:
                continue
            if owner.is_id and owner.local_part not in prompt_texts:
                local_parts[owner.local_part] = address
            names_in_address = names_of(owner, known_names)
            if (
                names_in_address is None
                or _DAYS_AND_MONTHS.issuperset(names_in_address)
                or prompt_words.issuperset(names_in_address)
            ):
                continue
            self.names_by_address[address] = names_in_address
            self._add(address, *names_in_address)
            self._single.update({name: address for name in names_in_address if name in known_names})
        self._local_parts = local_parts
        self._local_values = Values(local_parts)
        self._names = Values(self._partners, at_words=True)

    def _add(self, address: str, first: str, last: str) -> None:
        self._partners.setdefault(first, {}).setdefault(last, address)
        self._partners.setdefault(last, {}).setdefault(first, address)
        self._lasts.setdefault(last, {}).setdefault(first[0], []).append((first, address))

    def places(self, text: str, small: str, before: str = "") -> Iterator[Named]:
        """Yield the places of a text that name an owner.

        Args:
            text: The text.
            small: The text in lower case.
            before: The characters that precede the text.
        """
        for start, local_part in self._local_values.occurrences(small) if self._local_parts else ():
            end = start + len(local_part)
            if not ((start and _BEFORE_ID.match(text, start - 1)) or _AFTER_ID.match(text, end)):
                yield Named(start, end, self._local_parts[local_part], "", "local")
        for start, word in self._names.occurrences(small) if self._partners else ():
            end = start + len(word)
            if start and small[start - 1].isalpha():
                continue
            if small[end : end + 1].isalpha():
                yield from self._joined_names(text, small, start, word)
                continue
            yield from self._pair(text, small, start, word)
            if word in self._lasts:
                yield from self._after_initial(text, start, word)
            if word in self._single and not _IN_ADDRESS.match(text, end):
                label = text[max(0, start - _LONGEST_LABEL) : start]
                label = (
                    label if len(label) == _LONGEST_LABEL else (before + label)[-_LONGEST_LABEL:]
                )
                if _NAME_LABEL.search(label):
                    yield _named(text, start, end, self._single[word])

    def has_single_name(self, small: str) -> bool:
        """Return whether a lower-case text contains a word that is a name if a label such as
        `user:` precedes it.
        """
        return not self._single.keys().isdisjoint(_WORD.findall(small))

    def _joined_names(self, text: str, small: str, start: int, word: str) -> Iterator[Named]:
        middle = start + len(word)
        for partner, address in self._partners[word].items():
            end = middle + len(partner)
            is_name = (
                small.startswith(partner, middle)
                and not small[end : end + 1].isalpha()
                and end - start > FEWEST_LETTERS
            )
            if is_name and not _IN_ADDRESS.match(text, end):
                yield _named(text, start, middle, address)
                yield _named(text, middle, end, address)

    def _pair(self, text: str, small: str, start: int, word: str) -> Iterator[Named]:
        end = start + len(word)
        following = _NEXT_WORD.match(small, end)
        if (
            following
            and (address := self._partners[word].get(following[1]))
            and not _IN_ADDRESS.match(text, following.end())
        ):
            yield _named(text, start, end, address)
            yield _named(text, *following.span(1), address)

    def _after_initial(self, text: str, start: int, word: str) -> Iterator[Named]:
        initial = _INITIAL.search(text[max(0, start - _LONGEST_INITIAL) : start])
        if (
            initial is None
            or not text[start].isupper()
            or _IN_ADDRESS.match(text, start + len(word))
        ):
            return
        owners = self._lasts[word].get(initial[1].lower(), [])
        if len(owners) == 1:
            name, address = owners[0]
            place = start - len(initial.group())
            yield Named(place, place + 1, address, name, "initial")
            yield _named(text, start, start + len(word), address)


def _named(text: str, start: int, end: int, address: str) -> Named:
    written = text[start:end]
    return Named(start, end, address, written.casefold(), case_of(written))


def case_of(name: str) -> str:
    """Return how a name is written: `lower`, `upper`, or an empty text if the name is capitalized."""
    if name.islower():
        return "lower"
    return "upper" if name.isupper() and len(name) > 1 else ""
