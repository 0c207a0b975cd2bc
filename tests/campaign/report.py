"""How a campaign ends: what it found, what it counted, and its exit status."""

import os
from xml.etree import ElementTree


def conclude(what, counts, findings):
    """Prints all of it, and returns the status: 0 if nothing was found.

    For Bazel, the campaign is a test of one case.
    """
    lines = [*findings, *(f"{counts[name]:9d} {name}" for name in sorted(counts))]
    lines.append(f"{sum(counts.values())} {what}, {len(findings)} findings")
    print("\n".join(lines))
    if "XML_OUTPUT_FILE" in os.environ:
        suite = ElementTree.Element("testsuite", tests="1", failures=str(int(bool(findings))))
        case = ElementTree.SubElement(suite, "testcase", name=lines[-1], classname="campaign")
        if findings:
            ElementTree.SubElement(case, "failure", message="\n".join(findings))
        ElementTree.ElementTree(suite).write(os.environ["XML_OUTPUT_FILE"])
    return 1 if findings else 0
