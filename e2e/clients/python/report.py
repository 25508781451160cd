"""Runs a script's cases and reports each as one line of JSON on standard output."""

import inspect
import json
import sys
import time
import traceback


def run(cases):
    """cases: functions without arguments, named after what they promise."""
    only = set(sys.argv[1:])
    for case in cases:
        if only and case.__name__ not in only:
            continue
        began = time.monotonic()
        error = ""
        try:
            case()
        except Exception:  # the report is the point
            error = traceback.format_exc(limit=4)
        print(json.dumps({"name": case.__name__, "error": error, "seconds": time.monotonic() - began}), flush=True)


def cases_of(namespace):
    """Every function of a module whose name begins with case_, in order of definition."""
    found = [f for name, f in namespace.items() if name.startswith("case_") and inspect.isfunction(f)]
    return sorted(found, key=lambda f: f.__code__.co_firstlineno)


def equal(got, want, what="value"):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def eventually(check, within=3.0):
    """Polls until check() is true."""
    end = time.monotonic() + within
    while not check():
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.01)
