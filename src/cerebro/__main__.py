"""`python -m cerebro` is the `cerebro` command."""

from __future__ import annotations

from cerebro.cli import main

if __name__ == "__main__":
    main()
