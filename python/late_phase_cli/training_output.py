"""What training says beside the program's own output."""

import sys


def say(text):
    print(text, file=sys.stderr, flush=True)
