"""What measuring held-out turns costs: loss and P(call) of all of them, with answers verified, and by greedy decoding alone, in our batches
and by Hugging Face's `generate`, a turn at a time.

    python -m benchmarks.evaluation shop/support 6        # of the lake in the settings: the latest adapter, the first 6 held-out rows

    python -m benchmarks.evaluation shop/support 24 ranks  # all adapters, and their base: does the pass order them as exact calls do?

Seconds of the process's cores, so that other load matters little; OMP_NUM_THREADS=1 leaves out what idle threads spend waiting.
"""

import sys
import time
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING

from agent_pipeline.compute.params import common_params
from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.base_measurements import MemoryStore
from agent_pipeline.evaluation.evaluate import EvaluationOptions, evaluate
from agent_pipeline.evaluation.greedy import greedy
from agent_pipeline.evaluation.heldout import heldout_rows
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.turns import TurnAnswerer
from agent_pipeline.keys import parse_key
from agent_pipeline.method_comparison.comparison_report import MethodFigure
from agent_pipeline.method_comparison.results import PASS_FIGURES, rank_correlation
from agent_pipeline.tokenization.encoding import encode_row, split_into_trained_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def main(partition: str, count: int) -> None:
    """Print a line for the base and one for the adapter."""
    settings, key = load_settings(), parse_key(partition)
    adapter = settings.candidate(key)
    base = common_params(settings, key).base_of(adapter)
    answering, rows = (
        TurnAnswerer.of(base, adapter.path),
        heldout_rows(settings.open_lake(), key)[:count],
    )
    questions = [
        question for sample in turn_samples(rows)[0] if (question := answering.question(sample, 96))
    ]
    encoded = [
        each
        for row in split_into_trained_rows(answering.renderer, rows)
        if (each := encode_row(answering.renderer, row, 2048))
    ]
    prompts, limits = [each.prompt for each in questions], [each.limit for each in questions]
    stops = sorted(answering.renderer.answer_end_ids)
    for name in ("base", "adapter"):
        with answering.model.disable_adapter() if name == "base" else nullcontext():
            times = [time.process_time()]
            for work in (
                lambda: answering.forward(encoded, questions, []),
                lambda: answering.forward(encoded, questions),
                lambda: greedy(answering.model, prompts, limits, stops),
                lambda: by_hugging_face(answering.model, prompts, limits, stops),
            ):
                work()
                times.append(time.process_time())
        read, verified, ours, theirs = (after - before for before, after in pairwise(times))
        print(
            f"{name}, {len(questions)} turns: loss and P(call) {read:.1f} s, with verified answers {verified:.1f} s, "
            f"greedy {ours:.1f} s, by Hugging Face's generate {theirs:.1f} s",
            flush=True,
        )


def by_hugging_face(
    model: "PreTrainedModel", prompts: list[list[int]], limits: list[int], stops: list[int]
) -> None:
    """Write the greedy answer to each prompt, one by one."""
    import torch

    for prompt, limit in zip(prompts, limits, strict=True):
        ids = torch.tensor([prompt], device=model.device)
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=stops,
            pad_token_id=stops[0],
        )


def ranks(partition: str, count: int) -> None:
    """Print a line for each adapter and the base, and Spearman's rank correlations with exact calls."""
    settings, key = load_settings(), parse_key(partition)
    lake, store = settings.open_lake(), MemoryStore()
    rows = heldout_rows(lake, key)[:count]
    figures: dict[str, dict[str, MethodFigure | None]] = {}
    for adapter in lake.finished("sft_adapter", key):
        base = common_params(settings, key).base_of(adapter)
        options = EvaluationOptions(max_samples=10**6)
        report = evaluate(rows, base, adapter.path, options, base_store=store).report
        for name, of in ((adapter.identity[:8], report.adapter), (base.name, report.base)):
            if name not in figures:
                taken = {
                    "exact_calls": of.exact_call_accuracy,
                    **{name: of.figure(name) for name in (*PASS_FIGURES, "heldout_loss")},
                }
                figures[name] = {
                    figure: None if value is None else MethodFigure(value, None, None, [value])
                    for figure, value in taken.items()
                }
                print(
                    f"{name}, {report.n} turns:",
                    *(
                        f"{figure} {value:.3f}"
                        for figure, value in taken.items()
                        if value is not None
                    ),
                    flush=True,
                )
    print(rank_correlation(figures))


if __name__ == "__main__":
    (ranks if "ranks" in sys.argv[3:] else main)(sys.argv[1], int(sys.argv[2]))
