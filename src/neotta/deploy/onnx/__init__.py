"""ONNX files of adapted classifiers: written with torch (`export`, `graph`), run without it (`runtime`, `state`)."""
