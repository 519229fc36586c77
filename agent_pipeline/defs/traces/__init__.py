"""Assets of the stage `traces`: sessions that are read, judged, and curated."""
