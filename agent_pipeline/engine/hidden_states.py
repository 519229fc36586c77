"""Embedding of texts: the mean of the base model's last hidden layer over the tokens of a text.

Ivison et al. 2025 (RDS+, arXiv 2503.01807) choose rows by weighted means of hidden states, and find
nothing better at scale. This mean has equal weights. The base model is the model that will be
trained, so no other model is fetched. How vectors are used belongs to `selection`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.embeddings import HIDDEN_STATES, Encoder, scale_to_unit

BATCH_TOKENS = 2048
"""Maximum number of tokens per batch, including padding.

The memory of a forward pass then does not depend on the lengths of the texts.
"""


@dataclass(frozen=True)
class _TextWindow:
    """A part of a text that fits into one forward pass.

    Attributes:
        text_index: The index of the text.
        ids: The tokens, with the model's first special token in front.
    """

    text_index: int
    ids: npt.NDArray[np.int32]


def hidden_state_encoder(base: BaseModel, progress: Progress = silent) -> Encoder:
    """Return an encoder that embeds texts with the base model.

    The model is loaded when a text has no vector yet.
    """
    return Encoder(
        {"form": f"{HIDDEN_STATES} 1", "revision": base.revision},
        lambda texts: encode_texts(texts, base, progress),
    )


def encode_texts(
    texts: Sequence[str], base: BaseModel, progress: Progress = silent
) -> npt.NDArray[np.float32]:
    """Return the mean hidden state over the tokens of each text.

    A text is read in windows of at most `BATCH_TOKENS` tokens; no window is left out. The model's
    first special token stands in front of each window, and is not part of the mean: models put
    spare attention on the first position (attention sinks, Xiao et al. 2024, arXiv 2309.17453).

    Args:
        texts: The texts.
        base: The base model.
        progress: Is called after each batch.

    Returns:
        Vectors of length one, (texts, hidden size); zeros for a text without tokens.

    Raises:
        ModelError: the model cannot be loaded.
    """
    import torch

    renderer = load_renderer(base.path, base.trust_remote_code)
    tokenizer = renderer.tokenizer
    model = load_model(base, probe_device())
    body = getattr(model, model.base_model_prefix)
    config = model.config.get_text_config()
    special_tokens = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    first_token = next(token for token in special_tokens if token is not None)
    window_tokens = min(BATCH_TOKENS, config.max_position_embeddings) - 1
    windows: list[_TextWindow] = []
    for text_index, text in enumerate(texts):
        # Some logs contain half of a character, which tokenizers do not accept.
        valid_text = text.encode("utf-8", "replace").decode("utf-8")
        ids = renderer.token_ids(renderer.mark_literals(valid_text))
        for start in range(0, len(ids), window_tokens):
            window_ids = [first_token, *ids[start : start + window_tokens]]
            windows.append(_TextWindow(text_index, np.array(window_ids, dtype=np.int32)))
    sums = np.zeros((len(texts), config.hidden_size), dtype=np.float32)
    done = 0
    for batch in group_by_length([len(window.ids) for window in windows]):
        longest = max(len(windows[index].ids) for index in batch)
        ids = torch.full((len(batch), longest), first_token)
        mask = torch.zeros_like(ids)
        for line, index in enumerate(batch):
            length = len(windows[index].ids)
            ids[line, :length] = torch.from_numpy(windows[index].ids)
            mask[line, :length] = 1
        with torch.inference_mode():
            states = body(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
            ).last_hidden_state
        mask[:, 0] = 0
        weights = mask.to(states.device)[:, :, None]
        batch_sums = (states.float() * weights).sum(1).cpu().numpy()
        for index, window_sum in zip(batch, batch_sums, strict=True):
            sums[windows[index].text_index] += window_sum
        done += len(batch)
        progress(done, len(windows), "texts embedded")
    return scale_to_unit(sums)


def group_by_length(lengths: Sequence[int], batch_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Group texts into batches, with the shortest texts first.

    Args:
        lengths: The number of tokens of each text.
        batch_tokens: Maximum number of texts times the longest text. A longer text is a batch of
            its own.

    Returns:
        The indices of the texts of each batch.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
