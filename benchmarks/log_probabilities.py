"""`python -m benchmarks.log_probabilities FILE.gguf [pairs]`: the time of a token of llama.cpp's server, with and without
log-probabilities.

Each pair generates the same 100 tokens twice, and the order within the pairs alternates, so that a load on the machine hits both.
"""

import sys
from pathlib import Path
from statistics import median
from typing import Any

from agent_pipeline.export.llama import LlamaCpp

TOKENS = 100
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell a long story about a cat."}],
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
}


def milliseconds(llama: LlamaCpp, **options: object) -> float:
    answer = llama._ask("POST", "/v1/chat/completions", ASKED | options)
    return float(answer["timings"]["predicted_per_token_ms"])


def main() -> None:
    gguf = Path(sys.argv[1])
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    without, having = [], []
    with LlamaCpp(gguf, threads=1) as llama:
        milliseconds(llama)
        for pair in range(pairs):
            for asks in (pair % 2 == 0, pair % 2 == 1):
                options = {"logprobs": True, "top_logprobs": 1} if asks else {}
                (having if asks else without).append(milliseconds(llama, **options))
    ratios = [more / less for more, less in zip(having, without, strict=True)]
    print(f"{gguf.name}: {pairs} pairs of {TOKENS} tokens")
    print(
        f"ms per token without log-probabilities: {median(without):.1f}, with: {median(having):.1f}"
    )
    print(
        f"median ratio within a pair: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
