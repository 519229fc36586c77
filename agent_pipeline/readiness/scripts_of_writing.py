"""The script of writing of a text, such as Latin or Cyrillic. Languages do not belong here."""

import unicodedata
from collections import Counter

_MAX_CHARACTERS = 400
"""Number of characters at the beginning of a text that decide on its script."""
_LATIN = "Latin"
_NAMES = {
    "CJK": "Chinese",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
}
"""Names of scripts that differ from the first word of the names of their characters."""


def find_script(text: str) -> str:
    """Return the script of most letters at the beginning of a text.

    A text with at least one Japanese syllable is Japanese, because Japanese texts also have Chinese
    characters. The result is empty if the text has no letters.

    Example:
        >>> [find_script(text) for text in ("Hello", "Привет, OK", "42")]
        ['Latin', 'Cyrillic', '']
    """
    beginning = text[:_MAX_CHARACTERS]
    if beginning.isascii():
        return _LATIN if any(map(str.isalpha, beginning)) else ""
    counts: Counter[str] = Counter()
    for character in beginning:
        if character.isalpha():
            first_word = unicodedata.name(character, "OTHER").partition(" ")[0]
            counts[_NAMES.get(first_word, first_word.capitalize())] += 1
    if not counts:
        return ""
    return "Japanese" if counts["Japanese"] else counts.most_common(1)[0][0]
