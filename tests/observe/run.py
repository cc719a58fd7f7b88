"""Runs all cases and prints a table: what was expected, what was said, and after how long.

Usage: python tests/observe/run.py [--only TEXT] [--held-out] [--times N] [--verbose]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from observed import observe
from observed_cases import CASES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--held-out", action="store_true", help="only cases that were held out")
    parser.add_argument("--times", type=int, default=1, help="how often each case runs")
    parser.add_argument(
        "--part", default="1/1", metavar="I/N", help="every N-th case from the I-th"
    )
    parser.add_argument("--verbose", action="store_true", help="print the output of the jobs")
    parser.add_argument("--keep", metavar="FOLDER", help="write the output of the jobs to files")
    options = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if options.only in case.name and (case.held_out or not options.held_out)
    ]
    part, parts = map(int, options.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    verdicts: Counter[str] = Counter()
    print("| case | expected | said | seconds after it could be known | verdict |")
    print("|---|---|---|---|---|")
    for case in chosen * options.times:
        if case.layout.startswith("hosts") and os.geteuid() != 0:
            print(f"| {case.name} | | needs root | | skipped |", flush=True)
            verdicts["skipped"] += 1
            continue
        result = observe(case)
        verdicts[result.verdict] += 1
        named = (f"{who}: {' or '.join(sorted(why))}" for who, why in case.expect.items())
        expected = "; ".join(named)
        after = "" if result.after is None else f"{result.after:+.2f}"
        print(
            f"| {case.name} | {expected or '; '.join(case.says) or 'nobody'} | {result.said} | "
            f"{after} | {result.verdict} |",
            flush=True,
        )
        if options.verbose or result.verdict != "right":
            for line in result.findings:
                print(f"      finding: {line}", file=sys.stderr)
        if options.keep:
            place = Path(options.keep, case.name.replace(" ", "-") + ".txt")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("\n".join([*result.findings, result.output]))
        if options.verbose:
            print(result.output, file=sys.stderr, flush=True)
    print()
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    return 0 if set(verdicts) <= {"right", "skipped"} else 1


if __name__ == "__main__":
    sys.exit(main())
