"""Personal data of many countries, as people and programs write it. Every value is made from a seed.

The regions of `REGIONS` are set. Numbers with a check digit have the right one, made by python-stdnum.
"""

import random
import string
from collections.abc import Callable
from importlib import import_module

from agent_pipeline_tests.redaction.forms import Form, Make, cpf, dni, grouped
from agent_pipeline_tests.redaction.planting import iban, some

REGIONS = (
    "US",
    "GB",
    "DE",
    "FR",
    "ES",
    "IT",
    "NL",
    "CH",
    "AT",
    "BE",
    "PL",
    "SE",
    "BR",
    "IN",
    "JP",
    "AU",
    "MX",
)
DIGITS, UPPER, LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase
MAX_TRIES = 10_000


def local(region: str, separator: str = "") -> Make:
    """Return a maker of mobile numbers of a region, written as the region writes them; perhaps with another separator."""

    def make(generator: random.Random) -> str:
        import phonenumbers

        example = phonenumbers.example_number_for_type(region, phonenumbers.PhoneNumberType.MOBILE)
        national = str(example.national_number)
        for _ in range(MAX_TRIES):
            changed = national[:-5] + some(generator, 5, DIGITS)
            number = phonenumbers.parse(changed, region)
            if phonenumbers.is_valid_number(number):
                break
        written = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL)
        return written.replace(" ", separator).replace("-", separator) if separator else written

    return make


def checked(module: str, *alphabets: str) -> Make:
    """Return a maker of numbers that a module of python-stdnum calls valid: one character of each alphabet."""
    number = import_module(f"stdnum.{module}")

    def make(generator: random.Random) -> str:
        for _ in range(MAX_TRIES):
            value = "".join(generator.choice(alphabet) for alphabet in alphabets)
            if number.is_valid(value):
                return value
        raise ValueError(module)

    return make


def digits(count: int) -> tuple[str, ...]:
    return ("123456789", *[DIGITS] * (count - 1))


def changed_iban(change: Callable[[str], str]) -> Make:
    return lambda generator: change(iban(generator).replace(" ", ""))


def with_separator(separator: str) -> Callable[[str], str]:
    return lambda number: separator.join(number[at : at + 4] for at in range(0, len(number), 4))


def name(generator: random.Random, joined: str = ".") -> str:
    return some(generator, 6, LOWER) + joined + some(generator, 5, LOWER)


def address(at: str, dot: str = ".", joined: str = ".", host: str = "") -> Make:
    """Return a maker of addresses with an unusual @ and dots."""
    return lambda generator: (
        f"{name(generator, joined)}{at}{host or some(generator, 7, LOWER)}{dot}{generator.choice(['org', 'com', 'net'])}"
    )


def international(generator: random.Random) -> str:
    """Make a mobile number of France or Germany with the prefix for calls abroad, without groups."""
    return generator.choice(
        [f"00336{some(generator, 8, '123456789')}", f"0049151{some(generator, 8, '123456789')}"]
    )


PERSONAL_FORMS = (
    # Telephone numbers
    Form("call {}", local("GB"), note="GB"),
    Form("You can reach me on {}.", local("GB"), note="GB"),
    Form("Meine Nummer ist {}", local("DE"), note="DE"),
    Form("Handy: {}", local("DE", "/"), note="DE, slashes"),
    Form("Tel. {}", local("DE", "-"), note="DE, dashes"),
    Form("rappelez-moi au {}", local("FR"), note="FR"),
    Form("mon numéro : {}", local("FR", "."), note="FR, dots"),
    Form("portable {}", local("FR", "-"), note="FR, dashes"),
    Form("mi móvil es {}", local("ES"), note="ES"),
    Form("il mio cellulare è {}", local("IT"), note="IT"),
    Form("bel me op {}", local("NL"), note="NL"),
    Form("Telefon {}", local("CH"), note="CH"),
    Form("Tel: {}", local("AT"), note="AT"),
    Form("GSM {}", local("BE"), note="BE"),
    Form("telefon {}", local("PL"), note="PL"),
    Form("ring mig på {}", local("SE"), note="SE"),
    Form("meu celular é {}", local("BR"), note="BR"),
    Form("WhatsApp {}", local("BR", " "), note="BR, blanks"),
    Form("my mobile is {}", local("IN"), note="IN"),
    Form("電話番号は{}です", local("JP"), note="JP"),
    Form("phone: {}", local("JP", " "), note="JP, blanks"),
    Form("mobile {}", local("AU"), note="AU"),
    Form("mi celular es {}", local("MX"), note="MX"),
    Form("手机号：{}", lambda g: f"138{some(g, 8, DIGITS)}", note="China, without its region"),
    Form(
        '{{"mobile": "{}"}}',
        lambda g: f"138 {some(g, 4, DIGITS)} {some(g, 4, DIGITS)}",
        note="China, without its region",
    ),
    Form(
        "телефон {}",
        lambda g: f"8 (916) {some(g, 3, '23456789')}-{some(g, 2, DIGITS)}-{some(g, 2, DIGITS)}",
        note="Russia, without its region",
    ),
    Form("phone (+44) {}", grouped(4, 6), note="its code in brackets"),
    Form("+44 (0) {}", grouped(2, 4, 4, first="20 "), note="with (0)"),
    Form("tel 0033 6 {}", grouped(2, 2, 2, 2), note="with 00"),
    Form(
        "phone 001-{}", lambda g: f"212-{g.randint(220, 989)}-{some(g, 4, DIGITS)}", note="with 001"
    ),
    Form(
        "fax: {} ext. 12",
        lambda g: f"212-{g.randint(220, 989)}-{some(g, 4, DIGITS)}",
        note="with an extension",
    ),
    Form("tel:{}", lambda g: f"+4930{some(g, 7, '23456789')}"),
    Form("{}", international, note="digits only, with the prefix 00"),
    Form("you can reach me at {}.", international, note="digits only, with the prefix 00"),
    Form("write to {}", address("(a)"), note="(a)"),
    Form("my account number\n{}\n", lambda g: some(g, 10, "123456789"), note="below its label"),
    # IBAN
    Form("IBAN {}", changed_iban(str.lower), note="small letters"),
    Form(
        "iban: {}",
        changed_iban(lambda number: with_separator(" ")(number.lower())),
        note="small letters in groups",
    ),
    Form("IBAN {}", changed_iban(with_separator(".")), note="dots"),
    Form("transfer it to {}", changed_iban(with_separator(".")), note="dots"),
    Form("transfer it to {}", changed_iban(with_separator("-")), note="dashes"),
    Form("meine Kontonummer {}", changed_iban(with_separator("\u00a0")), note="hard blanks"),
    Form("IBAN:{}", iban),
    Form('{{"iban": "{}"}}', changed_iban(str.lower), note="small letters"),
    # Identity, tax and health numbers
    Form("NHS number {}", checked("gb.nhs", *digits(10))),
    Form(
        "my NHS no is {}",
        lambda g: "{}-{}-{}".format(
            *(lambda n: (n[:3], n[3:6], n[6:]))(checked("gb.nhs", *digits(10))(g))
        ),
    ),
    Form("Her NHS number is: {}", checked("gb.nhs", *digits(10))),
    Form("NINO: {}", lambda g: f"AB{some(g, 6, DIGITS)}C"),
    Form("UTR {}", checked("gb.utr", *digits(10))),
    Form("Steuer-ID {}", checked("de.idnr", *digits(11)), note="DE"),
    Form("Meine Steueridentifikationsnummer ist {}", checked("de.idnr", *digits(11)), note="DE"),
    Form(
        "Steuernummer: {}",
        lambda g: f"{some(g, 2, '12')}/{some(g, 3, DIGITS)}/{some(g, 5, DIGITS)}",
        note="DE",
    ),
    Form("IdNr. {}", checked("de.idnr", *digits(11)), note="DE"),
    Form("Personalausweis {}", lambda g: f"L{some(g, 8, '0123456789CFGHJK')}", note="DE"),
    Form("Ausweisnummer: {}", lambda g: f"L{some(g, 8, '0123456789CFGHJK')}", note="DE"),
    Form(
        "Sozialversicherungsnummer {}",
        lambda g: f"{some(g, 2, '1')} {some(g, 6, '1')} M {some(g, 3, DIGITS)}",
        note="DE",
    ),
    Form("Reisepass Nr. {}", lambda g: f"C01X{some(g, 5, DIGITS)}", note="DE"),
    Form(
        "numéro de passeport : {}",
        lambda g: f"{some(g, 2, DIGITS)}AB{some(g, 5, DIGITS)}",
        note="FR",
    ),
    Form(
        "numéro de sécurité sociale {}",
        lambda g: (
            f"1 {some(g, 2, '789')} 05 75 {some(g, 3, '123')} {some(g, 3, '456')} {some(g, 2, '123')}"
        ),
        note="FR",
    ),
    Form("NIR : {}", lambda g: f"1{some(g, 2, '789')}0575{some(g, 8, '123456')}", note="FR"),
    Form("carte d'identité {}", lambda g: some(g, 12, "123456789"), note="FR"),
    Form("mi DNI es {}", dni, note="ES"),
    Form("NIE: {}", lambda g: f"X{some(g, 7, DIGITS)}T", note="ES"),
    Form("pasaporte {}", lambda g: f"{some(g, 3, UPPER)}{some(g, 6, DIGITS)}", note="ES"),
    Form(
        "codice fiscale {}",
        lambda g: (
            f"{some(g, 6, 'BCDFGLM')}{some(g, 2, DIGITS)}A{some(g, 2, '12')}H501{some(g, 1, UPPER)}"
        ),
        note="IT",
    ),
    Form("passaporto n. {}", lambda g: f"YA{some(g, 7, DIGITS)}", note="IT"),
    Form("BSN {}", checked("nl.bsn", *digits(9)), note="NL"),
    Form("burgerservicenummer: {}", checked("nl.bsn", *digits(9)), note="NL"),
    Form("paspoort {}", lambda g: f"N{some(g, 2, UPPER)}{some(g, 6, DIGITS)}", note="NL"),
    Form("AHV-Nummer 756.{}", grouped(4, 4, 2, separator="."), note="CH"),
    Form("numer PESEL: {}", checked("pl.pesel", *digits(11)), note="PL"),
    Form(
        "mitt personnummer är {}",
        lambda g: (
            f"{g.randint(1950, 2004)}0{g.randint(1, 9)}1{g.randint(1, 9)}-{some(g, 4, DIGITS)}"
        ),
        note="SE",
    ),
    Form(
        "CPR-nummer {}",
        lambda g: f"1{g.randint(1, 9)}0{g.randint(1, 9)}{g.randint(60, 99)}-{some(g, 4, DIGITS)}",
        note="DK",
    ),
    Form(
        "fødselsnummer {}",
        lambda g: f"1{g.randint(1, 9)}0{g.randint(1, 9)}{g.randint(60, 99)} {some(g, 5, DIGITS)}",
        note="NO",
    ),
    Form(
        "henkilötunnus {}",
        lambda g: f"1{g.randint(1, 9)}0{g.randint(1, 9)}{g.randint(60, 99)}-{some(g, 3, DIGITS)}K",
        note="FI",
    ),
    Form(
        "rijksregisternummer {}",
        lambda g: (
            f"85.0{g.randint(1, 9)}.{g.randint(11, 28)}-{some(g, 3, DIGITS)}.{some(g, 2, DIGITS)}"
        ),
        note="BE",
    ),
    Form("meu CPF é {}", cpf, note="BR"),
    Form(
        "RG: {}",
        lambda g: (
            f"{some(g, 2, '123')}.{some(g, 3, DIGITS)}.{some(g, 3, DIGITS)}-{some(g, 1, DIGITS)}"
        ),
        note="BR",
    ),
    Form(
        "CURP {}",
        lambda g: (
            f"{some(g, 4, UPPER)}{some(g, 2, '789')}0{some(g, 1, '123')}1{some(g, 1, DIGITS)}HDF{some(g, 3, 'BCDFG')}0{some(g, 1, DIGITS)}"
        ),
        note="MX",
    ),
    Form(
        "RFC {}",
        lambda g: (
            f"{some(g, 4, UPPER)}{some(g, 2, '789')}0{some(g, 1, '123')}1{some(g, 1, DIGITS)}{some(g, 3, 'ABC123')}"
        ),
        note="MX",
    ),
    Form(
        "PAN card {}",
        lambda g: f"{some(g, 3, UPPER)}P{some(g, 1, UPPER)}{some(g, 4, DIGITS)}{some(g, 1, UPPER)}",
        note="IN",
    ),
    Form("my aadhaar number is {}", grouped(4, 4, 4), note="IN"),
    Form(
        "身份证号：{}",
        lambda g: (
            f"110101{g.randint(1950, 2004)}0{g.randint(1, 9)}1{g.randint(1, 9)}{some(g, 3, DIGITS)}X"
        ),
        note="CN",
    ),
    Form("マイナンバーは{}", grouped(4, 4, 4), note="JP"),
    Form(
        "주민등록번호 {}",
        lambda g: f"{g.randint(60, 99)}0{g.randint(1, 9)}1{g.randint(1, 9)}-1{some(g, 6, DIGITS)}",
        note="KR",
    ),
    Form("TFN {}", grouped(3, 3, 3), note="AU"),
    Form("Medicare number {}", grouped(4, 5, 1), note="AU"),
    Form("SIN {}", grouped(3, 3, 3), note="CA"),
    Form("PPS number {}", lambda g: f"{some(g, 7, DIGITS)}T", note="IE"),
    Form(
        "South African ID number {}",
        lambda g: f"{g.randint(60, 99)}0{g.randint(1, 9)}1{g.randint(1, 9)}{some(g, 7, DIGITS)}",
        note="ZA",
    ),
    Form("My ID number is {}", lambda g: f"{some(g, 2, UPPER)}{some(g, 7, DIGITS)}"),
    Form("identity document no. {}", lambda g: f"{some(g, 2, UPPER)}{some(g, 7, DIGITS)}"),
    Form("passport no {}", lambda g: f"{some(g, 1, UPPER)}{some(g, 8, DIGITS)}"),
    Form('{{"passportNumber": "{}"}}', lambda g: f"{some(g, 2, UPPER)}{some(g, 7, DIGITS)}"),
    Form(
        '{{"passport_no": "{}"}}',
        lambda g: f"{some(g, 1, UPPER)}{some(g, 2, DIGITS)}{some(g, 2, UPPER)}{some(g, 5, DIGITS)}",
    ),
    Form("Passport: {} (valid to 2030)", lambda g: f"{some(g, 1, UPPER)}{some(g, 8, DIGITS)}"),
    Form(
        "driving licence {}",
        lambda g: f"{some(g, 5, UPPER)}{some(g, 6, DIGITS)}{some(g, 2, UPPER)}9{some(g, 2, UPPER)}",
        note="GB",
    ),
    Form("Führerschein {}", lambda g: f"B072{some(g, 7, '0123456789ABC')}", note="DE"),
    Form(
        "ITIN 9{}",
        lambda g: f"{some(g, 2, DIGITS)}-7{some(g, 1, DIGITS)}-{some(g, 4, DIGITS)}",
        note="US",
    ),
    Form("green card number {}", lambda g: f"{some(g, 3, UPPER)}{some(g, 10, DIGITS)}", note="US"),
    Form(
        "SSN: {}",
        lambda g: f"{g.randint(100, 665)}{g.randint(11, 99)}{g.randint(1000, 9999)}",
        note="US, without dashes",
    ),
    Form("VAT number {}", lambda g: f"GB{some(g, 9, DIGITS)}"),
    # Addresses
    Form("write to {}", address(" (at) ")),
    Form("write to {}", address("(at)")),
    Form("write to {}", address(" [at] ", " [dot] ")),
    Form("write to {}", address(" at ", " dot ")),
    Form("write to {}", address(" AT ", " DOT ")),
    Form("my mail is {}", address(" at ")),
    Form("write to {}", address("{at}", "{dot}")),
    Form("write to {}", address(" <at> ", " <dot> ")),
    Form("write to {}", address(" @ ", ".")),
    Form("write to {}", address(" @ ", " . ")),
    Form("write to {}", address("＠"), note="full width"),
    Form("write to {}", address("_at_", "_dot_")),
    Form(
        'write to "{}', lambda g: f'{name(g, " ")}"@{some(g, 7, LOWER)}.org', note="a quoted name"
    ),
    Form("write to {}", lambda g: f"{name(g)}@bücher{some(g, 3, LOWER)}.de", note="IDN"),
    Form(
        "write to {}",
        lambda g: f"jürgen.{some(g, 6, LOWER)}@{some(g, 7, LOWER)}.de",
        note="a name beyond ASCII",
    ),
    Form("write to {}", lambda g: f"{name(g)}@xn--{some(g, 7, LOWER)}-kva.de", note="IDN, encoded"),
    Form("写信给{}", lambda g: f"{name(g)}@例子{some(g, 3, LOWER)}.公司", note="IDN, Chinese"),
    Form(
        "write to {}",
        lambda g: f"{name(g)}@[192.168.{g.randint(10, 99)}.{g.randint(10, 99)}]",
        note="an IP address",
    ),
    Form(
        "write to {}",
        lambda g: f"{name(g)}+tag/x={some(g, 3, LOWER)}@{some(g, 7, LOWER)}.org",
        note="`/` and `=` before the @",
    ),
    Form(
        "write to {}",
        lambda g: f"{name(g)}!#$&*@{some(g, 7, LOWER)}.org",
        note="`! # $ & *` before the @",
    ),
    Form("mailto:{}?subject=hi", address("@")),
    Form("<{}>", address("@")),
    Form("{},", lambda g: f"{name(g)}@mail.{some(g, 7, LOWER)}.co.uk"),
    Form("mail {} [dot] org", lambda g: f"{name(g)}@{some(g, 7, LOWER)}"),
)
