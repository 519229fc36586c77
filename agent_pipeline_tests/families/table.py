"""What each family of models goes through: docs/families.md is made from it.

python -m agent_pipeline_tests.families.table         # writes docs/families.md again
"""

import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ExportError
from agent_pipeline.export.gguf_export import export
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.families import read_reply
from agent_pipeline.models.tool_call_parsers import Call
from agent_pipeline.sessions.session import add_thoughts
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline_tests.families.templates import PHI_4_MINI, SMOLLM3, mistral
from agent_pipeline_tests.tiny import embedded_base
from agent_pipeline_tests.training.world import TOOL, row, train_adapter

DOC = Path(__file__).resolve().parents[2] / "docs" / "families.md"
ONE_STEP = TrainingConfig(
    max_steps=1,
    learning_rate=1e-2,
    batch_size=2,
    gradient_accumulation=1,
    max_length=1024,
    lora_r=4,
)
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2048, "tie_word_embeddings": True, "initializer_range": 0.15,
}  # fmt: skip
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
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜end▁of▁sentence｜>",
)
MISTRAL = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
           "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "</s>")  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A family: its template (a file of TRL's, a text of ours, None: SmolLM2's own), the special tokens of its turns, the last of which
    ends a text, the architecture of the tiny model, and vLLM's name of the parser for calls as its own template writes them."""

    name: str
    template: str | None
    specials: tuple[str, ...]
    model_type: str = "llama"
    config: dict[str, Any] = field(default_factory=dict)
    parser: str = "hermes"


SUBJECTS = [
    Subject("Qwen2.5", "qwen2_5.jinja", CHATML),
    Subject("Qwen3, thinking or not", "qwen3.jinja", CHATML, "qwen3"),
    Subject("Qwen3-2507, no thinking", "qwen3_instruct_2507.jinja", CHATML, "qwen3"),
    Subject("Qwen3.5, thinking", "qwen3_5_think.jinja", CHATML, "qwen3", parser="qwen3_coder"),
    Subject("Qwen3.5, no thinking", "qwen3_5_nothink.jinja", CHATML, "qwen3", parser="qwen3_coder"),
    Subject("Llama 3.1", "llama3_1.jinja", LLAMA3, parser="llama3_json"),
    Subject("Llama 3.2", "llama3_2.jinja", LLAMA3, parser="llama3_json"),
    Subject("Mistral 7B v0.3", mistral(" ", v7=False), MISTRAL, "mistral", parser="mistral"),
    Subject("Mistral Nemo", mistral("", v7=False), MISTRAL, "mistral", parser="mistral"),
    Subject("Mistral Small", mistral("", v7=True), MISTRAL, "mistral", parser="mistral"),
    Subject("Gemma 3", "gemma3.jinja", GEMMA3, "gemma3_text", {"sliding_window": 1024}),
    Subject("Phi-3.5", "phi3_5.jinja", PHI),
    Subject("Phi-4-mini", PHI_4_MINI, PHI),
    Subject("SmolLM2", None, CHATML),
    Subject("SmolLM3", SMOLLM3, CHATML, "smollm3"),
    Subject("gpt-oss", "gptoss.jinja", HARMONY, parser="openai"),
    Subject("DeepSeek V3", "deepseekv3.jinja", DEEPSEEK),
]


def make_base(subject: Subject, folder: Path) -> BaseModel:
    """A model of random weights in the family's architecture, with its turns' tokens in SmolLM2's vocabulary, which the converter knows."""
    import torch
    import trl
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(embedded_base().path)
    begin = next(
        (token for token in subject.specials if "begin" in token or token == "<bos>"), None
    )
    named = {"eos_token": subject.specials[-1]} | ({"bos_token": begin} if begin else {})
    tokenizer.add_special_tokens(named | {"additional_special_tokens": list(subject.specials)})
    if subject.template:
        shipped = Path(trl.__file__).parent / "chat_templates" / subject.template
        tokenizer.chat_template = (
            shipped.read_text(encoding="utf-8")
            if subject.template.endswith(".jinja")
            else subject.template
        )
    ids = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": 0,
    }
    config = AutoConfig.for_model(subject.model_type, **TINY | ids | subject.config)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return BaseModel(subject.name, folder, "")


THOUGHT_TEXT = "I have to look, then tell."


def thinking(of: dict[str, Any]) -> dict[str, Any]:
    """A row in which the agent thinks before each of its messages."""
    return of | {
        "messages": add_thoughts(
            of["messages"], [{"message": at, "text": THOUGHT_TEXT} for at in (2, 4)]
        )
    }


def line(subject: Subject, folder: Path) -> str:
    """The family's row of the table; raises where something that must hold does not."""
    base = make_base(subject, folder / "base")
    renderer = load_renderer(base.path)
    template = renderer.template
    rows = [thinking(row(number)) for number in range(4)]
    encoded, counts, first_dropped = encode_rows(
        renderer, rows, ONE_STEP.max_length
    )  # each mask is proved on its tokens
    assert not first_dropped and counts["dropped_share"] == 0, first_dropped
    assert counts["reasoning_trained" if template.reasoning else "reasoning_not_rendered"] == 8
    said = [
        renderer.decode(each.encoded.input_ids[start:end])
        for each in encoded
        for start, end in each.encoded.turns
    ]
    assert all((THOUGHT_TEXT in text) == bool(template.reasoning) for text in said), said
    asked = [
        Call("weather", {"city": city, "days": days})
        for city, days in (("Oslo", 1), ("Rome", 2), ("Bonn", 3), ("Lima", 4))
    ]
    found = [read_reply(text.removesuffix(template.stops[0]), [TOOL]) for text in said]
    assert [call for reply in found for call in reply.calls] == asked and not any(
        reply.invalid for reply in found
    ), said

    report = train_adapter(
        rows, base, ONE_STEP, folder / "adapter", heldout=[thinking(row(9, "test"))]
    )
    assert report["steps"] == 1 and report["heldout"]["before"] != report["heldout"]["after"]
    reloaded = load_renderer(folder / "adapter").template
    assert (reloaded.jinja, reloaded.prefix_preserving, reloaded.stops) == (
        template.jinja,
        template.prefix_preserving,
        template.stops,
    )
    try:
        parity = export(base, folder / "adapter", folder / "out", [thinking(row(9))], ("f16",), 8)[
            "template"
        ]["f16"]
        exported = f"{parity['texts']} texts, {parity['tokens']:,} tokens equal"
        assert not parity["line_ends"] and not parity["tools"], parity
    except ExportError as error:
        exported = f"**refused**: {re.sub(r'/[^ ]*/', '', str(error)).partition(': ')[0]}"
    rows_are = "the conversation" if template.prefix_preserving else "the turn"
    ends = ", ".join(f"`{stop}`".replace("|", "\\|") for stop in template.stops)
    origin = {"model": "its own", "hermes": "ours in ChatML"}.get(
        template.origin, "ours in its own turn markers"
    )
    source = (
        "TRL"
        if (subject.template or "").endswith(".jinja")
        else "documentation"
        if subject.template
        else "the model"
    )
    why = template.why.replace("|", "\\|")
    thoughts = "trained" if template.reasoning else "left out"
    parser = subject.parser if template.origin == "model" else "hermes"
    cells = [
        subject.name,
        source,
        subject.model_type,
        f"**{origin}**",
        rows_are,
        thoughts,
        ends,
        exported,
        f"`{parser}`",
        why,
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """# Families of models

Each family's chat template is given to a tiny model of random weights in the family's architecture. What the table says is done in the
test that makes it: the template is probed; four conversations are encoded, and the mask of each is proved on its tokens; the calls are
read back from the tokens; one step is trained; the adapter is saved, loaded, merged, converted to GGUF; llama.cpp's text and tokens of
a held-out conversation are compared with ours.

- *template from*: TRL ships copies of many models' templates; the others were written from their documentation. The vocabulary is
  SmolLM2's with the family's special tokens: what a family's own tokenizer does beyond that is not tested here. `make demo` does the same
  with the real SmolLM2.
- *architecture*: `llama` where the family's own cannot be made tiny in that vocabulary (the converters of Phi and Qwen2 want
  their own tokenizers; Qwen3.5, gpt-oss and DeepSeek are other architectures).
- *trained with*: a template that loses something (tools, say) is not used, and which one is used is said in `training.json` and
  in the asset's metadata.
- *a row is the turn*: the template shows the past otherwise than it was said, so each turn is trained as it is asked when the model is
  served. Prefix trees share what the turns share.
- *recorded thoughts*: with `sft_dataset.reasoning = true`, thoughts that sessions recorded are trained where the template shows one before
  a turn, right after the prompt; else they are counted as `reasoning_not_rendered`.
- *parser in vLLM*: what `--tool-call-parser` must be, so that vLLM reads the calls of a model that was trained with this template. A model
  that is trained with ours needs `hermes`, whatever its family. The names are vLLM's; they were not run here.
- *arguments as text*: llama.cpp rounds the numbers of a call when it shows the call again, if a template takes the call's arguments as an
  object. Our template, and every other one that can be changed to take text, is given text in llama.cpp, and nothing is rounded. A
  template that reads single arguments (Qwen3.5) needs objects: there training shows earlier calls as llama.cpp does, and then each turn
  of such a row is a row. The call that is trained keeps its digits.
- Dates that a template writes are always 26 Jul 2024, also in the exported file: a model trained on one day's prompt is served with the
  same. Tell an agent the date in its own system message.
- A row that a template refuses (parallel calls in Llama 3, a greeting first in Mistral, words beside a call where the template drops
  them) is counted and left out.

Written by `python -m agent_pipeline_tests.families.table`.

| family | template from | architecture | trained with | a row is | recorded thoughts | stop tokens \
| in llama.cpp | parser in vLLM | verdict of the probe |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Write docs/families.md."""
    lines = []
    for subject in SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(line(subject, Path(folder)))
            print(lines[-1], file=sys.stderr)
    DOC.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
