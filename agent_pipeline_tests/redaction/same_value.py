"""Sessions that write one private value in several forms, and what of the value a written session still holds.

The values are made up, from a seed. What remains is looked for in another way than redaction looks for it: all encodings are undone, and
all that is not a letter or a digit is left out.
"""

import html
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote

from agent_pipeline.sample.names import FIRST, LAST
from agent_pipeline.sessions.session import Session
from agent_pipeline_tests.redaction.planting import card, iban, social_security, some, stored

DIGITS = "0123456789"
FORMS_PER_VALUE = 6


class Written(NamedTuple):
    """A text that holds a value, and what of the value must not remain of it: letters and digits, in small letters."""

    text: str
    core: str


class Value(NamedTuple):
    """A private value: its kind, a text that says what it is, and other texts that hold the value in other forms."""

    kind: str
    labelled: Written
    others: tuple[Written, ...]


def _html(text: str) -> str:
    return "".join(letter if letter.isalnum() else f"&#{ord(letter)};" for letter in text)


def _escaped(text: str) -> str:
    return "".join(letter if letter.isdigit() else f"\\u{ord(letter):04x}" for letter in text)


def _last4(digits: str, name: str) -> tuple[Written, ...]:
    last = digits[-4:]
    return (
        Written(f"the {name} ending in {last}", f"endingin{last}"),
        Written(f'{{"{name}_last4": "{last}"}}', f"last4{last}"),
    )


def telephone(generator: random.Random) -> Value:
    """Return a telephone number of the United States or of Germany."""
    area, exchange, line = (
        generator.choice(["212", "415", "303"]),
        str(generator.randint(220, 989)),
        some(generator, 4, DIGITS),
    )
    exchange = exchange if exchange[1:] != "11" else "234"
    national, country = f"{area}{exchange}{line}", "1"
    grouped = [
        f"({area}) {exchange}-{line}",
        f"{area}.{exchange}.{line}",
        f"1-{area}-{exchange}-{line}",
    ]
    if generator.random() < 0.3:
        country, rest = "49", some(generator, 7, "23456789")
        national, grouped = f"30{rest}", [f"030 {rest}", f"030/{rest}", f"(030) {rest}"]
    international = (
        f"+{country} {national[:2]} {national[2:]}"
        if country == "49"
        else f"+1 {area} {exchange} {line}"
    )
    texts = [
        *grouped,
        national,
        f"+{country}{national}",
        international,
        f"00{country} {national}",
        f"https://wa.example/?to={quote(international)}&q=1",
        f"<b>{_html(grouped[0])}</b>",
        f"log: {_escaped(international)}",
        f"tel:+{country}-{national}",
        f"+{country}&nbsp;{national}",
    ]
    return Value(
        "PHONE",
        Written(f"my phone is {international}", national),
        (*(Written(each, national) for each in texts), *_last4(national, "phone")),
    )


def payment_card(generator: random.Random) -> Value:
    """Return a card's number."""
    digits = re.sub(r"\D", "", card(generator))
    groups = (
        [digits[:4], digits[4:8], digits[8:12], digits[12:]]
        if len(digits) == 16
        else [digits[:4], digits[4:10], digits[10:]]
    )
    texts = [
        *(separator.join(groups) for separator in (" ", "-", ".", "\u00a0", "%20", "&nbsp;", "/")),
        digits,
        f"n={digits}&x=1",
    ]
    masked = (
        Written(f"**** **** **** {digits[-4:]}", digits[-4:]),
        Written(f"xxxx-{digits[-4:]}", f"xxxx{digits[-4:]}"),
    )
    return Value(
        "CARD",
        Written(f"card {' '.join(groups)}", digits),
        (*(Written(each, digits) for each in texts), *masked, *_last4(digits, "card")),
    )


def bank_account(generator: random.Random) -> Value:
    """Return an IBAN."""
    account = iban(generator).replace(" ", "")
    groups = [account[at : at + 4] for at in range(0, len(account), 4)]
    texts = [
        account,
        " ".join(groups),
        "-".join(groups),
        ".".join(groups),
        account.lower(),
        "%20".join(groups),
        "&nbsp;".join(groups),
    ]
    digits = re.search(r"\d{8,}$", account)
    parts = (
        [Written(f"number {digits.group()[-8:].lstrip('0')}", digits.group()[-8:].lstrip("0"))]
        if digits
        else []
    )
    if account[4:12].isdigit():
        parts.append(Written(f'{{"bank_code": "{account[4:12]}"}}', f"bankcode{account[4:12]}"))
    parts = [part for part in parts if len(re.sub(r"\D", "", part.core)) >= 6]
    others = (*(Written(each, account.lower()) for each in texts), *parts, *_last4(account, "iban"))
    return Value("IBAN", Written(f"IBAN {' '.join(groups)}", account.lower()), others)


def address(generator: random.Random) -> Value:
    """Return an e-mail address that is made from a name."""
    first, last = generator.choice(FIRST), generator.choice(LAST)
    number = some(generator, 2, "123456789")
    local_part, domain = (
        f"{first}.{last}{number}".lower(),
        f"{generator.choice(['mail', 'post'])}{number}.example",
    )
    plain, core = f"{local_part}@{domain}", f"{first}{last}{number}".lower()
    texts = [
        plain,
        plain.upper(),
        f"{local_part}+shop@{domain}",
        quote(plain, safe=""),
        f"to={quote(f'{local_part}+x@{domain}', safe='')}&q=1",
        f"<a>{local_part}&#64;{domain}</a>",
        f"{local_part} [at] {domain.replace('.', ' [dot] ')}",
        f"log: {local_part}\\u0040{domain}",
        f"mailto:{plain}",
        f"user {local_part} logged in",
    ]
    names = [
        Written(f"user {first}_{last}_{number}88".lower(), f"{first}{last}{number}88".lower()),
        Written(f"Dear {first} {last},", f"dear{first}{last}".lower()),
        Written(f"{last.upper()}, {first.upper()}", f"{last}{first}".lower()),
    ]
    return Value(
        "EMAIL", Written(f"I am {plain}", core), (*(Written(each, core) for each in texts), *names)
    )


def security_number(generator: random.Random) -> Value:
    """Return a social security number."""
    written = social_security(generator)
    digits = written.replace("-", "")
    texts = [
        written,
        written.replace("-", " "),
        digits,
        written.replace("-", "%20"),
        written.replace("-", "&#45;"),
    ]
    return Value(
        "SSN",
        Written(f"my SSN is {written}", digits),
        (*(Written(each, digits) for each in texts), *_last4(digits, "ssn")),
    )


MAKERS: tuple[Callable[[random.Random], Value], ...] = (
    telephone,
    payment_card,
    bank_account,
    address,
    security_number,
)


def put(texts: list[str], generator: random.Random) -> Session:
    """Return a session that holds each of the texts in one of its places."""
    messages: list[dict[str, object]] = [{"role": "system", "content": "Help customers."}]
    context: dict[str, object] = {}
    for number, text in enumerate(texts):
        place = generator.choice(
            ["user", "assistant", "arguments", "key", "result", "inner", "text result", "context"]
        )
        if place in ("user", "assistant"):
            messages.append(
                {
                    "role": place,
                    "content": f"{generator.choice(['', 'Well: ', '('])}{text}{generator.choice(['', '.', ', thanks', ')'])}",
                }
            )
            continue
        if place == "context":
            context[f"note {number}"] = [text]
            continue
        arguments = (
            {"n": 1, "input": [text]}
            if place == "arguments"
            else {text: 1}
            if place == "key"
            else {}
        )
        result = {"result": {"rows": [[1, text]]}, "inner": {"body": json.dumps({"a": text})}}.get(
            place
        )
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {
                "name": "run",
                "arguments": json.dumps(arguments, ensure_ascii=generator.random() < 0.5),
            },
        }
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        content = (
            json.dumps(result)
            if result
            else f"done\n{text}\nok"
            if place == "text result"
            else "ok"
        )
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": content})
    return Session(
        session_id="s",
        project="shop",
        agent="support",
        source="test",
        messages=messages,
        context=context,
    )


def planted(seed: int, count: int) -> Iterator[tuple[Value, list[Written], Session]]:
    """Yield `count` values with the forms in which a session of its own writes them."""
    generator = random.Random(seed)
    for number in range(count):
        value = MAKERS[number % len(MAKERS)](generator)
        forms = generator.sample(value.others, FORMS_PER_VALUE - 1)
        forms.insert(generator.randrange(FORMS_PER_VALUE), value.labelled)
        yield value, forms, put([form.text for form in forms], generator)


def remains(session: Session, forms: list[Written]) -> list[str]:
    """Return what of the forms can still be read in a session."""
    text = stored(session)
    for _ in range(3):
        text = re.sub(
            r"\\+u([0-9a-fA-F]{4})",
            lambda match: chr(int(match[1], 16)),
            html.unescape(unquote(text)),
        )
    text = re.sub(r"[\[(]at[\])]|[\[(]dot[\])]", "", text)
    letters = re.sub(r"[\W_]+", "", text).lower()
    return [form.core for form in forms if form.core in letters]


def pseudonyms(session: Session, kind: str) -> set[str]:
    """Return the pseudonyms of a kind in a session, without the parts of the values."""
    return set(re.findall(rf"<({kind}_\d+)[:>]", stored(session)))
