"""The replacement of pseudonyms by made-up values (surrogates) in texts that a model reads.

A model that was trained on pseudonyms calls tools with `<EMAIL_1>`, regardless of the address that
its user gives, and held-out rows with pseudonyms do not show this. Therefore tables keep the
pseudonyms, and the texts for training, evaluation and prompts get surrogates when they are read.
The method is called hiding in plain sight (Carrell et al. 2013, doi:10.1136/amiajnl-2012-001034).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.sessions.session import encode_tools, hash_json
from agent_pipeline.structs import decode_json

if TYPE_CHECKING:
    from faker import Faker

PHONES = ("(###) 555-01##", "###-555-01##", "+1 ### 555 01##")
"""Formats of telephone numbers in the range that is reserved for fiction."""

MAILBOXES = (
    "{first}.{last}",
    "{first}_{last}##",
    "{first}{last}",
    "{last}.{first}",
    "{first}.{last}#",
    "{first}-{last}##",
    "{last}{first}##",
)
"""Ways to build the local part of an address from its owner's names. A model that is shown both can
learn to relate a name and an address.
"""
DOMAINS = (
    "{domain_word}.example",
    "{domain_word}.test",
    "{word}-{word}.example",
    "{word}##.test",
    "example.com",
    "example.org",
)
"""Formats of domains, all of them reserved (RFC 2606). They vary, because a model that has seen
only one format writes that format instead of copying the given address.
"""


def address(fake: "Faker", first: str, last: str) -> str:
    """Return an e-mail address that is built from two names and belongs to nobody."""
    names = {"first": first, "last": last}
    letters = {name: re.sub(r"[^a-z]", "", value.lower()) for name, value in names.items()}
    mailbox = fake.bothify(fake.random_element(MAILBOXES)).format_map(letters)
    domain = fake.bothify(fake.random_element(DOMAINS))
    domain = re.sub(r"{(\w+)}", lambda match: fake.format(match[1]), domain)
    return f"{mailbox}@{domain}".lower()


Row = TypeVar("Row", bound=Mapping[str, object])
"""A row of a dataset."""

VALUES: Mapping[str, Callable[["Faker", int], str]] = {
    "EMAIL": lambda fake, number: address(fake, fake.first_name(), fake.last_name()),
    "PHONE": lambda fake, number: fake.numerify(fake.random_element(PHONES)),
    "CARD": lambda fake, number: fake.random_element((" ", "-", "")).join(
        wrap(fake.credit_card_number("visa16"), 4)
    ),
    "IBAN": lambda fake, number: _german_iban(fake),
    "SSN": lambda fake, number: fake.ssn(),
    "PASSPORT": lambda fake, number: fake.bothify("??#######").upper(),
    "NATIONAL_ID": lambda fake, number: fake.numerify("%########"),
    "ACCOUNT": lambda fake, number: fake.numerify("%#########"),
    "NAME": lambda fake, number: fake.first_name() if number % 2 else fake.last_name(),
    "PERSON": lambda fake, number: fake.name(),
    "LOCATION": lambda fake, number: fake.city(),
    "IP": lambda fake, number: fake.ipv4_private(),
    "PASSWORD": lambda fake, number: fake.password(length=12, special_chars=False),
    "TOKEN": lambda fake, number: fake.password(length=24, special_chars=False),
    "API_KEY": lambda fake, number: fake.password(length=32, special_chars=False),
}
"""Functions that make up a value, by kind of private data. Kinds without such a function, including
those of other packages, keep their pseudonyms. No made-up value contains characters that JSON must
escape.
"""

TEXTS = ("messages", "prompt", "chosen", "rejected", "completion")
"""Columns that contain messages."""

SHOWN = (*TEXTS, "tools")
"""Columns whose texts models see. They get surrogates."""


def with_surrogates(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of a dataset with surrogates, as a model reads them.

    A pseudonym gets the same surrogate in all rows of a task. If the system prompt or the tools
    contain the pseudonym, it gets the same surrogate in all rows with these prompts and tools.
    Relations are kept: an address is built from its owner's names, and the last digits of a card
    match its made-up number. A row without pseudonyms is yielded unchanged, as the same object.
    Rows with the same prompts and tools share the list of their tools.
    """
    show_tools = lru_cache(maxsize=256)(_show_tools)
    for row in rows:
        stored: Mapping[str, Any] = row
        texts = {name: stored[name] for name in TEXTS if stored.get(name)}
        messages_of_row = [message for messages in texts.values() for message in messages]
        tools_text = _tools_text(stored.get("tools") or ())
        frame = _join_frame(system_of(messages_of_row), tools_text)
        seen = {name: spoken(parts, stored["task_key"], frame) for name, parts in texts.items()}
        if tools_text:
            texts["tools"], seen["tools"] = stored["tools"], show_tools(tools_text, frame)
        yield row if seen == texts else cast(Row, {**stored, **seen})


def _show_tools(tools_text: str, frame: str) -> list[Any]:
    """Return tools with surrogates. Their pseudonyms are in the frame, so no task is needed."""
    return spoken(decode_json(tools_text, list[Any]), "", frame)


def surrogates_made_from(
    stored: Sequence[Mapping[str, object]], seen: Sequence[Mapping[str, object]]
) -> dict[str, str]:
    """Return the manifest entry for the surrogates, or an empty dict if models read the stored rows
    unchanged.
    """
    shown = []
    for old, new in zip(stored, seen, strict=True):
        if new is not old:
            names = SHOWN if new.get("tools") != old.get("tools") else TEXTS
            shown.append({name: new[name] for name in names if name in new})
    return {"surrogates_sha256": hash_json(shown)} if shown else {}


def system_of(messages: Iterable[Mapping[str, object]]) -> str:
    """Return the joined text of the system messages."""
    return "\n".join(
        str(message.get("content")) for message in messages if message.get("role") == "system"
    )


def frame_of(messages: Iterable[Mapping[str, object]], tools: Sequence[object] = ()) -> str:
    """Return the text of a conversation's frame: its system messages, and its tools.

    Tools without pseudonyms are left out.
    """
    return _join_frame(system_of(messages), _tools_text(tools))


def _tools_text(tools: Sequence[object]) -> str:
    """Return the text of tools, or an empty text if they contain no pseudonym."""
    encoded = encode_tools(tools) if tools else b""
    if b"<" not in encoded:
        return ""
    tools_text = encoded.decode()
    return tools_text if PSEUDONYM.search(tools_text) else ""


def _join_frame(system: str, tools_text: str) -> str:
    return f"{system}\n{tools_text}" if tools_text else system


def split_frame(frame: str) -> tuple[str, str]:
    """Return the system messages and the tools of a frame. The text of the tools may be empty."""
    system, _, last_line = frame.rpartition("\n")
    return (system, last_line) if last_line.startswith("[{") else (frame, "")


def spoken(messages: Sequence[Mapping[str, object]], task_key: str, frame: str) -> list[Any]:
    """Return the messages of a task with surrogates.

    Args:
        messages: The messages, which may be a part of the conversation, or its tools.
        task_key: The task. The surrogates depend on it.
        frame: The frame of the whole conversation (`frame_of`).
    """

    def value(match: re.Match[str]) -> str:
        return (
            _surrogate(match["kind"], int(match["number"]), match["part"] or "", frame, task_key)
            or match.group()
        )

    def replaced(part: object) -> object:
        if isinstance(part, str):
            return PSEUDONYM.sub(value, part) if "<" in part else part
        if isinstance(part, Mapping):
            return {name: replaced(value) for name, value in part.items()}
        return [replaced(item) for item in part] if isinstance(part, list | tuple) else part

    return [replaced(message) for message in messages]


def _surrogate(kind: str, number: int, part: str, frame: str, task_key: str) -> str | None:
    """Return the made-up value of a pseudonym, or None if its kind has no made-up values.

    A value that occurs in the frame is the same in all tasks.

    Args:
        kind: The kind of the pseudonym.
        number: The number of the pseudonym.
        part: The part of the value that the pseudonym stands for; empty for the whole value.
        frame: The text of the system messages and the tools.
        task_key: The task.
    """
    if kind not in VALUES:
        return None
    if kind == "EMAIL":
        owner = _OWNER.match(part)
        first, last = (int(owner[1]), int(owner[2])) if owner else (2 * number - 1, 2 * number)
        names = [
            _whole(_scope("NAME", name, frame, task_key), "NAME", name) for name in (first, last)
        ]
        value = address(_seeded(kind, number, _scope(kind, number, frame, task_key)), *names)
    else:
        value = _whole(_scope(kind, number, frame, task_key), kind, number)
    return _part(value, part)


def _whole(scope: str, kind: str, number: int) -> str:
    return VALUES[kind](_seeded(kind, number, scope), number)


def _scope(kind: str, number: int, frame: str, task_key: str) -> str:
    return frame if (kind, number) in _said_by(frame) else task_key


@lru_cache(maxsize=256)
def _said_by(frame: str) -> frozenset[tuple[str, int]]:
    """Return the kind and the number of each pseudonym in a frame, and of the names of the address
    owners.
    """
    values = set()
    for match in PSEUDONYM.finditer(frame):
        number, owner = int(match["number"]), _OWNER.match(match["part"] or "")
        values.add((match["kind"], number))
        if match["kind"] == "EMAIL":
            names = (int(owner[1]), int(owner[2])) if owner else (2 * number - 1, 2 * number)
            values |= {("NAME", name) for name in names}
    return frozenset(values)


def _part(value: str, part: str) -> str:
    """Return the part of a made-up value for a pseudonym that stands for a part of a value (see
    `PSEUDONYM`).
    """
    if not part:
        return value
    if part.endswith("local"):
        return value.partition("@")[0]
    if part in _NAME_FORMS:
        return _NAME_FORMS[part](value)
    characters = re.sub(r"[\W_]", "", value)
    if last := re.fullmatch(r"last(\d+)", part):
        return characters[-int(last[1]) :]
    if places := re.fullmatch(r"(\d+)-(\d+)", part):
        start, end = int(places[1]), int(places[2])
        # A made-up value may be shorter than the private value. In this case, the missing
        # characters are taken from its beginning.
        return "".join(characters[place % len(characters)] for place in range(start - 1, end))
    return value


_OWNER = re.compile(r"of-(\d+)-(\d+)")
_NAME_FORMS: Mapping[str, Callable[[str], str]] = {
    "lower": str.lower,
    "upper": str.upper,
    "initial": lambda name: name[:1],
}


def _german_iban(fake: "Faker") -> str:
    """Return an account number that consists of digits after its country code, so that each part of
    it is a number like a bank code.
    """
    from stdnum import iban

    account = fake.numerify("%#################")
    return str("DE" + iban.calc_check_digits(f"DE00{account}") + account)


def _seeded(kind: str, number: int, scope: str) -> "Faker":
    fake = _faker()
    fake.seed_instance(hash_json([kind, number, scope]))
    return fake


@cache
def _faker() -> "Faker":
    from faker import Faker

    return Faker("en_US")
