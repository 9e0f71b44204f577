"""The command line: see ``matador --help``."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit: 0 success, 1 failure, 2 wrong usage."""
    # Imported here, so that importing `matador.cli` costs nothing.
    import sys

    from matador._interrupt import INTERRUPTED, imports_done

    try:
        from matador.cli.program import run

        imports_done()
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # before or after the command itself
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED)
