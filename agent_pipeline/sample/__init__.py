"""The sample: sessions of simulated agents in two small worlds, in the layout of an omniagents
store.

A *world* (`shop/`, `office/`) has records and the tools that change them. A *task* has the messages
of one user and the state in which the world should end. Agents of different skill (`cast.py`) act
in the world (`play.py`), and some of their sessions have a flaw (`flaws.py`). The verdict depends
on the world's final state and not on the flaw (`judge.py`). As in real stores, some sessions are
then damaged, copied, archived or left unjudged (`record.py`, `damage.py`). The sessions are written
as SQLite (`store.py`) and counted (`manifest.py`). The same seed always gives the same contents,
including ids and times. No text was written by a real user or by a language model.

`write_sample(home, seed)` makes the whole sample. `python -m agent_pipeline.sample` regenerates
`data/sample`.
"""

from agent_pipeline.sample.draw import DEFAULT_SEED
from agent_pipeline.sample.write import write_sample

__all__ = ["DEFAULT_SEED", "write_sample"]
