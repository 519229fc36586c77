"""The package `finetune.agent` of SAGE: training, evaluation and runs of an agent."""
