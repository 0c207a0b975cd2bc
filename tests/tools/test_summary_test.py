"""Tests of tools/develop/test_summary.py on build events and reports as Bazel, GoogleTest and
pytest write them.
"""

import json

from tools.develop import test_summary

_GTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1" name="AllTests">
  <testsuite name="Core" tests="4">
    <testcase name="Adds" status="run" result="completed" classname="Core" />
    <testcase name="Breaks" status="run" result="completed" classname="Core">
      <failure message="core_test.cc:7&#x0A;Expected: 1" type=""><![CDATA[core_test.cc:7
Expected: 1]]></failure>
      <failure message="core_test.cc:9&#x0A;Expected: 2" type=""><![CDATA[core_test.cc:9
Expected: 2]]></failure>
    </testcase>
    <testcase name="Gpu" status="run" result="skipped" classname="Core">
      <skipped message="core_test.cc:4&#x0A;needs a GPU"><![CDATA[core_test.cc:4
needs a GPU]]></skipped>
    </testcase>
    <testcase name="DISABLED_Later" status="notrun" result="suppressed" classname="Core" />
  </testsuite>
</testsuites>"""

_PYTEST = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="3">
<testcase classname="tests.a_test" name="test_one" time="0.1" />
<testcase classname="tests.a_test" name="test_gpu"><skipped type="pytest.skip" message="no GPU">a_test.py:6: no GPU</skipped></testcase>
<testcase classname="tests.a_test" name="test_setup"><error message="failed on setup">E   KeyError</error></testcase>
</testsuite></testsuites>"""

_PASSING = '<testsuites><testsuite><testcase name="A" status="run" /></testsuite></testsuites>'

_FINISHED = {"id": {"buildFinished": {}}, "finished": {}}


def _result(label, status, uri="file:///test.xml", attempt=1):
    outputs = [{"name": "test.log", "uri": "file:///test.log"}, {"name": "test.xml", "uri": uri}]
    return {
        "id": {"testResult": {"label": label, "run": 1, "shard": 1, "attempt": attempt}},
        "testResult": {"status": status, "testActionOutput": outputs},
    }


def _run(*events, xml=_PASSING):
    return test_summary.cases_of_run([*events, _FINISHED], read=lambda uri: xml)


def _outcomes(cases):
    return [(case.name, case.outcome) for case in cases]


def test_reads_googletest_reports():
    cases = test_summary.cases_of_xml("//tests:core_test", _GTEST)
    assert _outcomes(cases) == [
        ("Core.Adds", "passed"),
        ("Core.Breaks", "failed"),
        ("Core.Gpu", "skipped"),
        ("Core.DISABLED_Later", "skipped"),
    ]
    assert cases[1].message == "core_test.cc:7\nExpected: 1\ncore_test.cc:9\nExpected: 2"
    assert cases[2].message == "needs a GPU"


def test_reads_pytest_reports():
    cases = test_summary.cases_of_xml("//tests:a_test", _PYTEST)
    assert [case.outcome for case in cases] == ["passed", "skipped", "failed"]
    assert cases[1].message == "no GPU"
    assert cases[2].message == "E   KeyError"


def test_counts_each_case_of_a_result():
    assert _outcomes(_run(_result("//t:a", "PASSED"))) == [("A", "passed")]


def test_last_attempt_counts():
    cases = _run(_result("//t:a", "FAILED"), _result("//t:a", "PASSED", attempt=2))
    assert _outcomes(cases) == [("A", "passed")]


def test_failed_target_without_failed_case_is_a_failure():
    cases = _run(_result("//t:a", "FAILED"))
    assert _outcomes(cases) == [("A", "passed"), ("", "failed")]
    assert "/test.log" in cases[1].message


def test_target_without_report_is_a_failure():
    def read(uri):
        raise FileNotFoundError(uri)

    cases = test_summary.cases_of_run([_result("//t:a", "TIMEOUT"), _FINISHED], read=read)
    assert _outcomes(cases) == [("", "failed")]
    assert cases[0].message.startswith("timeout")


def test_broken_report_is_a_failure():
    assert _outcomes(_run(_result("//t:a", "PASSED"), xml="<testsuites>")) == [("", "failed")]


def test_target_that_ran_nothing_is_a_failure():
    cases = _run(_result("//t:a", "PASSED"), xml="<testsuites />")
    assert [(case.outcome, case.message) for case in cases] == [("failed", "ran no test case")]


def _bazels_own_report(log):
    return f"""<testsuites><testsuite name="t/a"><testcase name="t/a" status="run">
        <error message="exited with error code 134"></error></testcase>
        <system-out><![CDATA[{log}]]></system-out></testsuite></testsuites>"""


def test_crash_shows_the_end_of_the_log():
    log = "\n".join(f"line {i}" for i in range(100))
    (crashed,) = _run(_result("//t:a", "FAILED"), xml=_bazels_own_report(log))
    assert crashed.outcome == "failed"
    assert crashed.message.startswith("exited with error code 134")
    assert crashed.message.endswith("line 98\nline 99")
    assert "line 50\n" not in crashed.message


def test_timeout_is_called_so():
    (late,) = _run(_result("//t:a", "TIMEOUT"), xml=_bazels_own_report("line"))
    assert late.message.startswith("timed out")


def test_crash_under_a_sanitizer_shows_its_message():
    log = "==7==ERROR: AddressSanitizer: heap-buffer-overflow\n" + "legend\n" * 100
    (crashed,) = _run(_result("//t:a", "FAILED"), xml=_bazels_own_report(log))
    assert "heap-buffer-overflow" in crashed.message


def test_target_that_did_not_build_is_one_failure():
    cases = _run(
        {"id": {"targetCompleted": {"label": "//t:a"}}, "completed": {}},
        {"id": {"testSummary": {"label": "//t:a"}}, "aborted": {"reason": "NO_BUILD"}},
        {"id": {"unconfiguredLabel": {"label": "//t:missing"}}, "aborted": {}},
    )
    assert [(case.target, case.outcome) for case in cases] == [("//t:a", "failed")]


def test_target_that_did_not_load_is_a_failure_with_bazels_reason():
    cases = _run(
        {"id": {"pattern": {"pattern": ["//t:b"]}}, "aborted": {"description": "no such target"}}
    )
    assert [(case.target, case.message) for case in cases] == [("//t:b", "no such target")]


def test_run_that_was_cut_short_is_a_failure():
    assert _outcomes(test_summary.cases_of_run([])) == [("", "failed")]


def test_bazels_own_failure_is_a_failure():
    finished = {
        "id": {"buildFinished": {}},
        "finished": {"exitCode": {"name": "PARSING_FAILURE", "code": 1}},
    }
    cases = test_summary.cases_of_run(
        [_result("//t:a", "PASSED"), finished], read=lambda uri: _PASSING
    )
    assert _outcomes(cases) == [("A", "passed"), ("", "failed")]
    assert "PARSING_FAILURE" in cases[1].message


def test_summary_lists_skips_and_failures_and_counts_all_runs():
    cases = test_summary.cases_of_xml("//tests:core_test", _GTEST)
    lines, status = test_summary.summary([("", cases), ("sanitizers", cases)])
    assert status == 1
    assert "SKIPPED //tests:core_test Core.Gpu: needs a GPU" in lines
    assert "FAILED //tests:core_test Core.Breaks [sanitizers]" in lines
    assert lines[-1] == "2 passed, 2 failed, 4 skipped"


def test_long_messages_are_cut():
    case = test_summary.Case("//t:a", "A", "failed", "line\n" * 100)
    lines, _ = test_summary.summary([("", [case])])
    assert len(lines) < 30
    assert lines[-2].strip() == "... and 75 more lines"


def test_status_is_zero_only_if_something_passed_and_nothing_failed():
    passed, skipped = (
        test_summary.Case("//t:a", "A", outcome) for outcome in ("passed", "skipped")
    )
    assert test_summary.summary([("", [passed, skipped])])[1] == 0
    assert test_summary.summary([("", [skipped])])[1] == 1
    assert test_summary.summary([("", [])])[1] == 1


def test_main_reads_event_files(tmp_path, capsys):
    report = tmp_path / "test results.xml"
    report.write_text(_PASSING)
    events = tmp_path / "events.json"
    lines = [_result("//t:a", "PASSED", report.as_uri()), _FINISHED]
    events.write_text("\n".join(json.dumps(line) for line in lines))
    assert test_summary.main([str(events), f"again={events}"]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed, 0 skipped\n"
