"""Token counts of a sample of sessions, and whether the sample fits into the training settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.models.base_model import BaseModel, resolve_tokenizer
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.readiness.base_choice import find_known_base
from agent_pipeline.readiness.examination import Examination, SampledSession
from agent_pipeline.readiness.report import TokenCounts
from agent_pipeline.sessions.session import Tool
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.length_check import check_fit, pick_quantile, read_context_length
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.forecast import ModelShape, measure_shape
from agent_pipeline.training.size_defaults import (
    build_meta_model,
    count_weights,
    fill_row_defaults,
)

FIT_CHARACTERS = 300_000
"""Number of characters of the sampled sessions that are encoded as training rows.

Encoding is slower than counting, above all if rows are shortened. At least one session is encoded.
"""
FIT_SESSIONS = 10
"""Number of sampled sessions that are encoded if no session is longer than `max_length`.

Then only the chat template can refuse a row. A template that refuses three of ten rows refuses one
of ten sampled sessions with a probability of 97 %.
"""
CHARACTERS_PER_TOKEN = 4
"""Estimated number of characters per token, if the tokenizer is not on this machine."""


class BaseTokens(msgspec.Struct, frozen=True):
    """The tokenizer of a base model, or the reason why it cannot be used.

    Attributes:
        base_model: The name of the base model.
        folder: The folder of the tokenizer.
        renderer: The renderer.
        problem: The reason why there is no renderer.
        shape: The sizes of the model with an adapter of rank 1, if they are known.
    """

    base_model: str
    folder: Path | None
    renderer: ChatRenderer | None
    problem: str = ""
    shape: ModelShape | None = None


def load_tokens(base_model: str, cache: Path, trust_remote_code: bool) -> BaseTokens:
    """Load the tokenizer of a base model without loading or downloading its weights."""
    try:
        folder = resolve_tokenizer(base_model, cache, trust_remote_code)
        renderer = load_renderer(folder, trust_remote_code)
        shape = None
        if find_known_base(base_model) is None:
            model = build_meta_model(BaseModel(base_model, folder, "", trust_remote_code))
            shape = measure_shape(model, TrainingConfig(lora_r=1)) if model is not None else None
        return BaseTokens(base_model, folder, renderer, shape=shape)
    except (ModelError, OSError) as error:
        return BaseTokens(base_model, None, None, str(error))


def count_tokens(examination: Examination, tokens: BaseTokens) -> TokenCounts | None:
    """Count the tokens of the sampled sessions, and of the longest session.

    Returns:
        The counts, or None if no session has an answer of the agent.
    """
    if not examination.sample or examination.longest is None:
        return None
    if earlier_counts := examination.token_counts.get(tokens.base_model):
        return earlier_counts
    inferred = examination.schemas.tools()
    lengths = sorted(_count(session, tokens, inferred) for session in examination.sample)
    counts = TokenCounts(
        base_model=tokens.base_model,
        median=pick_quantile(lengths, 0.5),
        p90=pick_quantile(lengths, 0.9),
        longest=max(lengths[-1], _count(examination.longest, tokens, inferred)),
        sampled=len(lengths),
        context=read_context_length(tokens.folder) if tokens.folder else None,
        is_estimate=tokens.renderer is None,
        why_estimated=tokens.problem,
    )
    examination.token_counts[tokens.base_model] = counts
    return counts


def choose_max_length(
    options: Mapping[str, object], counts: TokenCounts | None, tokens: BaseTokens
) -> int:
    """Return the `max_length` of a training run. A setting of 0 is chosen as in training.

    Args:
        options: The options of `sft_adapter`, by name.
        counts: The lengths of the sessions.
        tokens: The base model.
    """
    try:
        weights = count_weights(tokens.folder) if tokens.folder else None
    except ModelError:
        weights = None
    lengths = [counts.longest] if counts else []
    context = counts.context if counts else None
    return int(fill_row_defaults(options, weights, lengths, context)["max_length"])


def find_length_problem(
    examination: Examination, tokens: BaseTokens, max_length: int, most_dropped: float
) -> str:
    """Return the error with which training would refuse the sampled sessions, or an empty text.

    Args:
        examination: The examined sessions.
        tokens: The tokenizer of the base model.
        max_length: The setting `sft_adapter.max_length`.
        most_dropped: The setting `sft_adapter.most_dropped`.
    """
    if tokens.renderer is None or tokens.folder is None:
        return ""
    inferred = examination.schemas.tools()
    sample = list(_limit_characters(examination.sample))
    counts = examination.token_counts.get(tokens.base_model)
    if counts and counts.longest <= max_length:
        sample = sample[:FIT_SESSIONS]
    rows = [
        cast(
            DatasetRow,
            {
                "row_id": session.session_id,
                "session_id": session.session_id,
                "messages": session.messages,
                "tools": session.tools if session.has_own_tools else inferred,
            },
        )
        for session in sample
    ]
    counted = encode_rows(tokens.renderer, rows, max_length)
    try:
        check_fit(counted.counts, max_length, most_dropped, tokens.folder, counted.first_dropped)
    except DataError as error:
        return str(error)
    return ""


def _limit_characters(sample: Sequence[SampledSession]) -> Iterator[SampledSession]:
    """Yield the first sampled sessions, up to a total number of characters."""
    characters = 0
    for session in sample:
        yield session
        characters += session.characters
        if characters >= FIT_CHARACTERS:
            return


def _count(session: SampledSession, tokens: BaseTokens, inferred: Sequence[Tool]) -> int:
    """Return the length of a session in tokens."""
    tools = session.tools if session.has_own_tools else list(inferred)
    if tokens.renderer is not None:
        try:
            return len(tokens.renderer.token_ids(tokens.renderer.render(session.messages, tools)))
        except Exception:  # a template is a program; the session would be dropped
            pass
    return math.ceil(session.characters / CHARACTERS_PER_TOKEN)
