"""The families whose templates are tried, and a tokenizer for each of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline_tests.families.templates import FUNCTION_GEMMA, SMOLLM3, mistral
from agent_pipeline_tests.tiny import embedded_base

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGIN_TOKENS = ("<bos>", "<|startoftext|>")
"""Tokens that begin a text and whose names do not have the word."""

CHATML = ("<|im_start|>", "<|im_end|>")
LLAMA3 = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|eot_id|>",
)
GEMMA3 = ("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>")
PHI = (
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|/tool|>",
    "<|end|>",
    "<|endoftext|>",
)
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
PHI_4 = ("<|im_start|>", "<|im_sep|>", "<|im_end|>")
GRANITE = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
FUNCTIONGEMMA = (
    "<bos>",
    "<start_of_turn>",
    "<start_function_declaration>",
    "<end_function_declaration>",
    "<start_function_call>",
    "<end_function_call>",
    "<start_function_response>",
    "<end_function_response>",
    "<escape>",
    "<end_of_turn>",
)
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜end▁of▁sentence｜>",
)
LFM2 = (
    "<|startoftext|>",
    "<|im_start|>",
    "<|tool_list_start|>",
    "<|tool_list_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_response_start|>",
    "<|tool_response_end|>",
    "<|im_end|>",
)
LFM2_5 = (
    "<|startoftext|>",
    "<|im_start|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|im_end|>",
)
GEMMA4 = ("<bos>", "<|turn>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
          '<|"|>', "<|channel>", "<channel|>", "<turn|>")  # fmt: skip
MISTRAL = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
           "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "</s>")  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A family: its template (a file of TRL's or of `shipped`, a text of ours, None: SmolLM2's own), the special tokens of its turns, the last of which
    ends a text, the architecture of the tiny model, vLLM's name of the parser for calls as its own template writes them, and the
    layers of the real model: a key of `TINY_LAYERS`."""

    name: str
    template: str | None
    specials: tuple[str, ...]
    model_type: str = "llama"
    config: dict[str, Any] = field(default_factory=dict)
    parser: str = "hermes"
    layers: str = "llama"


SUBJECTS = [
    Subject("Qwen2.5", "qwen2_5.jinja", CHATML, layers="qwen2"),
    Subject("Qwen3, thinking or not", "qwen3.jinja", CHATML, "qwen3", layers="qwen3"),
    Subject(
        "Qwen3-2507, no thinking", "qwen3_instruct_2507.jinja", CHATML, "qwen3", layers="qwen3"
    ),
    Subject(
        "Qwen3.5, thinking",
        "qwen3_5_think.jinja",
        CHATML,
        "qwen3",
        parser="qwen3_coder",
        layers="qwen3_5",
    ),
    Subject(
        "Qwen3.5, no thinking",
        "qwen3_5_nothink.jinja",
        CHATML,
        "qwen3",
        parser="qwen3_coder",
        layers="qwen3_5",
    ),
    Subject("Llama 3.1", "llama3_1.jinja", LLAMA3, parser="llama3_json"),
    Subject("Llama 3.2", "llama3_2.jinja", LLAMA3, parser="llama3_json"),
    Subject(
        "Mistral 7B v0.3",
        mistral(" ", v7=False),
        MISTRAL,
        "mistral",
        parser="mistral",
        layers="mistral",
    ),
    Subject(
        "Mistral Nemo",
        mistral("", v7=False),
        MISTRAL,
        "mistral",
        parser="mistral",
        layers="mistral",
    ),
    Subject(
        "Mistral Small",
        mistral("", v7=True),
        MISTRAL,
        "mistral",
        parser="mistral",
        layers="mistral",
    ),
    Subject(
        "Gemma 3", "gemma3.jinja", GEMMA3, "gemma3_text", {"sliding_window": 1024}, layers="gemma3"
    ),
    Subject("Phi-3.5", "phi3_5.jinja", PHI, layers="phi3_long"),
    Subject("Phi-4-mini", "shipped/phi_4_mini.jinja", PHI, layers="phi3_long"),
    Subject("SmolLM2", None, CHATML),
    Subject("SmolLM3", SMOLLM3, CHATML, "smollm3", layers="smollm3"),
    Subject("gpt-oss", "gptoss.jinja", HARMONY, parser="openai", layers="gpt_oss"),
    Subject("DeepSeek V3", "deepseekv3.jinja", DEEPSEEK, layers="deepseek_v3"),
    Subject("LFM2", "lfm2_v2.jinja", LFM2, parser="lfm2", layers="lfm2"),
]
"""The families that docs/reference/model-families.md lists with a training run."""

MORE_SUBJECTS = [
    Subject("Phi-4", "shipped/phi_4.jinja", PHI_4, layers="phi3"),
    Subject("DeepSeek V3.1", "shipped/deepseek_v3_1.jinja", DEEPSEEK, layers="deepseek_v3"),
    Subject("LFM2.5", "lfm2_2_5_v2.jinja", LFM2_5, parser="lfm2", layers="lfm2"),
    Subject("Gemma 4", "gemma4_v5.jinja", GEMMA4, parser="gemma4", layers="gemma4"),
    Subject(
        "FunctionGemma", FUNCTION_GEMMA, FUNCTIONGEMMA, parser="functiongemma", layers="gemma3"
    ),
    Subject("Granite 4", "shipped/granite_4.jinja", GRANITE, parser="hermes", layers="granite4"),
]
"""Families whose calls are read back, without a training run."""

ALL_SUBJECTS = [*SUBJECTS, *MORE_SUBJECTS]


def read_template(subject: Subject) -> str:
    """Return the text of a family's template: TRL's copy, a copy in `shipped`, or a text of ours."""
    import trl

    template = subject.template or ""
    if template.startswith("shipped/"):
        return (Path(__file__).parent / template).read_text(encoding="utf-8")
    if template.endswith(".jinja"):
        shipped = Path(trl.__file__).parent / "chat_templates" / template
        return shipped.read_text(encoding="utf-8")
    return template


def make_tokenizer(subject: Subject) -> "PreTrainedTokenizerBase":
    """Return SmolLM2's tokenizer with a family's special tokens and chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_base().path)
    begin = next(
        (token for token in subject.specials if "begin" in token or token in BEGIN_TOKENS), None
    )
    named = {"eos_token": subject.specials[-1]} | ({"bos_token": begin} if begin else {})
    tokenizer.add_special_tokens(named | {"additional_special_tokens": list(subject.specials)})
    if subject.template:
        tokenizer.chat_template = read_template(subject)
    return tokenizer
