"""`neotta serve`: an adaptive classifier for many streams over HTTP.

| module | one idea |
|---|---|
| `settings` | what can be chosen, checked |
| `engine` | a model, of torch or in an ONNX file: one forward pass, and each row re-centered for its stream |
| `fair`, `images` | bounded queues in which clients and streams take turns: for the model, and for decoding |
| `service` | the streams and their health; what can be done with them |
| `history`, `board`, `judging` | what is kept of streams in SQLite, shown of all, and judged of one |
| `auth`, `requests`, `protocol` | the key, what is read and answered, the Open Inference Protocol |
| `dashboard`, `app` | the pages, and all routes |
"""
