"""Errors a user can cause. The command line prints the message as one line and exits with 2."""


class MarbleError(Exception):
    """A mistake with a clear remedy; its message says what to do next."""


class RecipeError(MarbleError):
    """The recipe, or an override of it, is wrong."""


class RewardError(MarbleError):
    """A reward failed: the message names the reward, the prompt and the cause."""


class CheckpointError(MarbleError):
    """A checkpoint is missing, incomplete or damaged."""


class LostProcess(MarbleError):
    """Another process of the run is gone; every process that is left says so."""
