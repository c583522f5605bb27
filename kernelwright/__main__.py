"""`python -m kernelwright`: the same as the command."""

from kernelwright.cli import main

main()
