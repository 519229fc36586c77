"""Presets: named groups of asset settings, which the user's own settings override.

`smoke` is short in steps, not in rows: a shorter `max_length` would drop the rows of an agent with
long sessions. `cpu` is empty: the defaults are chosen for a small model on a few CPU cores.
"""

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {
        "sft_coreset": {"strategy": "random", "target_size": 32},
        "sft_adapter": {
            "max_steps": 4,
            "lora_r": 4,
            "lora_alpha": 8,
            "rehearsal": 0.0,
        },
        "dpo_adapter": {"max_steps": 4},
        "kto_adapter": {"max_steps": 4},
        **{
            f"{step}_adapter": {
                "max_steps": 2,
                "per_device_train_batch_size": 2,
                "max_completion_length": 32,
            }
            for step in ("sdft", "distill", "grpo")
        },
        "evaluation": {"max_samples": 8, "max_new_tokens": 32},
        "gguf_export": {"outtypes": ["f16"], "max_conversations": 4, "max_new_tokens": 8},
        "episodes": {"max_tasks": 4, "max_new_tokens": 96, "variant_tasks": 1},
        "champion": {"select_turns": 8, "sanity_question_rows": 2},
    },
    "cpu": {},
    "gpu": {
        "sft_coreset": {"target_size": 10_000},
        "sft_adapter": {"per_device_train_batch_size": 8, "max_length": 8192},
        "dpo_adapter": {"per_device_train_batch_size": 8, "max_length": 8192},
        "kto_adapter": {"per_device_train_batch_size": 8, "max_length": 8192},
        **{
            f"{step}_adapter": {
                "per_device_train_batch_size": 16,
                "max_length": 8192,
                "max_completion_length": 512,
            }
            for step in ("sdft", "distill", "grpo")
        },
        "evaluation": {"max_samples": 400, "max_new_tokens": 512, "max_length": 8192},
        "episodes": {"max_length": 8192},
    },
}
"""Settings of each preset by asset. `smoke` shows in few steps that everything runs, and `gpu` is
for models with billions of weights and long sessions.
"""
