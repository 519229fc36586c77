"""Numbers that shops, couriers and calendars write and that are not telephone numbers, in many surroundings."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

DIGITS = "0123456789"


class Written(NamedTuple):
    """A text, the number in it, and what the number is."""

    text: str
    number: str
    meaning: str


def _digits(generator: random.Random, count: int) -> str:
    return generator.choice("23456789") + "".join(generator.choices(DIGITS, k=count - 1))


def _us_shaped(generator: random.Random) -> str:
    """Return ten digits that could be a telephone number of the United States."""
    area = generator.choice(
        ["210", "212", "415", "708", "309", "949", "650", "303", "617", "206", "512"]
    )
    return f"{area}{generator.randint(220, 989)}{generator.randint(0, 9999):04d}"


def _isbn(generator: random.Random) -> str:
    digits = "978" + "".join(generator.choices(DIGITS, k=9))
    check = -sum(int(digit) * (1, 3)[place % 2] for place, digit in enumerate(digits)) % 10
    digits += str(check)
    return generator.choice(
        [digits, f"{digits[:3]}-{digits[3]}-{digits[4:7]}-{digits[7:12]}-{digits[12]}"]
    )


def _date(generator: random.Random) -> str:
    year, month, day = (
        generator.randint(2019, 2027),
        generator.randint(1, 12),
        generator.randint(1, 28),
    )
    return generator.choice(
        [
            f"{year}-{month:02d}-{day:02d}",
            f"{day:02d}.{month:02d}.{year}",
            f"{month:02d}/{day:02d}/{year}",
            f"{year}{month:02d}{day:02d}",
            f"{year}-{month:02d}-{day:02d} 10:{day:02d}:{month:02d}",
            f"{year}{month:02d}{day:02d}1030{day:02d}",
        ]
    )


def _amount(generator: random.Random) -> str:
    cents, units = generator.randint(0, 99), generator.randint(1, 999)
    return generator.choice(
        [
            f"{units},{generator.randint(100, 999)},{generator.randint(100, 999)}.{cents:02d}",
            f"{generator.randint(1000, 9999)}.{cents:02d}",
            f"{units}.{generator.randint(100, 999)}.{generator.randint(100, 999)},{cents:02d}",
            f"{units} {generator.randint(100, 999)} {generator.randint(100, 999)}.{cents:02d}",
            f"{generator.randint(10**6, 10**9)}.{cents:02d}",
        ]
    )


NUMBERS: dict[str, Callable[[random.Random], str]] = {
    "order": _us_shaped,
    "item": _us_shaped,
    "item id": lambda generator: _digits(generator, 10),
    "product id": lambda generator: _digits(generator, generator.randint(8, 12)),
    "SKU": _us_shaped,
    "ticket": _us_shaped,
    "tracking": lambda generator: generator.choice(
        [_digits(generator, 12), _digits(generator, 11), _us_shaped(generator)]
    ),
    "tracking number": lambda generator: (
        f"{_digits(generator, 4)} {_digits(generator, 4)} {_digits(generator, 4)}"
    ),
    "SKU no.": lambda generator: (
        f"{_digits(generator, 3)}-{_digits(generator, 4)}-{_digits(generator, 2)}"
    ),
    "part number": lambda generator: (lambda ten: f"{ten[:3]}-{ten[3:6]}-{ten[6:]}")(
        _us_shaped(generator)
    ),
    "ISBN": _isbn,
    "date": _date,
    "total": _amount,
    "": _us_shaped,
}
"""What makes a number, by the word that says what the number is. The last numbers have no word before them."""

SURROUNDINGS = (
    "The cheapest tablet is {word} {number} (10-inch, 64GB, silver).",
    "{word} {number} - 2 people",
    "{word}: {number} - 8-inch, Wi-Fi, 8GB",
    "Grill: Current 1057.24, New {word} ({number}) 962.69",
    "{word} {number} (34 inch, plastic)",
    "[{word} {number}] [2 of 3]",
    "2 x {word} {number}, 3 x other",
    "1. {word} {number}\n2. {word} {number}",
    "- {number} ({word})\n- 12 left",
    "{number} (2), {number} (3)",
    "{word} {number} 12 34",
    "12 34 {word} {number}",
    "from {word} {number} to 28 inch",
    "{word} {number} / {number}",
    "$12.50 {word} {number} $13.00",
    "{word} #{number} 5 stars",
    "{word} no. {number}. 4 left. 10-15 days.",
    '{{"{word}": "{number}", "price": 12.5, "quantity": 2}}',
    '{{"{word}s": ["{number}", "{number}"], "sizes": [10, 12]}}',
    '{{"{word}": {number_or_text}, "n": 1}}',
    "| {word} | {number} | 2 | 19.99 |",
    "{word},{number},2,19.99",
    "{number};{word};2;19,99",
    "{word}={number}&page=2",
    "https://shop.example/{word}/{number}/2",
    "I'll call the tool for {word} {number} (2 of 2).",
    "my phone case, {word} {number} (6 inch)",
    "please call me about {word} {number} (2 pcs)",
    "{word} {number} (+1 more)",
    "+2 {word} {number}",
    "({number})",
    "({number}) 2",
    "{number}-2",
    "{number} 2",
    "2 {number}",
    "2-{number}",
)
"""The surroundings of a number: digits, brackets, dashes and units before and after the number."""


def written_numbers(seed: int = 0, each: int = 3) -> Iterator[Written]:
    """Yield `each` numbers of every meaning in every surrounding."""
    generator = random.Random(seed)
    for meaning, make in NUMBERS.items():
        for surrounding in SURROUNDINGS:
            if meaning == "part number" and not surrounding.partition("{number")[0].rstrip(
                "#([ \"':"
            ).endswith("{word}"):
                continue  # 617-243-1160 without a word before it is a telephone number
            for _ in range(each):
                number = make(generator)
                in_json = number if number.isdecimal() else f'"{number}"'
                text = surrounding.format(word=meaning, number=number, number_or_text=in_json)
                yield Written(text, number, meaning)
