"""The canonical session: items, chat messages, repair, and tables."""
