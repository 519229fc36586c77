"""The page of the last episodes of one agent, which says so if they are not in force."""

from agent_pipeline.config.settings import Settings
from agent_pipeline.governance.played_world import find_world_in_force
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.episodes_in_force import find_latest_episodes
from agent_pipeline.reports.episode_page import make_episode_page
from agent_pipeline.reports.page import Page
from agent_pipeline.storage.lake import Lake


def make_last_episodes_page(settings: Settings, lake: Lake, key: PartitionKey) -> Page:
    """Return the page of the last episodes of an agent.

    Raises:
        DataError: The agent has no episodes, or an older version wrote the report.
    """
    last = find_latest_episodes(lake, key, find_world_in_force(settings, lake, key))
    assert last.played is not None  # otherwise, `find_latest_episodes` raised an error
    return make_episode_page(last.played, last.why_not)
