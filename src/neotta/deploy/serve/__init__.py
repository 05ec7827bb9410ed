"""`neotta serve`: an adaptive classifier for many cameras over HTTP.

| module | one idea |
|---|---|
| `settings` | what can be chosen, checked |
| `engine`, `torch_engine`, `onnx_engine` | a model: one forward pass, and each row re-centered for its camera |
| `classifier` | a batch of jobs to answers; what was learnt is written |
| `batcher` | requests of all cameras joined into batches, in order, with a bounded queue |
| `infer`, `classify` | the Open Inference Protocol, and image files |
| `guard` | keys, origins, limits; errors as one sentence |
| `app` | the routes, and running them |
"""
