"""The search for long runs of characters of one class, such as the characters of base64.

A regular expression is tried at every character of a text. Ordinary words are much shorter than a
key, so a search for long runs skips nearly all of them.
"""

import re
from collections.abc import Iterator

_MEMBER, _OTHER = b"a", b" "


class LongRuns:
    """A search for runs of at least `length` characters of a class.

    Args:
        members: The characters of the class, in ASCII.
        length: The smallest length of a run.

    Example:
        >>> [*LongRuns(b"0123456789", 3).spans(b"12 345 6789")]
        [(3, 6), (7, 11)]
    """

    def __init__(self, members: bytes, length: int) -> None:
        self._table = bytes(ord(_MEMBER) if code in members else ord(_OTHER) for code in range(256))
        self._run = re.compile(_MEMBER * length + _MEMBER + b"*+")

    def spans(self, flat: bytes) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each run. A run is never part of a longer run.

        Args:
            flat: The text in Latin-1. Every other character is replaced by a question mark, so that
                the positions are those of the text.
        """
        for match in self._run.finditer(flat.translate(self._table)):
            yield match.span()
