"""`python -m marble`, which is also how `accelerate launch -m marble` starts it."""

from marble.cli import main

if __name__ == "__main__":
    main()
