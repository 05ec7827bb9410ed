"""`neotta serve`: an adaptive classifier for many streams over HTTP.

| module | one idea |
|---|---|
| `settings` | what can be chosen, checked |
| `engine`, `onnx_engine` | a model: one forward pass, and each row re-centered for its stream |
| `fair`, `batcher`, `images` | bounded queues in which streams take turns: for the model, and for decoding |
| `service` | the streams and their health; what can be done with them |
| `history`, `metrics` | what is kept of streams in SQLite, and shown to Prometheus |
| `auth`, `requests`, `protocol` | the key, what is read and answered, the Open Inference Protocol |
| `dashboard`, `app` | the pages, and all routes |
"""
