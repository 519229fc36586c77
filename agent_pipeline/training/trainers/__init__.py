"""Trainers of transformers and TRL: one module per training method, and what they share."""
