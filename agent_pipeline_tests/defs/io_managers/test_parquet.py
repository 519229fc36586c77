"""Tables through Dagster: every annotated type, for none, one and three partitions, always one object."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import datasets
import pandas
import polars
import pyarrow as pa
import pytest

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.io_managers.parquet import ParquetIOManager
from agent_pipeline.keys import parse_key
from agent_pipeline.sessions.tables import to_batches, to_table
from agent_pipeline.storage.lake import Lake

SCHEMA = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("messages", pa.json_(), nullable=False),
    ]
)
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "user", "content": "ü"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "x"},
]
AGENTS = dg.StaticPartitionsDefinition(["tau/airline", "tau/retail", "shop/support"])
TYPES = (
    pa.Table,
    pa.RecordBatchReader,
    pandas.DataFrame,
    polars.DataFrame,
    polars.LazyFrame,
    datasets.Dataset,
)


def table(*names: str) -> pa.Table:
    return to_table([{"session_id": name, "messages": CHAT} for name in names], SCHEMA)


def rows_of(value: Any) -> list[dict[str, Any]]:
    """Rows of any of the types; `messages` decoded, whoever keeps them as text."""
    if isinstance(value, datasets.Dataset):
        rows = value.to_list()
    elif isinstance(value, pandas.DataFrame):
        rows = value.to_dict("records")
    elif isinstance(value, polars.DataFrame | polars.LazyFrame):
        rows = value.lazy().collect().to_dicts()
    else:
        rows = (value.read_all() if isinstance(value, pa.RecordBatchReader) else value).to_pylist()
    return [
        row
        | {
            "messages": json.loads(row["messages"])
            if isinstance(row["messages"], str)
            else row["messages"]
        }
        for row in rows
    ]


@pytest.fixture
def resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    return {"io_manager": ParquetIOManager()}


def run(
    resources: dict[str, Any], *assets: Any, partition: str | None = None, **options: Any
) -> dg.ExecuteInProcessResult:
    return dg.materialize(list(assets), resources=resources, partition_key=partition, **options)


def received(
    resources: dict[str, Any],
    upstream: Any,
    kind: type,
    look: Callable[[Any], Any],
    partition: str | None = None,
    beside: Any = (),
) -> Any:
    """What `look` sees of the one object that an asset annotated with `kind` is given; `beside`: what is upstream of its upstream."""
    seen: list[Any] = []

    def body(up) -> None:  # type: ignore[no-untyped-def]
        seen.append((isinstance(up, kind), look(up)))

    body.__annotations__ = {"up": kind, "return": None}
    downstream = dg.asset(partitions_def=AGENTS if partition else None)(body)
    run(resources, upstream, downstream, *beside, selection=[downstream], partition=partition)
    ((right, value),) = seen
    assert right, f"not one {kind}"
    return value


@dg.asset(partitions_def=AGENTS)
def up(context: dg.AssetExecutionContext) -> pa.Table:
    return table(f"{context.partition_key}-1", f"{context.partition_key}-2")


@pytest.mark.parametrize("kind", TYPES)
def test_many_agents_tables_are_one_object_of_the_type_and_one_file_is_open_at_a_time(
    resources, kind, monkeypatch
):
    keys = ["shop/support", "tau/airline", "tau/retail"]
    some = dg.StaticPartitionsDefinition(keys)

    @dg.asset(name="up", partitions_def=some)
    def each(context: dg.AssetExecutionContext) -> pa.Table:
        return table(context.partition_key)

    for key in keys:
        run(resources, each, partition=key)
    opened, open_table = [], Lake.open

    def open_next(lake: Lake, *asked: Any) -> Any:
        assert all(file.closed for file in opened)
        opened.append(open_table(lake, *asked))
        return opened[-1]

    monkeypatch.setattr(Lake, "open", open_next)
    assert received(resources, each, kind, rows_of) == [
        {"session_id": key, "messages": CHAT} for key in keys
    ]
    assert len(opened) == len(keys) and all(file.closed for file in opened)


@pytest.mark.parametrize(
    "made",
    [
        lambda: table("a", "b"),
        lambda: table("a", "b").to_reader(),
        lambda: pandas.DataFrame(
            {"session_id": ["a", "b"], "messages": [json.dumps(CHAT)] * 2}, index=[7, 3]
        ),
        lambda: polars.DataFrame({"session_id": ["a", "b"], "messages": [json.dumps(CHAT)] * 2}),
        lambda: polars.LazyFrame({"session_id": ["a", "b"], "messages": [json.dumps(CHAT)] * 2}),
        lambda: datasets.Dataset.from_dict(
            {"session_id": ["a", "b"], "messages": [json.dumps(CHAT)] * 2}
        ),
    ],
    ids=["Table", "RecordBatchReader", "pandas", "polars", "polars lazy", "datasets"],
)
def test_every_type_that_can_be_loaded_can_be_stored(resources, made):
    @dg.asset(name="up")
    def any_type() -> Any:
        return made()

    run(resources, any_type)
    assert received(resources, any_type, pa.Table, rows_of) == [
        {"session_id": name, "messages": CHAT} for name in "ab"
    ]


def test_a_table_that_was_staged_is_put_in_its_place(resources):
    lake = load_settings().open_lake()

    @dg.asset(name="up")
    def staged() -> Any:
        return lake.stage(
            "up", None, to_batches([{"session_id": "a", "messages": CHAT}], SCHEMA), SCHEMA
        )

    result = run(resources, staged)
    assert rows_of(lake.open("up", None).read()) == [{"session_id": "a", "messages": CHAT}]
    metadata = result.asset_materializations_for_node("up")[0].metadata
    assert metadata["dagster/row_count"].value == 1
    assert [column.name for column in metadata["dagster/column_schema"].value.columns] == [
        "session_id",
        "messages",
    ]
    assert metadata["size_bytes"].value == Path(metadata["dagster/uri"].value).stat().st_size


def test_what_a_column_holds_is_said_in_the_ui_and_not_in_the_file(resources):
    lake = load_settings().open_lake()
    described = pa.schema(
        [
            field.with_metadata({"description": f"what {field.name} holds", "unit": "one"})
            for field in SCHEMA
        ]
    )

    @dg.asset(name="up")
    def up() -> Any:
        return lake.stage(
            "up", None, to_batches([{"session_id": "a", "messages": CHAT}], described), described
        )

    metadata = run(resources, up).asset_materializations_for_node("up")[0].metadata
    columns = metadata["dagster/column_schema"].value.columns
    assert [column.description for column in columns] == [
        "what session_id holds",
        "what messages holds",
    ]
    in_file = lake.open("up", None).schema_arrow
    assert (
        in_file.equals(SCHEMA) and [field.metadata for field in in_file] == [{b"unit": b"one"}] * 2
    )


def sentence(error: dg.DagsterError | dg.Failure) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, dg.Failure):
        cause = cause.__cause__
    assert isinstance(cause, dg.Failure) and not cause.allow_retries
    return cause.description or ""


def test_a_table_that_was_never_made_or_is_damaged_is_one_sentence(resources):
    with pytest.raises((dg.DagsterError, dg.Failure)) as error:
        received(resources, up, pa.Table, rows_of, "tau/airline")
    assert "There is no `up` of tau/airline" in sentence(error.value)
    run(resources, up, partition="tau/airline")
    file = Path(str(load_settings().open_lake().table("up", parse_key("tau/airline"))))
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises((dg.DagsterError, dg.Failure)) as error:
        received(resources, up, pa.Table, rows_of, "tau/airline")
    assert "is damaged" in sentence(error.value)


def test_a_key_that_somebody_typed_never_leaves_the_lake(resources, tmp_path):
    keys = dg.DynamicPartitionsDefinition(name="typed")

    @dg.asset(partitions_def=keys)
    def typed() -> pa.Table:
        return table("a")

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("typed", ["../../x"])
        with pytest.raises((dg.DagsterError, dg.Failure)) as error:
            run(resources, typed, partition="../../x", instance=instance)
    assert "'../../x' is not a partition" in sentence(error.value)
    assert not list(tmp_path.rglob("*.parquet"))
