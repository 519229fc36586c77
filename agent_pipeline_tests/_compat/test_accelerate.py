"""accelerate shards batches as the hook expects."""

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader

from agent_pipeline._compat.accelerate import read_every_batch


def sharded_loader() -> DataLoader:
    sampler = BatchSampler(range(7), batch_size=3, drop_last=False)
    shard = BatchSamplerShard(sampler, num_processes=2, process_index=1)
    return DataLoader(torch.arange(7), batch_sampler=shard)


def test_every_batch():
    """With the hook each process reads all rows once; without it, other rows than the others."""
    assert [batch.tolist() for batch in sharded_loader()] != [[0, 1, 2], [3, 4, 5], [6]]
    loader = sharded_loader()
    read_every_batch(loader)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]


def test_one_process():
    """A loader that accelerate has not sharded stays as it is."""
    loader = DataLoader(torch.arange(4), batch_size=2)
    read_every_batch(loader)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
