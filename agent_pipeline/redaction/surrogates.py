"""Made-up values in place of pseudonyms, in what a model reads: users write addresses and numbers, and no `<EMAIL_1>`.

A model that was trained on pseudonyms calls a tool with `<EMAIL_1>` whatever address its user gives, and held-out rows with pseudonyms
show nothing of it. Tables keep the pseudonyms; what a model is trained on, evaluated on and asked gets surrogates as it is read (hiding
in plain sight: Carrell et al. 2013, doi:10.1136/amiajnl-2012-001034).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.sessions.session import sha256_of

if TYPE_CHECKING:
    from faker import Faker

PHONES = ("(###) 555-01##", "###-555-01##", "+1 ### 555 01##")
"""Ways to write a number of the range that is kept for fiction."""

MAILBOXES = ("{user_name}", "{first_name}.{last_name}", "{first_name}_{last_name}##", "{first_name}##", "?.{last_name}", "{word}.{word}")
DOMAINS = ("{domain_word}.example", "{domain_word}.test", "{word}-{word}.example", "{word}##.test", "example.com", "example.org")
"""Of many makings: a model that has seen one sort of address writes that sort, and does not copy the one that it is given. All are reserved
(RFC 2606)."""


def address(fake: "Faker") -> str:
    """An e-mail address that nobody has."""
    forms = (fake.bothify(fake.random_element(each)) for each in (MAILBOXES, DOMAINS))
    return "@".join(re.sub(r"{(\w+)}", lambda match: fake.format(match[1]), form) for form in forms).lower()


VALUES: Mapping[str, Callable[["Faker", int], str]] = {
    "EMAIL": lambda fake, number: address(fake),
    "PHONE": lambda fake, number: fake.numerify(fake.random_element(PHONES)),
    "CARD": lambda fake, number: fake.random_element((" ", "-", "")).join(wrap(fake.credit_card_number("visa16"), 4)),
    "IBAN": lambda fake, number: fake.iban(),
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
"""What a value of a kind looks like. Other kinds, those of other packages too, keep their pseudonyms. No value needs an escape in JSON."""

TEXTS = ("messages", "prompt", "chosen", "rejected", "completion")
"""The columns that hold what was said."""


def with_surrogates(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a data set as a model is to see them; a row without pseudonyms is the same object.

    The same pseudonym has the same value in all rows of a task, and in all rows with the same system prompt where that has it.
    """
    for row in rows:
        texts = {name: row[name] for name in TEXTS if row.get(name)}
        system = system_of(message for messages in texts.values() for message in messages)
        seen = {name: spoken(messages, row["task_key"], system) for name, messages in texts.items()}
        yield row if seen == texts else row | seen


def surrogates_made_from(stored: Sequence[dict[str, Any]], seen: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What a manifest says beside the names of `stored` rows where models saw them otherwise; nothing where they did not."""
    shown = [{name: new[name] for name in TEXTS if name in new} for old, new in zip(stored, seen, strict=True) if new is not old]
    return {"surrogates_sha256": sha256_of(shown)} if shown else {}


def system_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """What the system says in them."""
    return "\n".join(str(each.get("content")) for each in messages if each.get("role") == "system")


def spoken(messages: Sequence[Mapping[str, Any]], task_key: str, system: str) -> list[Any]:
    """The messages of a task with surrogates; `system` is what the system says in their conversation, of which they may be a part."""

    def value(match: re.Match[str]) -> str:
        return _value(match["kind"], int(match["number"]), system if match.group() in system else task_key) or match.group()

    def replaced(part: Any) -> Any:
        if isinstance(part, str):
            return PSEUDONYM.sub(value, part) if "<" in part else part
        if isinstance(part, Mapping):
            return {name: replaced(each) for name, each in part.items()}
        return [replaced(each) for each in part] if isinstance(part, list | tuple) else part

    return [replaced(each) for each in messages]


def _value(kind: str, number: int, scope: str) -> str | None:
    if kind not in VALUES:
        return None
    fake = _faker()
    fake.seed_instance(sha256_of([kind, number, scope]))
    return VALUES[kind](fake, number)


@cache
def _faker() -> "Faker":
    from faker import Faker

    return Faker("en_US")
