"""Training an adapter on what it writes itself: rewards, demonstrations that only the teacher sees, or a larger teacher.

A row is a task to play (a row of `sft_dataset`), or one turn: `prompt`, `completion` (the logged message alone) and `tools`.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.device import Device
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.template_probe import find_stop_token
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.config import NO_TEACHER, OnPolicyTraining, resolve_size_defaults
from agent_pipeline.training.further_steps import NothingTrained, Start, origin_of, train_on
from agent_pipeline.training.sft import only_train
from agent_pipeline.training.trainers.common import let_a_step_train, reporting, shared_arguments
from agent_pipeline.training.trainers.on_policy import Play, Row, Setting, on_policy_trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerCallback


def train_on_policy(
    method: str,
    rows: Sequence[Row],
    base: BaseModel,
    adapter_dir: Path,
    config: OnPolicyTraining,
    out_dir: Path,
    select: Sequence[Row] = (),
    play: Play | None = None,
    teacher: BaseModel | None = None,
    progress: Progress = silent,
    reference: str = "",
    **origin: Any,
) -> dict[str, Any]:
    """Train the adapter in `adapter_dir` on from what it writes about the `rows` (train split), and leave the new one in `out_dir`.

    `method` is grpo, sdft or distill. `grpo` needs `play`, which plays rows and rewards them; `distill` needs a `teacher`. `select`,
    `reference`, and what happens after a kill, are as in `train_preferences`; `origin` goes into the identity. The report is returned.

    Raises:
        NothingTrained: there are fewer than `config.min_rows` rows, or a kind of decision fell at the first look.
        DataError: one of the rows is not of the split `train`.
        SettingsError: distillation has no teacher, or one with another vocabulary.
        ModelError: base, adapter or teacher cannot be loaded.
    """
    only_train(rows)
    config = type(config)(**resolve_size_defaults(config.model_dump(), method, base))
    if method == "distill" and teacher is None:
        raise SettingsError(NO_TEACHER)
    renderer = load_renderer(adapter_dir, base.trust_remote_code)
    kept, longest = _fitting(renderer, rows, config)
    dropped = len(rows) - len(kept)
    counts = {
        "in": len(rows),
        "dropped_too_long": dropped,
        "trained": len(kept),
        "dropped_share": dropped / max(len(rows), 1),
    }
    if len(kept) < config.min_rows:
        raise NothingTrained(
            f"{method} needs {config.min_rows} rows, and {len(kept)} of {len(rows)} fit into {config.max_length} tokens: curate more "
            "sessions, raise max_length, or lower min_rows.",
            counts,
        )

    def build(
        model: "PreTrainedModel", device: Device, work_dir: Path, watch: "TrainerCallback"
    ) -> "tuple[Trainer, Callable[[], dict[str, Any]]]":
        arguments = shared_arguments(config, device, work_dir, 0, longest) | {
            "save_steps": config.stop_steps
        }
        taught_by = load_model(teacher, device) if teacher else None
        callbacks = [watch, reporting(progress)]
        trainer = trainer_over(
            method,
            Setting(model, renderer, kept, config, arguments, callbacks, play, taught_by),
        )
        return trainer, lambda: {
            "row_ids": [row["row_id"] for row in kept],
            "longest_row_tokens": longest,
        }

    made_from = origin_of(method, rows, select, base, reference, config, **origin)
    return train_on(
        Start(base, adapter_dir, renderer, made_from),
        config,
        out_dir,
        select,
        counts,
        build,
    )


def trainer_over(method: str, setting: Setting) -> "Trainer":
    """TRL's trainer over the rows of a setting, pass after pass, each shuffled by the seed.

    Raises:
        SettingsError: TRL refuses the settings.
    """
    config, rows = setting.config, setting.rows
    if method != "grpo":
        rows = [row | texts(setting.renderer, row) for row in rows]
    steps = math.ceil(len(rows) * config.num_train_epochs / config.per_device_train_batch_size)
    seen = in_order(
        rows,
        min(steps, config.max_steps or steps) * config.per_device_train_batch_size,
        config.seed,
    )
    arguments = setting.arguments | {"num_train_epochs": 1, "max_steps": -1}
    trainer = on_policy_trainer(method, replace(setting, rows=seen, arguments=arguments))
    let_a_step_train(trainer)
    return trainer


def in_order(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """`count` rows: pass after pass, each shuffled by the seed."""
    rng = random.Random(seed)
    return [
        row for _ in range(math.ceil(count / len(rows))) for row in rng.sample(rows, len(rows))
    ][:count]


def _fitting(
    renderer: ChatRenderer, rows: Sequence[Row], config: OnPolicyTraining
) -> tuple[list[Row], int]:
    """The rows whose answer fits into `max_length`, and the tokens of the longest with it. How long a task gets, nobody knows before."""
    prompts = {
        row["row_id"]: renderer.prompt_ids(row["prompt"], row["tools"])
        for row in rows
        if "prompt" in row
    }
    turns = {
        row_id: len(prompt) + config.max_completion_length for row_id, prompt in prompts.items()
    }
    kept = [row for row in rows if turns.get(row["row_id"], 0) <= config.max_length]
    return kept, max(
        (turns[row["row_id"]] for row in kept if row["row_id"] in turns), default=config.max_length
    )


def texts(renderer: ChatRenderer, row: Row) -> dict[str, str]:
    """`asked`: the prompt of a turn as text; `shown`: the same, with what the agent did told in its system message."""
    asked = renderer.render(row["prompt"], row["tools"], add_generation_prompt=True)
    did = renderer.render([*row["prompt"], *row["completion"]], row["tools"])[len(asked) :].rstrip()
    did = did.removesuffix(find_stop_token(renderer.tokenizer, did) or "")
    head = row["prompt"][:1] if row["prompt"] and row["prompt"][0]["role"] == "system" else []
    system = "\n\n".join(
        [*(message["content"] for message in head), f"A good agent would now write:\n{did}"]
    )
    shown = renderer.render(
        [{"role": "system", "content": system}, *row["prompt"][len(head) :]],
        row["tools"],
        add_generation_prompt=True,
    )
    return {"asked": asked, "shown": shown}
