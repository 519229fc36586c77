"""The promotion of candidates: the decision about a new champion, and serving.

- The rules of a decision: `rules`, their limits (`policy`), the metric that must improve
  (`deciding_metric`) and the yearly error budget (`error_budget`).
- The approval of a promotion: `approval`, and the probation of a new champion (`probation`).
- The inputs of a decision: `comparison`, `stored_scores`, `sanity_questions`, `verified_verdicts`
  and `decision_facts`.
- The nightly run of a decision: `nightly_decision`, and its record (`decision`, `ledger`).
- The texts of a decision: `decision_wording`, `decision_page` and `next_steps`.
- The sessions of production: `production_sessions`, their comparison (`production_pairs`,
  `production`) and its page (`production_page`).
- Serving: `champions`, `hub`, `mlflow_runs` and `own_models`.
"""
