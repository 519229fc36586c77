"""The family of a model is chosen by its chat template and its config, not by one token."""

import pytest

from agent_pipeline.models.families import find_family
from agent_pipeline_tests.families.subjects import ALL_SUBJECTS, read_template
from agent_pipeline_tests.families.table import call_line, read_page

TEMPLATES = {subject.name: read_template(subject) for subject in ALL_SUBJECTS}


@pytest.mark.parametrize(
    ("model_type", "architecture", "template", "family"),
    [
        ("qwen2", "Qwen2ForCausalLM", "Qwen2.5", "hermes"),
        ("qwen3", "Qwen3ForCausalLM", "Qwen3, thinking or not", "hermes"),
        ("qwen3_5", "Qwen3_5ForConditionalGeneration", "Qwen3.5, thinking", "qwen3.5"),
        ("qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3.5, no thinking", "qwen3.5"),
        ("llama", "LlamaForCausalLM", "SmolLM2", "llama"),
        ("smollm3", "SmolLM3ForCausalLM", "SmolLM3", "hermes"),
        ("llama", "LlamaForCausalLM", "Llama 3.2", "llama"),
        ("mistral", "MistralForCausalLM", "Mistral Nemo", "mistral"),
        ("mistral3", "Mistral3ForConditionalGeneration", "Mistral Small", "mistral"),
        ("gemma3_text", "Gemma3ForCausalLM", "Gemma 3", "gemma"),
        ("gemma3_text", "Gemma3ForCausalLM", "FunctionGemma", "functiongemma"),
        ("gemma4", "Gemma4ForConditionalGeneration", "Gemma 4", "gemma4"),
        ("phi3", "Phi3ForCausalLM", "Phi-4-mini", "phi"),
        ("phi3", "Phi3ForCausalLM", "Phi-4", "phi4"),
        ("gpt_oss", "GptOssForCausalLM", "gpt-oss", "gpt-oss"),
        ("deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek V3.1", "deepseek"),
        ("lfm2", "Lfm2ForCausalLM", "LFM2", "lfm2"),
        ("lfm2", "Lfm2ForCausalLM", "LFM2.5", "lfm2"),
        ("granitemoehybrid", "GraniteMoeHybridForCausalLM", "Granite 4", "granite"),
        # Models whose architecture is that of another family.
        ("qwen2", "Qwen2ForCausalLM", "DeepSeek V3", "deepseek"),
        ("llama", "LlamaForCausalLM", "DeepSeek V3", "deepseek"),
        ("mistral", "MistralForCausalLM", "Llama 3.1", "llama"),
        # Models whose config says nothing that we know.
        ("", "", "LFM2.5", "lfm2"),
        ("unheard_of", "UnheardOfForCausalLM", "Qwen3.5, thinking", "qwen3.5"),
    ],
)
def test_family_of_a_model(model_type, architecture, template, family) -> None:
    found = find_family((), model_type, [architecture], TEMPLATES[template])
    assert found and found.name == family


def test_template_of_smollm2_and_its_stop_token() -> None:
    """SmolLM2 is a Llama that ends its turns as ChatML does."""
    found = find_family(["<|im_end|>"], "llama", ["LlamaForCausalLM"], TEMPLATES["SmolLM2"])
    assert found and found.name == "hermes"


def test_architectures_without_a_model_type() -> None:
    for architecture, family in (
        ("GraniteMoeHybridForCausalLM", "granite"),
        ("Qwen3_5MoeForConditionalGeneration", "qwen3.5"),
        ("Gemma3nForConditionalGeneration", "gemma"),
        ("MambaForCausalLM", None),
    ):
        found = find_family(architectures=[architecture])
        assert (found and found.name) == family


@pytest.mark.parametrize("subject", ALL_SUBJECTS, ids=lambda subject: subject.name)
def test_calls_as_the_page_shows_them(subject) -> None:
    """python -m agent_pipeline_tests.families.table writes the page."""
    assert call_line(subject) in read_page()[1]
