"""Limits on the memory that a file of a store may take once it is unpacked.

A file of a few kilobytes can hold gigabytes. A zip packs a thousand equal bytes into one byte. A
table can name a long text once and repeat it in a million rows. The JSON text `[],` takes three
bytes on disk and seventy in memory. A record may therefore need up to `largest_record_mb`, or
`RATIO` times its bytes on disk if that is more. A record that needs more counts as damage, and a
note names it.
"""

import zipfile
from pathlib import Path

import msgspec

from agent_pipeline.errors import StoreError

SETTING = "largest_record_mb"
DEFAULT_MB = 256
RATIO = 16
"""Maximum ratio of memory to bytes on disk. Real JSON needs at most twelve times its bytes (log
probabilities with one object per token).
"""
ARCHIVE_RATIO = 200
"""Maximum ratio of the total size of a zip's files to the size of the zip. Real logs reach 50."""

_DICT, _LIST, _VALUE = 216, 104, 32
"""Bytes that CPython 3.11 needs for a dict, for a list, and for an entry in either, rounded up."""
_RAW = 56
"""Bytes of a list element that is not decoded yet."""
_SMALL = 64 << 10
"""Largest size in bytes of a JSON text whose memory need is not measured, because it is harmless.
"""
_largest = DEFAULT_MB << 20


class TooLargeError(ValueError):
    """A record that needs more memory than the settings allow.

    Attributes:
        needed: Memory in bytes that the record would need.
        allowed: Memory in bytes that it may need.
    """

    def __init__(self, needed: int, allowed: int) -> None:
        self.needed, self.allowed = needed, allowed
        super().__init__(
            f"it would take {megabytes(needed)} of memory, and the limit is {megabytes(allowed)}. "
            f"If the size is right, set `{SETTING}` to {-(-needed >> 20)} or more"
        )


def set_largest_record(size_mb: int) -> None:
    """Set the memory that one record may need, in MB, for all readers of this process.

    Readers are created in many modules that have no access to the settings.
    """
    global _largest
    _largest = size_mb << 20


def largest_record() -> int:
    """Return the memory in bytes that any record may need."""
    return _largest


def longest_line() -> int:
    """Return the maximum length in bytes of a line that is read.

    The line is in memory twice while it is decoded.
    """
    return _largest // 2


def allowed_for(bytes_on_disk: int) -> int:
    """Return the memory in bytes that a record of `bytes_on_disk` bytes may need."""
    return max(_largest, RATIO * bytes_on_disk)


def check_need(needed: int, bytes_on_disk: int) -> None:
    """Raise TooLargeError if a record needs too much memory for its size on disk."""
    if needed > (allowed := allowed_for(bytes_on_disk)):
        raise TooLargeError(needed, allowed)


def check_json(text: bytes | msgspec.Raw, bytes_on_disk: int | None = None) -> None:
    """Check how much memory a JSON text will need, before it is decoded.

    Args:
        text: The JSON.
        bytes_on_disk: Size of the JSON in the file. By default, the size of the text.

    Raises:
        TooLargeError: The decoded value would need too much memory.
    """
    content = text if isinstance(text, bytes) else bytes(text)
    if len(content) > _SMALL:
        check_need(json_need(content), len(content) if bytes_on_disk is None else bytes_on_disk)


def check_elements(text: bytes) -> None:
    """Check how much memory the elements of a JSON list need, before the elements are decoded.

    Raises:
        TooLargeError: There are too many elements.
    """
    check_need(len(text) + _RAW * text.count(b","), len(text))


def json_need(text: bytes) -> int:
    """Return an upper bound of the memory that a JSON text and its decoded value need, in bytes."""
    # one emoji makes each character of a text take four bytes
    wide = not text.isascii() or b"\\u" in text
    texts = len(text) * (5 if wide else 2)
    return texts + _DICT * text.count(b"{") + _LIST * text.count(b"[") + _VALUE * text.count(b",")


def check_file(path: Path) -> None:
    """Check the size of a file that is read completely.

    A sparse file can be very large and take no bytes on disk.

    Raises:
        StoreError: The file is much larger than the space that it takes on disk.
    """
    status = path.stat()
    on_disk = getattr(status, "st_blocks", 0) * 512 or status.st_size
    try:
        check_need(status.st_size, on_disk)
    except TooLargeError as error:
        raise StoreError(
            f"{path} is not read, because {error}, or move the file out of the store."
        ) from error


def check_archive(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Check the total size of all files of a zip.

    Raises:
        StoreError: The total is much more than the zip's size.
    """
    total = sum(member.file_size for member in members)
    if total > (allowed := max(4 * _largest, ARCHIVE_RATIO * path.stat().st_size)):
        raise StoreError(
            f"{path} is not read, because its files have {megabytes(total)} in total, but a zip "
            f"of its size may contain at most {megabytes(allowed)}: move the zip file out of the "
            f"store, or raise `{SETTING}`."
        )


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file in a zip as a JSON text that is safe to decode.

    The file is unpacked step by step, because a zip may state a false size for a file.

    Raises:
        TooLargeError: The file would need too much memory.
    """
    member = archive.getinfo(name)
    packed = member.compress_size
    check_need(2 * member.file_size, packed)  # the JSON text and its decoded value
    parts, size = [], 0
    with archive.open(member) as opened:
        while part := opened.read(1 << 20):
            size += len(part)
            check_need(2 * size, packed)
            parts.append(part)
    text = b"".join(parts)
    parts.clear()
    check_json(text, packed)
    return text


def megabytes(size: int) -> str:
    """Return a number of bytes in MB or GB, as text for people."""
    return f"{size / (1 << 20):,.0f} MB" if size < 10 << 30 else f"{size / (1 << 30):,.0f} GB"
