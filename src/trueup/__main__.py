"""`python -m trueup`, and what torchrun starts."""

from trueup.cli import main

if __name__ == "__main__":
    main()
