"""Assets of the stage `models`: adapters, their evaluation and their episodes."""
