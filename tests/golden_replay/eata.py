from golden_replay.eta import finish, options, start, step

__all__ = ["finish", "options", "start", "step"]
