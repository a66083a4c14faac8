from _command import marble, toy, trained

__all__ = ["marble", "toy", "trained"]
