"""Help for the tests of people who write readers, measures and worlds.

What belongs here: a small store, a tiny model, a small world, and checks of a reader and of a
world. What does not belong here: the tests of this package. No other code of agent-pipeline imports
this package, and a name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from agent_pipeline.lazy_names import load_when_used

if TYPE_CHECKING:
    from agent_pipeline.testing.checks import check_reader as check_reader
    from agent_pipeline.testing.checks import play_task as play_task
    from agent_pipeline.testing.stores import write_store as write_store
    from agent_pipeline.testing.tiny_model import make_tiny_model as make_tiny_model
    from agent_pipeline.testing.weather import CITIES as CITIES
    from agent_pipeline.testing.weather import WEATHER_TOOL as WEATHER_TOOL
    from agent_pipeline.testing.weather import WeatherWorld as WeatherWorld
    from agent_pipeline.testing.weather import make_call as make_call
    from agent_pipeline.testing.weather import weather_row as weather_row
    from agent_pipeline.testing.weather import weather_session as weather_session

_MODULES = {
    "CITIES": "weather",
    "WEATHER_TOOL": "weather",
    "WeatherWorld": "weather",
    "check_reader": "checks",
    "make_call": "weather",
    "make_tiny_model": "tiny_model",
    "play_task": "checks",
    "weather_row": "weather",
    "weather_session": "weather",
    "write_store": "stores",
}

__all__ = sorted(_MODULES)
__getattr__, __dir__ = load_when_used(__name__, _MODULES)
