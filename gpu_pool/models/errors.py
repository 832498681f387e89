"""What goes wrong while a model is loaded: an operator's error, never a client's."""


class CheckpointError(ValueError):
    """The folder cannot be served; the message names the file, field or tensor and what to do."""
