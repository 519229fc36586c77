"""Private numbers: IBANs, cards, social security numbers, bank accounts, telephone numbers, AWS key
ids.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from agent_pipeline.redaction.kinds import Find


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


def numbers(regions: tuple[str, ...] | None, text: str, flat: bytes) -> Iterator[Find]:
    """Private numbers among a text's long runs of digits and capitals; telephone numbers where
    `regions` are given, the countries whose national numbers are known.
    """
    for run in _runs(flat.translate(_CLASSES)):
        start, end = run.span()
        if flat[start] > 57:  # no digit
            yield from _iban(text, start)
            yield from _aws_key_id(text, start, end)
        elif run.group().count(b"0") >= _FEWEST_DIGITS and not _DAY.fullmatch(text, start, end):
            yield from _cards_and_accounts(text, start, end)
            if regions is not None:
                yield from _phones(text, start, end, regions)


def _phones(text: str, start: int, end: int, regions: tuple[str, ...]) -> Iterator[Find]:
    for match in _PHONE.finditer(text, max(0, start - 2), end + 2):
        candidate, label = match.group(), _label(text, match.start())
        is_named = label in _PHONE_WORDS
        if (not label or label in _CONTACT_WORDS) and _is_international(candidate):
            yield Find("PHONE", candidate)
            continue
        if not is_named and (
            _is_bare(candidate) or ("(" not in candidate and _MEASURE.match(text, match.end()))
        ):
            continue
        place = 0
        for value in _phones_in(candidate, regions):
            place = candidate.index(value, place)
            value_label = _label(text, match.start() + place) if place else label
            if _is_telephone(value, value_label):
                yield Find("PHONE", value)
                is_named = False
            place += len(value)
        if is_named and _may_be_foreign(candidate):
            yield Find("PHONE", candidate)  # in another country's grouping


_MEASURE = re.compile(
    r"\s?(?:mm|cm|km|m|in|ft|g|kg|mg|t|lb|oz|l|ml|px|pt|s|ms|ns|h|min|kb|mb|gb|tb|bytes?|rows?|items?|pcs|points?|people|tokens?|steps?|"
    r"lines?|pages?|usd|eur|gbp|chf|%|€|\$)(?!\w)",
    re.IGNORECASE,
)
"""Units: what stands before one is a measure, or dimensions, and no telephone number."""


def _is_telephone(value: str, label: str) -> bool:
    """Whether a possible telephone number is one: a bare run of digits needs a word that says so.

    A number in groups needs no word, but the word before it must not say that it is something else.
    """
    if label in _PHONE_WORDS:
        return True
    return not _is_bare(value) and (value.startswith("+") or label not in _ID_WORDS)


_DASHES = "\u2010-\u2015"
_CLASSES = bytes(
    48
    if chr(each).isdecimal()
    else 65
    if 65 <= each <= 90
    else 45
    if chr(each) in " ()./-?\u00a0"
    else 32
    for each in range(256)
)
"""A byte's class: a digit `0`, a capital `A`, what may stand within a number `-` (a dash beyond
Latin-1 is a `?`), all else a blank.
"""
_FEWEST_DIGITS = 7
_DIGITS = re.compile(rb"0[0-]{6,}+")
_CAPITALS = re.compile(rb"A(?:[0A]{19,}|A00[0A-]{4,})")
_DAY = re.compile(r"(?:19|20)\d\d-\d\d-\d\d[ .?]*|\d+\.\d+[ .?]*")
"""A run that is a day or a decimal number: most of the long ones."""


def _runs(classes: bytes) -> Iterator[re.Match[bytes]]:
    """Long runs, from left to right; looked for by one expression for both they would take three
    times as long.
    """
    done = 0
    for run in _CAPITALS.finditer(classes):
        yield from _DIGITS.finditer(classes, done, run.start())
        yield run
        done = run.end()
    yield from _DIGITS.finditer(classes, done)


_IBAN = re.compile(
    r"(?<![^\W_])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?![^\W_])"
)


def _iban(text: str, start: int) -> Iterator[Find]:
    if (match := _IBAN.match(text, start)) and (value := account_number(match.group())):
        yield Find("IBAN", value)


_LAST_GROUP = re.compile(r"(?:^|[ .\u00a0-])[^ .\u00a0-]*$")


def account_number(written: str) -> str:
    """Return the IBAN that a text begins with, by its check digits; empty if there is none."""
    from stdnum import iban

    # A word after an IBAN looks like its last group.
    while written and not iban.is_valid(re.sub(r"[.\u00a0]", "", written), check_country=False):
        written = written[: _LAST_GROUP.search(written).start()]  # type: ignore[union-attr]
    return written


def _aws_key_id(text: str, start: int, end: int) -> Iterator[Find]:
    from detect_secrets.plugins.aws import AWSKeyDetector

    yield from (
        Find("API_KEY", value)
        for value in AWSKeyDetector().analyze_string(text[start:end])
        if value
    )


_NUMBER = re.compile(
    r"(?<![\w.-])(?:(?P<ssn>\d{3}([- ])\d{2}\2\d{4})|\d{4}([- "
    r".\u00a0])\d{4}\3\d{4}\3\d{1,7}|3\d{3}([- .\u00a0])\d{6}\4\d{4,5}|\d{8,19})"
    r"(?![\w-]|\.\d)"
)
_ISSUED_CARD = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|2720\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}"
    r"|35\d{14}|6(?:011|4[4-9]\d|5\d\d|2\d\d)\d{12,15}|(?:50|5[6-9]|6\d)\d{10,17}"
)
"""Visa, Mastercard, American Express, Diners, JCB, Discover, UnionPay, Maestro: one in five of
random numbers.
"""
_ACCOUNT_WORDS = _set_of("account accounts acct routing aba konto kontonummer")
_SSN_WORDS = _set_of("ssn social")
_CARD_WORDS = _set_of(
    "card cards visa mastercard amex maestro pan credit debit karte tarjeta carte"
)


def _cards_and_accounts(text: str, start: int, end: int) -> Iterator[Find]:
    """Card numbers (check digit, issued range), US social security numbers, and bank accounts where
    the word before says so.

    A bare number that is as long as many an id needs the word before it to be a card.
    """
    from stdnum import luhn
    from stdnum.us import ssn

    for match in _NUMBER.finditer(text, start, end + 2):
        value = match.group()
        digits = _SEPARATORS.sub("", value)
        if match["ssn"]:
            if ssn.is_valid(value.replace(" ", "-")):
                yield Find("SSN", value)
        elif (
            len(digits) >= 12
            and _ISSUED_CARD.fullmatch(digits)
            and len(set(digits)) > 1
            and luhn.is_valid(digits)
        ):
            label = _label(text, match.start())
            if label in _CARD_WORDS or (
                label not in _ID_WORDS and (len(digits) in (15, 16) or digits != value)
            ):
                yield Find("CARD", value)
        elif len(digits) <= 17 and (label := _label(text, match.start())):
            if len(digits) == 9 and label in _SSN_WORDS and ssn.is_valid(digits):
                yield Find("SSN", value)
            elif label in _ACCOUNT_WORDS:
                yield Find("ACCOUNT", value)


_SEPARATORS = re.compile(r"\D")
_PHONE = re.compile(
    rf"(?<![\w.,$€£#])(?:\+\(|\+|\()?\d[\d ()./\u00a0{_DASHES}-]{{5,20}}\d(?!\w|[.,:]\d)"
)
_RUN = re.compile(r"\d+")
_LONGEST_GROUP = 9
"""Digits that no country writes as one group of a longer telephone number."""
_DATE = re.compile(
    r"(?:19|20)\d\d[-/.](?:0?[1-9]|1[0-2])[-/.]|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d\d|(?:19|20)\d\d(?:0[1-9]|1[0-2])\d\d\b"
)
_MOST_DIGITS = 15
_PHONE_WORDS = _set_of(
    "phone phones telephone tel tél téléphone telefon telefono teléfono cell cellphone mobile "
    "mobil móvil handy call fax sms "
    "telefonnummer rufnummer mobilnummer handynummer telefonnr whatsapp celular portable gsm "
    "numéro numero "
    "móviles mobiel telefoon telefoonnummer mobilnr telefonnr numer komórka puhelin телефон тел "
    "мобильный номер 电话 電話 手机 手机号 "
    "手机号码 电话号码 联系电话 手機 電話番号 電話番号は 携帯 携帯電話 携帯番号 전화 전화번호 휴대폰"
)


def _is_bare(value: str) -> bool:
    """Whether a value is one run of digits, perhaps in brackets or after or before a short number:
    an id, unless a word says otherwise.
    """
    if value.startswith("+"):
        return False
    runs = _RUN.findall(value)
    return len(runs) == 1 or max(map(len, runs)) >= _LONGEST_GROUP


_WITH_PREFIX = re.compile(r"00[1-9]\d{8,12}", re.ASCII)
_CONTACT_WORDS = _set_of("reach contact ring text under dial hotline numbers")


@lru_cache(maxsize=1 << 12)
def _is_international(candidate: str) -> bool:
    """Whether a bare run of digits is a number that a country has issued, after the prefix 00 for
    calls abroad.
    """
    import phonenumbers

    if not _WITH_PREFIX.fullmatch(candidate):
        return False
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(f"+{candidate[2:]}"))
    except phonenumbers.NumberParseException:
        return False


def _may_be_foreign(candidate: str) -> bool:
    return sum(map(str.isdigit, candidate)) <= _MOST_DIGITS and not _DATE.search(candidate)


@lru_cache(
    maxsize=1 << 17
)  # as many as a megabyte has: a session is searched again after each replacement
def _phones_in(candidate: str, regions: tuple[str, ...]) -> tuple[str, ...]:
    """Telephone numbers in a run of digits: possible ones where it says + first, else ones that a
    region has issued, grouped as there.
    """
    import phonenumbers

    digits = sum(map(str.isdigit, candidate))
    if not _FEWEST_DIGITS <= digits <= _MOST_DIGITS or _DATE.search(candidate):
        return ()
    if candidate.startswith("+"):
        return _international_numbers(candidate)
    grouped = _GROUPED.fullmatch(candidate)
    first_values: tuple[str, ...] = ()
    for region in regions:
        if digits < _shortest(region):
            continue
        if grouped and region in phonenumbers.COUNTRY_CODE_TO_REGION_CODE[1]:
            if _issued_in_north_america().fullmatch(_SEPARATORS.sub("", candidate)):
                return (candidate,)
            continue
        matches = phonenumbers.PhoneNumberMatcher(
            candidate, region, leniency=phonenumbers.Leniency.STRICT_GROUPING
        )
        values = tuple(match.raw_string for match in matches)
        if sum(map(str.isdigit, "".join(values))) == digits:
            return values
        first_values = (
            first_values or values
        )  # another country may have issued all of the digits as one number
    return first_values


def _international_numbers(candidate: str) -> tuple[str, ...]:
    """Return the numbers in a candidate that begins with a plus; a short number after a blank may
    be none of their groups.
    """
    import phonenumbers

    while candidate:
        matches = list(
            phonenumbers.PhoneNumberMatcher(
                candidate, None, leniency=phonenumbers.Leniency.POSSIBLE
            )
        )
        if matches:
            first_group = len(_RUN.search(candidate).group())  # type: ignore[union-attr]
            # Nobody writes the code of a country in two groups: "+2 3094000786" are two numbers.
            return tuple(
                match.raw_string
                for match in matches
                if len(str(match.number.country_code)) <= first_group
            )
        candidate = candidate[: max(candidate.rfind(" "), candidate.rfind("\u00a0"), 0)]
    return ()


_GROUPED = re.compile(r"(?!011)\d{3}([-. ])\d{3}\1\d{4}", re.ASCII)
"""Numbers as North America groups them, the commonest form; one that begins with 011 may be another
country's.
"""


@cache
def _issued_in_north_america() -> re.Pattern[str]:
    """The numbers that a country of +1 has issued: libphonenumber's own patterns as one, which
    answers a hundred times faster than it.
    """
    import phonenumbers

    countries = map(
        phonenumbers.PhoneMetadata.metadata_for_region, phonenumbers.COUNTRY_CODE_TO_REGION_CODE[1]
    )
    described = (getattr(country, kind) for country in countries for kind in _KINDS_OF_NUMBER)
    patterns = {
        each.national_number_pattern for each in described if each and each.national_number_pattern
    }
    return re.compile("|".join(sorted(patterns)))


_KINDS_OF_NUMBER = _set_of(
    "fixed_line mobile toll_free premium_rate shared_cost personal_number voip pager uan voicemail"
)


@cache
def _shortest(region: str) -> int:
    """How few digits a whole number of a country has, without its prefix."""
    import phonenumbers

    return min(phonenumbers.PhoneMetadata.metadata_for_region(region).general_desc.possible_length)  # type: ignore[union-attr]


_UNBOUND = re.compile(r"[^\n\d<>@]*")
_WORD = re.compile(r"[^\W_]+")
_PARTICLES = "是为為は가는은"
"""What joins a word and its number in Chinese, Japanese and Korean."""
_HUMP = re.compile(r"(?<=[a-z]{2})(?=[A-Z])")
_BETWEEN = _set_of(
    "number numbers no nr num is was are be my the her his their our your new old current home "
    "work office personal primary security bank "
    "checking savings at on to me us him them of for a an it s also or and in ending value de ist "
    "lautet est mein meine "
    "es è é är mi meu il au op på auf sur al ao"
)
"""Words that may stand between a label and its number."""
_ID_WORDS = _set_of(
    "id ids order orders item items product products tracking invoice ticket tickets transaction "
    "reference ref sku skus serial ean upc "
    "isbn issn imei timestamp time ts user message session trace span request flight reservation "
    "booking shipment parcel uid guid key "
    "part parts article variant model lot batch case rma barcode asin gtin date total amount price"
)


def _label(text: str, start: int) -> str:
    """The word that says what the number at a place is (the key of a JSON value, for one): the
    nearest that is not a `_BETWEEN`.

    Words beyond another private value do not count, so that its pseudonym, which may have fewer
    words, changes nothing. In a list of numbers of one shape, the word before the list says what
    all of them are.
    """
    start = _start_of_list(text, start)
    if text[start - 1 : start] == "\n":  # a line of its own, perhaps below a label
        label = _label_before(text, start - 1)
        return label if label in _LABELS else ""
    return _label_before(text, start)


def _label_before(text: str, start: int) -> str:
    if text[start - 1 : start] == "<":  # a number in such brackets is no pseudonym
        start -= 1
    unbound = _UNBOUND.match(text[max(0, start - 60) : start][::-1]).group()[::-1]  # type: ignore[union-attr]
    before = _HUMP.sub(" ", unbound).lower()
    words = (word.rstrip(_PARTICLES) for word in reversed(_WORD.findall(before)))
    return next((word for word in words if word and word not in _BETWEEN), "")


_LABELS = _PHONE_WORDS | _ACCOUNT_WORDS | _SSN_WORDS | _CARD_WORDS
_LONGEST_LIST = 8
_LIST_SEPARATORS = " \t\"',;/&|()[]#"
_SHAPE = str.maketrans("123456789", "000000000")
_NUMBER_AT = re.compile(r"\d[\d()./\u00a0 -]{0,24}\d")


def _start_of_list(text: str, start: int) -> int:
    """Return where the list of numbers of one shape begins in which a number stands; the number's
    own place if there is no list.
    """
    own = _NUMBER_AT.match(text, start)
    shape = own.group().translate(_SHAPE) if own else ""
    for _ in range(_LONGEST_LIST if shape else 0):
        before = text[max(0, start - len(shape) - 8) : start].rstrip(_LIST_SEPARATORS)
        if len(before) < len(shape) or before[-len(shape) :].translate(_SHAPE) != shape:
            break
        start = max(0, start - len(shape) - 8) + len(before) - len(shape)
    return start
