"""The command line. ``matador --help`` lists what there is."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code: 0 fine, 1 failed, 2 wrong usage."""
    # Imported here, so that importing `matador.cli` costs nothing.
    import sys

    try:
        from matador.cli.program import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # before or behind all commands
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
