"""The whole way on a small random model: merge, convert, load in llama.cpp, compare."""

import json
import shutil

import pytest

from agent_pipeline.errors import DataError, ExportError, ModelError
from agent_pipeline.export import parity
from agent_pipeline.export.converter import convert
from agent_pipeline.export.gguf_export import export
from agent_pipeline.export.gguf_header import read_header
from agent_pipeline.export.llama import Completion, LlamaCpp
from agent_pipeline.export.merge import merge_adapter
from agent_pipeline_tests.export.conftest import CONVERSATIONS

pytestmark = pytest.mark.usefixtures("needs_converter")


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported")
    said = []
    report = export(
        tiny["base"],
        tiny["adapter"],
        out,
        CONVERSATIONS,
        max_new_tokens=16,
        longest_row=1600,
        keep_merged=True,
        progress=lambda done, total, text: said.append((done, total)),
    )
    return out, report, said


def test_the_exported_model_is_the_trained_model(exported):
    out, report, said = exported
    # Random weights have near ties, and which way one falls differs between processors: it must then be counted as one.
    answers = report["answers"]["f16"]
    assert report["ok"] and answers["prompts"] == 4 and answers["agreement"] == 1.0
    assert answers["exact"] + answers["near_ties"] == 4 and answers["rate"] == answers["exact"] / 4
    assert len(answers["mismatches"]) == answers["near_ties"] and all(each["near_tie"] for each in answers["mismatches"])
    assert report["template"]["f16"]["texts"] == 2 * len(CONVERSATIONS) and report["template"]["q8_0"] == report["template"]["f16"]
    assert report["logits"]["merged_vs_adapter"] <= report["logits"]["tolerance"] < 0.1 < report["logits"]["merged_vs_base"]
    assert said[-1] == (6, 6) and [done for done, _ in said] == sorted(done for done, _ in said)
    assert json.loads((out / "parity.json").read_text(encoding="utf-8")) == report
    assert sorted(path.name for path in out.iterdir()) == ["Modelfile", "merged", "model-f16.gguf", "model-q8_0.gguf", "parity.json"]


def test_the_training_template_is_inside_the_gguf(exported, tokenizer):
    header = read_header(exported[0] / "model-f16.gguf")
    assert header.chat_template == tokenizer.chat_template
    assert (header.architecture, header.context_length) == ("llama", 2048)


def test_the_modelfile_names_a_file_beside_it_and_holds_the_longest_row(exported):
    text = (exported[0] / "Modelfile").read_text(encoding="utf-8")
    assert text.startswith("FROM ./model-q8_0.gguf\nTEMPLATE ")
    # 1,600 tokens and room for an answer are 3,072, but the model was made for 2,048.
    assert text.endswith("PARAMETER num_ctx 2048\n") and 'PARAMETER stop """<|im_end|>"""' in text


def test_a_changed_model_is_found_out_and_explained(exported, tiny, tmp_path, tokenizer):
    """The base's GGUF checked against the merged model: the check must be able to fail."""
    gguf = convert(tiny["base"], tmp_path / "base.gguf", "f16")
    model, _ = parity.load_merged(exported[0] / "merged")
    asked = parity.prompts(tokenizer, CONVERSATIONS)
    expected = parity.merged_answers(model, tokenizer, asked, 8)
    with LlamaCpp(gguf, n_ctx=1024) as llama:
        parity.check_template(llama, tokenizer, CONVERSATIONS)
        found = parity.compare_answers(llama, model, tokenizer, asked, expected, 8)
    assert found["rate"] < 0.5 and found["prompts"] == found["exact"] + len(found["mismatches"])
    mismatch = found["mismatches"][0]
    assert mismatch["merged_token"] != mismatch["gguf_token"] and mismatch["logit_gap"] > 0
    assert not mismatch["near_tie"] or mismatch["logit_gap"] < parity.NEAR_TIE
    assert found["rate"] <= found["agreement"] < parity.GREEDY_THRESHOLD


def test_a_template_that_llama_cpp_renders_otherwise_is_an_error(exported, tokenizer):
    def render(tokenizer, messages, tools, add_generation_prompt=False):
        return "".join(message["content"] for message in messages)

    with LlamaCpp(exported[0] / "model-f16.gguf") as llama, pytest.raises(ExportError, match=r"conversation 1 otherwise.*character 0"):
        parity.check_template(llama, tokenizer, CONVERSATIONS, render)


def test_a_tokenizer_that_differs_is_an_error(exported, tokenizer):
    from copy import deepcopy

    from tokenizers.pre_tokenizers import ByteLevel

    lost = deepcopy(tokenizer)
    lost.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    with LlamaCpp(exported[0] / "model-f16.gguf") as llama, pytest.raises(ExportError, match="disagree on held-out conversation 1"):
        parity.check_template(llama, lost, CONVERSATIONS)


def test_a_gguf_without_a_template_is_an_error(tiny, tmp_path, tokenizer):
    shutil.copytree(tiny["base"], tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    with LlamaCpp(convert(tmp_path / "bare", tmp_path / "bare.gguf")) as llama, pytest.raises(ExportError, match="holds no chat template"):
        parity.check_template(llama, tokenizer, CONVERSATIONS)


def test_a_prompt_that_does_not_fit_is_an_error(exported):
    with LlamaCpp(exported[0] / "model-f16.gguf", n_ctx=256) as llama, pytest.raises(ExportError, match="refused /completion"):
        llama.greedy(list(range(100, 500)), 4)


def test_the_same_prompt_gives_the_same_answer_each_time(exported, tokenizer):
    ids = parity.prompts(tokenizer, CONVERSATIONS)[1].ids
    with LlamaCpp(exported[0] / "model-q8_0.gguf") as llama:
        first = llama.greedy(ids, 6)
        assert llama.greedy(ids, 6) == first and isinstance(first, Completion) and len(first.tokens) == 6


def test_an_adapter_that_changes_nothing_is_not_exported(tiny, tmp_path):
    with pytest.raises(ExportError, match="changes nothing"):
        export(tiny["base"], tiny["nothing"], tmp_path, CONVERSATIONS[:1])


def test_an_adapter_of_another_base_is_refused_in_a_sentence(tiny, tmp_path, tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM

    other = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="with the base model that it was trained on"):
        merge_adapter(tmp_path / "other", tiny["adapter"], tmp_path / "out", [[1, 2, 3]])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"conversations": []}, DataError, "without held-out conversations"),
        ({"outtypes": ("q4_k_m",)}, ExportError, "q4_k_m.*give one or more of f32"),
        ({"outtypes": ()}, ExportError, "give one or more"),
        ({"adapter_dir": "nowhere"}, ModelError, "tokenizer in .*nowhere"),
        ({"base": "nowhere"}, ModelError, "base model .*nowhere can't be loaded"),
    ],
)
def test_what_a_user_got_wrong_is_said_in_one_sentence(tiny, tmp_path, change, error, says):
    asked = {"base": tiny["base"], "adapter_dir": tiny["adapter"], "conversations": CONVERSATIONS[:1], "outtypes": ("f16",)}
    asked |= {key: tmp_path / value if value == "nowhere" else value for key, value in change.items()}
    with pytest.raises(error, match=says) as caught:
        export(out_dir=tmp_path / "out", **asked)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
