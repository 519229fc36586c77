"""Where the converter is looked for, and what its failures become."""

import subprocess
import sys

import pytest

from agent_pipeline.errors import ExportError
from agent_pipeline.export import converter
from agent_pipeline.export.converter import SCRIPT, convert, environment, find_converter, last_line


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No converter in any of the places."""
    monkeypatch.delenv("LLAMA_CPP_PATH", raising=False)
    monkeypatch.setattr(converter.sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(converter, "USUAL_PLACES", (str(tmp_path / "usual"),))
    return tmp_path


def checkout(folder, code="raise SystemExit(3)"):
    folder.mkdir(parents=True)
    (folder / SCRIPT).write_text(code, encoding="utf-8")
    return folder


def test_without_a_converter_all_the_ways_to_provide_one_are_named(nowhere):
    with pytest.raises(ExportError) as caught:
        find_converter()
    for way in (
        "make install",
        str(nowhere / "prefix"),
        "AGENT_PIPELINE_LLAMA_CPP",
        "`llama_cpp` in pipeline.toml",
        "usual",
    ):
        assert way in str(caught.value)


def test_the_order_is_explicit_environment_installed_usual(nowhere, monkeypatch):
    usual = checkout(nowhere / "usual")
    assert find_converter() == usual / SCRIPT
    installed = checkout(converter.installed_folder())
    assert find_converter() == installed / SCRIPT
    named = checkout(nowhere / "named")
    monkeypatch.setenv("LLAMA_CPP_PATH", str(named))
    assert find_converter() == named / SCRIPT
    explicit = checkout(nowhere / "explicit")
    assert find_converter(explicit) == find_converter(explicit / SCRIPT) == explicit / SCRIPT


def test_a_named_place_without_a_converter_is_not_passed_over(nowhere, monkeypatch):
    checkout(nowhere / "usual")
    monkeypatch.setenv("LLAMA_CPP_PATH", str(nowhere / "typo"))
    with pytest.raises(ExportError, match=r"LLAMA_CPP_PATH is .*typo"):
        find_converter()


def test_a_failing_converter_gives_its_last_line_and_leaves_no_file(nowhere):
    folder = checkout(
        nowhere / "bad",
        "import sys\nopen(sys.argv[3], 'w').write('half')\n"
        "print('progress 1%\\rprogress 2%', file=sys.stderr)\n"
        "sys.exit('ERROR: Model FooForCausalLM is not supported\\n')",
    )
    model = nowhere / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        ExportError, match=r"exit code 1.*'ERROR: Model FooForCausalLM is not supported'"
    ):
        convert(model, nowhere / "out" / "model.gguf", "f16", folder)
    assert list((nowhere / "out").iterdir()) == []


def test_a_directory_that_is_no_model_is_refused(nowhere):
    checkout(nowhere / "usual")
    with pytest.raises(ExportError, match=r"does not contain a config\.json"):
        convert(nowhere, nowhere / "x.gguf")


def test_the_converter_uses_the_gguf_package_of_its_own_folder(needs_converter, tmp_path):
    script = find_converter()
    where = subprocess.run(
        [sys.executable, "-c", "import gguf; print(gguf.__file__)"],
        env=environment(script),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert where.startswith(str(script.parent))


def test_the_last_line_is_what_a_terminal_would_show():
    def said(output, errors=""):
        return subprocess.CompletedProcess([], 1, output, errors)

    assert last_line(said("a\n  b: 1%\r  b: 2% \n\n")) == "b: 2%"
    assert last_line(said("output\n", "error\n")) == "error" and last_line(said("\n \n")) == ""
