"""The papers' tables and figures, and ours, on the simulator: one file each.

`catalogue` names them, `harness` repeats a run over seeds and puts intervals on the figures,
`setup` has the fleets and workloads they share, `output` writes JSON, Markdown and PNG. A set-up's
free parameters are stated in docs/experiments.md; they were fixed on the baselines alone.
"""
