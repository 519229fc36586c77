"""Dates and times in a text.

Many agents write the current time into every system prompt, or into the description of a tool.

The library `dateparser` does not fit here. In "You may refund within 30 days for order 1042" its
search takes `may`, `30 days` and `1042` for dates, so two different rules would look equal.
"""

import re
from functools import lru_cache

_S = r"[^\S\n]"
_DAY, _MONTH = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])"
_YEAR = r"(?:19|20)\d\d"
_HALF = rf"(?:{_S}*[ap]\.?m\b\.?)"
_TIME = rf"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?{_HALF}?"
_ZONE = r"(?:z\b|[+-]\d\d:?\d\d\b)"
_NAME = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|apr(?:il)?|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|(?-i:Mar(?:ch)?|MAR(?:CH)?|May|MAY))\b\.?"
)
_FOREIGN_NAME = (
    r"(?:januar|februar|märz|mai|juni|juli|oktober|dezember"  # German
    r"|janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre"  # French
    r"|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre"
    r"|gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|dicembre"  # Italian
    r"|janeiro|fevereiro|março|maio|junho|julho|setembro|outubro|novembro|dezembro"  # Portuguese
    r"|januari|februari|maart|mei|augustus|december)\b"  # Dutch
)
_WEEKDAY = (
    r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"|(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch|sonnabend"
    r"|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche"
    r"|lunes|martes|miércoles|jueves|viernes|sábado|domingo)"
)
_CLOCK = re.compile(
    rf"(?<!\d){_YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?!\d)(?:(?:t|{_S}+){_TIME})?{_ZONE}?"
    rf"|\b{_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])t[0-2]\d[0-5]\d(?:[0-5]\d)?{_ZONE}?(?!\w)"
    rf"|(?<![\w./-])(?:{_YEAR}([./-]){_MONTH}\1{_DAY}"
    rf"|(?:{_DAY}([./-]){_MONTH}|{_MONTH}([./-]){_DAY})(?:\2|\3){_YEAR}"
    rf"|(?:{_DAY}/{_MONTH}|{_MONTH}/{_DAY})/\d\d)(?!\w|[./-]\d)"
    # of `date`: Mon Jun  3 10:15:00 UTC 2024
    rf"|\b{_NAME}{_S}+{_DAY}{_S}+{_TIME}(?:{_S}+(?-i:[A-Z]{{3,4}}))?{_S}+{_YEAR}\b"
    rf"|\b{_TIME}{_ZONE}?|\b(?:0?[1-9]|1[0-2]){_HALF}"
    rf"|(?:\b{_DAY}(?:st|nd|rd|th)?\.?{_S}+(?:of{_S}+)?)?\b{_NAME}"
    rf"(?:{_S}+{_DAY}(?:st|nd|rd|th)?\b)?(?:,?{_S}+{_YEAR}\b)?"
    rf"|\b{_DAY}(?:er|\.|º)?{_S}+(?:de{_S}+)?{_FOREIGN_NAME}(?:{_S}+(?:de{_S}+)?{_YEAR}\b)?"
    rf"|\b{_FOREIGN_NAME}{_S}+(?:de{_S}+)?{_YEAR}\b"
    rf"|\b{_WEEKDAY}\b"
    rf"|\byear(?:{_S}+is|:|{_S}*=)?{_S}+{_YEAR}\b|\b1[4-9]\d{{8}}(?:\d{{3}}|\.\d+)?\b"
    r"|(?:\d{4}\s*[年년]\s*)?\d{1,2}\s*[月월]\s*\d{1,2}\s*[日일]|\d{4}\s*[年년](?:\s*\d{1,2}\s*[月월])?"
    r"|\d{1,2}\s*[時时시]\s*(?:\d{1,2}\s*[分분](?:\s*\d{1,2}\s*[秒초])?)?",
    re.IGNORECASE,
)


@lru_cache(maxsize=64)  # most calls of an agent repeat the same prompt
def mask_clock(text: str) -> str:
    """Replace each date and time of a text by the same mark.

    Other numbers stay, because an answer may rest on a balance or a limit.
    """
    return _CLOCK.sub("0", text)
