"""`python -m benchmarks.selection`: deduplication, coresets and losses, each side by side with a yardstick in the same run.

The machine's sgemm rate is measured first and last. Names after the command choose parts (`python -m benchmarks.selection dedup growth`).
Data is synthetic, and its makers say how: words of a vocabulary for texts; for embeddings topics of very unequal sizes with 2 % of noise.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agent_pipeline.datasets.sketches import choose_bands
from agent_pipeline.selection.candidates import hash_conversation
from agent_pipeline.selection.clusters import draw_sample, measure_nearest
from agent_pipeline.selection.duplicates import NEAR, find_near_pairs, split_words
from agent_pipeline.selection.embeddings import embed
from agent_pipeline.selection.pool import Pool
from agent_pipeline.selection.strategies import STRATEGIES

SESSIONS = int(os.environ.get("SESSIONS", 100_000))
ROWS = int(os.environ.get("ROWS", 1_000_000))
DIMENSIONS, PICKS, NOISE = 64, 1000, 0.02


def line(what: str, ours: str, yardstick: str, ratio: float | str, reach: str) -> None:
    print(
        f"| {what} | {ours} | {yardstick} | {ratio if isinstance(ratio, str) else f'{ratio:.3g}'} | {reach} |",
        flush=True,
    )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def sgemm() -> float:
    """FLOP/s of a product of two 4096 × 4096 float32 matrices by all threads, the best of three."""
    a = np.random.default_rng(0).random((4096, 4096), dtype=np.float32)
    return 2 * 4096**3 / min(timed(lambda: a @ a)[0] for _ in range(4))


def texts(count: int, words: int = 250) -> list[str]:
    """Sessions without their prompt: half their words are a shop's everyday ninety, half of a vocabulary of 30,000."""
    rng = np.random.default_rng(0)
    everyday = np.array([f"shop{i}" for i in range(90)])
    rare = np.array([f"word{i}" for i in range(30_000)])
    made = []
    for _ in range(count):
        both = np.where(
            rng.random(words) < 0.5,
            everyday[rng.integers(90, size=words)],
            rare[rng.integers(30_000, size=words)],
        )
        made.append(" ".join(both.tolist()))
    return made


def embeddings(
    n: int, seed: int, topics: int = 300, spread: float = 0.3, rank: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, 64) unit vectors, their topics (−1: noise), and losses, which are higher for noise. Sizes of topics fall as 1 / rank of size."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, topics + 1)
    topic = rng.choice(topics, size=n, p=shares / shares.sum())
    centres = rng.normal(size=(topics, DIMENSIONS)).astype(np.float32)
    ways = (spread * rng.normal(size=(topics, rank, DIMENSIONS)) / np.sqrt(rank)).astype(np.float32)
    vectors = np.empty((n, DIMENSIONS), dtype=np.float32)
    for start in range(0, n, 20_000):
        part = topic[start : start + 20_000]
        vectors[start : start + 20_000] = centres[part] + np.einsum(
            "nr,nrd->nd", rng.normal(size=(len(part), rank)), ways[part]
        )
    noise = rng.random(n) < NOISE
    vectors[noise] = rng.normal(size=(int(noise.sum()), DIMENSIONS))
    topic[noise] = -1
    losses = np.where(noise, rng.normal(3, 1, size=n), rng.normal(1, 0.3, size=n)).clip(0.05)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, topic, losses


def pool(vectors: np.ndarray, losses: Sequence[float] | None = None, size: int = PICKS) -> Pool:
    return Pool([f"{i:07d}" for i in range(len(vectors))], size, lambda: vectors, losses=losses)


def dedup() -> None:
    """Near-duplicates, planted with 2 to 12 of 250 words changed; both read texts and split them in the same way.

    Beside the same parameters, datasketch's own: fewer hashes, and of pairs at the threshold its bands find 40 %.
    """
    from datasketch import MinHash, MinHashLSH

    rows = texts(SESSIONS)
    rng = np.random.default_rng(1)
    planted = {}
    for of in rng.choice(SESSIONS, SESSIONS // 50, replace=False).tolist():
        parts = rows[of].split()
        for place in rng.integers(len(parts), size=rng.integers(2, 13)).tolist():
            parts[place] = f"word{rng.integers(30_000)}"
        planted[len(rows)] = of
        rows.append(" ".join(parts))
    some, shape = rows[:2_000], choose_bands(NEAR)

    def theirs(hashes: int, params: tuple[int, int] | None) -> None:
        index = MinHashLSH(NEAR, hashes, params=params)
        for row, text in enumerate(some):
            minhash = MinHash(hashes)
            minhash.update_batch(list(set(split_words(text))))
            index.query(minhash)
            index.insert(row, minhash)

    same, default = (shape[0] * shape[1], shape), (128, None)
    speeds: dict[str, list[float]] = {"ours": [], "same": [], "default": []}
    for _ in range(5):  # in turn, so that a noisy machine moves all
        seconds, near = timed(lambda: find_near_pairs(rows))
        speeds["ours"].append(len(rows) / seconds)
        speeds["same"].append(len(some) / timed(lambda: theirs(*same))[0])
        speeds["default"].append(len(some) / timed(lambda: theirs(*default))[0])
    found = {pair.row: pair.stands for pair in near.pairs}
    ours = median(speeds["ours"])
    for name, what in (
        ("same", f"{same[0]} hashes in {shape[0]} bands, as ours"),
        ("default", "128 hashes, its own bands"),
    ):
        ratio = median(a / b for a, b in zip(speeds["ours"], speeds[name], strict=True))
        yardstick = f"{median(speeds[name]):,.0f}/s"
        line(
            f"near-duplicates of {len(rows):,}: rows/s / datasketch's ({what})",
            f"{ours:,.0f}/s",
            yardstick,
            ratio,
            "≥ 10",
        )
    recall = sum(found.get(row) == of for row, of in planted.items()) / len(planted)
    line("recall of planted duplicates", f"{recall:.4f}", "", "", "≥ 0.99")
    wrong = len(set(found) - set(planted)) / SESSIONS
    line("unique rows wrongly removed", f"{wrong:.5f}", "", "", "≤ 0.002")


def strategies(n: int = 20_000) -> None:
    """Coverage and noise against random's, three seeds."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    names = ("random", "diversity", "hybrid", "loss_topk")
    for seed in range(3):
        vectors, topic, losses = embeddings(n, seed)
        chance = np.mean(
            [
                measure_nearest(vectors, vectors[draw_sample(n, PICKS, 100 + draw)]).mean()
                for draw in range(3)
            ]
        )
        for name in names:
            seconds, ranking = timed(
                lambda name=name: STRATEGIES[name].choose(
                    pool(vectors, losses.tolist())  # noqa: B023
                )
            )
            picks = np.array(ranking.picked)
            noise = (topic[picks] < 0).mean() / (topic < 0).mean()
            topics = len(set(topic[picks]) - {-1}) / len(set(topic) - {-1})
            found.setdefault(name, []).append(
                (measure_nearest(vectors, vectors[picks]).mean() / chance, noise, topics, seconds)
            )
    for name in names:
        coverage, noise, topics, seconds = np.mean(found[name], axis=0)
        reach = {"diversity": "≤ 0.75; ≤ 0.5", "hybrid": "≤ 0.9; ≤ 0.5"}.get(name, "")
        line(
            f"{name}: coverage / random's; noise among picks / in pool",
            f"{coverage:.3f}; {noise:.2f}",
            f"topics {topics:.2f}",
            f"{seconds:.1f} s",
            reach,
        )


def embedding() -> None:
    """Selection against the embedding it needs."""
    rows = texts(SESSIONS)
    other, vectors = timed(lambda: embed(rows))
    seconds, _ = timed(lambda: STRATEGIES["diversity"].choose(pool(vectors)))
    line(
        f"diversity of {SESSIONS:,}: time / embedding",
        f"{seconds:.1f} s",
        f"{other:.1f} s",
        seconds / other,
        "≤ 0.3",
    )


def growth() -> None:
    """Each size in a process of its own, for its memory."""
    small, large = (child("grow", str(n)) for n in (10_000, ROWS))
    ratio = (large[0] / ROWS) / (small[0] / 10_000)
    line(
        f"diversity: time a row at {ROWS:,} / at 10,000",
        f"{large[0]:.1f} s",
        f"{small[0]:.2f} s",
        ratio,
        "≤ 1.5",
    )
    line(f"peak memory at {ROWS:,}", f"{large[1]:.2f} GB", "", "", "≤ 4 GB")


def grow(n: int) -> None:
    """Prints seconds of `diversity` and this process's peak memory in GB."""
    vectors, _, _ = embeddings(n, 0)
    seconds, _ = timed(lambda: STRATEGIES["diversity"].choose(pool(vectors)))
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def child(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.selection", *arguments]
    return [
        float(word)
        for word in subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
    ]


def losses() -> None:
    """Against padded batches of 8, in the order given, with all logits in float32: the SFT rows of the sample's `shop/support`, and
    synthetic rows that have nothing in common, 5 to 30 % of whose tokens are trained.

    Under the embedded base model, and a random Qwen2 of half the width and depth of the 0.5B one with its 151,936 words, where the head
    costs more than the body.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.models.base_model import EMBEDDED, resolve_base_model
    from agent_pipeline.models.device import probe_device
    from agent_pipeline.models.loading import load_model
    from agent_pipeline.tokenization.loss_masks import Encoded

    base = resolve_base_model(EMBEDDED, load_settings().cache_path)
    rows = sample_rows(base.path)
    rng = np.random.default_rng(0)
    apart = []
    for length in rng.lognormal(4.8, 0.7, size=32).astype(int).clip(16, 1024).tolist():
        answer = length - max(2, int(length * rng.uniform(0.05, 0.3)))
        trained = np.arange(length) >= answer
        apart.append(
            Encoded(
                rng.integers(100, 40_000, size=length).tolist(),
                trained.tolist(),
                [(answer, length)],
            )
        )
    half = {
        "hidden_size": 448,
        "intermediate_size": 2432,
        "num_hidden_layers": 12,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
    }
    random = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=151_936, tie_word_embeddings=True, **half)
    ).eval()
    for name, model in (
        ("Qwen2 of 152,000 words", random),
        ("SmolLM2-135M", load_model(base, probe_device())),
    ):
        for kind, encoded in (("nothing shared", apart), ("shop/support", rows)):
            compare_losses(f"{name}, {len(encoded)} rows, {kind}", model, encoded)


def sample_rows(tokenizer_path: Path) -> list[Any]:
    """The acceptable sessions of the sample's `shop/support`, without copies, as training encodes them."""
    from agent_pipeline.datasets.sft import make_sft_rows
    from agent_pipeline.datasets.splits import SplitSizes
    from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.models.chat_renderer import load_renderer
    from agent_pipeline.sessions.tables import make_session_row
    from agent_pipeline.sources import open_source
    from agent_pipeline.tokenization.encoding import encode_rows

    store = open_source(Path(__file__).parents[1] / "data" / "sample")
    sessions = read_sessions(store, PartitionKey("shop", "support"), ReadingOptions())
    rows = list(
        make_sft_rows(
            (make_session_row(session) for session in sessions if session.judgment == "acceptable"),
            SplitSizes(),
        )
    )
    distinct = {hash_conversation(row["messages"]): row for row in reversed(rows)}
    encoded, *_ = encode_rows(load_renderer(tokenizer_path), list(distinct.values())[::-1], 2048)
    return [row.encoded for row in encoded]


def compare_losses(name: str, model: Any, encoded: list[Any]) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    from agent_pipeline.engine.prefix_tree import build_prefix_tree
    from agent_pipeline.engine.scoring import compute_losses

    def plain(rows: list[Any]) -> list[float]:
        found = []
        for batch in batches(rows, 8):
            ids, labels, mask = (
                torch.nn.utils.rnn.pad_sequence(
                    [torch.tensor(each) for each in column], batch_first=True, padding_value=padding
                )
                for column, padding in (
                    ([row.input_ids for row in batch], 0),
                    ([row.labels for row in batch], -100),
                    ([[1] * len(row.labels) for row in batch], 0),
                )
            )
            with torch.inference_mode():
                logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
                each = cross_entropy(
                    logits.reshape(-1, logits.shape[-1]),
                    labels[:, 1:].reshape(-1),
                    reduction="none",
                ).view(len(batch), -1)
            found += (each.sum(1) / (labels[:, 1:] >= 0).sum(1)).tolist()
        return found

    compute_losses(model, encoded[:1])
    plain(encoded[:1])
    seconds, ours = timed(lambda: compute_losses(model, encoded))
    other, theirs = timed(lambda: plain(encoded))
    tokens = sum(len(row.input_ids) for row in encoded)
    distinct = len(build_prefix_tree(encoded).tokens) / tokens
    padded = (
        sum(
            len(batch) * max(map(len, batch))
            for batch in batches([row.input_ids for row in encoded], 8)
        )
        / tokens
    )
    what = f"losses ({name}: {distinct:.0%} of tokens distinct, {padded - 1:.0%} padding): tokens/s / padded batches of 8"
    line(what, f"{tokens / seconds:,.0f}", f"{tokens / other:,.0f}", other / seconds, "≥ 5")
    difference = max(abs((a.loss or 0) - b) for a, b in zip(ours, theirs, strict=True))
    line("largest difference of losses", f"{difference:.1e}", "", "", "≤ 1e-4")


def batches(rows: list[Any], size: int) -> list[list[Any]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


PARTS: dict[str, Callable[[], None]] = {
    "dedup": dedup,
    "strategies": strategies,
    "embedding": embedding,
    "growth": growth,
    "losses": losses,
}


def main(names: Sequence[str]) -> None:
    print(
        f"sgemm {sgemm() / 1e9:.0f} GFLOP/s\n\n| what | ours | yardstick | ratio | reach |\n|---|---:|---:|---:|---|",
        flush=True,
    )
    for name in names or PARTS:
        PARTS[name]()
    print(f"\nsgemm {sgemm() / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    grow(int(sys.argv[2])) if sys.argv[1:2] == ["grow"] else main(sys.argv[1:])
