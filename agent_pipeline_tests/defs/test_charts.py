"""The charts of the metadata: short enough to be shown inline, and true to the figures."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.defs.charts import (
    MAX_INLINE,
    MAX_POINTS,
    line_chart,
    run_chart,
    step_chart,
    thin_out,
)

VALUES = st.floats(0, 1e6, allow_nan=False)
LINES = st.lists(VALUES, min_size=2, max_size=400).map(
    lambda values: [(float(step), value) for step, value in enumerate(values)]
)


def read(value: dg.MetadataValue[object]) -> ElementTree.Element:
    """Return the SVG of a chart."""
    assert isinstance(value, dg.MarkdownMetadataValue)
    match = re.fullmatch(r"!\[[a-z ]+\]\(data:image/svg\+xml,([^\s()]+)\)", value.md_str)
    assert match
    return ElementTree.fromstring(unquote(match[1]))


@given(LINES, LINES)
def test_length(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    """The UI shows a chart inline, however many points it has."""
    for lines in ({"right decision": one, "exact call accuracy": other}, {"training loss": one}):
        chart = line_chart(lines, ("step 1", "step 100000"))
        assert isinstance(chart, dg.MarkdownMetadataValue)
        assert len(chart.md_str) <= MAX_INLINE
        read(chart)


@given(LINES)
def test_thin_out(points: list[tuple[float, float]]) -> None:
    """Both ends stay, and the line stays inside what was measured."""
    thinned = thin_out(points, MAX_POINTS)
    assert len(thinned) <= MAX_POINTS and thinned[0] == points[0] and thinned[-1] == points[-1]
    assert [x for x, _ in thinned] == sorted(x for x, _ in thinned)
    low, high = min(y for _, y in points), max(y for _, y in points)
    assert all(low * 0.999 - 1e-9 <= y <= high * 1.001 + 1e-9 for _, y in thinned)


def test_scale() -> None:
    """A higher value is drawn higher, the axis begins at 0, and the last value is a number."""
    texts = [text.text for text in read(step_chart("loss", [(1, 2.0), (2, 1.0)]))]
    assert texts[1:3] == ["2", "0"] and "loss: 1" in texts and "step 1" in texts
    paths = [path.attrib["d"] for path in read(step_chart("loss", [(1, 2.0), (2, 1.0)]))[5:6]]
    assert paths == ["M40,24l360,78"]


@pytest.mark.parametrize(
    ("points", "shown"), [([], "none"), ([(1, 0.5)], "0.5"), ([(1, float("nan")), (2, 0.5)], "0.5")]
)
def test_few_points(points: list[tuple[float, float]], shown: str) -> None:
    """A training run of one step has no curve."""
    assert step_chart("loss", points).value == shown


def test_last_runs() -> None:
    """The chart has the figures of the earlier runs of the same agent, and of no other agent."""
    agents = dg.StaticPartitionsDefinition(["a", "b"])
    charts: list[dict[str, dg.MetadataValue[object]]] = []

    @dg.asset(partitions_def=agents, config_schema={"done": float})
    def episodes(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        done = context.op_execution_context.op_config["done"]
        charts.append(run_chart(context, {"done": done, "harm": None}))
        return dg.MaterializeResult(metadata={"done": done})

    with dg.DagsterInstance.ephemeral() as instance:
        for partition, done in (("a", 0.5), ("b", 0.9), ("a", 0.75), ("a", 1.0)):
            dg.materialize(
                [episodes],
                instance=instance,
                partition_key=partition,
                run_config={"ops": {"episodes": {"config": {"done": done}}}},
            )
    assert charts[0] == charts[1] == {}
    texts = [text.text for text in read(charts[3]["last_runs"])]
    assert "done: 1" in texts and "2 runs ago" in texts
    (path,) = [
        part.attrib["d"] for part in read(charts[3]["last_runs"]) if part.get("stroke-width")
    ]
    assert path == "M40,102l180,-39,180,-39"
