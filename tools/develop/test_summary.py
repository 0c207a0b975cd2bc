"""Sums up Bazel test runs: failing and skipped test cases, then `N passed, M failed, S skipped`.

Reads the build events that Bazel wrote (--build_event_json_file), so that only results of these
runs count, and the test.xml files that the events name (GoogleTest's and pytest's). A target that
did not build, crashed or timed out counts as one failed case. tools/test calls it.

    test_summary.py EVENTS.json [NAME=EVENTS.json ...]

NAME marks the cases of that run, for example `sanitizers`.
"""

import dataclasses
import json
import os
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

_MESSAGE_LINES = 25  # lines shown of one failure
_LOG_LINES = 12  # lines shown of a crashed test's log
_BUILD_FAILED = "did not build: see the messages above"


@dataclasses.dataclass(frozen=True)
class Case:
    """The outcome of one test case: `outcome` is "passed", "failed" or "skipped"."""

    target: str
    name: str
    outcome: str
    message: str = ""


def cases_of_xml(target, text):
    """The cases in a JUnit-style report."""
    cases = []
    for element in ElementTree.fromstring(text).iter("testcase"):
        name = ".".join(filter(None, [element.get("classname"), element.get("name")]))
        failures = element.findall("failure") + element.findall("error")
        skipped = element.find("skipped")
        if failures:
            message = "\n".join(_text(failure) for failure in failures)
            cases.append(Case(target, name, "failed", message))
        elif skipped is not None:
            cases.append(Case(target, name, "skipped", _skip_reason(skipped)))
        elif element.get("status") == "notrun":
            cases.append(Case(target, name, "skipped", "disabled in the source"))
        else:
            cases.append(Case(target, name, "passed"))
    return cases


def _text(element):
    return (element.text or "").strip() or element.get("message", "")


def _skip_reason(element):
    # GoogleTest puts `file:line` on a line of its own before the reason.
    lines = element.get("message", "").strip().splitlines()
    return " ".join(lines[1:] if len(lines) > 1 else lines) or "no reason given"


def cases_of_run(events, read=None):
    """The cases of one Bazel run, from its build events (parsed JSON objects)."""
    read = read or _read
    results = {}  # (target, run, shard) -> the last attempt's result
    problems = {}  # target -> why it has no result
    exit_name = ""
    for event in events:
        identity = event.get("id", {})
        kind = next(iter(identity), "")
        label = (
            identity.get(kind, {}).get("label") if isinstance(identity.get(kind), dict) else None
        )
        if kind == "testResult":
            key = (label, identity[kind].get("run"), identity[kind].get("shard"))
            results[key] = event["testResult"]
        elif (
            kind == "targetCompleted"
            and "completed" in event
            and not event["completed"].get("success")
        ):
            problems.setdefault(label, _BUILD_FAILED)
        elif "aborted" in event and kind in ("targetCompleted", "targetConfigured"):
            problems.setdefault(label, _BUILD_FAILED)
        elif "aborted" in event and kind in ("pattern", "patternSkipped"):
            reason = event["aborted"].get("description") or _BUILD_FAILED
            problems.setdefault(" ".join(identity[kind]["pattern"]), reason)
        elif kind == "buildFinished":
            exit_name = event["finished"].get("exitCode", {}).get("name", "SUCCESS")
    cases = []
    for (target, _, _), result in results.items():
        cases += _cases_of_result(target, result, read)
    tested = {target for target, _, _ in results}
    cases += [Case(t, "", "failed", why) for t, why in problems.items() if t not in tested]
    if not exit_name:
        cases.append(Case("bazel", "", "failed", "stopped before the end of the run"))
    elif exit_name not in ("SUCCESS", "NO_TESTS_FOUND") and all(
        c.outcome != "failed" for c in cases
    ):
        # For example a BUILD file that does not parse, whose targets Bazel then does not know.
        cases.append(Case("bazel", "", "failed", f"{exit_name}: see the messages above"))
    return cases


def _cases_of_result(target, result, read):
    status = result.get("status", "NO_STATUS")
    files = {output["name"]: output.get("uri", "") for output in result.get("testActionOutput", [])}
    cases, problem = [], ""
    try:
        report = read(files["test.xml"])
        if _is_bazels_own(target, report):
            problem = _without_report(status, report)
        else:
            cases = cases_of_xml(target, report)
    except (KeyError, OSError, ElementTree.ParseError) as error:
        problem = f"{status.lower()}, without a readable report ({error!r})"
    if not problem and not cases:
        problem = "ran no test case"
    if not problem and status != "PASSED" and all(c.outcome != "failed" for c in cases):
        problem = (
            f"{status.lower()}, although no case failed: see {_path(files.get('test.log', ''))}"
        )
    return cases + ([Case(target, "", "failed", problem)] if problem else [])


def _is_bazels_own(target, report):
    """Whether the test crashed or timed out: Bazel then writes a report of one case, the target."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    return len(cases) == 1 and cases[0].get("name") == target.lstrip("/").replace(":", "/")


def _without_report(status, report):
    log = "\n".join(ElementTree.fromstring(report).itertext()).strip().splitlines()
    errors = [error.get("message", "") for error in ElementTree.fromstring(report).iter("error")]
    cause = "timed out" if status == "TIMEOUT" else "; ".join(errors) or "wrote no report"
    # A sanitizer's message comes long before the end of the log.
    told = [i for i, line in enumerate(log) if "ERROR: " in line and "Sanitizer" in line]
    shown = log[told[0] :][:_LOG_LINES] if told else log[-_LOG_LINES:]
    return "\n".join([f"{cause}; from its log:", *shown])


def _path(uri):
    return urllib.request.url2pathname(urllib.parse.urlparse(uri).path)


def _read(uri):
    with open(_path(uri), encoding="utf-8", errors="replace") as file:
        return file.read()


def summary(runs):
    """The report's lines and the exit status, from a list of (name, cases)."""
    lines, count = [], {"passed": 0, "failed": 0, "skipped": 0}
    told = {"failed": [], "skipped": []}
    for run, cases in runs:
        for case in cases:
            count[case.outcome] += 1
            if case.outcome != "passed":
                where = " ".join(filter(None, [case.target, case.name, f"[{run}]" if run else ""]))
                told[case.outcome].append((where, case.message))
    for where, reason in told["skipped"]:
        lines.append(f"SKIPPED {where}: {reason}")
    for where, message in told["failed"]:
        lines.append(f"FAILED {where}")
        shown = message.splitlines()
        lines += ["    " + line for line in shown[:_MESSAGE_LINES]]
        if len(shown) > _MESSAGE_LINES:
            lines.append(f"    ... and {len(shown) - _MESSAGE_LINES} more lines")
    lines.append("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
    return lines, 1 if count["failed"] or not count["passed"] else 0


def _events(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:  # Bazel was killed in the middle of a line; the missing end is reported.
            break
    return events


def main(arguments):
    runs = []
    for argument in arguments:
        name, _, path = argument.rpartition("=")
        runs.append((name, cases_of_run(_events(path))))
    lines, status = summary(runs)
    print("\n".join(lines), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
