"""Texts that several commands print. Complete reports belong to `report`."""


def with_noun(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed.

    Example:
        >>> with_noun(1, "agent"), with_noun(2, "agent")
        ('1 agent', '2 agents')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
