"""The notebook of the tutorial, made from its page. `python -m agent_pipeline_tests.docs.notebook`.

A `python` block of the page becomes a code cell, and a `text` block behind it becomes the output of
this cell. Everything else becomes Markdown cells.
"""

import json
import re
from typing import Any

from agent_pipeline_tests.docs.pages import DOCS

PAGE = DOCS / "tutorials" / "notebook.md"
PATH = DOCS / "tutorials" / "notebook.ipynb"

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def list_cells() -> list[dict[str, Any]]:
    """Return the cells of the notebook, in order."""
    text = _COMMENT.sub("", PAGE.read_text(encoding="utf-8"))
    cells: list[dict[str, Any]] = []
    end = 0
    for block in _BLOCK.finditer(text):
        cells.append(_make_cell("markdown", text[end : block.start()]))
        outputs = []
        if block["output"]:
            lines = block["output"].splitlines(keepends=True)
            outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
        code_cell = _make_cell("code", block["code"])
        cells.append(code_cell | {"execution_count": None, "outputs": outputs})
        end = block.end()
    cells.append(_make_cell("markdown", text[end:]))
    return [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells, 1)]


def render_notebook() -> str:
    """Return the text of docs/tutorials/notebook.ipynb."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": list_cells(),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _make_cell(cell_type: str, text: str) -> dict[str, Any]:
    lines = text.strip().splitlines(keepends=True)
    return {"cell_type": cell_type, "metadata": {}, "source": lines}


if __name__ == "__main__":
    PATH.write_text(render_notebook(), encoding="utf-8")
