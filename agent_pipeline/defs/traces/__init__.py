"""Assets of the stage `traces`: sessions, read, judged and curated."""
