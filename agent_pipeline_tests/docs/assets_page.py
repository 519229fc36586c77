"""docs/reference/assets.md: every asset. `python -m agent_pipeline_tests.docs.assets_page`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from agent_pipeline.config.assets import ADAPTER, ASSETS
from agent_pipeline.definitions import defs
from agent_pipeline.defs.io_managers.parquet import COLUMN_SCHEMA
from agent_pipeline.defs.metadata_keys import ASSET_METADATA, CHECK_METADATA
from agent_pipeline.defs.specs import FRESHNESS
from agent_pipeline_tests.docs.markdown import GENERATED, join_parts, make_table, wrap
from agent_pipeline_tests.docs.pages import DOCS

PATH = DOCS / "reference" / "assets.md"
STAGES = tuple(FRESHNESS)
SHARED_BY = 3
"""A check that so many assets have is described once."""

SHARED_CHECKS = "Checks of several tables"
INTRODUCTION = """\
The graph has five groups of assets. The groups and the assets on this page are in the order of the
graph. Every asset has one partition per agent. Only `multi_task_dataset` has no partitions.

Tables are Parquet files in `lake/tables`. The assets of the groups `models` and `exports` are
folders in `lake/models`, and `serving` also writes to `lake/serving`. If a blocking check fails,
the later assets do not run. Columns that are marked as required are never null.
"""


def name_key(key: dg.AssetKey) -> str:
    """Return the name of an asset as code, without the prefix of its key."""
    return f"`{key.path[-1]}`"


def read_columns(node: Any) -> list[dg.TableColumn]:
    """Return the columns of a table, or an empty list."""
    schema = node.metadata.get(COLUMN_SCHEMA)
    schema = getattr(schema, "schema", schema)
    return list(schema.columns) if schema else []


def name_type(column: dg.TableColumn) -> str:
    """Return the type of a column as a reader knows it. A required column is never null."""
    name = column.type.replace("list<item: ", "list of ").removesuffix(">")
    name = "list of structs" if name.startswith("list of struct") else name
    return name if column.constraints.nullable else f"{name}, required"


def describe_columns(
    columns: list[dg.TableColumn], earlier_tables: dict[str, list[dg.TableColumn]]
) -> Iterator[str]:
    """Yield the columns of a table. Columns that an earlier table has are not repeated.

    Args:
        columns: The columns.
        earlier_tables: The columns of the earlier tables, by the name of the table.
    """
    if not columns:
        return
    shared = [
        (len(earlier), name)
        for name, earlier in earlier_tables.items()
        if columns[: len(earlier)] == earlier
    ]
    count, table = max(shared, default=(0, ""))
    if table and count == len(columns):
        yield f"The table has the same columns as `{table}`."
        return
    if table:
        yield f"The table has all columns of `{table}`, and these columns:"
    yield make_table(
        ("column", "type", "meaning"),
        (
            (
                f"`{column.name}`",
                name_type(column),
                column.description or "",
            )
            for column in columns[count:]
        ),
    )


def describe_checks(checks: Iterable[Any], shared: Mapping[str, str]) -> str:
    """Return a table of the checks of an asset.

    Args:
        checks: The checks.
        shared: The descriptions of checks that the page describes elsewhere, by name.
    """
    link = f"See [{SHARED_CHECKS.lower()}](#{SHARED_CHECKS.lower().replace(' ', '-')})."
    return make_table(
        ("check", "blocks", "meaning"),
        (
            (
                f"`{check.key.name}`",
                "yes" if check.blocking else "no",
                link if shared.get(check.key.name) == check.description else check.description,
            )
            for check in sorted(checks, key=lambda check: check.key.name)
        ),
    )


def find_shared_checks(checks: Iterable[Any]) -> dict[str, str]:
    """Return the descriptions of the checks that several assets have, by name."""
    counts = Counter((check.key.name, check.description) for check in checks)
    return {name: text for (name, text), count in sorted(counts.items()) if count >= SHARED_BY}


def describe_settings(asset: str) -> str:
    """Return links to the settings of an asset, or an empty text."""
    if asset == ADAPTER:
        return "Settings: [training steps](settings.md#training-steps)."
    return f"Settings: [{asset}](settings.md#{asset})." if asset in ASSETS else ""


def describe_assets() -> Iterator[str]:
    """Yield the parts of the page that describe the assets."""
    graph = defs.get_repository_def().asset_graph
    checks = [graph.get(key) for key in graph.asset_check_keys]
    shared_checks = find_shared_checks(checks)
    names = list(ASSETS)
    nodes = [
        graph.get(key)
        for level in graph.toposorted_asset_keys_by_level
        for key in sorted(
            level,
            key=lambda key: names.index(key.path[-1]) if key.path[-1] in names else len(names),
        )
    ]
    nodes.sort(key=lambda node: STAGES.index(node.group_name))
    tables: dict[str, list[dg.TableColumn]] = {}
    stage = ""
    for node in nodes:
        if node.group_name != stage:
            stage = node.group_name
            yield f"## {stage.capitalize()}"
        name = node.key.path[-1]
        yield f"### {name}"
        yield wrap(node.description)
        parents = ", ".join(sorted(map(name_key, node.parent_keys)))
        yield f"Made from: {parents}." if parents else ""
        yield describe_settings(name)
        columns = read_columns(node)
        yield from describe_columns(columns, tables)
        if columns:
            tables[name] = columns
        own_checks = [check for check in checks if check.key.asset_key == node.key]
        yield describe_checks(own_checks, shared_checks)
    yield f"## {SHARED_CHECKS}"
    yield "If one of these checks fails, the later assets do not run."
    yield make_table(
        ("check", "meaning"), ((f"`{name}`", text) for name, text in shared_checks.items())
    )


def describe_metadata() -> Iterator[str]:
    """Yield the part of the page that describes metadata keys."""
    yield "## Metadata"
    yield wrap(
        "The UI shows these keys on the page of an asset. Keys that begin with `dagster/` are "
        "Dagster's own. `sft_report` and similar keys are the reports of single training steps. "
        "Under *Plots*, the UI shows how the numbers change from night to night."
    )
    yield make_table(
        ("key", "meaning"), ((f"`{key}`", text) for key, text in sorted(ASSET_METADATA.items()))
    )
    yield "The results of checks have the same keys, and these:"
    yield make_table(
        ("key", "meaning"), ((f"`{key}`", text) for key, text in sorted(CHECK_METADATA.items()))
    )


def describe_automation() -> Iterator[str]:
    """Yield the parts of the page that describe jobs, schedules and sensors."""
    repository = defs.get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    yield "## Jobs"
    yield make_table(
        ("job", "meaning"),
        sorted((f"`{job.name}`", job.description or "") for job in jobs),
    )
    yield "## Schedules"
    yield make_table(
        ("schedule", "cron", "on at first", "meaning"),
        (
            (
                f"`{schedule.name}`",
                f"`{schedule.cron_schedule}`",
                "yes" if schedule.default_status is dg.DefaultScheduleStatus.RUNNING else "no",
                schedule.description or "",
            )
            for schedule in repository.schedule_defs
        ),
    )
    yield "## Sensors"
    yield make_table(
        ("sensor", "seconds", "on at first", "meaning"),
        sorted(
            (
                f"`{sensor.name}`",
                str(sensor.minimum_interval_seconds),
                "yes" if sensor.default_status is dg.DefaultSensorStatus.RUNNING else "no",
                sensor.description or "",
            )
            for sensor in repository.sensor_defs
        ),
    )


def render_assets_page() -> str:
    """Return the page of the assets."""
    page = ["# Assets and columns", GENERATED, INTRODUCTION.strip()]
    return join_parts([*page, *describe_assets(), *describe_metadata(), *describe_automation()])


if __name__ == "__main__":
    PATH.write_text(render_assets_page(), encoding="utf-8")
