"""`python -m neotta` runs the command line."""

from neotta.cli import main

main()
