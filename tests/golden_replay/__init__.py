"""How the recorded runs of each method are replayed: one module per method, found by its name.

A module `tests/golden_replay/<method>.py` (dashes and dots as underscores) may define

- `options(trace, context) -> dict`: the options of `neotta.create` for a trace; by default the trace's
  hyperparameters under their own names;
- `start(adapter, trace, context) -> None`: called before the first step, to put in what was drawn at random;
- `step(adapter, trace, context, index) -> None`: called after step `index` to compare recorded states;
- `finish(adapter, trace, context) -> None`: called after the last step.

`context` knows the dtype, the recorded tensors of the trace, and how to compare (see `Context`).
"""
