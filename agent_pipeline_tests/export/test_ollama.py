"""Modelfile quoting, chat formats and registration, with an `ollama` that writes down what it was asked."""

import json
import os
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_pipeline.errors import ExportError
from agent_pipeline.export import ollama
from agent_pipeline.export.ollama import context_size, modelfile, quote
from agent_pipeline.models import families
from agent_pipeline.models.families import find_family
from agent_pipeline.models.special_tokens import remove_marks


def ollama_reads(text: str) -> list[tuple[str, str]]:
    """The commands that Ollama's parser finds in a Modelfile, as far as our Modelfiles use it.

    Its rules: a command's name up to a blank, then its value up to the first line break at which the value's quotes are closed; of
    the value, only white space and printable characters are kept.
    """
    commands, rest = [], text
    while rest.strip():
        if rest.lstrip().startswith("#"):
            rest = rest.lstrip().partition("\n")[2]
            continue
        name, rest = rest.lstrip().split(" ", 1)
        if name == "PARAMETER":
            name, rest = rest.split(" ", 1)
        value, at, stripped = "", 0, ""
        for at, char in enumerate(rest + "\n"):  # noqa: B007 - used after the loop
            stripped = value.strip()
            closed = not stripped.startswith('"""') or (
                len(stripped) >= 6 and stripped.endswith('"""')
            )
            if char in "\r\n" and closed:
                break
            value += char if char.isprintable() or char in "\t\r\n" else ""
        else:
            raise AssertionError("the value never ends")
        commands.append((name, stripped[3:-3] if stripped.startswith('"""') else stripped))
        rest = rest[at + 1 :]
    return commands


@given(st.text(st.sampled_from(list('"{}`\\ \t\r\na\u00a0\u200bé\U0001f600\x07<|')), max_size=30))
@example('say """\nFROM evil\n"""')
@example('"')
def test_a_text_survives_the_modelfile_or_is_refused(text):
    try:
        quoted = quote(text)
    except ExportError:
        return
    assert ollama_reads(f"FROM ./a.gguf\nTEMPLATE {quoted}\nPARAMETER num_ctx 9\n") == [
        ("FROM", "./a.gguf"),
        ("TEMPLATE", text),
        ("num_ctx", "9"),
    ]


def test_a_value_that_cannot_be_quoted_is_an_error():
    with pytest.raises(ExportError, match="three quotes"):
        quote('a"""\nb')


def test_the_modelfile_leaves_the_template_to_the_gguf():
    commands = ollama_reads(modelfile("model-q8_0.gguf", ("<|im_start|>", "<|im_end|>"), 4096))
    assert commands[0] == ("REQUIRES", "0.33.0"), "an older one would render another prompt"
    assert commands[1:] == [
        ("FROM", "./model-q8_0.gguf"),
        ("stop", "<|im_start|>"),
        ("stop", "<|im_end|>"),
        ("num_ctx", "4096"),
    ]


def test_a_gguf_without_a_template_gets_the_one_that_is_given():
    commands = ollama_reads(modelfile("m.gguf", (), 2048, "{{ .Prompt }}"))
    assert commands[1:] == [
        ("FROM", "./m.gguf"),
        ("TEMPLATE", "{{ .Prompt }}"),
        ("num_ctx", "2048"),
    ]


@pytest.mark.parametrize(
    ("stops", "model_type", "name"),
    [
        (("<|im_end|>",), "llama", "hermes"),
        (("<|eot_id|>", "<|eom_id|>"), "", "llama"),
        ((), "qwen2.5", "hermes"),
        ((), "Qwen3", "hermes"),
        ((), "llama", "llama"),
        ((), "mistral", "mistral"),
        ((), "gemma2", "gemma"),
        ((), "phi3", "phi"),
        ((), "mamba", None),
        (("### End",), "llama", None),
    ],
)
def test_a_family_is_known_by_what_ends_its_turns_and_else_by_the_architecture(
    stops, model_type, name
):
    family = find_family(stops, model_type)
    assert (family and family.name) == name and (family is None or family.ollama_base)


def test_a_template_of_ollamas_library_is_asked_of_ollama(monkeypatch, tmp_path, fake_ollama):
    asked = fake_ollama("echo '{{ .Prompt }}'")
    assert ollama.library_template("phi3") == "{{ .Prompt }}"
    assert asked.read_text(encoding="utf-8").split()[:3] == ["show", "--template", "phi3"]
    (tmp_path / "bin" / "ollama").write_text(
        "#!/bin/sh\nprintf '{{ .Prompt }}\\007'\n", encoding="utf-8"
    )
    assert ollama.library_template("phi3") is None, "a Modelfile cannot hold it"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ollama.library_template("phi3") is None, "there is no Ollama"


@pytest.mark.parametrize(
    ("longest", "limit", "size"),
    [
        (0, None, 2048),
        (1536, None, 2048),
        (1537, None, 3072),
        (1537, 2048, 2048),
        (7000, 8192, 8192),
        (7000, 100_000, 8192),
    ],
)
def test_the_context_holds_the_longest_row_and_an_answer(longest, limit, size):
    assert context_size(longest, limit) == size


@pytest.mark.parametrize(
    ("project", "agent", "name"),
    [
        ("tau", "airline", "tau-airline"),
        ("My Lab", "Agent/7", "my-lab-agent-7"),
        ("..x", "é!", "x"),
        ("a" * 90, "b", "a" * 80),
    ],
)
def test_names_are_what_ollama_takes(project, agent, name):
    assert ollama.model_name(project, agent) == name


@pytest.fixture
def fake_ollama(monkeypatch, tmp_path):
    """Puts an `ollama` on PATH that writes down its arguments, folder and Modelfile, then runs the lines given."""

    def install(lines: str = "exit 0") -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "ollama"
        script.write_text(
            f'#!/bin/sh\n{{ printf "%s\\n" "$@"; pwd; cat "$4" 2>/dev/null; }} > "{tmp_path}/asked"\n{lines}\n',
            encoding="utf-8",
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "asked"

    return install


@pytest.fixture
def a_modelfile(tmp_path) -> Path:
    (tmp_path / "out dir").mkdir()
    path = tmp_path / "out dir" / "Modelfile"
    path.write_text("FROM ./m.gguf\n", encoding="utf-8")
    return path


def test_ollama_is_asked_from_the_folder_of_the_modelfile(fake_ollama, a_modelfile):
    asked = fake_ollama()
    result = ollama.create("tau-airline", a_modelfile)
    assert result.created and "ollama run tau-airline" in result.text
    assert asked.read_text(encoding="utf-8").splitlines() == [
        "create",
        "tau-airline",
        "-f",
        str(a_modelfile),
        str(a_modelfile.parent),
        "FROM ./m.gguf",
    ]


def test_a_failing_ollama_gives_the_step_its_last_line_and_what_to_do(fake_ollama, a_modelfile):
    fake_ollama(
        "printf 'gathering\\n\\033[31mError: could not connect to ollama\\033[0m\\n' >&2; exit 7"
    )
    with pytest.raises(
        ExportError,
        match=r"command `ollama create x` failed with exit code 7 .*'Error: could not connect to ollama'.*serve",
    ):
        ollama.create("x", a_modelfile)


def test_no_ollama_is_a_sentence_and_no_failure(monkeypatch, tmp_path, a_modelfile):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = ollama.create("x", a_modelfile)
    assert not result.created and "ollama create x -f" in result.text


def test_a_prompt_that_ollama_renders_otherwise_than_training_is_an_error(
    monkeypatch, tiny_renderer
):
    """A server that answers `_debug_render_only` as Ollama does; there is none to ask here."""
    rendered = remove_marks(
        tiny_renderer.render(ollama.ROUND_TRIP, [ollama.TOOL], add_generation_prompt=True)
    )
    assert "<tool_call>" in rendered and "pong" in rendered

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["_debug_render_only"] and self.path == "/api/chat"
            text = rendered if asked["model"] == "same" else rendered.replace("pong", "pong\n")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"_debug_info": {"rendered_template": text}}).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.server_port}")
        assert ollama.check_rendering("same", tiny_renderer).endswith("as training did.")
        with pytest.raises(ExportError, match=r"other.*at character"):
            ollama.check_rendering("other", tiny_renderer)
        server.shutdown()
    assert "was not checked" in ollama.check_rendering("same", tiny_renderer)


def test_family_among_those_that_end_turns_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later family with the stop token of an earlier one is chosen by its architecture, or by sharing more stop tokens.

    LFM2 ends its turns as ChatML does, and stands after the families that do so.
    """
    assert find_family({"<|im_end|>"}, "lfm2").name == "lfm2"
    assert find_family({"<|im_end|>"}, "qwen3").name == "hermes"
    first = find_family({"<|im_end|>"})
    assert first is not None
    later = replace(
        first, name="later", model_types=("later",), stops=("<|im_end|>", "<|endoftext|>")
    )
    monkeypatch.setattr(families, "FAMILIES", [*families.FAMILIES, later])
    assert find_family({"<|im_end|>"}, "Later") is later
    assert find_family({"<|im_end|>", "<|endoftext|>"}, "unheard-of") is later
    assert find_family({"<|im_end|>"}, "unheard-of") is first
