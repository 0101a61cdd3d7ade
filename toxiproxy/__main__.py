"""Run the command line: `python -m toxiproxy`."""

from __future__ import annotations

from toxiproxy.cli import main

main(prog_name="python -m toxiproxy")
