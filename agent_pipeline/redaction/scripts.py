"""Scripts that are written without blanks between words: Chinese, Japanese, and Korean particles
after a word.

A number or a key that such a script surrounds is a word of its own, although no blank says so.
"""

import re

_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff10-\uff5a"
_CHARACTER = re.compile(f"[{_SCRIPTS}]")
_BORDER = re.compile(
    rf"(?<=[{_SCRIPTS}])(?=[\w+(])(?![{_SCRIPTS}@])|(?<=[!-~])(?<![@.,:;\"'])(?=[{_SCRIPTS}])"
)


def with_blanks_between_scripts(text: str) -> str:
    """Return a text with a blank wherever such a script meets Latin letters or digits; the same
    object if it has none.
    """
    return text if text.isascii() or not _CHARACTER.search(text) else _BORDER.sub(" ", text)


def is_of_script_without_blanks(character: str) -> bool:
    """Whether a character is of a script that puts no blanks between words."""
    return not character.isascii() and bool(_CHARACTER.match(character))
