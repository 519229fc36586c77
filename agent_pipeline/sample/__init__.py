"""The sample: sessions of simulated agents in two small worlds, in the layout of an omniagents
store.

A *world* (`shop/`, `office/`) is a record of things and the tools that change it; a *task* is what
one user says, and the state in which the world should end. Agents of different skill (`cast.py`)
act in it (`play.py`), some with a flaw (`flaws.py`); the world itself, not the flaw, says how it
went (`judge.py`). Then some sessions are damaged, copied, archived or left unjudged, as real stores
are (`record.py`, `damage.py`), written as SQLite (`store.py`) and counted (`manifest.py`). The same
seed gives the same contents, to the last id and time. Nothing here was said by a person or by a
language model.

`write_sample(home, seed)` makes it all; `python -m agent_pipeline.sample` regenerates
`data/sample`.
"""

from agent_pipeline.sample.draw import DEFAULT_SEED
from agent_pipeline.sample.write import write_sample

__all__ = ["DEFAULT_SEED", "write_sample"]
