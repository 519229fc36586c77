"""The pseudonyms of one session's private values, and the replacement of values by pseudonyms."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.redaction.search import Place, Search
from agent_pipeline.redaction.texts import TOKEN, decoded, is_json

_LENGTH_BEFORE = 60
_Value = tuple[str, str]
"""The kind and the identity of a private value."""


class Pseudonyms:
    """The pseudonyms of one session's values, numbered in the order of appearance.

    Numbers that the texts already contain are not used again.

    Args:
        texts: The texts of the session.
        regions: The countries whose telephone numbers may lack the country code.
        prompts: The session's system messages, whose names are kept.
    """

    def __init__(
        self, texts: Iterable[str], regions: tuple[str, ...] = (), prompts: Sequence[str] = ()
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.replaced_values: dict[str, str] = {}
        self._regions, self._prompts = regions, prompts
        self._kinds: dict[str, str] = {}
        self._search = Search({})
        self._found: dict[str, list[Place]] = {}
        self._context_needed: dict[str, bool] = {}
        self._numbers: dict[_Value, int] = {}
        self._parts: dict[_Value, str] = {}
        self._names_by_email: dict[_Value, tuple[_Value, _Value]] = {}
        self._emails_by_name: dict[_Value, list[_Value]] = {}
        self._last: Counter[str] = Counter()
        for text in texts:
            for match in PSEUDONYM.finditer(text) if "<" in text else ():
                self._last[match["kind"]] = max(self._last[match["kind"]], int(match["number"]))

    def learn(self, finds: dict[str, str]) -> None:
        """Add private values, with their kinds, that must be replaced.

        If two values begin at the same place, the value whose kind comes first in `KINDS` is
        replaced, then the longer value.
        """
        self._kinds |= finds
        self._search = Search(self._kinds, self._regions, self._prompts)
        self._found, self._context_needed = {}, {}

    def find(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether it contains a value in any form, and remember which names
        occur.
        """
        self._found = {text: self._search.places(text) for text in texts}
        values_by_text = [self._found[text] for text in texts]
        names = {
            (place.kind, place.identity)
            for places in values_by_text
            for place in places
            if place.kind == "NAME"
        }
        for address, (first, last) in self._search.owners.names_by_address.items():
            owner_names = (("NAME", first), ("NAME", last))
            if names.intersection(owner_names):
                email = ("EMAIL", self._search.identity_of(address))
                self._names_by_email.setdefault(email, owner_names)
                for name in owner_names:
                    emails = self._emails_by_name.setdefault(name, [])
                    if email not in emails:
                        emails.append(email)
        return [bool(places) for places in values_by_text]

    def stands_in(self, name: str) -> bool:
        """Return whether a name contains a value as a separate word."""
        return bool(self._places(name, ""))

    def replaced(self, text: str, before: str = "") -> str:
        """Return a text with pseudonyms. Return the same object if the text contains nothing
        private.

        `before` has the characters that precede the text.
        """
        if is_json(text):
            return TOKEN.sub(self._replaced_token, text)
        parts, done = [], 0
        for place in self._places(text, before):
            parts += [text[done : place.start], self._pseudonym(place)]
            done = place.end
        return "".join([*parts, text[done:]]) if parts else text

    def _places(self, text: str, before: str) -> list[Place]:
        """Return the places of values in a text, from left to right, without overlaps.

        Places that overlap an existing pseudonym are left out.
        """
        places = self._found.get(text)
        if places is None or (before and self._needs_context(text)):
            places = self._search.places(text, before)
            if not (before and self._needs_context(text)):
                self._found[text] = places
        if not places:
            return []
        taken = [match.span() for match in PSEUDONYM.finditer(text)] if "<" in text else []
        free, done, first = [], 0, 0
        for place in places:
            while first < len(taken) and taken[first][1] <= place.start:
                first += 1
            if place.start >= done and not (first < len(taken) and taken[first][0] < place.end):
                done = place.end
                free.append(place)
        return free

    def _needs_context(self, text: str) -> bool:
        needs = self._context_needed.get(text)
        if needs is None:
            needs = self._context_needed[text] = self._search.depends_on_context(text)
        return needs

    def _replaced_token(self, match: re.Match[str]) -> str:
        token, before = (
            match.group(),
            match.string[max(0, match.start() - _LENGTH_BEFORE) : match.start()],
        )
        if token[0] != '"':
            places = self._places(token, before)
            is_private = len(places) == 1 and (places[0].start, places[0].end) == (0, len(token))
            return json.dumps(self._pseudonym(places[0])) if is_private else token
        inner = decoded(token)
        replaced = self.replaced(inner, before + '"')
        return token if replaced == inner else json.dumps(replaced, ensure_ascii=token.isascii())

    def _pseudonym(self, place: Place) -> str:
        self.counts[place.kind] += 1
        self.replaced_values[place.value] = self._kinds[place.value]
        value = (place.kind, place.identity)
        if value not in self._numbers:
            self._assign(value)
        part = "-".join(filter(None, (self._parts.get(value), place.part)))
        return f"<{place.kind}_{self._numbers[value]}{part and f':{part}'}>"

    def _assign(self, value: _Value) -> None:
        """Assign to a value the number that its pseudonym has.

        An address and the names of its owner get related numbers, so that made-up values can keep
        the relation.
        """
        if value[0] == "NAME":
            emails = self._emails_by_name.get(value)
            if not emails:
                self._numbers[value] = 2 * self._next_person() - 1
                return
            self._assign(emails[0])
            if value in self._numbers:
                return
        if value[0] != "EMAIL":
            self._last[value[0]] += 1
            self._numbers[value] = self._last[value[0]]
            return
        person = self._next_person()
        self._numbers[value] = person
        if names := self._names_by_email.get(value):
            for name, number in zip(names, (2 * person - 1, 2 * person), strict=True):
                self._numbers.setdefault(name, number)
            first, last = (self._numbers[name] for name in names)
            if (first, last) != (2 * person - 1, 2 * person):
                self._parts[value] = f"of-{first}-{last}"

    def _next_person(self) -> int:
        """Return an unused number n for an address, for which the name numbers 2n - 1 and 2n are
        unused too.
        """
        person = max(self._last["EMAIL"], (self._last["NAME"] + 1) // 2) + 1
        self._last["EMAIL"], self._last["NAME"] = person, 2 * person
        return person
