"""Work over a large matrix of rows, block by block: memory stays flat, and results do not depend on how many threads there are.

Sums of floats depend on how many threads share them. So each block is computed by one thread (the linear algebra library is held to one),
and it is the blocks that run beside each other.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

BLOCK = 4096


def each_block(n: int, work: Callable[[slice], None], rows: int = BLOCK) -> None:
    """`work` on slices that cover 0 to `n`, as many at a time as there are cores for this process; each must write only its own rows."""
    from threadpoolctl import threadpool_limits

    slices = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
    with threadpool_limits(1):
        if len(slices) < 2:
            for part in slices:
                work(part)
            return
        with ThreadPoolExecutor(cores()) as threads:
            list(threads.map(work, slices))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
