"""``python -m matador``: the command line."""

from __future__ import annotations

from matador.cli import main

if __name__ == "__main__":
    main()
