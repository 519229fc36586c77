"""Greedy answers of a model in memory to many prompts, fast enough for two CPU cores.

Five things make it so: what a model has read of a prompt before (`Read`), or what the prompts of a batch share (the system prompt and the
tools, most of an agent's prompt), is not read again, and on a CPU is there once for all of them; a sequence leaves the batch as soon as it
has stopped; each sequence has a limit of its own, so that an untrained model that rambles does not ramble to the longest limit of all; keys
and values are written in place; and a pass reads the tokens that may come next too, as they followed the last two tokens before (prompt
lookup decoding, Saxena 2023).
Those that are not the model's choice are dropped, so the answers are those of greedy search, one token at a time.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.cpu_attention import SharedPrefix, grouped_attention
from agent_pipeline.engine.prefix_tree import shared_prefix
from agent_pipeline.engine.scoring import TREE_ATTENTION, Read, causal_of, sees_all, takes_trees
from agent_pipeline.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from transformers import Cache, PreTrainedModel

BATCH = 64
"""Sequences at once. Of 183 turns that a base model went on with, 64 at once took 0.79 of the time of 32, and 96 no less (SmolLM2-135M in
bfloat16, 2 cores); their keys and values took 1.1 GB more, those that were read before included."""

CACHE_BYTES = 2 << 30
"""The keys and values of a batch take no more, unless one sequence alone does."""

PASS_TOKENS = 48
"""Tokens of a pass, those that are only guessed included. On two cores 48 took 1.1 times as long as 16 by MKL, and twice as long by oneDNN
(SmolLM2-135M); there 24 to 48 differ by a tenth."""

MOST_GUESSED = 16
SPARE, ROOM = 16, 64
"""Columns of a cache beyond what its longest line may fill, and by which it grows where lines that guess rightly at different times need
more."""


def generate(
    model: "PreTrainedModel",
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    stops: Collection[int],
    progress: Progress = silent,
    text: str = "turns answered",
    batch: int = BATCH,
    read: Sequence[Read | None] = (),
    keep: list[Read | None] | None = None,
) -> list[list[int]]:
    """The tokens that the model adds to each prompt, by greedy choice, in the order of the prompts.

    `limits[i]`: the most new tokens of prompt i. A token in `stops` ends an answer and is not part of it. `read[i]` is what the model has
    read of the beginning of prompt i; `keep` is filled with what it has read when an answer ends. Peak memory: the keys and values of
    `batch` prompts, `CACHE_BYTES` at most, beside what is kept. A model with windows or states (Mistral, Qwen 3.5), or whose code makes its
    own mask (ALiBi), reads each prompt alone and whole.
    """
    import torch

    answers: list[list[int]] = [[] for _ in prompts]
    longest = max(
        (len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0
    )
    causal = causal_of(model)
    guesses, alone = (
        takes_trees(causal, longest),
        not sees_all(causal, longest) or not causal.is_backend_compatible(),
    )
    if keep is not None:
        keep[:] = [None] * len(prompts)
    if alone:  # a window counts padding too, a state has read it, neither can be cut; ALiBi is computed from a mask of two dimensions
        batch, read, keep = 1, (), None
    # Alike limits stop together, alike lengths need little padding.
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), limits[i], i))
    done = 0
    common = shared_prefix(prompts) if _shares(model) and not alone else 0
    for group in _groups(
        order, [len(prompts[i]) - common + limits[i] for i in order], batch, bytes_of_token(model)
    ):
        known = [read[i] for i in group] if read else []
        lines = [_Line(prompts[i], limits[i], answers[i]) for i in group]
        with torch.inference_mode(), _whole_rows(model), grouped_attention():
            kept = _generate_batch(model, lines, stops, known, guesses, keep is not None, alone)
        if keep is not None:
            for i, each in zip(group, kept, strict=True):
                keep[i] = each
        done += len(group)
        progress(done, len(prompts), text)
    return answers


def _groups(order: list[int], lengths: list[int], batch: int, token: int) -> Iterator[list[int]]:
    """Groups of at most `batch` sequences whose caches, as long as the longest of them, fit into `CACHE_BYTES`. `token` are the bytes of a
    token in a cache."""
    group: list[int] = []
    longest = 0
    for number, length in zip(order, lengths, strict=True):
        longest = max(longest, length)
        if len(group) == batch or (group and (len(group) + 1) * longest * token > CACHE_BYTES):
            yield group
            group, longest = [], length
        group.append(number)
    if group:
        yield group


def bytes_of_token(model: "PreTrainedModel") -> int:
    """What a token takes in a cache: its keys and values in each layer; 0 in a model without attention."""
    config = causal_of(model).config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
    return (
        2
        * config.num_hidden_layers
        * (getattr(config, "num_key_value_heads", None) or heads)
        * size
        * model.dtype.itemsize
    )


@contextmanager
def _whole_rows(model: "PreTrainedModel") -> Iterator[None]:
    """A head that is given whole rows. Of the last states of several sequences, cut from a larger tensor, PyTorch makes a product of
    batches, and copies the head's weights for each sequence: one to three seconds for 16 sequences and 49,152 words."""
    head = causal_of(model).get_output_embeddings()
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(
        lambda _, states: tuple(each.contiguous() for each in states)
    )
    try:
        yield
    finally:
        hook.remove()


class _Line:
    """A sequence that grows: what it may add, and which token followed each pair of tokens last."""

    def __init__(self, prompt: list[int], limit: int, answer: list[int]) -> None:
        self.ids, self.prompt, self._limit, self._answer = list(prompt), prompt, limit, answer
        self._after = {pair: at for at, pair in enumerate(pairwise(prompt[:-1]), 2)}

    @property
    def room(self) -> int:
        """How many tokens it may still add."""
        return self._limit - len(self._answer)

    def take(self, token: int) -> None:
        if len(self.ids) > 1:
            self._after[self.ids[-2], self.ids[-1]] = len(self.ids)
        self.ids.append(token)
        self._answer.append(token)

    def guess(self, most: int) -> list[int]:
        """What may come next: what came after the last two tokens when they stood there before; over and over, where that is a cycle."""
        at = self._after.get((self.ids[-2], self.ids[-1])) if len(self.ids) > 1 else None
        if at is None:
            return []
        cycle = self.ids[at:]
        return [cycle[place % len(cycle)] for place in range(min(most, self.room - 1))]


def _generate_batch(
    model: "PreTrainedModel",
    lines: list[_Line],
    stops: Collection[int],
    known: Sequence[Read | None],
    guesses: bool,
    keep: bool,
    alone: bool,
    shares: bool = True,
) -> list[Read | None]:
    """Let each line take its answer; with `keep`, what was read of each. The columns of the cache, and of `mask` (lines, columns), which
    says which of them are a line's, are: what was read before (without what all share, where that is held once), padding, what is a
    prompt's own, its answer, room."""
    import torch

    device = model.device
    cache, mask, begun, prefix = _begin(model, lines, known, alone, shares)
    own = [line.prompt[start:] for line, start in zip(lines, begun, strict=True)]
    ids = torch.tensor(
        [[0] * (max(map(len, own)) - len(part)) + part for part in own], device=device
    )
    real = torch.tensor(
        [[0] * (ids.shape[1] - len(part)) + [1] * len(part) for part in own],
        dtype=torch.bool,
        device=device,
    )
    # Positions count real tokens only, so padding in the middle does not move what follows it.
    positions = (torch.tensor(begun, device=device)[:, None] + real.cumsum(-1) - 1).clamp(min=0)
    last, guessed, wanted = positions[:, -1:], [list[int]()] * len(lines), 1
    kept: list[Read | None] = [None] * len(lines)
    alive = list(range(len(lines)))
    end = max(begun) - (prefix.tokens if prefix else 0)
    while True:
        start, end = end, end + ids.shape[1]
        if end > mask.shape[1]:
            mask = torch.cat([mask, mask.new_zeros(len(alive), end + ROOM - mask.shape[1])], dim=-1)
        mask[:, start:end] = real
        out = model(
            input_ids=ids,
            attention_mask=None if alone else _visible(mask, start, end, model.dtype),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=wanted,
            **({"shared_prefix": prefix} if prefix else {}),
        )
        if prefix and not prefix.is_attended:
            return _generate_batch(model, lines, stops, known, guesses, keep, alone, shares=False)
        taken, goes_on = [], []
        for place, (number, best) in enumerate(
            zip(alive, out.logits[:, -wanted:].float().argmax(-1).tolist(), strict=True)
        ):
            count, ended = _take(lines[number], guessed[place], best, stops)
            taken.append(count)
            if not ended:
                goes_on.append(place)
        # Of the columns of this pass, the first token's and those of the guesses that were right stay.
        unread = torch.tensor([wanted - 1 - count for count in taken], device=device)
        mask[:, end - wanted : end] &= torch.arange(wanted, 0, -1, device=device) > unread[:, None]
        if keep:
            for place in set(range(len(alive))) - set(goes_on):
                kept[alive[place]] = _read_of(cache, mask, place, lines[alive[place]].ids, prefix)
        if not goes_on:
            return kept
        last = last + 1 + torch.tensor(taken, device=device)[:, None]
        if len(goes_on) < len(alive):
            chosen = torch.tensor(goes_on, device=device)
            alive = [alive[place] for place in goes_on]
            cache.batch_select_indices(chosen)
            mask, last = mask[chosen], last[chosen]
        if wasted := wanted - 1 - max(taken[place] for place in goes_on):
            cache.crop(-wasted)
            end -= wasted
        most = min(MOST_GUESSED, PASS_TOKENS // len(alive) - 1) if guesses else 0
        guessed = [lines[number].guess(most) for number in alive]
        wanted = 1 + max(map(len, guessed))
        ids = torch.tensor(
            [
                [lines[number].ids[-1], *some, *[0] * (wanted - 1 - len(some))]
                for number, some in zip(alive, guessed, strict=True)
            ],
            device=device,
        )
        real = torch.ones_like(ids, dtype=torch.bool)
        positions = last + torch.arange(wanted, device=device)


def _visible(mask: "torch.Tensor", start: int, end: int, dtype: "torch.dtype") -> "torch.Tensor":
    """(lines, 1, queries, columns): what is added to the scores of the tokens in the columns from `start` to `end`, 0 where they see."""
    import torch

    columns = torch.arange(mask.shape[1], device=mask.device)
    hidden = (~mask)[:, None, None] | (columns > columns[start:end, None])
    return torch.zeros(hidden.shape, dtype=dtype, device=mask.device).masked_fill_(
        hidden, torch.finfo(dtype).min
    )


def _take(
    line: _Line, guessed: list[int], best: list[int], stops: Collection[int]
) -> tuple[int, bool]:
    """Let a line take what the model finds likeliest, up to and with the first token that was not guessed: how many right guesses it took,
    and whether it has ended."""
    for count, token in enumerate(best):
        if token in stops:
            return count, True
        line.take(token)
        right = count < len(guessed) and guessed[count] == token
        if not line.room:
            return count + right, True
        if not right:
            return count, False
    return len(guessed), False


def _begin(
    model: "PreTrainedModel",
    lines: list[_Line],
    known: Sequence[Read | None],
    alone: bool,
    shares: bool,
) -> "tuple[Cache, torch.Tensor, list[int], SharedPrefix | None]":
    """A cache with what is known of each prompt, or else with what all of them share; its mask; how many tokens are known of each; and
    those of them that all share and the cache does not hold. A prompt that is read `alone` has the model's own cache."""
    import torch
    from transformers import DynamicCache

    if alone:
        return (
            DynamicCache(config=model.config),
            torch.zeros(len(lines), 0, dtype=torch.bool, device=model.device),
            [0] * len(lines),
            None,
        )
    prompts = [line.prompt for line in lines]
    reads = [each for each in known if each]
    if len(reads) < len(prompts):
        shared = min(
            shared_prefix(prompts), *(len(prompt) - 1 for prompt in prompts)
        )  # each has a token of its own, to predict from
        reads = [_read_prefix(model, prompts[0][:shared])] * len(prompts)
    begun = [
        min(shared_prefix([read.ids, prompt]), len(prompt) - 1)
        for read, prompt in zip(reads, prompts, strict=True)
    ]
    same = (
        min(shared_prefix(prompts), *begun) if shares and _shares(model) and len(prompts) > 1 else 0
    )
    width = max(begun) - same
    columns = (
        width
        + max(
            len(line.prompt) - count + line.room for line, count in zip(lines, begun, strict=True)
        )
        + SPARE
    )
    cache = _cache(columns)
    prefix = (
        SharedPrefix(
            [(keys[:, :, :same], values[:, :, :same]) for keys, values in reads[0].layers], cache
        )
        if same
        else None
    )
    for layer, (keys, values) in enumerate(reads[0].layers if width else []):
        both = [
            each.new_zeros(len(prompts), each.shape[1], width, each.shape[3])
            for each in (keys, values)
        ]
        for line, (read, count) in enumerate(zip(reads, begun, strict=True)):
            for kind, states in zip(both, read.layers[layer], strict=True):
                kind[line, :, width + same - count :] = states[0, :, same:count]
        cache.update(*both, layer)
    mask = torch.zeros(len(prompts), columns, dtype=torch.bool, device=model.device)
    for line, count in enumerate(begun):
        mask[line, width + same - count : width] = True
    return cache, mask, begun, prefix


def _shares(model: "PreTrainedModel") -> bool:
    """Whether what all sequences begin with can be held once: `grouped_attention` attends for this model, on a CPU."""
    return model.device.type == "cpu" and causal_of(
        model
    ).config.get_text_config()._attn_implementation in ("sdpa", TREE_ATTENTION)


def _read_prefix(model: "PreTrainedModel", ids: list[int]) -> Read:
    """What the model has read of these tokens."""
    import torch
    from transformers import DynamicCache

    if not ids:
        return Read([], [])
    cache = DynamicCache()
    model(
        input_ids=torch.tensor([ids], device=model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return Read(ids, [(layer.keys, layer.values) for layer in cache.layers])


def _read_of(
    cache: "Cache", mask: "torch.Tensor", line: int, ids: list[int], prefix: SharedPrefix | None
) -> Read:
    """What a prefix and a cache hold of a line that begins with these tokens."""
    import torch

    at = mask[line].nonzero()[:, 0]
    layers = [
        (layer.keys[line : line + 1, :, at], layer.values[line : line + 1, :, at])
        for layer in cache.layers
    ]
    if prefix:
        both = (
            zip(above, own, strict=True) for above, own in zip(prefix.layers, layers, strict=True)
        )
        layers = [(torch.cat(keys, 2), torch.cat(values, 2)) for keys, values in both]
    return Read(ids[: len(at) + (prefix.tokens if prefix else 0)], layers)


def _cache(columns: int) -> "Cache":
    """A cache of layers that have room for so many tokens from the start, and are attended to as a whole, room included.

    To copy all keys and values with every token takes as long as their use, and products of what lies in a larger tensor copy it, too.
    """
    import torch
    from transformers import Cache
    from transformers.cache_utils import DynamicLayer

    class Layer(DynamicLayer):
        used = 0

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            end = self.used + key_states.shape[-2]
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self.keys, self.values = (
                    _with_room(each[:, :, :0], max(columns, end))
                    for each in (key_states, value_states)
                )
            elif end > self.keys.shape[-2]:
                self.keys, self.values = (
                    _with_room(each, end + ROOM) for each in (self.keys, self.values)
                )
            self.keys[:, :, self.used : end], self.values[:, :, self.used : end] = (
                key_states,
                value_states,
            )
            self.used = end
            return self.keys, self.values

        def get_seq_length(self) -> int:
            return self.used

        def crop(self, tokens_to_remove: int) -> None:
            self.used += tokens_to_remove

    return Cache(layer_class_to_replicate=Layer)


def _with_room(states: "torch.Tensor", columns: int) -> "torch.Tensor":
    wide = states.new_zeros(
        *states.shape[:2], columns, states.shape[3]
    )  # zeros: what nobody sees is multiplied by 0, and must be a number
    wide[:, :, : states.shape[2]] = states
    return wide
