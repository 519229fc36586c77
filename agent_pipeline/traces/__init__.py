"""From an agent's session store to judged, curated sessions.

The canonical form (`session`), one small reader a source (`sources`), and what all sources share: pairing calls with results
(`pairing`), repair, tool-schema inference (`tools`), redaction, judging and curation. Imports no Dagster and nothing of the
other rooms.
"""
