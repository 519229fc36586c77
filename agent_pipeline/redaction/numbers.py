"""Private numbers: IBANs, cards, social security numbers, bank accounts, telephone numbers, AWS key ids."""

import re
from collections.abc import Iterator
from functools import lru_cache

from agent_pipeline.redaction.kinds import Find


class Numbers:
    """Finds them among long runs of digits and capitals; `phone_regions` are the countries whose national numbers are known."""

    def __init__(self, kinds: frozenset[str], phone_regions: tuple[str, ...]) -> None:
        self._kinds, self._regions = kinds, phone_regions

    def __call__(self, text: str, flat: bytes) -> Iterator[Find]:
        """IBANs, cards, social security numbers, accounts, telephone numbers, AWS key ids: long runs of digits and capitals."""
        for run in _runs(flat.translate(_CLASSES)):
            start, end = run.span()
            if flat[start] > 57:  # no digit
                yield from _iban(text, start)
                yield from _aws_key_id(text, start, end)
            elif run.group().count(b"0") >= _FEWEST_DIGITS and not _DAY.fullmatch(text, start, end):
                yield from _cards_and_accounts(text, start, end)
                if "PHONE" in self._kinds:
                    yield from self._phones(text, start, end)

    def _phones(self, text: str, start: int, end: int) -> Iterator[Find]:
        for match in _PHONE.finditer(text, max(0, start - 2), end + 2):
            candidate = match.group()
            if not _is_bare(candidate) or _is_preceded_by(text, match.start(), _PHONE_WORDS):
                yield from (Find("PHONE", value) for value in _phones_in(candidate, self._regions))


_DASHES = "\u2010-\u2015"
_CLASSES = bytes(
    48 if chr(each).isdecimal() else 65 if 65 <= each <= 90 else 45 if chr(each) in " ()./-?\u00a0" else 32 for each in range(256)
)
"""A byte's class: a digit `0`, a capital `A`, what may stand within a number `-` (a dash beyond Latin-1 is a `?`), all else a blank."""
_FEWEST_DIGITS = 7
_DIGITS = re.compile(rb"0[0-]{6,}+")
_CAPITALS = re.compile(rb"A(?:[0A]{19,}|A00[0A-]{4,})")
_DAY = re.compile(r"(?:19|20)\d\d-\d\d-\d\d[ .?]*|\d+\.\d+[ .?]*")
"""A run that is a day or a decimal number: most of the long ones."""


def _runs(classes: bytes) -> Iterator[re.Match[bytes]]:
    """Long runs, from left to right; looked for by one expression for both they would take three times as long."""
    done = 0
    for run in _CAPITALS.finditer(classes):
        yield from _DIGITS.finditer(classes, done, run.start())
        yield run
        done = run.end()
    yield from _DIGITS.finditer(classes, done)


_IBAN = re.compile(r"(?<![^\W_])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?![^\W_])")


def _iban(text: str, start: int) -> Iterator[Find]:
    if match := _IBAN.match(text, start):
        from stdnum import iban

        value = match.group()
        # A word in capitals after an IBAN looks like its last group.
        while value and not iban.is_valid(value, check_country=False):
            value = value[: max(value.rfind(" "), value.rfind("-"), 0)]
        if value:
            yield Find("IBAN", value)


def _aws_key_id(text: str, start: int, end: int) -> Iterator[Find]:
    from detect_secrets.plugins.aws import AWSKeyDetector

    yield from (Find("API_KEY", value) for value in AWSKeyDetector().analyze_string(text[start:end]) if value)


_NUMBER = re.compile(
    r"(?<![\w.-])(?:(?P<ssn>\d{3}([- ])\d{2}\2\d{4})|\d{4}([- ])\d{4}\3\d{4}\3\d{1,7}|3\d{3}([- ])\d{6}\4\d{4,5}|\d{8,19})(?![\w-]|\.\d)"
)
_ACCOUNT_WORDS = frozenset({"account", "accounts", "acct", "routing", "konto"})
_SSN_WORDS = frozenset({"ssn", "social"})


def _cards_and_accounts(text: str, start: int, end: int) -> Iterator[Find]:
    """Card numbers (check digit), US social security numbers, and bank accounts where the words before say so."""
    from stdnum import luhn
    from stdnum.us import ssn

    for match in _NUMBER.finditer(text, start, end + 2):
        value = match.group()
        digits = value.replace(" ", "").replace("-", "")
        if match["ssn"]:
            if ssn.is_valid(value.replace(" ", "-")):
                yield Find("SSN", value)
        # Issued cards have 13 to 19 digits and begin with 2 to 6.
        elif 13 <= len(digits) <= 19 and digits[0] in "23456" and len(set(digits)) > 1 and luhn.is_valid(digits):
            yield Find("CARD", value)
        elif len(digits) == 9 and ssn.is_valid(digits) and _is_preceded_by(text, match.start(), _SSN_WORDS):
            yield Find("SSN", value)
        elif len(digits) <= 17 and _is_preceded_by(text, match.start(), _ACCOUNT_WORDS):
            yield Find("ACCOUNT", value)


_PHONE = re.compile(rf"(?<![\w.,$€£#])(?:\+\(|\+|\()?\d[\d ()./\u00a0{_DASHES}-]{{5,20}}\d(?!\w|[.,:]\d)")
_BARE = re.compile(r"\W*(?:\d{1,3}[.)]\s+)?\W*(\d+)\W*")
_DATE = re.compile(r"(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.]|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d\d|(?:19|20)\d\d(?:0[1-9]|1[0-2])\d\d\b")
_PHONE_WORDS = frozenset({"phone", "telephone", "tel", "cell", "cellphone", "mobile", "call", "fax", "whatsapp", "sms"})


def _is_bare(candidate: str) -> bool:
    """Whether a candidate is one run of digits, perhaps in brackets or after a list's number: an id, unless a word says otherwise."""
    return not candidate.startswith("+") and _BARE.fullmatch(candidate) is not None


@lru_cache(maxsize=1 << 15)
def _phones_in(candidate: str, regions: tuple[str, ...]) -> tuple[str, ...]:
    """Telephone numbers in a run of digits: possible ones where it says + first, else ones that a region has issued, grouped as there."""
    import phonenumbers

    if _DATE.search(candidate) or not _FEWEST_DIGITS <= sum(each.isdigit() for each in candidate) <= 15:
        return ()
    if candidate.startswith("+"):
        matches = phonenumbers.PhoneNumberMatcher(candidate, None, leniency=phonenumbers.Leniency.POSSIBLE)
        return tuple(match.raw_string for match in matches)
    for region in regions:
        matches = phonenumbers.PhoneNumberMatcher(candidate, region, leniency=phonenumbers.Leniency.STRICT_GROUPING)
        if values := tuple(match.raw_string for match in matches):
            return values
    return ()


_WORDS_BEFORE = 5
_BOUND = re.compile(r"[\n\d<>@]")


def _is_preceded_by(text: str, start: int, words: frozenset[str]) -> bool:
    """Whether one of the five words before a place (the key of a JSON value among them) is one of these.

    Words beyond another private value do not count, so that its pseudonym, which may have fewer words, changes nothing.
    """
    before = _BOUND.split(text[max(0, start - 60) : start])[-1].lower()
    return any(word in words for word in re.findall(r"[^\W_]+", before)[-_WORDS_BEFORE:])
