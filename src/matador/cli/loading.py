"""Finds the application a command is about, and says it as a command does if there is none."""

from __future__ import annotations

import contextlib
import sys

from matador.cli.output import CommandError, UsageError
from matador.errors import ApplicationImportError, ConfigurationError
from matador.events.loading import Loaded, load_application


def load(reference: str) -> Loaded:
    """The application of a reference. What its module prints meanwhile goes to stderr.

    Raises:
        UsageError: there is no such file, module or attribute, or it is not an application.
        CommandError: the module raised an error while it was imported.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load_application(reference)
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    except ApplicationImportError as error:
        raise CommandError(str(error)) from error
