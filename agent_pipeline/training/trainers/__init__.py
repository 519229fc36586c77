"""Trainers of transformers and TRL: one module per training method, and a module that all share."""
