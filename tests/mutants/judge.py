"""Runs, for each planted mutant, the tests that reach it, near and quick ones first, until one fails.

Usage: judge.py FOLDER. FOLDER has list.json, planted.json, reached/, binaries.json, and tests.txt: the times of the tests without
a mutant. A test whose name ends with `::` is a module whose tests share their servers: they run as one. Prints the mutants that
no test notices, except those in equivalent.txt, and fails if these are more than one of 20.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EQUIVALENT = Path(__file__).with_name("equivalent.txt")
# How many tests run before it is looked whether one has failed.
CHUNKS = (10, 40, 150, 400)
WANTED = 0.95


def main():
    folder = Path(sys.argv[1]).resolve()
    tree = folder / "tree"
    mutants = json.loads((folder / "list.json").read_text())
    planted = json.loads((folder / "planted.json").read_text())
    programs = json.loads((folder / "binaries.json").read_text())["rust-binaries"]
    passed = re.findall(r"^\s+PASS \[\s*([\d.]+)s\] \(.*?\) (\S+) (\S+)", (folder / "tests.txt").read_text(), re.M)
    times = {(program, test): float(time) for time, program, test in passed}
    reached = defaultdict(set)
    for file in (folder / "reached").iterdir():
        test = tuple(file.name.replace("+", "::").split("!"))
        for number in file.read_text().split() if test in times else ():
            reached[int(number)].add(test)

    def failing(number, program, tests, patience):
        """Those of the tests that fail with a mutant or do not end with it; all, if their process is ended."""
        exact = () if tests[0].endswith("::") else ("--exact",)
        run = subprocess.Popen(
            [programs[program]["binary-path"], *exact, *tests, "--test-threads", "4"], cwd=tree,
            env={**os.environ, "MUTANT": str(number), "CARGO_MANIFEST_DIR": str(tree)}, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        try:
            told, _ = run.communicate(timeout=patience * (2 + sum(times[program, test] for test in tests)))
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            ended = set(re.findall(r"^test (\S+) .*ok$", run.communicate()[0], re.M))
            return [test for test in tests if test not in ended]
        failed = re.findall(r"^test (\S+) .*FAILED$", told, re.M)
        return ([test for test in tests if test in failed] or tests) if run.returncode else []

    def fails(number, program, tests):
        """Whether one of these tests fails with a mutant, and again, and not without it: a busy machine fails any."""
        failed = failing(number, program, tests, 2)
        again = failed and failing(number, program, failed, 8)
        return bool(again) and not failing(0, program, failed, 8)

    def cost(number, test):
        """The time of a test, by how far its module is from the mutant's."""
        module = Path(mutants[number - 1]["file"]).with_suffix("").parts[1:]
        shared = os.path.commonprefix([module, tuple(test[1].split("::"))])
        return times[test] / 4 ** len(shared)

    def survives(number):
        tests, at = sorted(reached[number], key=lambda test: cost(number, test)), 0
        for size in (*CHUNKS, len(tests)):
            of = defaultdict(list)
            for program, test in tests[at : at + size]:
                of[program, test.endswith("::") and test].append(test)
            if any(fails(number, program, names) for (program, _), names in of.items()):
                return False
            at += size
        return True

    def told(number):
        """A mutant, without its place but with its line: places change with each edit."""
        mutant = mutants[number - 1]
        source = (folder / "original" / mutant["file"]).read_text().split("\n")
        name = re.sub(r"^(\S+?):\d+:\d+: ", r"\1: ", mutant["name"])
        return f"{name} | {source[mutant['span']['start']['line'] - 1].strip()}"

    known = {line.rsplit(" | ", 1)[0] for line in EQUIVALENT.read_text().splitlines() if " | " in line}
    judged = [number for number in planted if told(number) not in known]
    if not judged:
        sys.exit("no mutant is planted")
    left = []
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for number, is_left in zip(judged, workers.map(survives, judged)):
            if is_left:
                left.append(number)
                print(f"{told(number)} | {len(reached[number])} tests reach it", flush=True)
    killed = 1 - len(left) / len(judged)
    print(f"{len(judged) - len(left)} of {len(judged)} mutants are noticed: {killed:.3f}; "
          f"{len(planted) - len(judged)} are equivalent")
    sys.exit(killed < WANTED)


main()
