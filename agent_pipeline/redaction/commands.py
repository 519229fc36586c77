"""The detection of passwords in command options: `ldapsearch … -w s3cretPw`, `smbclient … -U
bob%s3cretPw`.

These patterns are not in `rules.yaml`, because words may stand between a command and its option.
Kingfisher's time would grow with the square of the length of a text that repeats such commands.
This module looks at each occurrence of a command's name only once.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from agent_pipeline.redaction.kinds import Find
from agent_pipeline.redaction.passwords import has_form_of_password

_GAP = r"[^\n|;]{0,120}?"
_VALUE = r"(?P<value>[^\s\"'`$|;<-][^\s\"'`|;]{5,199})"
_OPTION = re.compile(rb" --?[a-z]")
_REST = r"[^\s\"'`$|;<-][^\s\"'`|;]{5,199}"


def _attached(option: str) -> str:
    """Return a pattern for a password that directly follows its option, without a blank.

    The value is the option and the password together. If the password is in quotes, the value is
    only the password.
    """
    return rf"(?:(?P<value>{option}{_REST})|{option}(?P<quote>[\"'])(?P<quoted>{_REST})(?P=quote))"


class CommandForm(NamedTuple):
    """A pattern for commands that contain a password.

    Attributes:
        names: The beginnings of the commands' names, in lower case.
        rest: A pattern for the text after the name, up to and including the password.
        needs_digit: Whether the password must contain a digit.
        needs_no_dash: Whether the command can contain its password without an option that begins
            with a dash.
    """

    names: tuple[bytes, ...]
    rest: re.Pattern[str]
    needs_digit: bool = False
    needs_no_dash: bool = False


def _form(
    names: str, rest: str, needs_digit: bool = False, needs_no_dash: bool = False
) -> CommandForm:
    encoded_names = tuple(name.replace("_", " ").encode() for name in names.split())
    return CommandForm(encoded_names, re.compile(rest), needs_digit, needs_no_dash)


def _after(option: str, names: str, needs_digit: bool = False) -> CommandForm:
    """Return a pattern for commands in which a password follows an option and a blank.

    Args:
        option: A pattern of the option.
        names: The beginnings of the commands' names.
        needs_digit: Whether the password must contain a digit.
    """
    return _form(names, rf"[\w.]{{0,12}}{_GAP}\s(?:{option})\s{{1,3}}[\"']?{_VALUE}", needs_digit)


_FORMS = (
    _after("-w", "ldap"),
    _form("ldap", rf"[\w.]{{0,12}}{_GAP}\s{_attached('-w')}", True),
    _after(r"-\w{0,4}P|--password", "zip sqlcmd osql isql bcp mosquitto"),
    _after("-p", "mongo evil-winrm crackmapexec netexec", True),
    _after("-p", "docker_login podman_login helm_registry_login az_login oc_login", True),
    _after("-(?:store|key|srcstore|deststore)pass(?:word)?", "keytool jarsigner"),
    _after("-a", "redis-cli", True),
    _after("-k", "openssl_enc", True),
    _form("htpasswd", rf"\s-\w{{0,4}}b\w{{0,4}}\s\S{{1,80}}\s\S{{1,64}}\s{{1,3}}[\"']?{_VALUE}"),
    _form("wpa", rf"_passphrase\s\S{{1,64}}\s{{1,3}}[\"']?{_VALUE}", True, True),
    _form("curl", rf"\s{_GAP}(?:-u|--user)[\s=]{{0,3}}[\"']?[^\s:\"']{{1,64}}:{_VALUE}", True),
    _form(
        "smbclient rpcclient smbget smbmap smbcacls winexe wmic pth- net_rpc net_ads",
        rf"[\w-]{{0,12}}\s{_GAP}(?:-U|--user)[\s=]{{0,3}}[\"']?[^\s\"'%]{{1,64}}%{_VALUE}",
    ),
    _form("mysql mariadb", rf"[\w-]{{0,12}}\s{_GAP}\s?{_attached('-p')}", True),
    _form("7z unrar rar", rf"[arz]?\s{_GAP}\s?{_attached('-h?p')}", True),
    _form(
        "net_use",
        rf"\s(?:[A-Za-z*]:?\s)?\\{{1,4}}[^\s\"']{{1,80}}\s(?:/user:\S{{1,64}}\s)?{_VALUE}",
        True,
        True,
    ),
    _form("net_user", rf"\s[\w.-]{{1,64}}\s{_VALUE}", True, True),
    _form(
        "xfreerdp wfreerdp mstsc cmdkey rdesktop",
        rf"{_GAP}(?:/p:|/pass:|\s-p\s)[\"']?{_VALUE}",
        True,
        True,
    ),
    _form(
        "sqlplus",
        r"\s[^\n|;]{0,40}?\w{1,32}/(?P<value>[^\s\"'`$|;<@/-][^\s\"'`|;@]{5,64})@",
        True,
        True,
    ),
)


def passwords_of_commands(text: str, flat: bytes) -> Iterator[Find]:
    """Yield the passwords in command options.

    If no blank separates an option and its value, the yielded value includes the option.
    """
    lowered = flat.lower()
    has_option = bool(_OPTION.search(lowered))
    for form in _FORMS:
        if not (has_option or form.needs_no_dash):
            continue
        for name in form.names:
            start = lowered.find(name)
            while start >= 0:
                end = start + len(name)
                if match := form.rest.match(text, end):
                    groups = match.groupdict()
                    value = without_closing(groups["value"] or groups.get("quoted") or "")
                    has_digit = any(character.isdigit() for character in value)
                    if (
                        has_form_of_password(value)
                        and (has_digit or not form.needs_digit)
                        and not value.startswith(("/", "*"))
                    ):
                        yield Find("PASSWORD", value)
                start = lowered.find(name, end)


def without_closing(secret: str) -> str:
    """Return a command's secret without the closing brackets and punctuation of the text around the
    command.
    """
    while secret and (secret[-1] in ",;." or (secret[-1] in ")]}" and _is_unopened(secret))):
        secret = secret[:-1]
    return secret


def _is_unopened(secret: str) -> bool:
    opening = "([{"[")]}".index(secret[-1])]
    return secret.count(opening) < secret.count(secret[-1])
