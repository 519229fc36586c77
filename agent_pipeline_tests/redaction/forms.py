"""Private data as people and programs log it: a table of forms, each with made-up values, and the seven places of a session it is put in.

`python -m agent_pipeline_tests.redaction.forms` writes the table of docs/reference/private-data.md. The values are made from a
seed when they are needed, so they belong to nobody.
"""

import json
import random
import re
import string
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent_pipeline.redaction import DEFAULT_TYPES, RedactionOptions, Redactor
from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.sessions.session import Session
from agent_pipeline_tests.redaction.planting import (
    ALPHANUMERIC,
    HEX,
    LETTERS,
    card,
    iban,
    jwt,
    luhn,
    password,
    private_key,
    some,
    stored,
)

DOC = Path(__file__).resolve().parents[2] / "docs" / "reference" / "private-data.md"
BEGIN, END = "<!-- forms -->\n", "<!-- /forms -->"
PLACES = ("system", "user", "assistant", "arguments", "result", "tool", "metadata")
BY_SETTING = (*DEFAULT_TYPES, "IP")
SEEDS = 3
"""Values of each form in each place."""

Make = Callable[[random.Random], str]
DIGITS = string.digits
PEM = ("BEGIN", "OPENSSH", "PRIVATE")


class Form(NamedTuple):
    """How a value is written, what makes the value, and whether its kind must be switched on; its title is the form with an ellipsis."""

    written: str
    make: Make
    by_setting: bool = False
    note: str = ""

    @property
    def title(self) -> str:
        """The form as the table shows it."""
        return self.written.format("…").replace("\n", " ⏎ ").replace("|", "\\|")


def of(count: int, alphabet: str = ALPHANUMERIC, prefix: str = "") -> Make:
    """Values of so many characters after a prefix; one of them is a digit, and one a letter where the alphabet has any."""

    def make(generator: random.Random) -> str:
        value = some(generator, count, alphabet)
        need = [each for each in (DIGITS, LETTERS) if set(each) & set(alphabet)]
        return prefix + value if all(set(value) & set(each) for each in need) else make(generator)

    return make


def basic(generator: random.Random) -> str:
    return b64encode(f"{some(generator, 6, HEX)}:{password(generator)}".encode()).decode()


def words(generator: random.Random) -> str:
    return " ".join(
        some(generator, generator.randint(3, 8), string.ascii_lowercase) for _ in range(12)
    )


def address(at: str, dot: str = ".") -> Make:
    return lambda generator: (
        f"{some(generator, 5, string.ascii_lowercase)}.{some(generator, 4, string.ascii_lowercase)}{at}mail{dot}org"
    )


def grouped(*groups: int, separator: str = " ", first: str = "") -> Make:
    return lambda generator: (
        first + separator.join(some(generator, each, "23456789") for each in groups)
    )


def dotted_card(generator: random.Random) -> str:
    digits = luhn("4" + some(generator, 14, DIGITS))
    return ".".join(digits[at : at + 4] for at in range(0, 16, 4))


def cpf(generator: random.Random) -> str:
    from stdnum.br import cpf as number

    digits = some(generator, 9, "123456789")
    return number.format(digits + number._calc_check_digits(digits))


def dni(generator: random.Random) -> str:
    from stdnum.es import dni as number

    digits = some(generator, 8, DIGITS)
    return digits + number.calc_check_digit(digits)


def ipv4(generator: random.Random) -> str:
    return ".".join(str(generator.randint(11, 250)) for _ in range(4))


def us_phone(generator: random.Random) -> str:
    return f"212-555-01{some(generator, 2, DIGITS)}"


SECRET = of(14, ALPHANUMERIC + "!%_")
OPAQUE = of(40)
FORMS = (
    Form("Authorization: Bearer {}", OPAQUE),
    Form("Authorization: Basic {}", basic),
    Form("Proxy-Authorization: Basic {}", basic),
    Form("headers: 'Authorization', 'Bearer {}'", OPAQUE),
    Form("Authorization: Token {}", of(40, HEX)),
    Form("Authorization: {}", jwt),
    Form("X-API-Key: {}", of(32)),
    Form("X-Auth-Token: {}", of(32)),
    Form("PRIVATE-TOKEN: {}", of(20)),
    Form("Cookie: theme=dark; sessionid={}; lang=en", of(32)),
    Form("Set-Cookie: sid={}; Path=/; HttpOnly", of(32)),
    Form("Cookie: JSESSIONID={}", of(32, HEX.upper())),
    Form("Set-Cookie: remember_token={}; Secure", of(40)),
    Form("curl -u admin:{} https://db.acme.io/export", SECRET),
    Form('curl -H "Authorization: Bearer {}" https://acme.io', OPAQUE),
    Form("mysql -u root -p{} shop", of(12)),
    Form("mysqldump --user=root --password={} shop", SECRET),
    Form("tool --password {} --verbose", SECRET),
    Form("tool --token {}", of(24)),
    Form("tool --api-key={}", of(24)),
    Form("sshpass -p {} ssh bob@10.0.0.4", SECRET),
    Form("sshpass -p '{}' scp a bob@host:", SECRET),
    Form("PGPASSWORD={} psql -h db", SECRET),
    Form("export DB_PASS={}", SECRET),
    Form("docker login -u bob -p {} registry.acme.io", SECRET),
    Form("redis-cli -h cache -a {} ping", SECRET),
    Form("openssl rsa -passin pass:{}", SECRET),
    Form("machine acme.io login bob password {}", SECRET),
    Form("db.acme.io:5432:shop:bob:{}", SECRET),
    Form("//registry.npmjs.org/:_authToken={}", of(36)),
    Form("root:{}:19000:0:99999:7:::", of(86, ALPHANUMERIC + "./", "$6$saltsalt$")),
    Form("my password's {}", SECRET),
    Form("username bob, password {}", SECRET),
    Form("login: bob / pass: {}", SECRET),
    Form("pw: {}", SECRET),
    Form("Your verification code is {}", of(6, DIGITS)),
    Form("one-time code: {}", of(6, DIGITS)),
    Form("recovery phrase: {}", words),
    Form(
        "https://a.blob.core.windows.net/c/f?sv=2022-11-02&se=2024-05-16&sig={}", of(43, prefix="")
    ),
    Form(
        "https://b.s3.amazonaws.com/k?X-Amz-Date=20240516T000000Z&X-Amz-Signature={}", of(64, HEX)
    ),
    Form("https://storage.googleapis.com/b/o?X-Goog-Signature={}", of(128, HEX)),
    Form("https://acme.io/callback?code={}&state=1", of(40)),
    Form("https://acme.io/v1?access_token={}", OPAQUE),
    Form("https://acme.io/v1?api_key={}&q=shoes", of(32)),
    Form("https://acme.io/reset?token={}", of(32)),
    Form("https://bob:{}@git.acme.io/repo.git", SECRET),
    Form(
        "https://hooks.slack.com/services/{}",
        lambda g: f"T{some(g, 10)}/B{some(g, 10)}/{some(g, 24)}".upper()[:24] + some(g, 24),
    ),
    Form(
        "https://api.telegram.org/bot{}/getMe",
        lambda g: f"{some(g, 10, '123456789')}:AA{some(g, 33)}",
    ),
    Form("the bot's token {}", lambda g: f"{some(g, 10, '123456789')}:AA{some(g, 33)}"),
    Form("discord {}", lambda g: f"M{some(g, 25)}.{some(g, 6)}.{some(g, 38)}"),
    Form("huggingface-cli login {}", of(34, LETTERS, "hf" + "_")),
    Form("npm {}", of(36, prefix="npm" + "_")),
    Form("sendgrid {}", lambda g: f"SG.{some(g, 22)}.{some(g, 43)}"),
    Form("databricks {}", of(32, HEX, "dap" + "i")),
    Form("github {}", lambda g: "github" + f"_pat_{some(g, 22)}_{some(g, 59)}"),
    Form("AccountKey={};EndpointSuffix=core.windows.net", lambda g: some(g, 86) + "=="),
    Form("private key 0x{}", of(64, HEX)),
    Form("PrivateKey = {}", lambda g: some(g, 43) + "="),
    Form("{}", private_key, note="a PEM key"),
    Form("{}", jwt, note="a JWT"),
    Form("mail to={}", address("%40"), note="with `%40` instead of `@`"),
    Form("mail {}", address("&#64;"), note="with `&#64;` instead of `@`"),
    Form("mail {}", address(" [at] ", " [dot] "), note="with `[at]` and `[dot]`"),
    Form("mailto:{}", address("@")),
    Form("phone 0049 {}", grouped(2, 7)),
    Form("tel:+1-{}", us_phone),
    Form("telephone {}", lambda g: f"020 7946 0{some(g, 3, DIGITS)}"),
    Form("Tél. {}", lambda g: f"01 42 68 {some(g, 2, DIGITS)} {some(g, 2, DIGITS)}"),
    Form("card {}", card, note="digits only, or with spaces or dashes"),
    Form("card {}", dotted_card, note="with dots"),
    Form("IBAN {}", iban),
    Form("my passport is {}", of(8, DIGITS, "X")),
    Form("passport number: {}", of(9, DIGITS)),
    Form(
        "National Insurance number {}",
        lambda g: f"AB {some(g, 2, DIGITS)} {some(g, 2, DIGITS)} {some(g, 2, DIGITS)} C",
    ),
    Form("driver's license {}", of(7, DIGITS, "D")),
    Form("CPF {}", cpf),
    Form("DNI {}", dni),
    Form("NHS number {}", grouped(3, 3, 4)),
    Form("Aadhaar {}", grouped(4, 4, 4)),
    Form("national id: {}", of(11, DIGITS)),
    Form("SSN {}", lambda g: f"{g.randint(100, 665)} {g.randint(11, 99)} {g.randint(1000, 9999)}"),
    Form("routing number {}", of(9, "123456789")),
    Form("client address {}", ipv4, True),
    Form(
        "from 2001:db8:{}",
        lambda g: ":".join(some(g, 4, "123456789abcdef") for _ in range(6)),
        True,
    ),
    Form("MAC {}", lambda g: ":".join(some(g, 2, HEX) for _ in range(6)), True),
)


def put(text: str, place: str) -> Session:
    """A session that has a text in one place."""
    at = dict.fromkeys(PLACES, "Hello.") | {place: text}
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "run", "arguments": json.dumps({"n": 1, "input": [at["arguments"]]})},
    }
    return Session(
        session_id="s",
        project="shop",
        agent="support",
        source="test",
        messages=[
            {"role": "system", "content": at["system"]},
            {"role": "user", "content": at["user"]},
            {"role": "assistant", "content": at["assistant"], "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": json.dumps({"ok": True, "output": at["result"]}),
            },
        ],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "run",
                    "description": at["tool"],
                    "parameters": {"type": "object"},
                },
            }
        ],
        context={"note": at["metadata"]},
    )


def found(form: Form, place: str, seed: int, redactor: Redactor) -> str:
    """The kind of the pseudonym of a value; empty where a part stays that gives the value away: five letters or digits of it in a run."""
    value = form.make(random.Random(f"{form.written} {place} {seed}"))
    session = put(form.written.format(value), place)
    redactor.redact(session)
    text = stored(session)
    parts = [
        part
        for part in re.findall(r"[A-Za-z0-9]{5,}", value)
        if part not in form.written and part not in PEM
    ]
    pseudonym = PSEUDONYM.search(text)
    return (
        pseudonym["kind"] if pseudonym and not any(part in text for part in [value, *parts]) else ""
    )


def redactors() -> dict[bool, Redactor]:
    """The default one, and the one that looks for what a setting switches on."""
    return {False: Redactor(RedactionOptions()), True: Redactor(RedactionOptions(types=BY_SETTING))}


def table() -> str:
    """Return the Markdown table of all forms, with the pseudonym of their values and how many values are found."""
    values_per_form = SEEDS * len(PLACES)
    heading = f"| text in a session | kind of the pseudonym | found, of {values_per_form} values |"
    rows, by_setting = [heading, "|---|---|---:|"], redactors()
    for form in FORMS:
        kinds = [
            found(form, place, seed, by_setting[form.by_setting])
            for place in PLACES
            for seed in range(SEEDS)
        ]
        becomes = ", ".join(f"`{kind}`" for kind in sorted(set(kinds) - {""}))
        setting = ", if `types` contains it" if form.by_setting else ""
        rows.append(
            f"| `{form.title}`{form.note and f' ({form.note})'} | {becomes}{setting} | {len(kinds) - kinds.count('')} |"
        )
    return "\n".join(rows) + "\n"


def main() -> None:
    before, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    DOC.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
