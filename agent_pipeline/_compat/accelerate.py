"""Uses of private parts of accelerate: how it distributes batches among processes.

How the rows of a step are shared belongs to `engine.tree_loss`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def read_every_batch(loader: "DataLoader") -> None:
    """Make each process read all rows of every batch.

    accelerate gives each process other batches, and repeats rows to fill the last one. Our trainer
    shares the rows of a step by their tokens, so every process needs to see them all. Does nothing
    if accelerate has not sharded the loader, which is so in a single process.
    """
    batch_sampler: Any = loader.batch_sampler
    if hasattr(batch_sampler, "even_batches"):
        batch_sampler.num_processes = 1
        batch_sampler.process_index = 0
        batch_sampler.even_batches = False
