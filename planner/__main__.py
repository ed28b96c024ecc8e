"""`python -m planner`: the command line, for where its script is not on the PATH."""

from planner.cli import main

if __name__ == "__main__":
    main()
