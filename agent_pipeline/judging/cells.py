"""Texts in the cells of a CSV file, which spreadsheets must not take for formulas."""

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_MARK = "'"


def as_cell(text: str) -> str:
    """Return a text as a cell. A spreadsheet would compute what begins as a formula does, so an apostrophe stands before it."""
    return (
        _MARK + text
        if text.lstrip(" \ufeff'").startswith(_BEGINS_A_FORMULA)
        or text.startswith(_BEGINS_A_FORMULA)
        else text
    )


def from_cell(cell: str) -> str:
    """Return the text of a cell that `as_cell` wrote."""
    return cell[1:] if cell.startswith(_MARK) and as_cell(cell[1:]) == cell else cell
