"""A web shop: orders that users want refunded or cancelled, and an agent that must look before it acts."""

from agent_pipeline.sample.shop.agent import PHRASES, support
from agent_pipeline.sample.shop.slips import SLIPS, imagine
from agent_pipeline.sample.shop.tasks import make_tasks
from agent_pipeline.sample.shop.world import Shop, looked_up
from agent_pipeline.sample.world import Domain

SHOP = Domain(Shop, support, PHRASES, make_tasks, imagine, SLIPS, looked_up)
