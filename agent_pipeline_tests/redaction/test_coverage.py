"""Secrets and personal data in unusual forms are found, and harmless values are not."""

import pytest

from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline_tests.redaction import coverage, matrix
from agent_pipeline_tests.redaction.forms import DOC
from agent_pipeline_tests.redaction.harmless import HARMLESS
from agent_pipeline_tests.redaction.personal_forms import PERSONAL_FORMS
from agent_pipeline_tests.redaction.secret_forms import SECRET_FORMS
from agent_pipeline_tests.redaction.test_redaction import said, session


def test_secret_forms():
    """Passwords with brackets, in tables and in other languages stayed in the data, and so did keys that are cut off."""
    assert len(SECRET_FORMS) >= 125
    assert (
        coverage.share_found(coverage.measure(SECRET_FORMS, Redactor(RedactionOptions()))) >= 0.95
    )


def test_personal_forms():
    """Numbers of other countries stayed, and so did addresses and IBANs that are written in an unusual way."""
    assert len(PERSONAL_FORMS) >= 90
    assert (
        coverage.share_found(coverage.measure(PERSONAL_FORMS, coverage.redactor_of_regions()))
        >= 0.9
    )


def test_missed_forms_are_in_the_docs():
    table = coverage.table()
    assert table in DOC.read_text(encoding="utf-8"), (
        "python -m agent_pipeline_tests.redaction.coverage writes it"
    )


def test_matrix():
    """Values in base64, and numbers and passwords in brackets, stayed in the data."""
    misses = matrix.missed(Redactor(RedactionOptions()))
    assert len(misses) <= 0.01 * len(list(matrix.cells()))
    assert matrix.table(misses) in DOC.read_text(encoding="utf-8"), (
        "python -m agent_pipeline_tests.redaction.matrix writes it"
    )


@pytest.mark.parametrize(
    "redactor",
    [Redactor(RedactionOptions()), coverage.redactor_of_regions()],
    ids=["US", "17 regions"],
)
def test_harmless_values(redactor):
    """A tool that gets a pseudonym instead of a page token, a hash or a part number does not work."""
    wrong = coverage.false_positives(redactor, count=4)
    assert len(HARMLESS) >= 177 and len(wrong) <= 0.005 * 4 * len(HARMLESS), wrong


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("f(password=Ab1(c)de2)", "f(password=<PASSWORD_1>)"),
        ("User{name=bob, password=Ab1cde2}", "User{name=bob, password=<PASSWORD_1>}"),
        ("$(zip -P Ab1cde2 a.zip)", "$(zip -P <PASSWORD_1> a.zip)"),
        ("我的密码是Ab1cde2，谢谢", "我的密码是<PASSWORD_1>，谢谢"),
        ("手机号13812345678。", "手机号<PHONE_1>。"),
        (
            "user,password\nbob,Ab1cde2\n\npassword is in column 2",
            "user,password\nbob,<PASSWORD_1>\n\npassword is in column 2",
        ),
        (
            "password: [Ab1cde2], password: <Ab1cde2>",
            "password: [<PASSWORD_1>], password: <<PASSWORD_1>>",
        ),
        ('7za -p"Ab1cde2" a.7z', '7za -p"<PASSWORD_1>" a.7z'),
        ("password\tAb1cde2\tbob", "password\t<PASSWORD_1>\tbob"),
        ('{"data": "bXkgUElOIGlzIDQ4MjE="}', '{"data": "<TOKEN_1>"}'),
        ("see Figure 2(a)below and 0012345678", "see Figure 2(a)below and 0012345678"),
        ("IBAN de89 3704 0044 0532 0130 00 please", "IBAN <IBAN_1> please"),
    ],
)
def test_only_the_value_is_replaced(text, becomes):
    """What stands around a value is no part of it."""
    assert said(text) == becomes


@pytest.mark.parametrize(
    "unit",
    [
        "password", "password=", "password: a1(", "密码", "密码是", "password,", "| password |\n", "user,password\n", "a,b\n",
        "-----END PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n",
        "A" * 64 + "\n", "Private-Lines: 2\n", "de89 ", "de89.3704.", "a at b dot ", "a.b @ ", '"a b"@', "<password>", "ldapsearch -w ",
        "ldapsearch -w a1b2c3x ", "curl -u b:a1b2c3x ", "zip ", "net use ", "echo a1b2c3|sudo -S ", "NHS number ",
        "身份证号", "护", "password for a b ", "password\t",
        "password (", "api_key\t", "f(a)b ", "YW5uQHNob3AuaW8gYW5uQHNob3A ", "YWJj", "0033612345678 ", "PIN 4821 ", "7za -p\"x\" ",
    ],
)  # fmt: skip
def test_time_grows_with_the_text(unit):
    """A long text of one unit takes no longer than a long text."""
    import time

    redactor, texts = (
        Redactor(RedactionOptions()),
        [unit * (size // len(unit)) for size in (25_000, 100_000)],
    )
    seconds = []
    for text in texts:
        began = time.process_time()
        redactor.finds(session(text))
        seconds.append(time.process_time() - began)
    assert seconds[1] < 8 * seconds[0] + 0.2, seconds
