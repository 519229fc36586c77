"""What a model that was trained on pseudonyms does with an address that a user gives, and what one does that was trained on surrogates.

    python -m benchmarks.surrogates        # two trainings of 48 steps of the setting base_model, some 5 minutes on two cores

Made-up customers give an e-mail address, by which the agent looks their order up. The rows are as tables hold them, with `<EMAIL_1>`.
Each model is asked the same 40 held-out turns twice: as the table has them, and as users write, with addresses of another making.
"""

import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.evaluate import EvaluationOptions, evaluate
from agent_pipeline.models.base_model import resolve_base_model
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.sample.names import FIRST, LAST
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.provenance import SftInput
from agent_pipeline.training.sft import train_adapter

Row = dict[str, Any]
ASKS = (
    "Where is my order? My e-mail is {}.",
    "Has my parcel left? I'm {}.",
    "When does it arrive? {}",
    "Look up {}, please.",
)
TRAINED, ASKED = 96, 40
PARAMETERS = {"type": "object", "properties": {"email": {"type": "string"}}, "required": ["email"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "Find an order.",
            "parameters": PARAMETERS,
        },
    }
]


def row(number: int, split: str, address: str) -> Row:
    """A session: the customer's question, the look-up by address, the answer."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "find_order", "arguments": json.dumps({"email": address})},
    }
    messages = [
        {"role": "system", "content": "Find the customer's order by e-mail address."},
        {"role": "user", "content": ASKS[number % len(ASKS)].format(address)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"status": "shipped"}'},
        {"role": "assistant", "content": "It has shipped."},
    ]
    name = f"{split}-{number}"
    return {
        "row_id": name,
        "session_id": name,
        "task_key": name,
        "content_sha256": name,
        "split": split,
        "messages": messages,
        "tools": TOOLS,
    }


def main() -> None:
    """Print the share of exact look-ups, by what the model was trained on and what it is asked."""
    settings, rng = load_settings(), Random(0)
    base = resolve_base_model(settings.base_model, settings.cache_path)
    rows = [row(number, "train", "<EMAIL_1>") for number in range(TRAINED)]
    written = [
        f"{rng.choice(FIRST)[0]}_{rng.choice(LAST)}{rng.randrange(1900, 2000)}@mail{number}.net".lower()
        for number in range(ASKED)
    ]
    asked = {
        "as the table has them": [row(number, "test", "<EMAIL_1>") for number in range(ASKED)],
        "as users write": [row(number, "test", address) for number, address in enumerate(written)],
    }
    print("| trained on | exact look-ups, asked " + " | asked ".join(asked) + " |\n|---|---:|---:|")
    for name, trained in (("pseudonyms", rows), ("surrogates", list(with_surrogates(rows)))):
        with tempfile.TemporaryDirectory() as folder:
            train_adapter(SftInput(trained, base, TrainingConfig()), Path(folder))
            reports = [
                evaluate(each, base, Path(folder), EvaluationOptions(max_samples=2 * ASKED)).report
                for each in asked.values()
            ]
        print(
            f"| {name} | "
            + " | ".join(f"{report.adapter.exact_call_accuracy:.0%}" for report in reports)
            + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
