"""Secrets and personal data that nobody has, made by the documented formats of twenty kinds, and planted in sessions.

Made when they are needed, from a seed: nothing here is a secret, and no text of this file looks like one.
"""

import base64
import json
import random
import string
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import NamedTuple

from agent_pipeline.sessions.session import Session, dump_canonical_json

LETTERS, ALPHANUMERIC = string.ascii_letters, string.ascii_letters + string.digits
UPPER, HEX = string.ascii_uppercase + "234567", "0123456789abcdef"
PLACES = ("content", "argument", "output", "text output", "escaped output")


class Kind(NamedTuple):
    """A kind of private data: what makes a value, how a person writes it, the key it has in JSON, and the pseudonyms that are right."""

    name: str
    make: Callable[[random.Random], str]
    said: str
    key: str
    pseudonyms: tuple[str, ...]


class Plant(NamedTuple):
    """A value, where it was put (which session, what in it), and what must be gone afterwards (the password, not the host)."""

    kind: Kind
    session: int
    place: str
    value: str
    secret: str


def some(generator: random.Random, count: int, alphabet: str = ALPHANUMERIC) -> str:
    return "".join(generator.choices(alphabet, k=count))


def luhn(digits: str) -> str:
    """Digits with their check digit."""
    doubled = [
        int(each) * (2 if place % 2 == 0 else 1) for place, each in enumerate(reversed(digits))
    ]
    return digits + str(-sum(each // 10 + each % 10 for each in doubled) % 10)


def card(generator: random.Random) -> str:
    start, length = generator.choice([("4", 16), ("51", 16), ("55", 16), ("37", 15), ("6011", 16)])
    number = luhn(start + some(generator, length - len(start) - 1, string.digits))
    groups = [4, 6, 5] if length == 15 else [4, 4, 4, 4]
    separator = generator.choice(["", " ", "-"])
    parts = [number[sum(groups[:each]) : sum(groups[: each + 1])] for each in range(len(groups))]
    return separator.join(parts)


def iban(generator: random.Random) -> str:
    country, account = generator.choice(
        [
            ("DE", some(generator, 18, string.digits)),
            ("GB", some(generator, 4, string.ascii_uppercase) + some(generator, 14, string.digits)),
            ("FR", some(generator, 23, string.digits)),
            ("ES", some(generator, 20, string.digits)),
            ("NL", some(generator, 4, string.ascii_uppercase) + some(generator, 10, string.digits)),
        ]
    )
    turned = "".join(str(int(each, 36)) for each in account + country + "00")
    number = f"{country}{98 - int(turned) % 97:02d}{account}"
    return generator.choice(
        [number, " ".join(number[at : at + 4] for at in range(0, len(number), 4))]
    )


def phone(generator: random.Random) -> str:
    area = generator.choice(["212", "415", "650", "303", "617", "206", "512", "702"])
    exchange, line = str(generator.randint(220, 989)), some(generator, 4, string.digits)
    exchange = exchange if exchange[1:] != "11" else "234"
    forms = [
        f"({area}) {exchange}-{line}",
        f"{area}-{exchange}-{line}",
        f"+1 {area} {exchange} {line}",
        f"{area}.{exchange}.{line}",
        f"+44 7{some(generator, 3, '4567')} {some(generator, 6, string.digits)}",
        f"+49 30 {some(generator, 7, '23456789')}",
        f"{area}{exchange}{line}",
    ]
    return generator.choice(forms)


def social_security(generator: random.Random) -> str:
    area = generator.choice([each for each in range(100, 772) if each != 666])
    return f"{area}-{generator.randint(11, 99)}-{generator.randint(1000, 9999)}"


def email(generator: random.Random) -> str:
    name = generator.choice(
        ["john.smith", "m.o'neill", "anna+travel", "li_wei", "x", "first.last-name"]
    ) + some(generator, 2, string.digits)
    return f"{name}@{generator.choice(['gmail.com', 'mail.corp.internal', 'uni-bonn.de', 'acme.co.uk', 'example.com', 'shop.online'])}"


def jwt(generator: random.Random) -> str:
    body = {
        "sub": some(generator, 10, string.digits),
        "iat": 1_700_000_000 + generator.randint(0, 10**7),
    }
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
        for each in ({"alg": "HS256", "typ": "JWT"}, body)
    ]
    return ".".join([*parts, some(generator, 43)])


def private_key(generator: random.Random) -> str:
    name = generator.choice(["RSA ", "EC ", "OPENSSH ", ""]) + "PRIVATE KEY"
    lines = [some(generator, 64, ALPHANUMERIC + "+/") for _ in range(generator.randint(4, 20))]
    return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----"])


def password(generator: random.Random) -> str:
    return (
        some(generator, 1, LETTERS)
        + some(generator, generator.randint(6, 12), ALPHANUMERIC + "!#%*_-")
        + some(generator, 2, string.digits)
    )


def url(scheme: str) -> Callable[[random.Random], str]:
    return lambda generator: (
        f"{scheme}://app:{some(generator, 14)}@{some(generator, 6, HEX)}.db.acme.io:5432/shop"
    )


def token(prefix: str, count: int, alphabet: str = ALPHANUMERIC) -> Callable[[random.Random], str]:
    return lambda generator: prefix + some(generator, count, alphabet)


SECRET = ("API_KEY", "TOKEN", "PASSWORD")
_MARK = "T3Blbk" + "FJ"
KINDS = (
    Kind(
        "OpenAI key",
        lambda g: f"sk-proj-{some(g, 74)}{_MARK}{some(g, 74)}",
        "my key is {}",
        "openai_key",
        SECRET,
    ),
    Kind(
        "Anthropic key", lambda g: f"sk-ant-api03-{some(g, 93)}AA", "use {} please", "key", SECRET
    ),
    Kind("Google API key", token("AI" + "za", 35), "the maps key {}", "maps_key", SECRET),
    Kind(
        "AWS key id", token("AK" + "IA", 16, UPPER), "AWS_ACCESS_KEY_ID={}", "access_key_id", SECRET
    ),
    Kind(
        "AWS secret key",
        lambda g: some(g, 40, ALPHANUMERIC + "+/"),
        "aws_secret_access_key = {}",
        "aws_secret_access_key",
        SECRET,
    ),
    Kind("GitHub token", token("gh" + "p_", 36), "push with {}", "auth", SECRET),
    Kind("GitLab token", token("gl" + "pat-", 20), "push with {}", "auth", SECRET),
    Kind(
        "Slack token",
        lambda g: (
            f"xox{'b'}-{some(g, 12, string.digits)}-{some(g, 12, string.digits)}-{some(g, 24)}"
        ),
        "the bot's {}",
        "bot",
        SECRET,
    ),
    Kind("Stripe key", token("sk" + "_live_", 24), "charge with {}", "stripe", SECRET),
    Kind("JWT", jwt, "Authorization: Bearer {}", "authorization", SECRET),
    Kind("private key", private_key, "here it is:\n{}\nkeep it", "pem", ("PRIVATE_KEY",)),
    Kind(
        "PostgreSQL address",
        url("postgresql"),
        "connect to {}",
        "database",
        ("PASSWORD", "CONNECTION_STRING"),
    ),
    Kind(
        "MongoDB address", url("mongodb"), "connect to {}", "uri", ("PASSWORD", "CONNECTION_STRING")
    ),
    Kind("password", password, "password: {}", "password", ("PASSWORD",)),
    Kind("e-mail", email, "write to {}, please.", "contact", ("EMAIL",)),
    Kind("telephone", phone, "my phone is {}", "phone", ("PHONE",)),
    Kind("card", card, "pay with {}.", "card", ("CARD",)),
    Kind("IBAN", iban, "transfer it to {}.", "recipient", ("IBAN",)),
    Kind("social security number", social_security, "my SSN is {}", "ssn", ("SSN",)),
    Kind(
        "bank account",
        lambda g: some(g, g.randint(8, 12), "123456789"),
        "account number {}",
        "account_number",
        ("ACCOUNT",),
    ),
)


def places(sessions: list[Session]) -> list[int]:
    """Which sessions have a user, a call and its result."""
    return [
        at
        for at, session in enumerate(sessions)
        if {"user", "tool"} <= {message["role"] for message in session.messages}
    ]


def planted(
    sessions: Iterable[Session], seed: int = 0, each: int = 10
) -> tuple[list[Session], list[Plant]]:
    """Copies of the sessions with `each` values of every kind: in what the user says, nested in arguments, in outputs that are JSON, in
    outputs that are text, and in JSON that is escaped within such a text; at most one of a kind in a session."""
    generator = random.Random(seed)
    copies = [deepcopy(session) for session in sessions]
    plants = []
    for kind in KINDS:
        for number, at in enumerate(generator.sample(places(copies), each)):
            value, place = kind.make(generator), PLACES[number % len(PLACES)]
            _put(copies[at], place, kind, value, generator)
            secret = value.split("app:")[1].split("@")[0] if "://app:" in value else value
            plants.append(Plant(kind, at, place, value, secret))
    return copies, plants


def _put(session: Session, place: str, kind: Kind, value: str, generator: random.Random) -> None:
    said = kind.said.format(value)
    if place == "content":
        message = generator.choice(
            [message for message in session.messages if message["role"] == "user"]
        )
        message["content"] += f" By the way, {said}"
    elif place == "argument":
        calls = [call for message in session.messages for call in message.get("tool_calls", ())]
        function = generator.choice(calls)["function"]
        arguments = json.loads(function["arguments"])
        nested = {"steps": [{"n": 1, "at": "2024-05-16"}, {"n": 2, "values": {kind.key: value}}]}
        function["arguments"] = json.dumps(
            arguments | {f"for {kind.name}": nested}, ensure_ascii=generator.random() < 0.5
        )
    else:
        message = generator.choice(
            [message for message in session.messages if message["role"] == "tool"]
        )
        record = {"ok": True, "result": message["content"], "rows": [[1, {kind.key: value}]]}
        if place == "output":
            message["content"] = json.dumps(record, indent=generator.choice([None, 2]))
        elif place == "text output":
            message["content"] += f"\n{said}\nDone."
        else:
            message["content"] += f"\nIt failed: {json.dumps(json.dumps({kind.key: value}))}"


def stored(session: Session) -> str:
    """What of a session is written and may hold text."""
    return dump_canonical_json(
        [session.messages, session.tools, session.reasoning, session.context, session.error]
    )


def missed(plants: Iterable[Plant], sessions: list[Session]) -> list[Plant]:
    """Plants that can still be read, or that no pseudonym of a right kind stands for."""
    texts = [stored(session) for session in sessions]

    def is_missed(plant: Plant) -> bool:
        text, written = texts[plant.session], json.dumps(plant.secret)[1:-1]
        readable = any(each in text for each in (plant.secret, written, json.dumps(written)[1:-1]))
        return readable or not any(f"<{name}_" in text for name in plant.kind.pseudonyms)

    return [plant for plant in plants if is_missed(plant)]
