"""Options without which a method cannot be made, from a batch of clean images."""

REQUIRED = {"foa": lambda clean: {"source": clean}}
