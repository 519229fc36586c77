"""Cells of a CSV file, protected so that spreadsheets do not read them as formulas."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_MARK = "'"


def to_cell(text: str) -> str:
    """Convert a text into a cell of a CSV file.

    A spreadsheet computes a text that begins like a formula, so such a text gets an apostrophe in
    front.
    """
    bare = text.lstrip(" \ufeff'")
    if bare.startswith(_FORMULA_STARTS) or text.startswith(_FORMULA_STARTS):
        return _MARK + text
    return text


def from_cell(cell: str) -> str:
    """Restore the original text of a cell that `to_cell` wrote."""
    return cell[1:] if cell.startswith(_MARK) and to_cell(cell[1:]) == cell else cell
