"""The canonical session: items, chat messages, repair, tables."""
