"""The paper by command: every table and figure, measured on any model and data, beside the published values."""
