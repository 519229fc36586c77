"""What measuring held-out turns costs: loss and P(call) of all of them, with answers verified, and by greedy decoding alone.

    python -m benchmarks.evaluation shop/support 6        # of the lake in the settings: the latest adapter, the first 6 held-out rows

Seconds of the process's cores, so that other load matters little; OMP_NUM_THREADS=1 leaves out what idle threads spend waiting.
"""

import sys
import time
from contextlib import nullcontext
from itertools import pairwise

from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.heldout import heldout_rows
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import Answering
from agent_pipeline.keys import parse_key
from agent_pipeline.training.base_model import resolve_base_model
from agent_pipeline.training.encoding import as_trained, encode_row


def main(partition: str, count: int) -> None:
    """Print a line for the base and one for the adapter."""
    settings, key = load_settings(), parse_key(partition)
    adapter = settings.candidate(key)
    base = resolve_base_model(adapter.manifest["made_from"]["base_model"], settings.cache_path)
    answering, rows = Answering.of(base, adapter.path), heldout_rows(settings.open_lake(), key)[:count]
    questions = [question for sample in turn_samples(rows)[0] if (question := answering.question(sample, 96))]
    encoded = [each for row in as_trained(answering.tokenizer, rows) if (each := encode_row(answering.tokenizer, row, 2048))]
    for name in ("base", "adapter"):
        with answering.model.disable_adapter() if name == "base" else nullcontext():
            times = [time.process_time()]
            for work in (
                lambda: answering.forward(encoded, questions, []),
                lambda: answering.forward(encoded, questions),
                lambda: answering.replies(questions),
            ):
                work()
                times.append(time.process_time())
        read, verified, greedy = (after - before for before, after in pairwise(times))
        print(
            f"{name}, {len(questions)} turns: loss and P(call) {read:.1f} s, with verified answers {verified:.1f} s, greedy {greedy:.1f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
