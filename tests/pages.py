"""Examples on pages of the documentation, and whether they printed what the page says. Without dependencies."""

import re
from itertools import zip_longest

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


def examples(text):
    """First line number, code and promised output (or None) of every ``python`` block."""
    fences = list(FENCE.finditer(text))
    for fence, following in zip_longest(fences, fences[1:]):
        if fence[1] != "python":
            continue
        shown = None
        if (
            following
            and following[1] == "text"
            and not text[fence.end() : following.start()].strip()
        ):
            shown = following[2]
        yield text.count("\n", 0, fence.start(2)), fence[2], shown


def unprinted(shown, printed):
    """The first promised line that was not printed in its turn, or None; ``...`` stands for any end of a line."""
    lines = iter(line.strip() for line in printed.splitlines())
    for wanted in filter(None, map(str.strip, shown.splitlines())):
        stem = wanted.removesuffix("...")
        if not any(line == wanted or (stem != wanted and line.startswith(stem)) for line in lines):
            return wanted
    return None
