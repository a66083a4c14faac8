"""Libraries that say only what matters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' progress bars and warnings; what matters is checked here."""
    libraries = (diffusers_logging, transformers_logging)
    before = [(lib, lib.get_verbosity(), lib.is_progress_bar_enabled()) for lib in libraries]
    for lib in libraries:
        lib.set_verbosity_error()
        lib.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for lib, level, bar in before:
            lib.set_verbosity(level)
            if bar:
                lib.enable_progress_bar()
