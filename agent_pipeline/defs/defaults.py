"""Defaults of run config that come from the settings, so that the launchpad shows what will really be used.

They are read once, when the code location loads. A setting that is wrong must not keep the UI from opening: the default is then the
built-in one, and every run says in one sentence what is wrong.
"""

from agent_pipeline.config.settings import EMBEDDED_BASE_MODEL, load_settings
from agent_pipeline.errors import SettingsError


def _base_model() -> str:
    try:
        return load_settings().base_model
    except SettingsError:
        return EMBEDDED_BASE_MODEL


BASE_MODEL = _base_model()
