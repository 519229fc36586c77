"""Values that look private and are not: what shops, programs, calendars and documents write.

Each text of `HARMLESS` is a template. `{d8}` are eight digits, `{h40}` forty hexadecimal digits, `{a12}` letters and
digits, `{U3}` capitals, `{l6}` small letters, `{b64:200}` base64 of 200 random bytes; `{uuid}`, `{day}`, `{time}`,
`{btc}` and `{png}` are what their names say. The values are made from a seed.
"""

import random
import re
import string
import uuid
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple

_ALPHABETS = {
    "d": string.digits,
    "h": "0123456789abcdef",
    "a": string.ascii_letters + string.digits,
    "l": string.ascii_lowercase,
    "U": string.ascii_uppercase,
    "X": string.ascii_uppercase + string.digits,
}
_SLOT = re.compile(
    r"\{(?:(?P<alphabet>[dhalUX])(?P<count>\d+)|b64:(?P<bytes>\d+)|(?P<name>uuid|day|time|btc|png))\}"
)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

_PAGES_AND_TOOLS = (
    '{"next_page_token": "{a24}"}', '{"nextPageToken": "{a32}"}', "page_token={a20}", '{"pageToken": "{b64:24}"}',
    '{"continuation_token": "{a40}"}', '{"cursor": "{b64:24}"}', '{"next_cursor": "{a24}"}', '{"after": "{b64:18}"}',
    '{"sync_token": "{a16}"}', '{"token_type": "bearer"}', '{"token_count": "{d5}"}', '{"max_tokens": {d5}}',
    '{"secret_name": "prod/db-{d2}/shop"}', 'api_key_variable = "OPENAI_API_KEY{d1}"', 'password_field = "input{d2}"',
    '{"password_policy": "min{d1}chars"}', '{"key_id": "key-{d4}"}', '{"sort_key": "created{d2}"}',
    '{"primary_key": "id{d4}"}', '{"foreign_key": "order{d4}"}', '{"cache_key": "page:{d4}"}', '{"keyboard": "qwerty{d3}"}',
    '{"keyword": "lamp{d4}"}', '{"idempotency_key": "{uuid}"}', '{"partition_key": "user#{d6}"}', '{"resume_token": "{a24}"}',
    '{"token_limit": {d6}}', '{"public_key": "ssh-ed25519 AAAA{a40}"}', '{"object_key": "images/{d6}/a{d3}.png"}',
    '{"key": "ArrowUp{d1}"}',
)  # fmt: skip
_IDS = (
    "commit {h40}", "commit {h7}", "sha256:{h64}", "md5 {h32}", '"etag": "{h32}"', "{uuid}", '{"id": "{uuid}"}',
    "request_id={uuid}", "trace {h32}, span {h16}", "order {d10}", "Order #W{d7}", "order number {d3}-{d7}-{d7}",
    "SKU {U3}-{d5}-{U2}", "part number {U2}{d7}-{d2}", "part no. {d3}-{d3}-{d4}", "P/N {U2}{d7}", "model {U2}{d3}{U1}{d2}",
    "serial number {X12}", "S/N {X10}", "ISBN 978-3-16-{d6}-0", "ISSN {d4}-{d4}", "EAN 4{d12}", "UPC 0{d11}", "ASIN B0{X8}",
    "tracking 1Z{X16}", "tracking number {d12}", "tracking {U2}{d9}DE", "ticket {d6}", "JIRA-{d5}", "CVE-2024-{d5}",
    "RFC {d4}", "invoice INV-2024-{d6}", "reservation {X6}", "flight {U2}{d4}", "booking reference {X6}", "case {d8}",
    "user_id: {d8}", '{"item_id": "{d10}"}', '{"account_type": "checking{d1}"}', '{"customer": "cus_{a14}"}',
    '{"id": "pi_{a24}"}', '{"id": "chatcmpl-{a29}"}', '{"tool_call_id": "call_{a24}"}', '{"id": "msg_{a24}"}',
    "toolu_{a24}", "resp_{h48}", "run-{h12}", "arxiv 24{d2}.{d5}", "doi:10.1{d3}/{l4}.{d6}", "ORCID record of paper {d6}",
    "container {h12}", "image@sha256:{h64}", "pod shop-{h10}-{l5}", "i-{h17}", "arn:aws:s3:::shop-{d6}", "vpc-{h17}",
    "gtin {d14}", "lot {X8}", "batch {d8}", "SWIFT code of the bank DEUTDEFF",
)  # fmt: skip
_NUMBERS = (
    "{day}", "{day}T{time}Z", "{day} {time}", "timestamp 17{d8}", '{"ts": 17{d11}}', "17{d8}.{d6}", "lat 4{d1}.{d6}, lon -7{d1}.{d6}",
    '{"lat": 52.{d7}, "lng": 13.{d7}}', "version {d1}.{d2}.{d3}", "v{d1}.{d1}.{d1}-rc.{d1}", "build {d8}", "numpy=={d1}.{d2}.{d1}",
    "$1,{d3}.{d2}", "{d3}.{d3},{d2} €", "{d3} {d3} {d3} rows", "0.{d16}", "{d1}.{d8}e-0{d1}", "{d4}x{d4} pixels", "#{h6}",
    "color: #{h3}; background: #{h6}", "rgba({d2}, {d2}, {d2}, 0.5)", "{d2}:{d2}:{d2}.{d3}", "port {d4}", "{d3} - {d3} - {d4} mm",
    "pages {d3}-{d3}", "size {d9} bytes", "zip 8{d4}", "PLZ 1{d4}", "room {d3}", "score {d2}-{d2}", "isbn 978{d10}",
    "checksum {h8}", "offset 0x{h8}", "address 0x{h16}", "pid {d5}", "seed {d10}", "{d16} ns", "duration {d7} ms",
    "population {d2} {d3} {d3}", "2^{d2} = {d15}",
)  # fmt: skip
_LONG_VALUES = (
    '<img src="data:image/png;base64,{png}">', '{"image": "data:image/jpeg;base64,/9j/{b64:150}"}', '{"content": "{b64:300}"}',
    "https://shop.example/items/{d10}?ref={a8}", "https://shop.example/{uuid}/edit", "https://youtu.be/{a11}",
    "https://docs.google.com/document/d/{a44}/edit", "https://shop.example/search?q=lamp&page={d2}&id={d8}",
    "https://cdn.example/a.{h20}.js", "https://example.org/?utm_source=mail&utm_id={d8}", "bitcoin {btc}",
    "wallet 0x{h40}", "tx 0x{h64}", 'integrity="sha384-{b64:48}"', '"resolved": "https://registry.example/a-{d1}.{d1}.tgz#{h40}"',
    "index {h7}..{h7} 100644", "blob {h40}", "boundary=----WebKitFormBoundary{a16}", "nonce of block {d8}",
    "ssh-rsa AAAAB3NzaC1yc2E{a80} bob", "-----BEGIN CERTIFICATE-----\n{b64:48}\n{b64:48}\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n{b64:48}\n-----END PUBLIC KEY-----", "fingerprint SHA256:{a43}",
    "MD5:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}:{h2}",
    "test_a_long_name_of_a_function_{d3}", "/usr/lib/python3/site-packages/shop_{d3}/models.py",
)  # fmt: skip
_WORDS = (
    "Your password is required.", "My password is not working", "my password is expired", "password: reset it",
    "the password is incorrect, try again", "password: required", "password=password", "login(user=user, password=password)",
    "password = args.password", "password = getpass.getpass()", "password=os.environ['DB_PASSWORD']", "password: ${DB_PASSWORD}",
    "password: {{ vault_password }}", "DB_PASSWORD=$DB_PASSWORD", "password = None", "password: null", "password: true",
    "<password>********</password>", '<input type="password" name="password">', '{"password": {"type": "string"}}',
    "| option | password |\n|---|---|\n| type | string |", "field,password,type\nlength,minimum,number",
    "The password policy says: at least {d2} characters.", "Passwort vergessen? Das Passwort ist falsch.",
    "Mon mot de passe est incorrect", "密码是必填项", "忘记密码？请联系客服{d4}", "La contraseña es incorrecta",
    "zip -P is not safe; see man zip", "smbclient -U bob //srv/share", "ldapsearch -x -W -b dc=acme", "docker run -p 8080:8080 acme{d2}",
    "mongosh -u bob -p", "ssh -p 2222 bob@", "grep -w needle{d2} file", "mkdir -p build{d4}/out", "tar -C build{d4} -P -x",
    "define('DB_NAME', 'shop{d3}');", "aws configure set region eu-west-{d1}", "aws configure set output json",
    "Meet me at noon at the cafe on {d2}th", "look at it dot by dot", "The price at shop dot is {d2}", "10 @ 5.99 each",
    "@decorator at line {d3}", "import x from '@scope/package-{d2}'", "git@github.com:acme/shop.git", "bob@", "npm i @types/node@{d2}.1.0",
    "my id is stored in column {d4}", "The ID number of the item is listed below", "DNI is required", "the passport photo {d8}",
    "passport.js version 0.{d1}.{d1}", "Passport application fee {d5}", "sin(x) + cos({d4})", "PAN-{d4} is an agent",
    "tax 19 % of {d3}.{d2}", "phone case {d10}", "call get_order({d10})", "mobile app version {d4}", "fax machine model {X8}",
    "key: value{d3}", "the secret of success{d2}", "token 12345 of 67890", "Enter your PIN", "author: bob", "auth: none",
    '{"auth": "required"}', "authority {d6}", "passenger {d6}", "compass 123456", "bypass{d4}=true", "encompass: all{d4}",
    "The test passed: 12345 of 12345", "pass: 12 fail: 3", "PASS test_login_{d4} (0.{d2}s)", "pwd: /home/bob", "cd $PWD/build{d3}",
    "user,passed,failed\nbob,{d2},{d2}", "Bearer of good news {d4}", "secretary: room{d3}", "keynote = talk{d3}",
    "session 3 of 12345", "cookie consent banner v{d4}", "sid {d4}", "code=en-US{d2}", "status code {d3}", "country code DE{d5}",
    "pin {d2} of the header", "the PIN was changed in 2024", "GPIO pin {d1}", "f(a)b", "Figure {d1}(a)shows", "g(a).h{d2}",
    "user\tpassword\nname\tstring", "key\tvalue{d3}", "token\tcount", '{"id": "00{d9}"}', "record 00{d10}", "SKU 00{d11}",
    "<{d9}>", "[{d10}]", "({d8})", "password: (optional)", "password: <your-password>", "password: [none]",
    '{"content": "{b64:30}"}', '{"next": "{b64:21}"}', "the password \"required\" is a placeholder", "key\n{d8}\n",
    "promo code SAVE{d2}", "coupon WINTER{d4}", "discount code {X8}", "gift wrap option {d6}",
)  # fmt: skip
HARMLESS = (*_PAGES_AND_TOOLS, *_IDS, *_NUMBERS, *_LONG_VALUES, *_WORDS)


class HarmlessText(NamedTuple):
    """A text without anything private, and the template that it is made from."""

    template: str
    text: str


def harmless_texts(seed: int = 0, count: int = 10) -> Iterator[HarmlessText]:
    """Yield `count` texts of each template."""
    generator = random.Random(seed)
    for template in HARMLESS:
        for _ in range(count):
            yield HarmlessText(template, _SLOT.sub(lambda slot: _filled(slot, generator), template))


def _filled(slot: re.Match[str], generator: random.Random) -> str:
    if slot["alphabet"]:
        alphabet, count = _ALPHABETS[slot["alphabet"]], int(slot["count"])
        first = (
            generator.choice("123456789") if slot["alphabet"] == "d" else generator.choice(alphabet)
        )
        return first + "".join(generator.choices(alphabet, k=count - 1))
    if slot["bytes"]:
        return b64encode(generator.randbytes(int(slot["bytes"]))).decode()
    match slot["name"]:
        case "uuid":
            return str(uuid.UUID(int=generator.getrandbits(128), version=4))
        case "day":
            return f"{generator.randint(2015, 2027)}-{generator.randint(1, 12):02d}-{generator.randint(1, 28):02d}"
        case "time":
            return f"{generator.randint(0, 23):02d}:{generator.randint(0, 59):02d}:{generator.randint(0, 59):02d}"
        case "btc":
            return "1" + "".join(generator.choices(_BASE58, k=33))
        case _:
            return b64encode(b"\x89PNG\r\n\x1a\n" + generator.randbytes(160)).decode()
