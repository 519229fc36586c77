"""Assets of the stage `models`: adapters, their evaluations, and their episodes."""
