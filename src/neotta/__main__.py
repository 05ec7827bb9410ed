"""`python -m neotta` is `neotta`."""

from neotta.cli import main

main()
