"""Texts as the base model sees them: the mean of its last hidden layer over a text's tokens.

Ivison et al. 2025 (RDS+, arXiv 2503.01807) choose by weighted means of hidden states and find nothing better at scale; this mean has equal
weights. The model is the one that will be trained, so no other is fetched.
"""

from collections.abc import Sequence

import numpy as np

from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.embeddings import HIDDEN_STATES, Encoder, unit

BATCH_TOKENS = 2048
"""Tokens of a batch, padding included: keeps the memory of a forward pass flat whatever the texts' lengths."""


def hidden_state_encoder(base: BaseModel, progress: Progress = silent) -> Encoder:
    """The base model as an encoder; the model is loaded when a text is there that has no vector yet."""
    return Encoder(
        {"form": f"{HIDDEN_STATES} 1", "revision": base.revision},
        lambda texts: hidden_states(texts, base, progress),
    )


def hidden_states(texts: Sequence[str], base: BaseModel, progress: Progress = silent) -> np.ndarray:
    """(n, d) float32 of length one (zero for a text without tokens), d the model's hidden size.

    A text is read in windows of at most `BATCH_TOKENS` tokens, none left out. Before each stands the model's first special token, which is
    no part of the mean: a model keeps its spare attention at the first place, whatever stands there (attention sinks, Xiao et al. 2024,
    arXiv 2309.17453). Raises ModelError.
    """
    import torch

    renderer = load_renderer(base.path, base.trust_remote_code)
    tokenizer = renderer.tokenizer
    model = load_model(base, probe_device())
    body = getattr(model, model.base_model_prefix)
    config = model.config.get_text_config()
    first = next(
        each
        for each in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        if each is not None
    )
    size = min(BATCH_TOKENS, config.max_position_embeddings) - 1
    owners: list[int] = []
    windows: list[np.ndarray] = []
    for number, text in enumerate(texts):
        # Half a character is in some logs; tokenizers accept none.
        storable_text = text.encode("utf-8", "replace").decode("utf-8")
        ids = renderer.token_ids(renderer.mark_literals(storable_text))
        for start in range(0, len(ids), size):
            owners.append(number)
            windows.append(np.array([first, *ids[start : start + size]], dtype=np.int32))
    sums = np.zeros((len(texts), config.hidden_size), dtype=np.float32)
    done = 0
    for group in batches_by_length([len(window) for window in windows]):
        ids = torch.full((len(group), max(len(windows[index]) for index in group)), first)
        mask = torch.zeros_like(ids)
        for line, index in enumerate(group):
            ids[line, : len(windows[index])] = torch.from_numpy(windows[index])
            mask[line, : len(windows[index])] = 1
        with torch.inference_mode():
            states = body(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
            ).last_hidden_state
        mask[:, 0] = 0
        found = (states.float() * mask.to(states.device)[:, :, None]).sum(1).cpu().numpy()
        for index, total in zip(group, found, strict=True):
            sums[owners[index]] += total
        done += len(group)
        progress(done, len(windows), "texts embedded")
    return unit(sums)


def batches_by_length(lengths: Sequence[int], batch_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Indices grouped so that texts × longest text ≤ `batch_tokens` (one text always fits), shortest first."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not groups or (len(groups[-1]) + 1) * lengths[index] > batch_tokens:
            groups.append([])
        groups[-1].append(index)
    return groups
