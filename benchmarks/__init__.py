"""The figures of the README that a machine's speed decides, each measured side by side with something of known cost."""
