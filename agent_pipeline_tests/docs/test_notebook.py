"""The notebook of the tutorial: it is made from its page, and its cells run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_pipeline_tests.docs import notebook

if TYPE_CHECKING:
    from agent_pipeline.models.base_model import BaseModel


def test_the_notebook_is_that_of_its_page() -> None:
    assert notebook.PATH.read_text(encoding="utf-8") == notebook.render_notebook(), (
        "run python -m agent_pipeline_tests.docs.notebook"
    )


@pytest.mark.slow
def test_every_cell_runs(
    tiny_base: "BaseModel",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All cells run in order, with a tiny model. A cell with an output in the page prints it."""
    monkeypatch.chdir(notebook.PATH.parent)
    cells = json.loads(notebook.PATH.read_text(encoding="utf-8"))["cells"]
    code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code_cells) >= 10
    namespace: dict[str, Any] = {}
    for cell in code_cells:
        capsys.readouterr()
        exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
        printed = capsys.readouterr().out
        if cell["outputs"]:
            assert printed == "".join(cell["outputs"][0]["text"])
        if cell is code_cells[0]:
            namespace |= {"MODEL": str(tiny_base.path), "OUTPUT": tmp_path}
    assert (tmp_path / "saved" / "adapter_model.safetensors").is_file()
