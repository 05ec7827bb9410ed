"""NEO itself: what is remembered of a stream, what is subtracted, and the head that does it."""
