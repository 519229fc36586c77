"""Run config of the assets, derived from their options: the schema that the launchpad shows, and the values that hold in a run."""

from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model
from pydantic_core import PydanticUndefined

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.errors import SettingsError
from agent_pipeline.options import Options

Chosen = TypeVar("Chosen", bound=Options)


def config_fields(options: type[Options]) -> dict[str, dg.Field]:
    """Dagster's config schema of an asset's options. Values are validated when the asset runs, where a wrong one ends in a sentence."""
    shown = _defaults(options)
    fields: dict[str, Any] = {
        name: (field.annotation, Field(default=shown.get(name, PydanticUndefined), description=field.description))
        for name, field in options.model_fields.items()
    }
    return create_model(options.__name__, __base__=dg.Config, **fields).to_fields_dict()


def in_force(context: dg.AssetExecutionContext, workspace: Workspace, options: type[Chosen]) -> Chosen:
    """The options that hold in this run of an asset. Raises SettingsError."""
    given = {name: value for name, value in context.op_execution_context.op_config.items() if value is not None}
    return options(**given)


def _defaults(options: type[Options]) -> dict[str, Any]:
    values = options().model_dump()
    try:
        return values | ({"base_model": load_settings().base_model} if "base_model" in values else {})
    except SettingsError:  # the UI must open all the same; every run says what is wrong
        return values
