"""Token counts of a sample of sessions, and whether the sample fits into the training settings."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from agent_pipeline.config.assets import AdapterConfig
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.evaluation.intervals import NORMAL_QUANTILE_OF_95
from agent_pipeline.models.base_model import BaseModel, resolve_tokenizer
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.readiness.base_choice import find_known_base
from agent_pipeline.readiness.examination import SAMPLE_SIZE, Examination, SampledSession
from agent_pipeline.readiness.report import TokenCounts
from agent_pipeline.sessions.session import Tool
from agent_pipeline.shares import wilson
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.length_check import (
    RowLengths,
    check_fit,
    describe_misfit,
    pick_quantile,
    propose_length,
    read_context_length,
    summarize_lengths,
)
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.forecast import ModelShape, measure_shape
from agent_pipeline.training.size_defaults import (
    build_meta_model,
    count_weights,
    fill_row_defaults,
)

FIT_SESSIONS = 10
"""Maximum number of sampled sessions per agent that are encoded as training rows.

Only the chat template can refuse a row that is short enough. A template that refuses three of ten
rows refuses one of ten sampled sessions with a probability of 97 %.
"""
_MIN_COUNTED, _MAX_COUNTED = 20, 1_000
"""Minimum number of sessions per agent whose tokens are counted, and how many agents share."""
_MIN_ENCODED, _MAX_ENCODED = 2, 100
"""Minimum number of sessions per agent that are encoded, and how many agents share."""
MAX_LOST = 0.5
"""Maximum share of the sampled sessions that may be longer than the base model's context. If more
are longer, another base model is needed.
"""
SHARE_STEPS = 20
"""Number of steps between 0 and 1 in which `most_dropped` is proposed."""
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


class TokenBudget(NamedTuple):
    """The number of sessions per agent that a report tokenizes, so that many agents take a minute.

    Attributes:
        counted: Number of sampled sessions whose tokens are counted.
        encoded: Number of these sessions that are encoded as training rows.
    """

    counted: int = SAMPLE_SIZE
    encoded: int = FIT_SESSIONS

    @classmethod
    def for_agents(cls, agents: int) -> "TokenBudget":
        """Return the budget of each agent in a report.

        Example:
            >>> TokenBudget.for_agents(1)
            TokenBudget(counted=200, encoded=10)
            >>> TokenBudget.for_agents(85)
            TokenBudget(counted=20, encoded=2)
        """
        return cls(
            min(SAMPLE_SIZE, max(_MIN_COUNTED, _MAX_COUNTED // max(1, agents))),
            min(FIT_SESSIONS, max(_MIN_ENCODED, _MAX_ENCODED // max(1, agents))),
        )


ONE_AGENT = TokenBudget()
"""The budget of an agent that is reported alone."""


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


def count_tokens(
    examination: Examination, tokens: BaseTokens, max_sessions: int = SAMPLE_SIZE
) -> TokenCounts | None:
    """Count the tokens of the sampled sessions, and of the longest session.

    Args:
        examination: The examined sessions.
        tokens: The tokenizer of the base model.
        max_sessions: Maximum number of sampled sessions to count.

    Returns:
        The counts, or None if no session has an answer of the agent.
    """
    if not examination.sample or examination.longest is None:
        return None
    if earlier_counts := examination.token_counts.get(tokens.base_model):
        return earlier_counts
    inferred = examination.schemas.tools()
    by_id = {
        session.session_id: _count(session, tokens, inferred)
        for session in examination.sample[:max_sessions]
    }
    examination.lengths[tokens.base_model] = by_id
    lengths = sorted(by_id.values())
    counts = TokenCounts(
        base_model=tokens.base_model,
        median=pick_quantile(lengths, 0.5),
        p90=pick_quantile(lengths, 0.9),
        longest=max(
            lengths[-1],
            by_id.get(examination.longest.session_id)
            or _count(examination.longest, tokens, inferred),
        ),
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


class LengthProblem(msgspec.Struct, frozen=True):
    """The reason why training would refuse the rows of an agent.

    Attributes:
        sentence: What is wrong, and what to do.
        most_dropped: The share of the rows that may be dropped or shortened, with which training
            accepts the rows; None if another setting must change.
    """

    sentence: str
    most_dropped: float | None = None


def find_length_problem(
    examination: Examination,
    trainable: Collection[str],
    tokens: BaseTokens,
    adapter: AdapterConfig,
    max_sessions: int = FIT_SESSIONS,
) -> LengthProblem | None:
    """Return why training would refuse the sampled sessions, or None.

    Args:
        examination: The examined sessions, whose tokens were counted.
        trainable: The ids of the sessions that can be trained on. Without any, all sessions count.
        tokens: The tokenizer of the base model.
        adapter: The options of `sft_adapter`, with the `max_length` of the training run.
        max_sessions: Maximum number of sessions to encode.
    """
    max_length, most_dropped = adapter.max_length, adapter.most_dropped
    counts = examination.token_counts.get(tokens.base_model)
    if tokens.renderer is None or tokens.folder is None or counts is None:
        return None
    lengths = examination.lengths[tokens.base_model]
    counted = [session for session in examination.sample if session.session_id in lengths]
    sampled = [session for session in counted if session.session_id in trainable] or counted
    lost = sum(lengths[session.session_id] > max_length for session in sampled)
    if lost > most_dropped * len(sampled):
        summary = summarize_lengths([lengths[session.session_id] for session in sampled])
        sentence = describe_misfit(
            lost,
            "they lose their beginning or are dropped",
            RowLengths(len(sampled), summary),
            max_length,
            counts.context,
        )
        return LengthProblem(sentence, _propose_share(lost, len(sampled), summary, counts.context))
    fitting = [session for session in sampled if lengths[session.session_id] <= max_length]
    return _find_refusal(fitting[:max_sessions], examination, tokens, max_length, most_dropped)


def _propose_share(
    lost: int, sampled: int, summary: Mapping[str, int], context: int | None
) -> float | None:
    """Return the `most_dropped` to propose, or None if a longer `max_length` is the remedy.

    Args:
        lost: Number of sampled sessions that are too long.
        sampled: Number of sampled sessions.
        summary: The lengths of the sampled sessions.
        context: The longest text that the base model reads, in tokens; None if it is unknown.
    """
    if not context or propose_length(summary["p95"]) <= context or lost > MAX_LOST * sampled:
        return None
    _, upper = wilson(lost / sampled, sampled, NORMAL_QUANTILE_OF_95)
    return math.ceil(upper * SHARE_STEPS) / SHARE_STEPS


def _find_refusal(
    sessions: Sequence[SampledSession],
    examination: Examination,
    tokens: BaseTokens,
    max_length: int,
    most_dropped: float,
) -> LengthProblem | None:
    """Return why the chat template refuses sessions that are short enough, or None."""
    renderer, folder = tokens.renderer, tokens.folder
    if renderer is None or folder is None or not sessions:
        return None
    ids = tuple(session.session_id for session in sessions)
    if examination.encoded.get(tokens.base_model) == ids:
        return None
    inferred = examination.schemas.tools()
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
        for session in sessions
    ]
    counted = encode_rows(renderer, rows, max_length)
    try:
        check_fit(counted.counts, max_length, most_dropped, folder, counted.first_dropped)
    except DataError as error:
        return LengthProblem(str(error))
    examination.encoded[tokens.base_model] = ids
    return None


def _count(session: SampledSession, tokens: BaseTokens, inferred: Sequence[Tool]) -> int:
    """Return the length of a session in tokens."""
    tools = session.tools if session.has_own_tools else list(inferred)
    if tokens.renderer is not None:
        try:
            text = tokens.renderer.render(session.messages, tools)
            return tokens.renderer.token_counter.count(text)
        except Exception:  # a template is a program; the session would be dropped
            pass
    return math.ceil(session.characters / CHARACTERS_PER_TOKEN)
