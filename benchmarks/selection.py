"""`python -m benchmarks.selection`: deduplication, coresets and losses, each side by side with a yardstick in the same run.

The machine's sgemm rate is measured first and last. Names after the command choose parts (`python -m benchmarks.selection kcenter growth`).
Data is synthetic, and its makers say how: words of a vocabulary for texts; for embeddings topics of very unequal sizes with 2 % of noise.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agent_pipeline.selection.clusters import nearest_distance, sample
from agent_pipeline.selection.dedup import _words, near_pairs
from agent_pipeline.selection.embeddings import embed
from agent_pipeline.selection.kcenter import farthest
from agent_pipeline.selection.pool import Pool
from agent_pipeline.selection.registry import STRATEGIES

SESSIONS = int(os.environ.get("SESSIONS", 100_000))
ROWS = int(os.environ.get("ROWS", 1_000_000))
DIMENSIONS, PICKS, NOISE = 64, 1000, 0.02


def line(what: str, ours: str, yardstick: str, ratio: float | str, reach: str) -> None:
    print(f"| {what} | {ours} | {yardstick} | {ratio if isinstance(ratio, str) else f'{ratio:.3g}'} | {reach} |", flush=True)


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
        both = np.where(rng.random(words) < 0.5, everyday[rng.integers(90, size=words)], rare[rng.integers(30_000, size=words)])
        made.append(" ".join(both.tolist()))
    return made


def embeddings(n: int, seed: int, topics: int = 300, spread: float = 0.3, rank: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, 64) unit vectors, their topics (−1: noise), and losses, which are higher for noise. Sizes of topics fall as 1 / rank of size."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, topics + 1)
    topic = rng.choice(topics, size=n, p=shares / shares.sum())
    centres = rng.normal(size=(topics, DIMENSIONS)).astype(np.float32)
    ways = (spread * rng.normal(size=(topics, rank, DIMENSIONS)) / np.sqrt(rank)).astype(np.float32)
    vectors = np.empty((n, DIMENSIONS), dtype=np.float32)
    for start in range(0, n, 20_000):
        part = topic[start : start + 20_000]
        vectors[start : start + 20_000] = centres[part] + np.einsum("nr,nrd->nd", rng.normal(size=(len(part), rank)), ways[part])
    noise = rng.random(n) < NOISE
    vectors[noise] = rng.normal(size=(int(noise.sum()), DIMENSIONS))
    topic[noise] = -1
    losses = np.where(noise, rng.normal(3, 1, size=n), rng.normal(1, 0.3, size=n)).clip(0.05)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, topic, losses


def pool(vectors: np.ndarray, losses: Sequence[float] | None = None, size: int = PICKS) -> Pool:
    return Pool([f"{i:07d}" for i in range(len(vectors))], size, lambda: vectors, losses=losses)


def dedup() -> None:
    """Near-duplicates, planted with 2 to 12 of 250 words changed; both read texts and split them in the same way."""
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
    seconds, (pairs, _) = timed(lambda: near_pairs(rows))
    found = {row: of for row, of, _ in pairs}
    some = rows[: min(10_000, len(rows))]

    def theirs() -> None:
        index = MinHashLSH(0.8, 128)
        for row, text in enumerate(some):
            minhash = MinHash(128)
            minhash.update_batch(list(set(_words(text))))
            index.query(minhash)
            index.insert(row, minhash)

    other, _ = timed(theirs)
    ours, yardstick = len(rows) / seconds, len(some) / other
    line(f"near-duplicates of {len(rows):,}: rows/s / datasketch's", f"{ours:,.0f}/s", f"{yardstick:,.0f}/s", ours / yardstick, "≥ 10")
    recall = sum(found.get(row) == of for row, of in planted.items()) / len(planted)
    line("recall of planted duplicates", f"{recall:.4f}", "", "", "≥ 0.99")
    wrong = len(set(found) - set(planted)) / SESSIONS
    line("unique rows wrongly removed", f"{wrong:.5f}", "", "", "≤ 0.002")


def strategies(n: int = 20_000) -> None:
    """Coverage and noise against random's, three seeds."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    names = ("random", "diversity", "hybrid", "facility_location", "k_center", "hybrid_classic", "loss_topk")
    for seed in range(3):
        vectors, topic, losses = embeddings(n, seed)
        chance = np.mean([nearest_distance(vectors, vectors[sample(n, PICKS, 100 + draw)]).mean() for draw in range(3)])
        for name in names:
            seconds, ranking = timed(lambda name=name: STRATEGIES[name].choose(pool(vectors, losses.tolist())))  # noqa: B023
            picks = np.array(ranking.picked)
            noise = (topic[picks] < 0).mean() / (topic < 0).mean()
            topics = len(set(topic[picks]) - {-1}) / len(set(topic) - {-1})
            found.setdefault(name, []).append((nearest_distance(vectors, vectors[picks]).mean() / chance, noise, topics, seconds))
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


def kcenter(n: int = 200_000) -> None:
    """Against a matrix-vector product a pick, from the same first row."""
    vectors, _, _ = embeddings(n, 0)
    first, _ = farthest(vectors, 1)

    def plain() -> float:
        near = 2 - 2 * (vectors @ vectors[first[0]])
        last = 0.0
        for _ in range(PICKS - 1):
            pick = int(near.argmax())
            last = float(np.sqrt(near[pick]))
            np.minimum(near, 2 - 2 * (vectors @ vectors[pick]), out=near)
        return last

    ours = [timed(lambda: farthest(vectors, PICKS)) for _ in range(3)]
    theirs = [timed(plain) for _ in range(2)]
    seconds, other = min(each for each, _ in ours), min(each for each, _ in theirs)
    line(f"exact k-center of {n:,}, {PICKS:,} picks: time / plain loop's", f"{seconds:.2f} s", f"{other:.2f} s", seconds / other, "≤ 1/3")
    line("its last radius", f"{ours[0][1][1][-1]:.5f}", f"{theirs[0][1]:.5f}", "", "equal")
    vectors, _, _ = embeddings(ROWS, 0)
    seconds = min(timed(lambda: farthest(vectors, PICKS))[0] for _ in range(2))
    rate, machine = 2 * ROWS * PICKS * DIMENSIONS / seconds, sgemm()
    line(f"exact k-center of {ROWS:,}: FLOP/s / sgemm", f"{rate / 1e9:.0f} G", f"{machine / 1e9:.0f} G", rate / machine, "≥ 0.45")


def embedding() -> None:
    """Selection against the embedding it needs."""
    rows = texts(SESSIONS)
    other, vectors = timed(lambda: embed(rows))
    seconds, _ = timed(lambda: STRATEGIES["diversity"].choose(pool(vectors)))
    line(f"diversity of {SESSIONS:,}: time / embedding", f"{seconds:.1f} s", f"{other:.1f} s", seconds / other, "≤ 0.3")


def growth() -> None:
    """Each size in a process of its own, for its memory."""
    small, large = (child("grow", str(n)) for n in (10_000, ROWS))
    ratio = (large[0] / ROWS) / (small[0] / 10_000)
    line(f"diversity: time a row at {ROWS:,} / at 10,000", f"{large[0]:.1f} s", f"{small[0]:.2f} s", ratio, "≤ 1.5")
    line(f"peak memory at {ROWS:,}", f"{large[1]:.2f} GB", "", "", "≤ 4 GB")


def grow(n: int) -> None:
    """Prints seconds of `diversity` and this process's peak memory in GB."""
    vectors, _, _ = embeddings(n, 0)
    seconds, _ = timed(lambda: STRATEGIES["diversity"].choose(pool(vectors)))
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def child(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.selection", *arguments]
    return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def losses(rows: int = 32) -> None:
    """The embedded base model on synthetic sessions, 5 to 30 % of whose tokens are trained, against padded batches of 8 with all logits."""
    import torch
    from torch.nn.functional import cross_entropy

    from agent_pipeline.settings import EMBEDDED_BASE_MODEL, load_settings
    from agent_pipeline.training.base_model import resolve_base_model
    from agent_pipeline.training.config import probe_device
    from agent_pipeline.training.loading import load_model
    from agent_pipeline.training.losses import encoded_losses
    from agent_pipeline.training.masks import Encoded

    model = load_model(resolve_base_model(EMBEDDED_BASE_MODEL, load_settings().cache_path), probe_device())
    rng = np.random.default_rng(0)
    encoded = []
    for length in rng.lognormal(4.8, 0.7, size=rows).astype(int).clip(16, 1024).tolist():
        answer = length - max(2, int(length * rng.uniform(0.05, 0.3)))
        trained = np.arange(length) >= answer
        encoded.append(Encoded(rng.integers(100, 40_000, size=length).tolist(), trained.tolist(), [(answer, length)]))

    def plain() -> list[float]:
        found = []
        for start in range(0, rows, 8):
            batch = encoded[start : start + 8]
            longest = max(len(row.input_ids) for row in batch)
            ids = torch.tensor([row.input_ids + [0] * (longest - len(row.input_ids)) for row in batch])
            mask = torch.tensor([[1] * len(row.input_ids) + [0] * (longest - len(row.input_ids)) for row in batch])
            labels = torch.tensor(
                [
                    [token if on else -100 for token, on in zip(row.input_ids, row.trained, strict=True)]
                    + [-100] * (longest - len(row.trained))
                    for row in batch
                ]
            )
            with torch.inference_mode():
                logits = model(input_ids=ids, attention_mask=mask).logits.float()
                each = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=-100)
            found += (each.sum(1) / (labels[:, 1:] >= 0).sum(1)).tolist()
        return found

    encoded_losses(model, encoded[:1])
    seconds, ours = timed(lambda: encoded_losses(model, encoded))
    other, theirs = timed(plain)
    tokens = sum(len(row.input_ids) for row in encoded)
    line("losses: tokens/s / padded batches of 8", f"{tokens / seconds:,.0f}", f"{tokens / other:,.0f}", other / seconds, "≥ 5")
    difference = max(abs((a.loss or 0) - b) for a, b in zip(ours, theirs, strict=True))
    line("largest difference of losses", f"{difference:.1e}", "", "", "≤ 1e-4")


PARTS: dict[str, Callable[[], None]] = {
    "dedup": dedup,
    "strategies": strategies,
    "kcenter": kcenter,
    "embedding": embedding,
    "growth": growth,
    "losses": losses,
}


def main(names: Sequence[str]) -> None:
    print(f"sgemm {sgemm() / 1e9:.0f} GFLOP/s\n\n| what | ours | yardstick | ratio | reach |\n|---|---:|---:|---:|---|", flush=True)
    for name in names or PARTS:
        PARTS[name]()
    print(f"\nsgemm {sgemm() / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    grow(int(sys.argv[2])) if sys.argv[1:2] == ["grow"] else main(sys.argv[1:])
