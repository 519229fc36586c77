"""Texts and options that several commands have. Complete reports belong to `report`."""

import typer

AS_JSON = typer.Option("--json", help="Print JSON. docs/reference/cli.md lists the fields.")


def with_noun(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed.

    Example:
        >>> with_noun(1, "agent"), with_noun(2, "agent")
        ('1 agent', '2 agents')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shorten(identity: str | None) -> str:
    """Return the first digits of an identity, or `none`.

    Example:
        >>> shorten("3f2a91c04b7d5e6f708192a3"), shorten(None)
        ('3f2a91c04b7d5e6f', 'none')
    """
    return identity[:16] if identity else "none"
