"""The training module of omniagents: sessions, training of all weights, distillation."""
