"""`python -m benchmarks.flips [FLIPS] [OTHERS]`: what comes of damaged files.

Of each kind of file, FLIPS bits are flipped (300 by default), one at a time, and OTHERS files (60) are cut off, filled with zeros,
exchanged with another file of the kind, and removed. After each, the champion is promoted and served, what is served is compared with it,
a worker reads the models that it trains further, exports and plays, and a decision, the histories, prune and lineage read what they need.

The table counts the damage that was noticed (a use was refused with a sentence), that changed nothing that any use gave, and that
changed something without a sentence.
"""

import sys
import tempfile
from pathlib import Path

from agent_pipeline_tests.rot import CHANGES, Damager


def main(flips: int = 300, others: int = 60) -> None:
    """Damage the files, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        damager = Damager(Path(folder))
        print("| kind of file | damage | tries | noticed | without effect | silently used |")
        print("|---|---|---:|---:|---:|---:|")
        wrong = []
        for kind in damager.kinds:
            for change in (*CHANGES, "exchanged", "removed"):
                outcome = damager.damage(kind, change, flips if change == "flipped" else others)
                wrong += [*outcome.silent, *outcome.stacks]
                figures = (outcome.tries, outcome.noticed, outcome.harmless, len(outcome.silent))
                row = (kind, change, *map(str, figures))
                print(f"| {' | '.join(row)} |", flush=True)
    for line in wrong:
        print(line)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
