"""Column schema and column lineage: every column of every table has an origin that is there."""

import dagster as dg
import pytest

from agent_pipeline.definitions import defs
from agent_pipeline.defs.columns import TABLES
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import DESCRIPTION, to_rows
from agent_pipeline_tests.defs.conftest import Bench

GRAPH = defs.resolve_asset_graph()
ROOMS = PartitionKey("office", "rooms")


def test_every_table_of_the_graph_says_of_what_its_columns_are_made() -> None:
    assert set(TABLES) == {
        key.to_user_string()
        for key in GRAPH.get_all_asset_keys()
        if "parquet" in GRAPH.get(key).kinds
    }


@pytest.mark.parametrize("asset", sorted(TABLES))
def test_every_column_has_a_stated_origin_and_every_origin_is_a_column_upstream(asset: str) -> None:
    schema, origins = TABLES[asset]
    assert set(origins) == set(schema.names), (
        "a column without a stated origin, or an origin of no column"
    )
    upstream = GRAPH.get_ancestor_asset_keys(dg.AssetKey(asset))
    for column, deps in origins.items():
        assert deps or asset == "sessions" or column in ("project", "agent"), (
            f"{asset}.{column} is made of nothing"
        )
        assert len(set(deps)) == len(deps)
        for dep in deps:
            table, _, name = dep.partition(".")
            assert name in TABLES[table].schema.names, (
                f"{asset}.{column} is made of {dep}, which there is not"
            )
            assert dg.AssetKey(table) in upstream, (
                f"{asset}.{column} is made of {dep}, which is not upstream"
            )


def test_every_column_says_what_it_holds_in_a_short_phrase() -> None:
    said = {
        f"{asset}.{field.name}": field.metadata[DESCRIPTION].decode()
        for asset, each in TABLES.items()
        for field in each.schema
    }
    assert {
        name: text for name, text in said.items() if not 5 < len(text) <= 120 or text[-1] in " ."
    } == {}


def test_a_column_that_is_said_to_be_the_same_is_the_same(bench: Bench) -> None:
    assert bench.run(
        "office/rooms", "sessions", "judged_sessions", "curated_sessions", "sft_dataset"
    ).success
    tables = {
        name: {
            row["session_id"]: row for row in to_rows(bench.lake.open(name, ROOMS).iter_batches())
        }
        for name in list(TABLES)[:4]
    }
    compared = 0
    for asset, rows in tables.items():
        for column, deps in TABLES[asset].origins.items():
            if (
                list(deps) == [f"{deps[0].partition('.')[0]}.{column}" if deps else ""]
                and column != "messages"
            ):
                upstream = tables[deps[0].partition(".")[0]]
                assert all(
                    row[column] == upstream[session][column] for session, row in rows.items()
                ), f"{asset}.{column}"
                compared += 1
    assert compared > 60
