"""Many streams in one model, and many machines with one state."""
