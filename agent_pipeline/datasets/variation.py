"""Variation of training rows: the order, the names and the set of tools differ from row to row.

Rows of an agent show the same tools in the same order with the same names. A small model then
learns "look up = the first tool" instead of reading the schemas. A variation changes only what a
request may change: values, ids, dates, results and texts stay.

`vary_rows` is a function of the rows, the seed and the epoch. How names are chosen belongs in
`masking`, which tools are added in `extra_tools`, and what training does with varied rows in
`training.varied_epochs`. Joined sessions belong in `joining`, because they change the number of
rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from agent_pipeline.datasets.extra_tools import add_tools, collect_tools
from agent_pipeline.datasets.masking import choose_new_names, rename
from agent_pipeline.datasets.rows import DatasetRow


@dataclass(frozen=True)
class Variation:
    """What differs from row to row.

    Attributes:
        permutes_tools: Whether the tools stand in another order in each optimizer step.
        masked_names: The share of the optimizer steps whose rows have other names.
        extra_tools: The share of the optimizer steps whose rows have more tools.
    """

    permutes_tools: bool = False
    masked_names: float = 0.0
    extra_tools: float = 0.0

    def __bool__(self) -> bool:
        return self.permutes_tools or self.masked_names > 0 or self.extra_tools > 0


@dataclass(frozen=True)
class VariedRow:
    """A row after a variation.

    Attributes:
        row: The row.
        changes: What was changed: `permuted`, `masked` and `extended` are 1 if this change was
            made. The count `names_in_text` is the number of names that stay because a text mentions
            them.
    """

    row: DatasetRow
    changes: Counter[str]

    @property
    def is_changed(self) -> bool:
        """Return whether the row differs from the original row."""
        return any(self.changes[name] for name in ("permuted", "masked", "extended"))


def vary_rows(
    rows: Sequence[DatasetRow],
    variation: Variation,
    seed: int,
    epoch: int,
    steps: Sequence[int],
) -> list[VariedRow]:
    """Return the rows of an epoch, varied.

    All rows of an optimizer step get the same changes. They still share the prefix with the tools,
    which training then computes once.

    Args:
        rows: SFT rows.
        variation: What differs.
        seed: The seed of all choices.
        epoch: The epoch. Another epoch has other choices.
        steps: The optimizer step of each row.
    """
    pool = collect_tools(rows) if variation.extra_tools else []
    varied_rows = []
    for row, step in zip(rows, steps, strict=True):
        changes: Counter[str] = Counter()
        step_seed = f"{seed} {epoch} {step}"
        varied = row
        if _is_chosen(variation.extra_tools, f"{step_seed} extra"):
            varied = add_tools(varied, pool, f"{step_seed} tools")
            changes["extended"] = int(varied is not row)
        if variation.permutes_tools:
            permuted = _permute_tools(varied, f"{step_seed} order")
            changes["permuted"] = int(permuted is not varied)
            varied = permuted
        if _is_chosen(variation.masked_names, f"{step_seed} masked"):
            renaming = choose_new_names(varied, f"{step_seed} names")
            changes["masked"] = int(bool(renaming))
            changes["names_in_text"] = len(renaming.kept)
            varied = rename(varied, renaming)
        varied_rows.append(VariedRow(varied, changes))
    return varied_rows


def _is_chosen(share: float, seed: str) -> bool:
    return share > 0 and Random(seed).random() < share


def _permute_tools(row: DatasetRow, seed: str) -> DatasetRow:
    """Return a row with its tools in another order, or the same row if the order is the same.

    Rows with the same tools get the same order from the same seed.
    """
    tools = row.get("tools") or []
    if not all("function" in tool for tool in tools):
        return row
    permuted = sorted(tools, key=lambda tool: tool["function"]["name"])
    Random(seed).shuffle(permuted)
    return row if permuted == tools else {**row, "tools": permuted}
