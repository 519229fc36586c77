"""The test of each model family, and the page docs/reference/model-families.md that shows the results.

python -m agent_pipeline_tests.families.table         # writes docs/reference/model-families.md
python -m agent_pipeline_tests.families.table --calls # writes only the table of tool calls, without training
"""

import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from agent_pipeline.engine.tree_support import explain_row_by_row
from agent_pipeline.errors import ExportError
from agent_pipeline.export.gguf_export import ExportOptions, ExportRows, export
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.chat_templates import choose_template
from agent_pipeline.models.families import find_family, parse_reply
from agent_pipeline.models.tool_call_parsers import ParsedCall
from agent_pipeline.sessions.session import Message, add_thoughts
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline_tests.engine.test_hybrid_trees import FAMILIES, Family, tiny
from agent_pipeline_tests.families.subjects import (
    ALL_SUBJECTS,
    SUBJECTS,
    Subject,
    make_tokenizer,
)
from agent_pipeline_tests.families.trl_comparison import trl_line
from agent_pipeline_tests.training.world import TOOL, call, row, train_adapter

DOC = Path(__file__).resolve().parents[2] / "docs" / "reference" / "model-families.md"
ONE_STEP = TrainingConfig(
    max_steps=1,
    learning_rate=1e-2,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=1,
    max_length=1024,
    lora_r=4,
)
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2048, "tie_word_embeddings": True, "initializer_range": 0.15,
}  # fmt: skip


def make_base(subject: Subject, folder: Path) -> BaseModel:
    """A model of random weights in the family's architecture, with its turns' tokens in SmolLM2's vocabulary, which the converter knows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    tokenizer = make_tokenizer(subject)
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
        ParsedCall("weather", {"city": city, "days": days})
        for city, days in (("Oslo", 1), ("Rome", 2), ("Bonn", 3), ("Lima", 4))
    ]
    found = [parse_reply(text.removesuffix(template.stops[0]), [TOOL]) for text in said]
    assert [call for reply in found for call in reply.calls] == asked and not any(
        reply.invalid for reply in found
    ), said

    report = train_adapter(
        rows, base, ONE_STEP, folder / "adapter", heldout=[thinking(row(9, "test"))]
    )
    assert report.steps == 1 and report.heldout["before"] != report.heldout["after"]
    reloaded = load_renderer(folder / "adapter").template
    assert (reloaded.jinja, reloaded.prefix_preserving, reloaded.stops) == (
        template.jinja,
        template.prefix_preserving,
        template.stops,
    )
    try:
        compared = ExportRows([thinking(row(9))])
        options = ExportOptions(outtypes=("f16",), max_new_tokens=8)
        exported_files = export(base, folder / "adapter", folder / "out", compared, options)
        parity = exported_files.template["f16"]
        exported = f"{parity.texts} texts and {parity.tokens:,} tokens are equal"
        assert not parity.line_ends and not parity.tools, parity
    except ExportError as error:
        exported = f"**refused**: {re.sub(r'/[^ ]*/', '', str(error)).partition(': ')[0]}"
    rows_are = "conversation" if template.prefix_preserving else "turn"
    ends = ", ".join(f"`{stop}`".replace("|", "\\|") for stop in template.stops)
    origin = {"model": "the model's own", "hermes": "ours, in ChatML"}.get(
        template.origin, "ours, in the family's turn markers"
    )
    source = source_of(subject)
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


def source_of(subject: Subject) -> str:
    """Where the template of a family comes from."""
    template = subject.template or ""
    if template.startswith("shipped/"):
        return "GGUF"
    if template.endswith(".jinja"):
        return "TRL"
    return "documentation" if template else "the model"


HEAD = """# Model families

This page lists the chat templates that were tested, and the template with which each family is
trained. The guide [Choose a base model](../how-to/base-model.md) explains the choice.

Each row in the section [Templates](#templates) is the result of a test with a tiny model that has
random weights and the family's chat template. The test runs the same steps as the pipeline:

1. Check whether the template loses anything, such as tools or tool calls.
2. Encode four conversations, and verify the loss mask of each conversation on its tokens.
3. Parse the tool calls from the tokens.
4. Train one step; save, load and merge the adapter; and convert the merged model to GGUF.
5. Compare the prompt text and tokens of a held-out conversation in llama.cpp and in training.

| column | meaning |
|---|---|
| template source | `TRL` if TRL contains a copy of the model's template; `GGUF` if it is the template of the model's GGUF file, from the npm package `@huggingface/ollama-utils`; `the model` if it is the template of the installed model; `documentation` if no package contains the template, so we wrote it from the model's documentation |
| architecture | the architecture of the test model; `llama` replaces architectures that cannot be made tiny with the test's vocabulary |
| template used | the model's own template; or our template (with the tool calls of Hermes 2 Pro), if the model's own template loses something |
| training row | `turn` if the template is not prefix-preserving; each turn is then trained with the prompt that a server would send |
| recorded thoughts | whether thoughts are trained if `sft_dataset.reasoning` is `true` |
| stop tokens | the tokens that end a turn of the assistant |
| llama.cpp | the texts and tokens that are equal in llama.cpp and in training |
| vLLM parser | the value of vLLM's option `--tool-call-parser` for this template; not tested with vLLM |
| reason | the reason why the template is used, and the changes in it |

All tests use the vocabulary of SmolLM2 with the special tokens of the family. The tokenizers of the
other families are not tested.

Four rules apply to all families:

- **Numbers in earlier calls.** If a template takes the arguments of calls as text, llama.cpp shows
  the numbers of earlier calls unchanged. If a template takes the arguments as objects (Qwen3.5),
  llama.cpp rounds the numbers of earlier calls, and the training prompts contain the same rounded
  numbers. A call that the model learns to write keeps all its digits.
- **Dates.** If a template writes today's date, the date is always 26 July 2024, in training and in
  the exported file. Write the real date into the agent's system prompt.
- **Dropped rows.** If a template cannot render a row, the row is dropped and counted. For example,
  Llama 3 cannot render parallel calls, and Mistral cannot render a greeting before the first user
  message.
- **Words before a call.** Some templates drop the words that the model writes before a call.

## Templates

| family | template source | architecture | template used | training row | recorded thoughts | stop tokens | llama.cpp | vLLM parser | reason |
|---|---|---|---|---|---|---|---|---|---|
"""

CALLS_HEAD = """
## Tool calls

This table shows a call as the template in use writes it, with `⏎` for a line break. A test renders
calls with nested arguments, quotes, Unicode, marks of other notations, several calls and words
before the calls. The parser must read exactly the rendered calls back. A call that is cut off is
never read as another call.

A row whose calls cannot be read back is dropped and counted (`dropped_not_proven`). For example,
Qwen3.5 writes a text between tags, so it cannot write a text that contains
`</parameter><parameter=days>`.

The column "family" shows the family that the model's own chat template names. `by config` means
that several families have such templates. For `by config`, `model_type` and `architectures` in the
model's `config.json` determine the family. The template is checked first, because models of
different families can have the same architecture. For example, DeepSeek-R1-Distill has the
architecture of Qwen2.5.

The column "trees" shows whether a tiny model with the layers of the real model is trained and
evaluated with [shared prefixes](../explanation/training.md#trees-of-prefixes), or row by row. Every
call in this table is read by our parsers; no model needs a `response_template`.

| model | template source | family | template used | trees | a call |
|---|---|---|---|---|---|
"""

TRL_HEAD = """
## Compared with TRL

TRL also has functions that check a chat template, for example whether the template is
prefix-preserving. The table shows why the pipeline uses its own functions instead of TRL's
functions. "Refused" means that TRL does not support the template.

| question | TRL | this pipeline |
|---|---|---|
| Does the template render tool calls? | `supports_tool_calling` | also checks that the template renders the tools, which DeepSeek V3's template drops; uses call ids that Mistral's templates accept |
| Is the template prefix-preserving? | `is_chat_template_prefix_preserving` adds a tool result to a call | also adds a user message and an answer, because Qwen3.5 and gpt-oss change earlier turns only then |
| Is the stop token trained? | `is_chat_template_stop_token_trained`, with TRL's own training template | verifies the loss mask on the tokens of each row |
| Can replies be parsed? | `parse_response`, which supports only unchanged templates | parses our template and changed templates too |

If the answer for *prefix-preserving* were wrongly "yes", the model would be trained on prompts that
a server never sends. A dash in the next table means that the pipeline does not use the family's own
template.

The last three columns count replies that were parsed correctly, of seven replies that the template
wrote. For families without parallel calls or without words before a call, fewer replies were
tested. The template of gpt-oss writes words before a call as a thought, and writes only the first
of two calls. A row with two calls is therefore dropped for gpt-oss.

| family | renders calls: TRL | ours | prefix-preserving: TRL | ours | trains stop token: TRL | ours | parsed: TRL, unchanged template | parsed: TRL, our changes | parsed: ours |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Write docs/reference/model-families.md; with `--calls`, only the table of tool calls."""
    lines, _, trl_lines = read_page()
    if "--calls" not in sys.argv:
        lines = []
        for subject in SUBJECTS:
            with tempfile.TemporaryDirectory() as folder:
                lines.append(line(subject, Path(folder)))
                print(lines[-1], file=sys.stderr)
        trl_lines = [trl_line(subject) for subject in SUBJECTS]
    write_page(lines, [call_line(subject) for subject in ALL_SUBJECTS], trl_lines)


LONG_ROTATIONS = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 32,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 3}  # fmt: skip
TINY_LAYERS = FAMILIES | {
    "phi3": Family("phi3"),
    "phi3_long": Family("phi3", {"rope_parameters": LONG_ROTATIONS}),
    "gpt_oss": Family("gpt_oss", EXPERTS),
    "deepseek_v3": Family("deepseek_v3", LATENT),
}
"""Tiny models with the layers of the families; of any other name, `transformers` knows the layers."""


@cache
def explain_trees(layers: str) -> str:
    """Whether rows are read as trees of prefixes, and why they are not."""
    model = tiny(TINY_LAYERS.get(layers, Family(layers)))
    reason = explain_row_by_row(model, 64)
    return f"no: {reason}" if reason else "yes"


def call_line(subject: Subject) -> str:
    """A family's row of the table of tool calls."""
    tokenizer = make_tokenizer(subject)
    family = find_family(chat_template=tokenizer.chat_template or "")
    renderer = ChatRenderer(tokenizer, choose_template(tokenizer))
    question = row(0)["messages"][:2]
    turn: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("weather", {"city": "Oslo", "days": 2})],
    }
    prompt = renderer.render(question, [TOOL], add_generation_prompt=True)
    text = renderer.render([*question, turn], [TOOL])[len(prompt) :].strip()
    text = text.replace("\n", "⏎").replace("|", "\\|")
    used = "own" if renderer.template.origin == "model" else "ours"
    cells = [
        subject.name,
        source_of(subject),
        family.name if family else "by config",
        used,
        explain_trees(subject.layers),
        f"`{text}`",
    ]
    return f"| {' | '.join(cells)} |"


def write_page(lines: list[str], call_lines: list[str], trl_lines: list[str]) -> None:
    """Write docs/reference/model-families.md from the rows of its three tables."""
    tables = ((HEAD, lines), (CALLS_HEAD, call_lines), (TRL_HEAD, trl_lines))
    text = "".join(head + "\n".join(rows) + "\n" for head, rows in tables)
    DOC.write_text(text, encoding="utf-8")


def read_page() -> list[list[str]]:
    """The rows of the page's three tables."""
    text = DOC.read_text(encoding="utf-8")
    families, _, trl_families = text.partition(TRL_HEAD)
    families, _, calls = families.partition(CALLS_HEAD)
    assert families.startswith(HEAD)
    return [part.splitlines() for part in (families.removeprefix(HEAD), calls, trl_families)]


if __name__ == "__main__":
    main()
