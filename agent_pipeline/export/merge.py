"""Merging of an adapter into its base model, with a check that the merged model's logits equal the
trained model's.

All weights are computed and stored in float32, because a LoRA update is small and would partly be
lost if it was rounded to bfloat16.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline.errors import ExportError
from agent_pipeline.export.report import MergeLogits
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import exact_device
from agent_pipeline.models.loading import load_model

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

MERGE_TOLERANCE = 2e-3
"""Largest logit difference between the merged model and the adapter that floating-point arithmetic
explains. SmolLM2 in float32 gives about 1e-4.
"""

POSITIONS = 32
"""Number of compared positions per prompt. With 49,152 logits per position, the whole prompts of
three models would need a gigabyte.
"""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def merge_adapter(
    base: BaseModel, adapter_dir: Path, out_dir: Path, prompts: list[list[int]]
) -> MergeLogits:
    """Write the merged model as a Hugging Face folder (safetensors, and the adapter's tokenizer
    with the training template).

    Args:
        base: The base model.
        adapter_dir: The folder of the adapter.
        out_dir: The folder to write.
        prompts: The token ids of prompts on which the logits of the base model, the adapter and the
            merged model are compared.

    Returns:
        The largest absolute differences at the last positions of the prompts, and the tolerance.

    Raises:
        ModelError: The base model or the adapter cannot be loaded.
        ExportError: The merged model's logits differ from the adapter's, or they equal the base
            model's.
    """
    import torch

    if not any(prompts):
        raise ExportError(
            "The merged model cannot be checked without prompts: give at least one held-out "
            "conversation to the export."
        )
    model = load_model(base, exact_device(), adapter_dir)
    with torch.inference_mode():
        with model.disable_adapter():
            of_base = [_logits(model, prompt) for prompt in prompts]
        of_adapter = [_logits(model, prompt) for prompt in prompts]
        merged = model.merge_and_unload(safe_merge=True)
        of_merged = [_logits(merged, prompt) for prompt in prompts]
    from_adapter, from_base = _largest(of_merged, of_adapter), _largest(of_merged, of_base)
    # Not `>`, because NaN must not pass.
    if not from_adapter <= MERGE_TOLERANCE:
        raise ExportError(
            f"The model merged with {adapter_dir} differs from the adapter (the logits differ by "
            f"up to {from_adapter:.2g}, and at most {MERGE_TOLERANCE:g} is allowed): check that "
            f"the adapter was trained on {base.path}."
        )
    if from_base <= 2 * from_adapter:
        raise ExportError(
            f"The adapter {adapter_dir} does not change the base model (the merged and base "
            f"logits differ by {from_base:.2g}): train for more steps or with a higher learning "
            "rate."
        )
    _save(merged, base.path, adapter_dir, out_dir)
    return MergeLogits(
        prompts=len(prompts),
        tokens=sum(map(len, prompts)),
        merged_vs_adapter=from_adapter,
        merged_vs_base=from_base,
        tolerance=MERGE_TOLERANCE,
    )


def _save(merged: "PreTrainedModel", base_path: Path, adapter_dir: Path, out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    merged.save_pretrained(out_dir)
    # Each file comes from the adapter, which has the training template. Missing files (such as
    # tokenizer.model) come from the base model.
    for name in TOKENIZER_FILES:
        source = next(
            (folder / name for folder in (adapter_dir, base_path) if (folder / name).is_file()),
            None,
        )
        if source:
            shutil.copyfile(source, out_dir / name)


def _logits(model: "PreTrainedModel", prompt: list[int]) -> "torch.Tensor":
    """Return the float32 logits (positions, vocabulary) at the last positions of a prompt. These
    logits depend on all earlier positions, too.
    """
    import torch

    return (
        model(input_ids=torch.tensor([prompt]), use_cache=False, logits_to_keep=POSITIONS)
        .logits[0]
        .float()
        .clone()
    )


def _largest(a: list["torch.Tensor"], b: list["torch.Tensor"]) -> float:
    return float(max((x - y).abs().max().item() for x, y in zip(a, b, strict=True)))
