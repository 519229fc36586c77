"""The detection of private numbers: IBANs, cards, US social security numbers, bank accounts,
telephone numbers and AWS key ids.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from agent_pipeline.redaction.kinds import Find


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


def numbers(regions: tuple[str, ...] | None, text: str, flat: bytes) -> Iterator[Find]:
    """Yield the private numbers among a text's long runs of digits and capital letters.

    Args:
        regions: The countries whose national telephone numbers are recognized. If it is None,
            telephone numbers are not searched.
        text: The text.
        flat: The text as Latin-1 bytes.
    """
    for run in _runs(flat.translate(_CLASSES)):
        start, end = run.span()
        if flat[start] > 57:  # not a digit
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
            yield Find("PHONE", candidate)  # digits grouped as in another country


_MEASURE = re.compile(
    r"\s?(?:mm|cm|km|m|in|ft|g|kg|mg|t|lb|oz|l|ml|px|pt|s|ms|ns|h|min|kb|mb|gb|tb|bytes?|rows?|items?|pcs|points?|people|tokens?|steps?|"
    r"lines?|pages?|usd|eur|gbp|chf|%|€|\$)(?!\w)",
    re.IGNORECASE,
)
"""Units of measurement. A number before a unit is a measure and not a telephone number."""


def _is_telephone(value: str, label: str) -> bool:
    """Return whether a possible telephone number is a telephone number.

    A single run of digits counts only after a word such as "phone". A number in groups counts
    unless the word before it says that it is something else, such as an order number.
    """
    if label in _PHONE_WORDS:
        return True
    return not _is_bare(value) and (value.startswith("+") or label not in _ID_WORDS)


_DASHES = "\u2010-\u2015"
_CLASSES = bytes(
    48
    if chr(code).isdecimal()
    else 65
    if 65 <= code <= 90
    else 45
    if chr(code) in " ()./-?\u00a0"
    else 32
    for code in range(256)
)
"""The class of each byte: `0` for a digit, `A` for a capital letter, `-` for a character that may
stand within a number, and a blank for everything else. A dash beyond Latin-1 is a `?`.
"""
_FEWEST_DIGITS = 7
_DIGITS = re.compile(rb"0[0-]{6,}+")
_CAPITALS = re.compile(rb"A(?:[0A]{19,}|A00[0A-]{4,})")
_DAY = re.compile(r"(?:19|20)\d\d-\d\d-\d\d[ .?]*|\d+\.\d+[ .?]*")
"""A pattern that matches a date or a decimal number. Most long runs are one of these."""


def _runs(classes: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the long runs of digits and capitals, from left to right.

    Two patterns are used, because a single pattern for both would be three times slower.
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
    """Return the IBAN at the beginning of a text, verified by its check digits, or an empty text."""
    from stdnum import iban

    # The word after an IBAN can look like its last group, so the last group is removed until the
    # check digits match.
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
"""Card number ranges of Visa, Mastercard, American Express, Diners, JCB, Discover, UnionPay and
Maestro. One in five random numbers is in these ranges.
"""
_ACCOUNT_WORDS = _set_of("account accounts acct routing aba konto kontonummer")
_SSN_WORDS = _set_of("ssn social")
_CARD_WORDS = _set_of(
    "card cards visa mastercard amex maestro pan credit debit karte tarjeta carte"
)


def _cards_and_accounts(text: str, start: int, end: int) -> Iterator[Find]:
    """Yield card numbers, US social security numbers, and bank accounts.

    A card number must have a valid check digit and be in an issued range. If it is a single run of
    digits whose length is common for ids, a word such as "card" must precede it. A bank account
    counts only if the word before it says so.
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
"""Number of digits that no country writes as a single group within a longer telephone number."""
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
    """Return whether a value is a single run of digits, perhaps with brackets or one short number
    next to it.

    Such a value is an id unless a word says otherwise.
    """
    if value.startswith("+"):
        return False
    runs = _RUN.findall(value)
    return len(runs) == 1 or max(map(len, runs)) >= _LONGEST_GROUP


_WITH_PREFIX = re.compile(r"00[1-9]\d{8,12}", re.ASCII)
_CONTACT_WORDS = _set_of("reach contact ring text under dial hotline numbers")


@lru_cache(maxsize=1 << 12)
def _is_international(candidate: str) -> bool:
    """Return whether a run of digits is an issued number after the prefix 00, which dials abroad."""
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
)  # enough for a megabyte of text, which is searched again after each replacement
def _phones_in(candidate: str, regions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the telephone numbers in a run of digits.

    If the run begins with +, possible numbers count. Otherwise, a number counts only if one of the
    regions has issued it and groups its digits in this way.
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
    """Return the numbers in a candidate that begins with a plus.

    If the whole candidate is not a number, short numbers after a blank are removed from its end.
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
            # Nobody splits a country code: "+2 3094000786" is two numbers.
            return tuple(
                match.raw_string
                for match in matches
                if len(str(match.number.country_code)) <= first_group
            )
        candidate = candidate[: max(candidate.rfind(" "), candidate.rfind("\u00a0"), 0)]
    return ()


_GROUPED = re.compile(r"(?!011)\d{3}([-. ])\d{3}\1\d{4}", re.ASCII)
"""Numbers in North American groups, the most common form. A number that begins with 011 may belong
to another country.
"""


@cache
def _issued_in_north_america() -> re.Pattern[str]:
    """Return a pattern for the numbers that the countries with code +1 have issued.

    The pattern joins libphonenumber's own patterns, and is a hundred times faster than
    libphonenumber.
    """
    import phonenumbers

    countries = map(
        phonenumbers.PhoneMetadata.metadata_for_region, phonenumbers.COUNTRY_CODE_TO_REGION_CODE[1]
    )
    described = (getattr(country, kind) for country in countries for kind in _KINDS_OF_NUMBER)
    patterns = {
        description.national_number_pattern
        for description in described
        if description and description.national_number_pattern
    }
    return re.compile("|".join(sorted(patterns)))


_KINDS_OF_NUMBER = _set_of(
    "fixed_line mobile toll_free premium_rate shared_cost personal_number voip pager uan voicemail"
)


@cache
def _shortest(region: str) -> int:
    """Return the smallest number of digits of a complete number in a country, without the prefix."""
    import phonenumbers

    return min(phonenumbers.PhoneMetadata.metadata_for_region(region).general_desc.possible_length)  # type: ignore[union-attr]


_UNBOUND = re.compile(r"[^\n\d<>@]*")
_WORD = re.compile(r"[^\W_]+")
_PARTICLES = "是为為は가는은"
"""Characters that connect a word with its number in Chinese, Japanese and Korean."""
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
    """Return the word that labels the number at a place, such as the key of a JSON value.

    The label is the nearest preceding word that is not in `_BETWEEN`. Words beyond another private
    value are not read, so that its replacement by a pseudonym does not change the label. In a list
    of numbers with the same shape, the word before the list labels all of them.
    """
    start = _start_of_list(text, start)
    if text[start - 1 : start] == "\n":  # a separate line, perhaps below a label
        label = _label_before(text, start - 1)
        return label if label in _LABELS else ""
    return _label_before(text, start)


def _label_before(text: str, start: int) -> str:
    if text[start - 1 : start] == "<":  # a number in brackets, not a pseudonym
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
    """Return the start of the list of equally shaped numbers that contains the number at `start`.

    Return `start` if there is no list.
    """
    own_match = _NUMBER_AT.match(text, start)
    shape = own_match.group().translate(_SHAPE) if own_match else ""
    for _ in range(_LONGEST_LIST if shape else 0):
        before = text[max(0, start - len(shape) - 8) : start].rstrip(_LIST_SEPARATORS)
        if len(before) < len(shape) or before[-len(shape) :].translate(_SHAPE) != shape:
            break
        start = max(0, start - len(shape) - 8) + len(before) - len(shape)
    return start
