"""Names of variables and parameters that do not tell what they hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

import agent_pipeline

PACKAGE = Path(agent_pipeline.__file__).parent
EMPTY_NAMES = frozenset(
    [
        "alone",
        "also",
        "asked",
        "at",
        "beside",
        "each",
        "found",
        "given",
        "made",
        "of",
        "own",
        "said",
        "together",
        "told",
    ]
)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable and parameter; attributes of classes are none."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and id(node) not in fields
        ):
            yield node.lineno, node.id


def test_variables_say_what_they_hold() -> None:
    """A reader of `each` or `found` must look up what it is: name the row, the call or the path."""
    empty = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in bound_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.lstrip("_") in EMPTY_NAMES
    ]
    assert not empty


def test_a_banned_name_is_seen() -> None:
    tree = ast.parse("class A:\n    of: int\ndef f(each):\n    return [found for found in each]")
    assert sorted(name for _, name in bound_names(tree)) == ["each", "found"]
