"""Scripts that are written without blanks between words: Chinese, Japanese, and Korean (whose
particles follow a word without a blank).

If such a script surrounds a number or a key, the number or key still counts as a separate word.
"""

import re

_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff10-\uff5a"
_CHARACTER = re.compile(f"[{_SCRIPTS}]")
_BORDER = re.compile(
    rf"(?<=[{_SCRIPTS}])(?=[\w+(])(?![{_SCRIPTS}@])|(?<=[!-~])(?<![@.,:;\"'])(?=[{_SCRIPTS}])"
)


def with_blanks_between_scripts(text: str) -> str:
    """Return a text with a blank between Chinese, Japanese or Korean characters and Latin letters
    or digits.

    Return the same object if the text has no such characters.
    """
    return text if text.isascii() or not _CHARACTER.search(text) else _BORDER.sub(" ", text)


def is_of_script_without_blanks(character: str) -> bool:
    """Return whether a character is Chinese, Japanese or Korean, so that no blanks separate words."""
    return not character.isascii() and bool(_CHARACTER.match(character))
