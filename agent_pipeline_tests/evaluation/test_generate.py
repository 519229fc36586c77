"""Greedy answers."""

import pytest

from agent_pipeline.evaluation.generate import generate, shared_prefix
from agent_pipeline.training.config import probe_device
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.masks import prompt_ids
from agent_pipeline_tests.training.world import row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prompts(tiny_tokenizer):
    return [prompt_ids(tiny_tokenizer, row(n)["messages"][: 2 + 2 * (n % 2)], row(n)["tools"]) for n in range(20)]


def test_what_prompts_share():
    assert shared_prefix([[1, 2, 3], [1, 2, 4], [1, 2, 3, 5]]) == 2
    assert shared_prefix([[1, 2], [1, 2]]) == 1
    assert shared_prefix([[1], [2, 3]]) == 0


def test_the_answers_are_those_of_hugging_faces_greedy_search(tiny_base, adapter_dir, prompts):
    import torch

    model = load_model(tiny_base, probe_device(), adapter_dir)
    limits = [5 + n for n in range(20)]
    stops = {model.config.eos_token_id}
    for prompt, limit, ours in zip(prompts, limits, generate(model, prompts, limits, stops), strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit)
        assert ours == [token for token in theirs[0, len(prompt) :].tolist() if token not in stops]


def test_prompts_that_share_nothing_are_answered_too(tiny_base, adapter_dir):
    model = load_model(tiny_base, probe_device(), adapter_dir)
    together = generate(model, [[5, 6, 7], [8]], [4, 6], ())
    assert together == [generate(model, [[5, 6, 7]], [4], ())[0], generate(model, [[8]], [6], ())[0]]
    assert [len(answer) for answer in together] == [4, 6]
