"""The Dagster component that adds agent-pipeline to a user's own Dagster project.

What belongs here: the attributes of `defs.yaml`, and how they become settings. What does not belong
here: the definitions themselves, which `definitions.build_defs` returns.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components import scaffold_component
from pydantic import BaseModel, Field

from agent_pipeline._compat.dagster import with_group
from agent_pipeline.config.settings import PREFIX, load_settings
from agent_pipeline.errors import SettingsError
from agent_pipeline.sources import parse_location

APPLIED = "DAGSTER_AGENT_PIPELINE_APPLIED"
"""Variable with the variables that a component set, as JSON.

The processes that a code location starts get the variable too. They can then tell the component's
variables from the variables of the user.
"""

_components: dict[Path, tuple[Path, object]] = {}
"""The component of each project that this process loaded: its folder, and its position there."""


class ScaffoldParams(BaseModel):
    """The options of `dg scaffold defs`."""

    store: str = Field(
        default="sessions",
        description="Path or URL of the agents' sessions. A path starts at the project's folder.",
    )
    lake: str = Field(
        default="lake",
        description="Folder or URL of tables and models. A path starts at the project's folder.",
    )
    key_prefix: str = Field(default="agents", description="Prefix of every asset key.")


class AgentPipelineScaffolder(dg.Scaffolder[ScaffoldParams]):
    """The writer of the first `defs.yaml`."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        attributes = request.params.model_dump() | {
            "group_prefix": request.params.key_prefix.replace("/", "_"),
            "owners": [],
            "automation": True,
        }
        scaffold_component(request, attributes)


@dg.scaffold_with(AgentPipelineScaffolder)
class AgentPipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """The assets, checks, jobs, schedule and sensors of agent-pipeline.

    They turn the logged sessions of your agents into a small model per agent. Your project keeps
    its executor and its loggers. A project can have one component of this type.

    The attributes have the names of the settings of `pipeline.toml`. An attribute overrides the
    file. An environment variable `AGENT_PIPELINE_*` overrides an attribute.
    """

    settings: Annotated[
        str | None,
        dg.Resolver.default(
            description=(
                "Path of the settings file. A relative path starts at the project's folder. The "
                "default is the project's `pipeline.toml`, if that file exists."
            ),
            examples=["pipeline.toml"],
        ),
    ] = None
    store: Annotated[
        str | list[str] | None,
        dg.Resolver.default(
            description=(
                "Store of the agents' sessions, or a list of stores: a path, a URL, or `name:path` "
                "to choose the reader. A relative path starts at the project's folder."
            ),
            examples=["sessions"],
        ),
    ] = None
    lake: Annotated[
        str | None,
        dg.Resolver.default(
            description=(
                "Place of all tables and models: a folder, or a URL such as `s3://bucket/lake`. A "
                "relative path starts at the project's folder."
            ),
            examples=["lake"],
        ),
    ] = None
    key_prefix: Annotated[
        str | None,
        dg.Resolver.default(
            description=(
                "Prefix of every asset key, such as `team/agents`, and of the names of all jobs, "
                "schedules, sensors and resources. The prefix keeps them apart from your own "
                "definitions."
            ),
            examples=["agents"],
        ),
    ] = None
    agents: Annotated[
        dict[str, dict[str, Any]],
        dg.Resolver.default(
            description=(
                "Settings of single agents, by partition such as `shop/support`. The names are "
                "those of `[agents]` in `pipeline.toml`."
            ),
            examples=[{"shop/support": {"task_field": "ticket"}}],
        ),
    ] = {}
    group_prefix: Annotated[
        str | None,
        dg.Resolver.default(
            description=(
                "Prefix of every asset group. With `agents`, the group `datasets` is called "
                "`agents_datasets`."
            ),
            examples=["agents"],
        ),
    ] = None
    owners: Annotated[
        list[str],
        dg.Resolver.default(
            description="Owners of all assets: email addresses, or teams such as `team:support`.",
            examples=[["team:support"]],
        ),
    ] = []
    automation: Annotated[
        bool,
        dg.Resolver.default(
            description=(
                "Whether the project gets the schedule, the sensors and the automation conditions. "
                "Without them, no new agent becomes a partition on its own: run `agent-pipeline "
                "materialize`."
            ),
            examples=[True],
        ),
    ] = True

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return what the UI's tab Components shows next to the description and the attributes."""
        return dg.ComponentTypeSpec(
            owners=["team:agent-pipeline"], tags=["agents", "fine-tuning", "evaluation"]
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of agent-pipeline, with the attributes of this component.

        Raises:
            SettingsError: an attribute is wrong, or the project has a second component.
        """
        defs_file = _find_defs_file(context)
        _refuse_second(context)
        apply_variables(self.variables(context.project_root, defs_file))
        try:
            load_settings()
        except SettingsError as error:
            raise SettingsError(
                f"The component in {defs_file} has a wrong setting. {error}",
                setting=error.setting,
                path=defs_file,
            ) from error
        # This module reads the settings when it is imported.
        from agent_pipeline.definitions import build_defs, check_settings

        check_settings()
        return self._adapt(build_defs(standalone=False))

    def variables(self, root: Path, defs_file: Path) -> dict[str, str]:
        """Return the attributes as environment variables.

        Args:
            root: The project's folder, at which relative paths start.
            defs_file: The file of the component.

        Raises:
            SettingsError: the settings file does not exist.
        """
        file = root / Path(self.settings or "pipeline.toml").expanduser()
        if self.settings and not file.is_file():
            raise SettingsError(
                f"The attribute settings in {defs_file} names {file}, which is not a file: correct "
                "the path or leave the attribute out.",
                setting="settings",
                path=file,
            )
        values: dict[str, str | None] = {
            "CONFIG": str(file) if file.is_file() else None,
            "STORE": _store_variable(self.store, root),
            "LAKE": _absolute(self.lake, root) if self.lake else None,
            "KEY_PREFIX": self.key_prefix,
            "AGENTS": json.dumps(self.agents) if self.agents else None,
        }
        return {PREFIX + name: value for name, value in values.items() if value}

    def _adapt(self, definitions: dg.Definitions) -> dg.Definitions:
        """Return the definitions with this component's groups, owners and automation."""
        return dg.Definitions(
            assets=[self._adapt_asset(asset) for asset in definitions.assets or ()],
            asset_checks=definitions.asset_checks,
            jobs=definitions.jobs,
            schedules=definitions.schedules if self.automation else None,
            sensors=definitions.sensors if self.automation else None,
            resources=definitions.resources,
        )

    def _adapt_asset(self, asset: Any) -> Any:
        """Return an asset with this component's group, owners and automation.

        The observable asset `session_store` has no owners in Dagster.
        """
        if isinstance(asset, dg.AssetsDefinition):
            return asset.map_asset_specs(self._adapt_spec)
        if isinstance(asset, dg.SourceAsset) and self.group_prefix:
            return with_group(asset, f"{self.group_prefix}_{asset.group_name}")
        return asset

    def _adapt_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        changes: dict[str, Any] = {}
        if self.group_prefix:
            changes["group_name"] = f"{self.group_prefix}_{spec.group_name}"
        if not self.automation:
            changes["automation_condition"] = None
        if self.owners:
            changes["owners"] = self.owners
        return spec.replace_attributes(**changes)


def apply_variables(variables: dict[str, str]) -> None:
    """Set environment variables in this process, except variables that the user set.

    Variables that an earlier component set, in this process or in the process that started it, are
    removed first.
    """
    earlier: dict[str, str] = json.loads(os.environ.pop(APPLIED, "{}"))
    for name, value in earlier.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    applied = {name: value for name, value in variables.items() if not os.environ.get(name)}
    os.environ |= applied
    if applied:
        os.environ[APPLIED] = json.dumps(applied)


def _find_defs_file(context: dg.ComponentLoadContext) -> Path:
    """Return the file of a component, or its folder if the component has no `defs.yaml`."""
    file = context.path / "defs.yaml"
    return file if file.is_file() else context.path


def _refuse_second(context: dg.ComponentLoadContext) -> None:
    """Refuse a second component in the same project: settings belong to the whole process.

    Raises:
        SettingsError: the project has another component of this type.
    """
    location = context.component_path
    component = (location.file_path, location.instance_key)
    first = _components.get(context.project_root)
    if first is not None and first != component and first[0].exists():
        raise SettingsError(
            f"The project has two components of agent-pipeline, in {first[0]} and in "
            f"{component[0]}: delete one, and list all stores in the attribute store of the "
            "other.",
            setting="store",
            path=component[0],
        )
    _components[context.project_root] = component


def _store_variable(store: str | list[str] | None, root: Path) -> str | None:
    if not store:
        return None
    if isinstance(store, str):
        return _absolute_store(store, root)
    return json.dumps([_absolute_store(location, root) for location in store])


def _absolute_store(text: str, root: Path) -> str:
    location = parse_location(text, root)
    return f"{location.reader}:{location.where}" if location.reader else location.where


def _absolute(path: str, root: Path) -> str:
    return path if "://" in path else str(root / Path(path).expanduser())
