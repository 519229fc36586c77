"""An office: meeting rooms that users want to book, move or give back, and an agent that must pick the right one."""

from agent_pipeline.sample.office.agent import PHRASES, rooms
from agent_pipeline.sample.office.slips import SLIPS, imagine
from agent_pipeline.sample.office.tasks import make_tasks
from agent_pipeline.sample.office.world import Office, looked_up
from agent_pipeline.sample.world import Domain

OFFICE = Domain(Office, rooms, PHRASES, make_tasks, imagine, SLIPS, looked_up)
