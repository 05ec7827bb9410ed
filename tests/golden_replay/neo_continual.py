from golden_replay.neo import step

__all__ = ["step"]
