"""Texts in the cells of a CSV file, which spreadsheets must not read as formulas."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_MARK = "'"


def to_cell(text: str) -> str:
    """Return a text as a cell.

    A spreadsheet would compute a text that begins as a formula does, so such a text gets an
    apostrophe in front.
    """
    bare = text.lstrip(" \ufeff'")
    if bare.startswith(_FORMULA_STARTS) or text.startswith(_FORMULA_STARTS):
        return _MARK + text
    return text


def from_cell(cell: str) -> str:
    """Return the text of a cell that `to_cell` wrote."""
    return cell[1:] if cell.startswith(_MARK) and to_cell(cell[1:]) == cell else cell
