"""Pages and logs that a person reads: HTML pages, the report of episodes, logs of Inspect.

This room changes when a person should see something else. It computes no score and decides nothing.
"""
