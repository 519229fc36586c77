"""Greedy generation of answers to many prompts, fast enough for two CPU cores.

Five things make generation fast:

- No token is read twice. The states of a prompt that the model has read before are reused
  (`ReadTokens`), and so are the states of the prefix that the prompts of a batch share (the system
  prompt and the tools, which are most of an agent's prompt). On a CPU the states of a shared prefix
  exist once for all sequences.
- A sequence leaves the batch as soon as it has stopped.
- Each sequence has its own limit. So if an untrained model does not stop, it stops at this limit,
  and not at the longest limit of the batch.
- Keys and values are written in place.
- A pass also reads the tokens that may come next: those that followed the last two tokens before
  (prompt lookup decoding, Saxena 2023). Wrong guesses are dropped, so the answers are those of
  greedy search, one token at a time.

Sampling with a temperature belongs to llama.cpp (`evaluation.players`) and to TRL's trainers.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from agent_pipeline._compat.transformers import (
    attention_name,
    cache_argument,
    preallocated_cache,
)
from agent_pipeline.engine.cpu_attention import SharedPrefix, grouped_attention
from agent_pipeline.engine.prefix_tree import shared_prefix_length
from agent_pipeline.engine.scoring import ReadTokens, without_adapter
from agent_pipeline.engine.tree_support import (
    TREE_ATTENTION,
    attends_to_all_tokens,
    explain_row_by_row,
    supports_passes,
)
from agent_pipeline.models.threads import follow_load
from agent_pipeline.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from transformers import Cache, PreTrainedModel

BATCH = 64
"""Number of sequences that are generated at the same time.

For 183 turns that a base model continued, 64 at once took 0.79 of the time of 32, and 96 took as
long as 64 (SmolLM2-135M in bfloat16, 2 cores). The keys and values of 64 took 1.1 GB more than
those of 32.
"""

CACHE_BYTES = 2 << 30
"""Maximum total size of a batch's keys and values. A single sequence may need more."""

PASS_TOKENS = 48
"""Maximum number of tokens per forward pass, including guessed tokens.

On two cores 48 tokens took 1.1 times as long as 16 by MKL, and twice as long by oneDNN
(SmolLM2-135M). With oneDNN, 24 to 48 tokens differ by a tenth.
"""

MAX_GUESSES = 16
"""Maximum number of guessed tokens per sequence and forward pass."""

SPARE_COLUMNS = 16
"""Number of columns that a cache has beyond the columns that its longest sequence may fill."""

MORE_COLUMNS = 64
"""Number of columns by which a cache grows at a time.

Sequences need more columns if their guesses are right at different times.
"""


def generate(
    model: "PreTrainedModel",
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    stops: Collection[int],
    progress: Progress = silent,
    read: Sequence[ReadTokens | None] = (),
    keep: list[ReadTokens | None] | None = None,
) -> list[list[int]]:
    """Return the tokens that a model adds to each prompt by greedy choice.

    A model with windows or states (Gemma 3, Qwen 3.5) answers each prompt by itself, and reads the
    prefix that all prompts share once. A model whose code makes its own mask (ALiBi) reads each
    prompt as a whole. The peak memory is that of the keys and
    values of a batch (at most `CACHE_BYTES`), plus the states that are kept.

    Args:
        model: The model.
        prompts: The tokens of each prompt.
        limits: The largest number of new tokens for each prompt.
        stops: Tokens that end an answer. A stop token is not part of the answer.
        progress: Is called after each batch.
        read: The states of the beginning of each prompt, if the model has read it before.
        keep: If given, this list is filled with what the model has read of each prompt and answer.

    Returns:
        The new tokens of each prompt, in the order of the prompts.
    """
    import torch

    answers: list[list[int]] = [[] for _ in prompts]
    most_tokens = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    longest = max(most_tokens, default=0)
    causal = without_adapter(model)
    options = _Options(
        guesses=supports_passes(causal, longest),
        # A window counts padding too, a state has read the padding, and neither can be cropped.
        # ALiBi is computed from a mask of two dimensions.
        one_by_one=not attends_to_all_tokens(causal, longest) or not causal.is_backend_compatible(),
        keeps=keep is not None,
    )
    batch_size = BATCH
    if keep is not None:
        keep[:] = [None] * len(prompts)
    if options.one_by_one:
        prefix_cache = None
        if explain_row_by_row(causal, longest) is None and len(prompts) > 1:
            prefix_cache = _read_into_own_cache(model, prompts)
        options = _Options(options.guesses, True, False, prefix_cache=prefix_cache)
        batch_size, read = 1, ()
    # Sequences with similar limits stop together, and similar lengths need little padding.
    order = sorted(
        range(len(prompts)), key=lambda index: (len(prompts[index]), limits[index], index)
    )
    shared = 0
    if _can_share_prefix(model) and not options.one_by_one:
        shared = shared_prefix_length(prompts)
    cached_lengths = [len(prompts[index]) - shared + limits[index] for index in order]
    token_bytes = bytes_per_token(model)
    done = 0
    for batch in _split_into_batches(order, cached_lengths, batch_size, token_bytes):
        known = [read[index] for index in batch] if read else []
        sequences = [_Sequence(prompts[index], limits[index], answers[index]) for index in batch]
        with torch.inference_mode(), _contiguous_head_input(model), grouped_attention():
            kept = _generate_batch(model, sequences, stops, known, options)
        if keep is not None and options.keeps:
            for index, states in zip(batch, kept, strict=True):
                keep[index] = states
        done += len(batch)
        progress(done, len(prompts), "turns answered")
    return answers


@dataclass(frozen=True)
class _Options:
    """Options for generating the answers of a batch.

    Attributes:
        guesses: Whether a pass also reads guessed tokens.
        one_by_one: Whether each prompt is read by itself, with the model's own cache.
        keeps: Whether the states of each sequence are returned.
        shares: Whether the states of a shared prefix exist once.
        prefix_cache: The model's own cache after the prefix that all prompts share, if each prompt
            is read by itself.
    """

    guesses: bool
    one_by_one: bool
    keeps: bool
    shares: bool = True
    prefix_cache: "_PrefixCache | None" = None


@dataclass(frozen=True)
class _PrefixCache:
    """A model's own cache after it has read the prefix of several prompts.

    Attributes:
        cache: The cache. It must be copied before it is used.
        tokens: The number of tokens in the prefix.
    """

    cache: "Cache"
    tokens: int


def _read_into_own_cache(
    model: "PreTrainedModel", prompts: Sequence[list[int]]
) -> _PrefixCache | None:
    """Let the model read the prefix that all prompts share; return None if they share nothing.

    Each prompt keeps a token of its own, to predict from.
    """
    import torch
    from transformers import DynamicCache

    tokens = min(shared_prefix_length(prompts), min(len(prompt) for prompt in prompts) - 1)
    if tokens < 1:
        return None
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(
            input_ids=torch.tensor([prompts[0][:tokens]], device=model.device),
            **cache_argument(cache),
            use_cache=True,
            logits_to_keep=1,
        )
    return _PrefixCache(cache, tokens)


def _split_into_batches(
    order: list[int], lengths: list[int], batch_size: int, token_bytes: int
) -> Iterator[list[int]]:
    """Yield batches whose caches, at the length of their longest sequence, fit into `CACHE_BYTES`.

    Args:
        order: The indices of the sequences.
        lengths: The tokens that each sequence needs in the cache, in the same order.
        batch_size: Maximum number of sequences per batch.
        token_bytes: The bytes of a token in a cache.
    """
    batch: list[int] = []
    longest = 0
    for index, length in zip(order, lengths, strict=True):
        longest = max(longest, length)
        is_full = len(batch) == batch_size
        if is_full or (batch and (len(batch) + 1) * longest * token_bytes > CACHE_BYTES):
            yield batch
            batch, longest = [], length
        batch.append(index)
    if batch:
        yield batch


def bytes_per_token(model: "PreTrainedModel") -> int:
    """Return the bytes of one token's keys and values in all layers, or 0 without attention."""
    numbers = 0
    # In Gemma 4, heads are larger in some layers.
    for config in without_adapter(model).config.get_text_config().per_layer_config:
        heads = getattr(config, "num_attention_heads", None) or 0
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
        numbers += 2 * key_heads * head_size
    return int(numbers * model.dtype.itemsize)


@contextmanager
def _contiguous_head_input(model: "PreTrainedModel") -> Iterator[None]:
    """Temporarily make the input of the model's output head contiguous.

    The last states of several sequences are cut from a larger tensor. PyTorch makes a batched
    product of them, and copies the head's weights for each sequence: one to three seconds for 16
    sequences and 49,152 tokens.
    """
    head = without_adapter(model).get_output_embeddings()
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(
        lambda _, inputs: tuple(states.contiguous() for states in inputs)
    )
    try:
        yield
    finally:
        hook.remove()


class _Sequence:
    """A prompt, followed by the answer that is being generated.

    Args:
        prompt: The tokens of the prompt.
        limit: The largest number of new tokens.
        answer: The list that the new tokens are appended to.
    """

    def __init__(self, prompt: list[int], limit: int, answer: list[int]) -> None:
        self.ids, self.prompt, self._limit, self._answer = list(prompt), prompt, limit, answer
        # By pair of tokens, the position behind the last place where the pair occurred.
        self._positions_after = {
            pair: position for position, pair in enumerate(pairwise(prompt[:-1]), 2)
        }

    @property
    def room(self) -> int:
        """Return the number of tokens that may still be added to the answer."""
        return self._limit - len(self._answer)

    def append(self, token: int) -> None:
        """Add a token to the answer."""
        if len(self.ids) > 1:
            self._positions_after[self.ids[-2], self.ids[-1]] = len(self.ids)
        self.ids.append(token)
        self._answer.append(token)

    def guess(self, most: int) -> list[int]:
        """Return a guess of the next tokens: what followed the last two tokens before.

        The tokens up to the end of the sequence may be fewer than `most`. Then they are repeated,
        because such a sequence is often a cycle.
        """
        if len(self.ids) < 2:
            return []
        position = self._positions_after.get((self.ids[-2], self.ids[-1]))
        if position is None:
            return []
        cycle = self.ids[position:]
        return [cycle[offset % len(cycle)] for offset in range(min(most, self.room - 1))]

    def accept(
        self, guessed: list[int], best: list[int], stops: Collection[int]
    ) -> "_AcceptedTokens":
        """Append the tokens that the model chose, up to the first wrong guess.

        Args:
            guessed: The tokens that were read as guesses.
            best: The model's choice after the last token, and after each guess.
            stops: Tokens that end the answer.
        """
        for right_guesses, token in enumerate(best):
            if token in stops:
                return _AcceptedTokens(right_guesses, has_ended=True)
            self.append(token)
            is_right = right_guesses < len(guessed) and guessed[right_guesses] == token
            if not self.room:
                return _AcceptedTokens(right_guesses + is_right, has_ended=True)
            if not is_right:
                return _AcceptedTokens(right_guesses, has_ended=False)
        return _AcceptedTokens(len(guessed), has_ended=False)


@dataclass(frozen=True)
class _AcceptedTokens:
    """The result of one forward pass for a sequence.

    Attributes:
        right_guesses: How many guesses were right.
        has_ended: Whether the answer is complete.
    """

    right_guesses: int
    has_ended: bool


@dataclass
class _BatchState:
    """The cache of a batch before the batch's first forward pass.

    The columns of the cache are: what was read before, padding, the rest of the prompt, the answer,
    room.

    Attributes:
        cache: The keys and values.
        mask: Which columns of the cache belong to a sequence, (sequences, columns) bool.
        read_counts: How many tokens of each prompt have been read.
        prefix: The shared prefix, which the cache does not hold; None if there is none.
    """

    cache: "Cache"
    mask: "torch.Tensor"
    read_counts: list[int]
    prefix: SharedPrefix | None

    @property
    def prefix_tokens(self) -> int:
        """Return the number of tokens in the shared prefix."""
        return self.prefix.tokens if self.prefix else 0


def _generate_batch(
    model: "PreTrainedModel",
    sequences: list[_Sequence],
    stops: Collection[int],
    known: Sequence[ReadTokens | None],
    options: _Options,
) -> list[ReadTokens | None]:
    """Generate the answers of all sequences in a batch.

    Args:
        model: The model.
        sequences: The prompts. Their answers are appended to.
        stops: Tokens that end an answer.
        known: What was read of each prompt before, or an empty list.
        options: How the batch is generated.

    Returns:
        The states of each sequence, or None if they are not kept.
    """
    import torch

    device = model.device
    state = _start_batch(model, sequences, known, options)
    cache, mask, prefix = state.cache, state.mask, state.prefix
    unread = [
        sequence.prompt[count:]
        for sequence, count in zip(sequences, state.read_counts, strict=True)
    ]
    width = max(len(tokens) for tokens in unread)
    ids = torch.tensor([[0] * (width - len(tokens)) + tokens for tokens in unread], device=device)
    is_token = torch.tensor(
        [[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in unread],
        dtype=torch.bool,
        device=device,
    )
    # Positions count tokens only, so padding in the middle does not move what follows.
    read_counts = torch.tensor(state.read_counts, device=device)[:, None]
    positions = (read_counts + is_token.cumsum(-1) - 1).clamp(min=0)
    last_positions = positions[:, -1:]
    guesses: list[list[int]] = [[] for _ in sequences]
    logit_count = 1  # logits per sequence: after the last token, and after each guess
    kept: list[ReadTokens | None] = [None] * len(sequences)
    alive = list(range(len(sequences)))
    end = max(state.read_counts) - state.prefix_tokens
    while True:
        follow_load(device.type, model.dtype)
        start, end = end, end + ids.shape[1]
        if end > mask.shape[1]:
            more = mask.new_zeros(len(alive), end + MORE_COLUMNS - mask.shape[1])
            mask = torch.cat([mask, more], dim=-1)
        mask[:, start:end] = is_token
        output = model(
            input_ids=ids,
            attention_mask=None if options.one_by_one else _visible(mask, start, end, model.dtype),
            position_ids=positions,
            **cache_argument(cache),
            use_cache=True,
            logits_to_keep=logit_count,
            **({"shared_prefix": prefix} if prefix else {}),
        )
        if prefix and not prefix.is_attended:
            # Nothing has been appended yet: this was the first pass.
            options = _Options(options.guesses, options.one_by_one, options.keeps, shares=False)
            return _generate_batch(model, sequences, stops, known, options)
        best = output.logits[:, -logit_count:].float().argmax(-1).tolist()
        right_guesses, continuing = [], []
        for line, sequence_index in enumerate(alive):
            accepted = sequences[sequence_index].accept(guesses[line], best[line], stops)
            right_guesses.append(accepted.right_guesses)
            if not accepted.has_ended:
                continuing.append(line)
        # Of the columns of this pass, those of the first token and of right guesses stay.
        wrong_guesses = torch.tensor(
            [logit_count - 1 - count for count in right_guesses], device=device
        )
        columns_from_end = torch.arange(logit_count, 0, -1, device=device)
        mask[:, end - logit_count : end] &= columns_from_end > wrong_guesses[:, None]
        if options.keeps:
            for line in set(range(len(alive))) - set(continuing):
                sequence_index = alive[line]
                kept[sequence_index] = _collect_states(
                    cache, mask, line, sequences[sequence_index].ids, prefix
                )
        if not continuing:
            return kept
        last_positions = last_positions + 1 + torch.tensor(right_guesses, device=device)[:, None]
        if len(continuing) < len(alive):
            lines = torch.tensor(continuing, device=device)
            alive = [alive[line] for line in continuing]
            cache.batch_select_indices(lines)
            mask, last_positions = mask[lines], last_positions[lines]
        wasted = logit_count - 1 - max(right_guesses[line] for line in continuing)
        if wasted:
            cache.crop(-wasted)
            end -= wasted
        most_guesses = 0
        if options.guesses:
            most_guesses = min(MAX_GUESSES, PASS_TOKENS // len(alive) - 1)
        guesses = [sequences[sequence_index].guess(most_guesses) for sequence_index in alive]
        logit_count = 1 + max(len(tokens) for tokens in guesses)
        next_ids = []
        for sequence_index, tokens in zip(alive, guesses, strict=True):
            padding = [0] * (logit_count - 1 - len(tokens))
            next_ids.append([sequences[sequence_index].ids[-1], *tokens, *padding])
        ids = torch.tensor(next_ids, device=device)
        is_token = torch.ones_like(ids, dtype=torch.bool)
        positions = last_positions + torch.arange(logit_count, device=device)


def _visible(mask: "torch.Tensor", start: int, end: int, dtype: "torch.dtype") -> "torch.Tensor":
    """Return the mask that is added to the attention scores of the columns from `start` to `end`.

    Args:
        mask: Which columns belong to a sequence, (sequences, columns) bool.
        start: The first column of the queries.
        end: The column behind the queries.
        dtype: The type of the scores.

    Returns:
        0 if a query sees a column, else the lowest number; (sequences, 1, queries, columns).
    """
    import torch

    columns = torch.arange(mask.shape[1], device=mask.device)
    is_hidden = (~mask)[:, None, None] | (columns > columns[start:end, None])
    visible = torch.zeros(is_hidden.shape, dtype=dtype, device=mask.device)
    return visible.masked_fill_(is_hidden, torch.finfo(dtype).min)


def _start_batch(
    model: "PreTrainedModel",
    sequences: list[_Sequence],
    known: Sequence[ReadTokens | None],
    options: _Options,
) -> _BatchState:
    """Return a cache with the known states of each prompt, or with the shared prefix."""
    import torch
    from transformers import DynamicCache

    if options.one_by_one:
        empty_mask = torch.zeros(len(sequences), 0, dtype=torch.bool, device=model.device)
        if options.prefix_cache is None:
            own_cache, read_count = DynamicCache(config=model.config), 0
        else:
            own_cache = copy.deepcopy(options.prefix_cache.cache)
            read_count = options.prefix_cache.tokens
        return _BatchState(own_cache, empty_mask, [read_count] * len(sequences), None)
    prompts = [sequence.prompt for sequence in sequences]
    reads = [read for read in known if read]
    if len(reads) < len(prompts):
        # Each prompt keeps a token of its own, to predict from.
        longest_prefix = min(len(prompt) - 1 for prompt in prompts)
        prefix_length = min(shared_prefix_length(prompts), longest_prefix)
        reads = [_read_prefix(model, prompts[0][:prefix_length])] * len(prompts)
    read_counts = [
        min(shared_prefix_length([read.ids, prompt]), len(prompt) - 1)
        for read, prompt in zip(reads, prompts, strict=True)
    ]
    shared = 0
    if options.shares and _can_share_prefix(model) and len(prompts) > 1:
        shared = min(shared_prefix_length(prompts), *read_counts)
    width = max(read_counts) - shared
    most_new = max(
        len(sequence.prompt) - count + sequence.room
        for sequence, count in zip(sequences, read_counts, strict=True)
    )
    columns = width + most_new + SPARE_COLUMNS
    cache = preallocated_cache(columns, MORE_COLUMNS)
    prefix = None
    if shared:
        prefix_layers = [
            (keys[:, :, :shared], values[:, :, :shared]) for keys, values in reads[0].layers
        ]
        prefix = SharedPrefix(prefix_layers, cache)
    if width:
        for layer in range(len(reads[0].layers)):
            keys, values = _align_states(reads, read_counts, layer, shared)
            cache.update(keys, values, layer)
    mask = torch.zeros(len(prompts), columns, dtype=torch.bool, device=model.device)
    for line, count in enumerate(read_counts):
        mask[line, width + shared - count : width] = True
    return _BatchState(cache, mask, read_counts, prefix)


def _align_states(
    reads: Sequence[ReadTokens], read_counts: Sequence[int], layer: int, shared: int
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the keys and values of a layer for all sequences, padded on the left.

    Args:
        reads: What was read of each prompt.
        read_counts: How many tokens of each prompt are used.
        layer: The index of the layer.
        shared: The tokens of the shared prefix, which are left out.

    Returns:
        Keys and values, (sequences, heads, most tokens of a sequence, size) each.
    """
    width = max(read_counts) - shared
    aligned = []
    for kind in (0, 1):  # keys, values
        example = reads[0].layers[layer][kind]
        states = example.new_zeros(len(reads), example.shape[1], width, example.shape[3])
        for line, (read, count) in enumerate(zip(reads, read_counts, strict=True)):
            begin = width + shared - count
            states[line, :, begin:] = read.layers[layer][kind][0, :, shared:count]
        aligned.append(states)
    return aligned[0], aligned[1]


def _can_share_prefix(model: "PreTrainedModel") -> bool:
    """Return whether this model is on a CPU and `grouped_attention` can compute its attention."""
    causal = without_adapter(model)
    return model.device.type == "cpu" and attention_name(causal) in ("sdpa", TREE_ATTENTION)


def _read_prefix(model: "PreTrainedModel", ids: list[int]) -> ReadTokens:
    """Let the model read tokens, and return their attention states."""
    import torch
    from transformers import DynamicCache

    if not ids:
        return ReadTokens([], [])
    cache = DynamicCache()
    model(
        input_ids=torch.tensor([ids], device=model.device),
        **cache_argument(cache),
        use_cache=True,
        logits_to_keep=1,
    )
    return ReadTokens(ids, [(layer.keys, layer.values) for layer in cache.layers])


def _collect_states(
    cache: "Cache", mask: "torch.Tensor", line: int, ids: list[int], prefix: SharedPrefix | None
) -> ReadTokens:
    """Return the attention states of one sequence in the cache.

    Args:
        cache: The cache of the batch.
        mask: Which columns of the cache belong to a sequence, (sequences, columns) bool.
        line: The line of the sequence in the cache.
        ids: The tokens of the sequence; the cache may hold fewer.
        prefix: The shared prefix, whose states stand in front of those in the cache.
    """
    import torch

    columns = mask[line].nonzero()[:, 0]
    layers = [
        (layer.keys[line : line + 1, :, columns], layer.values[line : line + 1, :, columns])
        for layer in cache.layers
    ]
    if prefix is None:
        return ReadTokens(ids[: len(columns)], layers)
    whole_layers = [
        (torch.cat([prefix_keys, keys], 2), torch.cat([prefix_values, values], 2))
        for (prefix_keys, prefix_values), (keys, values) in zip(prefix.layers, layers, strict=True)
    ]
    return ReadTokens(ids[: len(columns) + prefix.tokens], whole_layers)
