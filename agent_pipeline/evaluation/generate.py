"""Greedy answers of a model in memory to many prompts, fast enough for two CPU cores.

Three things make it so: prompts of a batch share the computation of what they have in common (the system prompt and the
tools, most of an agent's prompt); a sequence leaves the batch as soon as it has stopped; and each sequence has a limit of its
own, so that an untrained model that rambles does not ramble to the longest limit of all.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from agent_pipeline.progress import Progress, silent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH = 16


def generate(
    model: "PreTrainedModel",
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    stops: Collection[int],
    progress: Progress = silent,
    text: str = "turns answered",
    batch: int = BATCH,
) -> list[list[int]]:
    """The tokens that the model adds to each prompt, by greedy choice, in the order of the prompts.

    `limits[i]`: the most new tokens of prompt i. A token in `stops` ends an answer and is not part of it. Peak memory: the
    keys and values of `batch` prompts.
    """
    import torch

    answers: list[list[int]] = [[] for _ in prompts]
    # Alike limits stop together, alike lengths need little padding.
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), limits[i], i))
    for start in range(0, len(order), batch):
        group = order[start : start + batch]
        with torch.inference_mode():
            _generate_batch(model, [prompts[i] for i in group], [limits[i] for i in group], stops, [answers[i] for i in group])
        progress(start + len(group), len(prompts), text)
    return answers


def shared_prefix(prompts: Sequence[list[int]]) -> int:
    """How many tokens all prompts begin with alike, leaving each at least one of its own (to predict from)."""
    low, high = min(prompts), max(prompts)  # in dictionary order: what these two share, all share
    limit = min(map(len, prompts)) - 1
    return next((i for i in range(limit) if low[i] != high[i]), limit)


def _generate_batch(
    model: "PreTrainedModel",
    prompts: list[list[int]],
    limits: list[int],
    stops: Collection[int],
    answers: list[list[int]],
) -> None:
    """Fill `answers` (one list a prompt). The layout is: what all share, padding, what is a prompt's own, its answer."""
    import torch
    from transformers import DynamicCache

    shared = shared_prefix(prompts)
    own = [prompt[shared:] for prompt in prompts]
    width = max(map(len, own))
    ids = torch.tensor([[0] * (width - len(part)) + part for part in own], device=model.device)
    mask = torch.tensor([[1] * shared + [0] * (width - len(part)) + [1] * len(part) for part in own], device=model.device)
    # Positions count real tokens only, so padding in the middle does not move what follows it.
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    cache = DynamicCache()
    if shared:
        prefix = torch.tensor([prompts[0][:shared]], device=model.device)
        model(input_ids=prefix, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(len(prompts))

    def best_next(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The likeliest token after `ids` (batch, length), whose keys and values join the cache; shape (batch,)."""
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].argmax(-1)

    alive = list(range(len(prompts)))
    chosen, last = best_next(ids, positions[:, shared:]), positions[:, -1:]
    while True:
        goes_on = []
        for line, token in enumerate(chosen.tolist()):
            if token not in stops:
                answers[alive[line]].append(token)
                if len(answers[alive[line]]) < limits[alive[line]]:
                    goes_on.append(line)
        if not goes_on:
            return
        if len(goes_on) < len(alive):
            keep = torch.tensor(goes_on, device=model.device)
            alive = [alive[line] for line in goes_on]
            cache.batch_select_indices(keep)
            chosen, mask, last = chosen[keep], mask[keep], last[keep]
        last = last + 1
        mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=-1)
        chosen = best_next(chosen[:, None], last)
