"""The system prompt and the tools with which a model of an agent was trained.

The record of the training belongs to `datasets.requests`. Models without a record, which an older
version trained, get the most frequent system prompt and tools of the agent's rows.
"""

from collections.abc import Callable, Iterable

from agent_pipeline.datasets.requests import TrainedRequests
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation import agent_prompt
from agent_pipeline.evaluation.agent_prompt import AgentPrompt
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.request_changes import find_latest_adapter, read_trained_requests
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import find_trained_adapters

ShowRows = Callable[[Iterable[DatasetRow]], list[DatasetRow]]
"""A function that returns rows as models see them, such as `TaskParams.shown_to_models`."""


def read_model_prompt(lake: Lake, key: PartitionKey, model: str, show: ShowRows) -> AgentPrompt:
    """Return the system prompt and the tools with which a model was trained.

    Args:
        lake: The lake.
        key: The agent's partition.
        model: `champion`, `gguf` (the latest export), or another model. Another model gets what
            the agent's latest adapter was trained with, so that both can be compared.
        show: The function that returns rows as models see them.

    Raises:
        DataError: The model has no record of its training, and the agent has no rows.
    """
    requests = _find_trained_requests(lake, key, model)
    try:
        rows = show(agent_prompt.read_prompt_rows(lake, key))
    except DataError:
        if requests is None:
            raise
        rows = []
    usual = agent_prompt.find_agent_prompt(rows) if rows else AgentPrompt([], [])
    if requests is None:
        return usual
    trained: DatasetRow = {"messages": [], "tools": requests.usual_tools, "task_key": ""}
    if requests.system_prompt:
        trained["messages"] = [{"role": "system", "content": requests.system_prompt}]
    prompt = agent_prompt.find_agent_prompt(show([trained]))
    variants = max(len(requests.prompts), len(requests.tool_sets))
    return AgentPrompt(prompt.system, prompt.tools, usual.question, variants)


def _find_trained_requests(lake: Lake, key: PartitionKey, model: str) -> TrainedRequests | None:
    """Return the record of a model's training, or None if there is no record."""
    export = None
    if model == "champion":
        export = lake.champion(EXPORT, key)
    elif model == "gguf":
        export = lake.latest(EXPORT, key)
    if export is not None:
        adapter = str(export.manifest["made_from"]["adapter"])
        return read_trained_requests(find_trained_adapters(lake, key, adapter))
    latest = find_latest_adapter(lake, key)
    return read_trained_requests([latest]) if latest else None
