"""The IO manager of tables, which loads a table as the type in the downstream asset's annotation.

`pyarrow.RecordBatchReader` streams (memory holds one batch), `pyarrow.Table`, `pandas.DataFrame`,
`polars.DataFrame`, `polars.LazyFrame` and `datasets.Dataset` load whole. A fan-in over many
partitions is always one object of that type, for none, one and many.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import dagster as dg
import pyarrow as pa

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.asset_keys import asset_name
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.io_managers.held import HoldingIOManager
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.tables import DESCRIPTION, is_json_type, read_batches
from agent_pipeline.storage.lake import StagedTable


class ParquetIOManager(HoldingIOManager):
    """An IO manager that stores an asset's partition as one Parquet file in the lake."""

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Replace the stored table of the partition.

        The asset returns a staged table, or any type that can be loaded.
        """
        with user_errors():
            keys = _keys(context)
            if len(keys) != 1:
                raise dg.DagsterInvariantViolationError(
                    f"The asset `{context.asset_key.to_user_string()}` returned one table for "
                    f"{len(keys)} partitions."
                )
            if isinstance(obj, StagedTable):
                staged = obj
            else:
                reader = _reader(obj)
                staged = (
                    load_settings()
                    .open_lake()
                    .stage(_name(context), keys[0], reader, reader.schema)
                )
            size = staged.bytes
            staged.commit()
        # What an asset says of its columns' origins is shown of what was materialized.
        lineage = {
            name: value
            for name, value in context.definition_metadata.items()
            if name == COLUMN_LINEAGE
        }
        context.add_output_metadata(
            {
                "dagster/row_count": staged.rows,
                COLUMN_SCHEMA: column_schema(staged.schema),
                "dagster/uri": str(staged.target),
                "size_bytes": size,
                **lineage,
            }
        )

    def load_input(self, context: dg.InputContext) -> object:
        """Load the upstream partitions as one object of the annotated type."""
        with user_errors():
            lake, name = load_settings().open_lake(), _name(context)
            files = (
                lake.open(name, key) for key in _keys(context)
            )  # one at a time: a process may open about a thousand
            first = next(files, None)
            if first is None:
                reader = pa.RecordBatchReader.from_batches(pa.schema([]), ())
            else:
                schema = first.schema_arrow
                batches = (
                    batch for file in chain([first], files) for batch in _batches(file, schema)
                )
                reader = pa.RecordBatchReader.from_batches(schema, batches)
            wanted = context.dagster_type.typing_type
            full_name = f"{getattr(wanted, '__module__', '')}.{getattr(wanted, '__qualname__', '')}"
            return _LOADERS.get(full_name, pa.RecordBatchReader.read_all)(reader)


def _keys(context: dg.OutputContext | dg.InputContext) -> list[PartitionKey | None]:
    if not context.has_asset_partitions:
        return [None]
    return [parse_key(key) for key in context.asset_partition_keys]


def _name(context: dg.OutputContext | dg.InputContext) -> str:
    return asset_name(context.asset_key)


def _batches(file: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's batches in the schema of the first file, and close the file afterwards."""
    try:
        for batch in read_batches(file):
            yield batch if batch.schema.equals(schema) else batch.cast(schema)
    finally:
        file.close(force=True)


def _reader(obj: object) -> pa.RecordBatchReader:
    """Convert a table of any supported type into batches, without importing other libraries."""
    if isinstance(obj, pa.RecordBatchReader):
        return obj
    if isinstance(obj, pa.Table):
        return obj.to_reader()
    for module, convert in _CONVERTERS.items():
        if module in sys.modules and type(obj).__module__.split(".")[0] == module:
            return convert(obj).to_reader()
    raise TypeError(
        f"An object of type {type(obj).__name__} is not a table: return a pyarrow, pandas, polars "
        "or datasets table."
    )


def _as_text(reader: pa.RecordBatchReader) -> pa.Table:
    """Convert JSON columns into plain strings, for libraries without the extension type."""
    table = reader.read_all()
    fields = [
        field.with_type(pa.string()) if is_json_type(field.type) else field
        for field in table.schema
    ]
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(table.columns, fields, strict=True)],
        schema=pa.schema(fields),
    )


def _as_polars(reader: pa.RecordBatchReader) -> Any:
    import polars

    return polars.from_arrow(_as_text(reader))


def _as_dataset(reader: pa.RecordBatchReader) -> Any:
    """Convert a table into a Hugging Face dataset whose JSON columns are `datasets.Json` features.

    Absent keys stay absent, and trainers see conversations.
    """
    import datasets

    table = reader.read_all()
    # `datasets` reads the type of a JSON column from its first chunk. Without rows, there is none.
    if not table.num_rows:
        table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], schema=table.schema)])
    features = datasets.Features.from_arrow_schema(table.schema)
    return datasets.Dataset(table, info=datasets.DatasetInfo(features=features))


_LOADERS: dict[str, Callable[[pa.RecordBatchReader], Any]] = {
    "pyarrow.lib.RecordBatchReader": lambda reader: reader,
    "pandas.DataFrame": lambda reader: _as_text(reader).to_pandas(),
    "pandas.core.frame.DataFrame": lambda reader: _as_text(reader).to_pandas(),
    "polars.dataframe.frame.DataFrame": _as_polars,
    "polars.lazyframe.frame.LazyFrame": lambda reader: _as_polars(reader).lazy(),
    "datasets.arrow_dataset.Dataset": _as_dataset,
}

_CONVERTERS: dict[str, Callable[[Any], pa.Table]] = {
    "pandas": lambda obj: pa.Table.from_pandas(obj, preserve_index=False),
    "polars": lambda obj: obj.collect().to_arrow() if hasattr(obj, "collect") else obj.to_arrow(),
    # Not `.data`: a selected, filtered or shuffled Dataset holds all rows there, and beside them
    # the indices of its own.
    "datasets": lambda obj: obj.with_format("arrow")[:].replace_schema_metadata(None),
}


COLUMN_SCHEMA, COLUMN_LINEAGE = "dagster/column_schema", "dagster/column_lineage"


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """Convert an Arrow schema into the form that Dagster shows."""
    return dg.TableSchema(
        [
            dg.TableColumn(
                field.name,
                "json" if is_json_type(field.type) else str(field.type),
                description=(field.metadata or {}).get(DESCRIPTION, b"").decode() or None,
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
            )
            for field in schema
        ]
    )
