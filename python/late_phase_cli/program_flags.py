"""The flags of the C++ program's commands, as recorded in flags.json, so that help and completion
need no program.

tools/develop/record_flags.py makes flags.json from what the program says of itself, and a test
compares the two.
"""

import argparse
import functools
import os
import re

from late_phase_cli import files


@functools.cache
def recorded():
    """{command: {"description": text, "flags": [flag]}}; a command is "train enwik8", "eval", ….

    A flag has a "name" and a "help"; "words" if it takes only those; "default" if that is always
    the same; "switch": true if it takes no value; "several": true if it takes more than one. A
    positional argument is a flag whose name does not start with "--".
    """
    return files.read_json(os.path.join(os.path.dirname(__file__), "flags.json"))


def words(command):
    """{flag: words it accepts}, none if it accepts others, too."""
    return {
        flag["name"]: flag.get("words", [])
        for flag in recorded()[command]["flags"]
        if not is_positional(flag)
    }


def value_name(flag):
    """What stands for the value of a flag; words if they are few."""
    words = "{" + ",".join(flag.get("words", ())) + "}"
    if 2 < len(words) <= 60:
        return words
    return "N" if re.search(r"\ban? (integer|number)\b", flag["help"]) else "VALUE"


def flag_help(flag):
    """The text beside it, with the words if they are many."""
    parts = [flag["help"]]
    if "words" in flag and value_name(flag) == "VALUE":
        parts.append(f"one of {', '.join(flag['words'])}")
    if "default" in flag:
        parts.append(f"default: {flag['default']}")
    return "; ".join(parts)


def help_text(command, name, formatter):
    """The help of a command, which users type as `name`."""
    described = recorded()[command]
    parser = argparse.ArgumentParser(
        prog=name,
        description=described["description"],
        formatter_class=formatter,
        add_help=False,
        usage=f"{name} [FLAG]..."
        + "".join(f" {shown(one)}" for one in described["flags"] if is_positional(one)),
    )
    for flag in described["flags"]:
        options = {"help": flag_help(flag).replace("%", "%%")}
        if flag.get("switch"):
            options["action"] = "store_true"
        else:
            options["metavar"] = flag["name"] if is_positional(flag) else value_name(flag)
            options["nargs"] = "+" if flag.get("several") else None
        parser.add_argument(flag["name"], **options)
    return parser.format_help()


def is_positional(flag):
    return not flag["name"].startswith("--")


def shown(positional):
    return positional["name"] + ("..." if positional.get("several") else "")
