"""What each family of models goes through: docs/reference/model-families.md is made from it.

python -m agent_pipeline_tests.families.table         # writes docs/reference/model-families.md again
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent_pipeline.errors import ExportError
from agent_pipeline.export.gguf_export import export
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.families import parse_reply
from agent_pipeline.models.tool_call_parsers import ParsedCall
from agent_pipeline.sessions.session import add_thoughts
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline_tests.families.subjects import SUBJECTS, Subject, make_tokenizer
from agent_pipeline_tests.families.trl_comparison import trl_line
from agent_pipeline_tests.training.world import TOOL, row, train_adapter

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

This page shows which chat templates can be trained, and with which template each family is trained.

Each row is a test. The test gives a family's chat template to a tiny model of random weights in the
family's architecture, and then does what the pipeline does: it probes the template, encodes four
conversations, and proves the mask of each on its tokens. It reads the calls back from the tokens, and
trains one step. It saves, loads and merges the adapter, and converts it to GGUF. At last it compares
llama.cpp's text and tokens of a held-out conversation with ours.

- *template from*: TRL ships copies of many models' templates. The others were written from their
  documentation. The vocabulary is SmolLM2's with the family's special tokens, so what a family's own
  tokenizer does beyond that is not tested here. `make demo` does the same with the real SmolLM2.
- *architecture*: `llama` if the family's own architecture cannot be made tiny in that vocabulary. The
  converters of Phi and Qwen2 need their own tokenizers. Qwen3.5, gpt-oss and DeepSeek are other
  architectures.
- *trained with*: a template that loses something (tools, for example) is not used. `training.json` and
  the asset's metadata name the template that is used.
- *a row is the turn*: the template is not prefix-preserving, so each turn is trained as the model is
  prompted when it is served. Prefix trees compute once what the turns share.
- *recorded thoughts*: with `sft_dataset.reasoning = true`, recorded thoughts are trained if the template
  shows a thought right after the prompt. Otherwise they are counted as `reasoning_not_rendered`.
- *parser in vLLM*: the value of `--tool-call-parser` with which vLLM reads the calls of a model that was
  trained with this template. A model that is trained with ours needs `hermes`, whatever its family. The
  names are vLLM's; they were not run here.
- *arguments as text*: if a template takes a call's arguments as an object, llama.cpp rounds the numbers of
  the call when it shows the call again. Our template, and every template that can be changed to take text,
  is given text in llama.cpp, and nothing is rounded. A template that reads single arguments (Qwen3.5)
  needs objects. There, training shows earlier calls as llama.cpp does, and each turn of such a row is a
  row. The call that is trained keeps its digits.
- Dates that a template writes are always 26 Jul 2024, also in the exported file, so that a model is served
  with the prompt that it was trained on. Write the real date into the agent's system message.
- A row that a template refuses is counted and dropped. Llama 3 refuses parallel calls, and Mistral refuses
  a greeting before the user's message. A template may also drop words beside a call.

Written by `python -m agent_pipeline_tests.families.table`.

| family | template from | architecture | trained with | a row is | recorded thoughts | stop tokens \\
| in llama.cpp | parser in vLLM | verdict of the probe |
|---|---|---|---|---|---|---|---|---|---|
"""

TRL_HEAD = """
## Compared with TRL's functions

TRL has functions for the same questions. This table shows why the pipeline keeps its own.

- *renders calls*: TRL's `supports_tool_calling`, and our probe without a defect. DeepSeek V3's template
  drops the tools, which TRL does not look for. Mistral's templates accept only ids of nine letters and
  digits, which TRL's probe does not use.
- *prefix-preserving*: TRL's `is_chat_template_prefix_preserving` adds one tool result to a call. Our probe
  also adds a user's message and an answer, which is where Qwen3.5 and gpt-oss change earlier turns. A wrong
  "yes" would train turns that the model never sees when it is served. "—" means that the template is not
  used.
- *trains the stop token*: TRL's `is_chat_template_stop_token_trained` on TRL's training template for the
  family, and our mask, which is proven on the tokens of each row.
- *parses replies*: seven turns (five, if the family has no parallel calls and no words before a call) that
  a template writes, read back from their tokens. TRL's `parse_response` and the `response_template` of
  transformers know the exact text of a stock template. They refuse a template after the changes that
  servers need, and they refuse ours. gpt-oss's template writes words before a call as a thought, and only
  the first of two calls; the mask refuses a row with two calls.

| family | renders calls: TRL | ours | prefix-preserving: TRL | ours | trains the stop token: TRL | ours \\
| parses replies: TRL, stock template | TRL, trained template | ours, trained template |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Write docs/reference/model-families.md."""
    lines: list[str] = []
    for subject in SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(line(subject, Path(folder)))
            print(lines[-1], file=sys.stderr)
    trl_lines = [trl_line(subject) for subject in SUBJECTS]
    write_page(lines, trl_lines)


def write_page(lines: list[str], trl_lines: list[str]) -> None:
    """Write docs/reference/model-families.md from the rows of its two tables."""
    text = HEAD + "\n".join(lines) + "\n" + TRL_HEAD + "\n".join(trl_lines) + "\n"
    DOC.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
