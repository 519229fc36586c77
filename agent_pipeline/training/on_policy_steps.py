"""Training steps that continue to train an adapter on texts that the adapter itself writes.

It learns from rewards (GRPO), from demonstrations that only the teacher sees (SDFT), or from a
larger teacher (distillation). A row is a task to play (a row of `sft_dataset`), or a single turn:
`prompt`, `completion` (the logged message alone) and `tools`. TRL's trainers belong to
`trainers.on_policy`, and how rows are played and rewarded to `evaluation.rollouts`.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_pipeline.errors import SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.template_probe import find_stop_token
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.encoding import (
    RowDropped,
    encode_and_count,
    render_prompt_or_raise,
)
from agent_pipeline.training.config import NO_TEACHER, OnPolicyTraining
from agent_pipeline.training.further_steps import (
    FurtherStep,
    NothingTrained,
    StepContext,
    StepTrainer,
    continue_training,
)
from agent_pipeline.training.provenance import FurtherInput
from agent_pipeline.training.report import TrainingReport
from agent_pipeline.training.sft import check_train_split
from agent_pipeline.training.trainers.common import (
    limit_warmup,
    make_progress_callback,
    make_shared_arguments,
)
from agent_pipeline.training.trainers.on_policy import (
    OnPolicySetup,
    Play,
    Row,
    build_on_policy_trainer,
)

if TYPE_CHECKING:
    from transformers import Trainer


def train_on_policy(
    further_input: FurtherInput,
    out_dir: Path,
    play: Play | None = None,
    teacher: BaseModel | None = None,
    progress: Progress = silent,
) -> TrainingReport:
    """Continue to train an adapter on its own texts, and save the new adapter in `out_dir`.

    Args:
        further_input: The method (grpo, sdft or distill), the rows, the adapter and the options.
        out_dir: The directory of the new adapter.
        play: Plays rows and rewards them (grpo).
        teacher: The teacher (distill).
        progress: Is called after each step.

    Returns:
        The report.

    Raises:
        NothingTrained: there are fewer than `min_rows` rows, or a kind of decision fell at the
            first measurement.
        DataError: a row is not of the split `train`.
        SettingsError: distillation has no teacher, or a teacher with another vocabulary.
        ModelError: the base model, the adapter or the teacher cannot be loaded.
    """
    check_train_split(further_input.rows)
    method, config, rows = further_input.method, further_input.config, further_input.rows
    if method == "distill" and teacher is None:
        raise SettingsError(NO_TEACHER)
    renderer = load_renderer(further_input.adapter_dir, further_input.base.trust_remote_code)
    fitting = _find_fitting_rows(renderer, rows, config)
    counts = fitting.counts
    if len(fitting.rows) < config.min_rows:
        raise NothingTrained(
            f"{method} needs at least {config.min_rows} rows, but only {len(fitting.rows)} of "
            f"{len(rows)} rows can be used within {config.max_length} tokens: log more good "
            f"sessions, or lower `min_rows`. {fitting.first_dropped}".rstrip(),
            counts,
        )

    def build(context: StepContext) -> StepTrainer:
        shared_arguments = make_shared_arguments(
            config, context.device, context.work_dir, 0, fitting.longest
        )
        setup = OnPolicySetup(
            model=context.model,
            renderer=renderer,
            rows=fitting.rows,
            config=config,
            arguments=shared_arguments | {"save_steps": config.stop_steps},
            callbacks=[context.fall_callback, make_progress_callback(progress)],
            play=play,
            teacher=load_model(teacher, context.device) if teacher else None,
        )
        return StepTrainer(build_trainer_over_epochs(method, setup), complete_report)

    def complete_report(report: TrainingReport) -> TrainingReport:
        return msgspec.structs.replace(
            report,
            row_ids=[row["row_id"] for row in fitting.rows],
            longest_row_tokens=fitting.longest,
        )

    return continue_training(FurtherStep(further_input, renderer, counts, build), out_dir)


def build_trainer_over_epochs(method: str, setup: OnPolicySetup) -> "Trainer":
    """Return TRL's trainer for the rows of a setup. Each epoch shuffles the rows by the seed.

    Raises:
        SettingsError: TRL refuses the settings.
    """
    config, rows = setup.config, setup.rows
    if method != "grpo":
        rows = [cast(Row, {**row, **render_turn(setup.renderer, row)}) for row in rows]
    batch_size = config.per_device_train_batch_size
    steps = math.ceil(len(rows) * config.num_train_epochs / batch_size)
    steps = min(steps, config.max_steps or steps)
    ordered_rows = repeat_shuffled(rows, steps * batch_size, config.seed)
    # The repeated rows are one epoch for TRL.
    arguments = setup.arguments | {"num_train_epochs": 1, "max_steps": -1}
    trainer = build_on_policy_trainer(
        method, replace(setup, rows=ordered_rows, arguments=arguments)
    )
    limit_warmup(trainer)
    return trainer


def repeat_shuffled(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Return `count` rows. The rows repeat in epochs, and each epoch is shuffled by the seed."""
    rng = random.Random(seed)
    repeated: list[Row] = []
    while len(repeated) < count:
        repeated += rng.sample(rows, len(rows))
    return repeated[:count]


@dataclass(frozen=True)
class _FittingRows:
    """The rows that can be used, and the counts of the other rows.

    Attributes:
        rows: The rows.
        longest: The tokens of the longest row with its answer.
        counts: As in `Counted`.
        first_dropped: As in `Counted`.
    """

    rows: list[Row]
    longest: int
    counts: dict[str, Any]
    first_dropped: str


def _find_fitting_rows(
    renderer: ChatRenderer, rows: Sequence[Row], config: OnPolicyTraining
) -> _FittingRows:
    """Return the rows whose prompt is shown whole and fits into `max_length` with its answer.

    A task to play always fits: its length is unknown before it is played.
    """
    lengths: list[int] = []

    def check_row(row: Row) -> Row:
        if "prompt" in row:
            lengths.append(_measure_turn(renderer, row, config))
        else:
            _check_opening_shown(renderer, row)
        return row

    counted = encode_and_count(rows, check_row)
    longest = max(lengths, default=config.max_length)
    return _FittingRows(counted.rows, longest, counted.counts, counted.first_dropped)


def _measure_turn(renderer: ChatRenderer, row: Row, config: OnPolicyTraining) -> int:
    """Return the tokens of a turn's prompt and its longest answer.

    Raises:
        RowDropped: The prompt is too long, or the template does not show it.
    """
    text = render_prompt_or_raise(renderer, row, row["prompt"])
    length = len(renderer.token_ids(text)) + config.max_completion_length
    if length > config.max_length:
        raise RowDropped(
            f"Row {row['row_id']} is longer than {config.max_length} tokens with its answer: "
            "raise `max_length`.",
            "too_long",
            length,
        )
    return length


def _check_opening_shown(renderer: ChatRenderer, row: Row) -> None:
    """Check that the template shows the messages with which a task to play begins.

    Raises:
        RowDropped: The template does not show a system or user message.
    """
    opening = list(takewhile(lambda message: message["role"] != "assistant", row["messages"]))
    try:
        render_prompt_or_raise(renderer, row, opening)
    except RowDropped as error:
        # The world may begin in a way that the template renders.
        if error.reason == "not_shown":
            raise


def render_turn(renderer: ChatRenderer, row: Row) -> dict[str, str]:
    """Render the prompt of a turn as text, for the model and for its teacher.

    Returns:
        `asked`, the prompt; and `shown`, the prompt with the logged message in its system message.
    """
    prompt, tools = row["prompt"], row["tools"]
    prompt_text = renderer.render(prompt, tools, add_generation_prompt=True)
    whole = renderer.render([*prompt, *row["completion"]], tools)
    demonstration = whole[len(prompt_text) :].rstrip()
    stop_token = find_stop_token(renderer.tokenizer, demonstration) or ""
    demonstration = demonstration.removesuffix(stop_token)
    has_system = bool(prompt) and prompt[0]["role"] == "system"
    system_messages = prompt[:1] if has_system else []
    system_texts = [message["content"] for message in system_messages]
    system_texts.append(f"A good agent would now write:\n{demonstration}")
    system_message: Message = {"role": "system", "content": "\n\n".join(system_texts)}
    shown = renderer.render(
        [system_message, *prompt[len(system_messages) :]],
        tools,
        add_generation_prompt=True,
    )
    return {"asked": prompt_text, "shown": shown}
