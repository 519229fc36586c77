"""Greedy answers of a model in memory to many prompts, fast enough for two CPU cores.

Five things make it so: what a model has read of a prompt before (`Read`), or what the prompts of a batch share (the system prompt and the
tools, most of an agent's prompt), is not read again; a sequence leaves the batch as soon as it has stopped; each sequence has a limit of
its own, so that an untrained model that rambles does not ramble to the longest limit of all; keys and values are written in place; and
a pass reads the tokens that may come next too, as they followed the last two tokens before (prompt lookup decoding, Saxena 2023).
Those that are not the model's choice are dropped, so the answers are those of greedy search, one token at a time.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.grouped_attention import grouped_attention
from agent_pipeline.training.losses import Read, causal_of, sees_all, takes_trees
from agent_pipeline.training.prefixes import shared_prefix

if TYPE_CHECKING:
    import torch
    from transformers import Cache, PreTrainedModel

BATCH = 32
"""Sequences at once. Of 40 conversations that a base model went on with, 32 at once took 0.83 of the time of 16 (SmolLM2-135M, 2 cores)."""

CACHE_BYTES = 2 << 30
"""The keys and values of a batch take no more, unless one sequence alone does."""

PASS_TOKENS = 48
"""Tokens of a pass, those that are only guessed included. On two cores 48 took 1.1 times as long as 16 by MKL, and twice as long by oneDNN
(SmolLM2-135M); there 24 to 48 differ by a tenth."""

MOST_GUESSED = 16
ROOM = 64
"""Tokens for which a cache makes room at once."""


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
    `batch` prompts, `CACHE_BYTES` at most, beside what is kept. A model with windows or states (Mistral, Qwen 3.5) reads each prompt alone
    and whole.
    """
    import torch

    answers: list[list[int]] = [[] for _ in prompts]
    longest = max((len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
    guesses, alone = takes_trees(causal_of(model), longest), not sees_all(causal_of(model), longest)
    if keep is not None:
        keep[:] = [None] * len(prompts)
    if alone:  # a window counts padding too, a state has read it, and neither can be cut
        batch, read, keep = 1, (), None
    # Alike limits stop together, alike lengths need little padding.
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), limits[i], i))
    done = 0
    for group in _groups(order, [len(prompts[i]) + limits[i] for i in order], batch, bytes_of_token(model)):
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
    return 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size * model.dtype.itemsize


@contextmanager
def _whole_rows(model: "PreTrainedModel") -> Iterator[None]:
    """A head that is given whole rows. Of the last states of several sequences, cut from a larger tensor, PyTorch makes a product of
    batches, and copies the head's weights for each sequence: one to three seconds for 16 sequences and 49,152 words."""
    head = causal_of(model).get_output_embeddings()
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(lambda _, states: tuple(each.contiguous() for each in states))
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
) -> list[Read | None]:
    """Let each line take its answer; with `keep`, what was read of each. The cache's columns are: what all share or what was read before,
    padding, what is a prompt's own, its answer; `mask` (lines, columns) says which of them are a line's."""
    import torch

    cache, mask, begun = _begin(model, [line.prompt for line in lines], known, alone)
    own = [line.prompt[start:] for line, start in zip(lines, begun, strict=True)]
    width = max(map(len, own))
    ids = torch.tensor([[0] * (width - len(part)) + part for part in own], device=model.device)
    mask = torch.cat([mask, torch.tensor([[0] * (width - len(part)) + [1] * len(part) for part in own], device=model.device)], dim=-1)
    # Positions count real tokens only, so padding in the middle does not move what follows it.
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -width:]
    last, guessed, wanted = positions[:, -1:], [list[int]()] * len(lines), 1
    kept: list[Read | None] = [None] * len(lines)
    alive = list(range(len(lines)))
    while True:
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=wanted,
        )
        taken, goes_on = [], []
        for place, (number, best) in enumerate(zip(alive, out.logits[:, -wanted:].argmax(-1).tolist(), strict=True)):
            count, ended = _take(lines[number], guessed[place], best, stops)
            taken.append(count)
            if not ended:
                goes_on.append(place)
        # Of the columns of this pass, the first token's and those of the guesses that were right stay.
        unread = torch.tensor([wanted - 1 - count for count in taken], device=model.device)
        mask[:, mask.shape[1] - wanted :] *= torch.arange(wanted, 0, -1, device=model.device) > unread[:, None]
        if keep:
            for place in set(range(len(alive))) - set(goes_on):
                kept[alive[place]] = _read_of(cache, mask, place, lines[alive[place]].ids)
        if not goes_on:
            return kept
        last = last + 1 + torch.tensor(taken, device=model.device)[:, None]
        if len(goes_on) < len(alive):
            chosen = torch.tensor(goes_on, device=model.device)
            alive = [alive[place] for place in goes_on]
            cache.batch_select_indices(chosen)
            mask, last = mask[chosen], last[chosen]
        if wasted := wanted - 1 - max(taken[place] for place in goes_on):
            cache.crop(-wasted)
            mask = mask[:, :-wasted]
        most = min(MOST_GUESSED, PASS_TOKENS // len(alive) - 1) if guesses else 0
        guessed = [lines[number].guess(most) for number in alive]
        wanted = 1 + max(map(len, guessed))
        ids = torch.tensor(
            [[lines[number].ids[-1], *some, *[0] * (wanted - 1 - len(some))] for number, some in zip(alive, guessed, strict=True)],
            device=model.device,
        )
        mask = torch.cat([mask, mask.new_ones(len(alive), wanted)], dim=-1)
        positions = last + torch.arange(wanted, device=model.device)


def _take(line: _Line, guessed: list[int], best: list[int], stops: Collection[int]) -> tuple[int, bool]:
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
    model: "PreTrainedModel", prompts: list[list[int]], known: Sequence[Read | None], alone: bool
) -> "tuple[Cache, torch.Tensor, list[int]]":
    """A cache with what is known of each prompt, or else with what all of them share; its mask; and how many tokens it holds of each.
    A prompt that is read `alone` has the model's own cache."""
    import torch
    from transformers import DynamicCache

    reads = [each for each in known if each]
    cache = DynamicCache(config=model.config) if alone else _cache()
    if len(reads) < len(prompts):
        shared = min(shared_prefix(prompts), *(len(prompt) - 1 for prompt in prompts))  # each has a token of its own, to predict from
        if shared:
            prefix = torch.tensor([prompts[0][:shared]], device=model.device)
            model(input_ids=prefix, past_key_values=cache, use_cache=True, logits_to_keep=1)
            if len(prompts) > 1:
                cache.batch_repeat_interleave(len(prompts))
        return cache, torch.ones(len(prompts), shared, dtype=torch.long, device=model.device), [shared] * len(prompts)
    begun = [min(shared_prefix([read.ids, prompt]), len(prompt) - 1) for read, prompt in zip(reads, prompts, strict=True)]
    width = max(begun)
    for layer, (keys, values) in enumerate(reads[0].layers):
        both = [each.new_zeros(len(prompts), each.shape[1], width, each.shape[3]) for each in (keys, values)]
        for line, (read, count) in enumerate(zip(reads, begun, strict=True)):
            for kind, states in zip(both, read.layers[layer], strict=True):
                kind[line, :, width - count :] = states[0, :, :count]
        if width:
            cache.update(*both, layer)
    mask = torch.tensor([[0] * (width - count) + [1] * count for count in begun], dtype=torch.long, device=model.device)
    return cache, mask.view(len(prompts), width), begun


def _read_of(cache: "Cache", mask: "torch.Tensor", line: int, ids: list[int]) -> Read:
    """What a cache holds of a line that begins with these tokens."""
    at = mask[line].nonzero()[:, 0]
    return Read(ids[: len(at)], [(layer.keys[line : line + 1, :, at], layer.values[line : line + 1, :, at]) for layer in cache.layers])


def _cache() -> "Cache":
    """A cache of layers that make room for some tokens at once: to copy all keys and values with every token takes as long as their use."""
    import torch
    from transformers import Cache
    from transformers.cache_utils import DynamicLayer

    class Layer(DynamicLayer):
        room: tuple[torch.Tensor, ...] = ()

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            old, more = self.get_seq_length(), key_states.shape[-2]
            if not old:
                return super().update(key_states, value_states, *args, **kwargs)
            states: tuple[torch.Tensor, ...] = (self.keys, self.values)  # type: ignore[has-type]
            # What was selected or repeated is a tensor of its own, without room.
            if not self.room or self.room[0].data_ptr() != states[0].data_ptr() or self.room[0].shape[-2] < old + more:
                self.room = tuple(each.new_empty(*each.shape[:2], old + more + ROOM, each.shape[3]) for each in states)
                for new, each in zip(self.room, states, strict=True):
                    new[:, :, :old] = each
            for new, each in zip(self.room, (key_states, value_states), strict=True):
                new[:, :, old : old + more] = each
            self.keys, self.values = (each[:, :, : old + more] for each in self.room)
            return self.keys, self.values

    return Cache(layer_class_to_replicate=Layer)
