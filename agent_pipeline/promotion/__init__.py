"""Whether a candidate replaces the champion, and what follows from a decision.

This room changes when other models may be served:

- the metric that must gain: `deciding_metric`; the rules: `rules`; their limits: `policy`; the
  chance of an error: `error_budget`;
- who may promote: `approval`; the new champion's probation: `probation`;
- what is compared: `comparison`, `stored_scores`, `sanity_questions`, `verified_verdicts`,
  `decision_facts`;
- the run of a night: `nightly_decision`; its record: `decision`, `ledger`; its words and page:
  `decision_wording`, `decision_page`, `next_steps`;
- what is served: `champions`, `hub`, `mlflow_runs`, `own_models`.
"""
