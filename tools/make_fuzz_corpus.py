"""Creates a corpus of random bytes for a fuzz target, always the same, unless there is one."""

import pathlib
import random
import sys


def main() -> None:
    """Writes the files into the folder that the command line names."""
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        return
    numbers = random.Random(1)
    for i in range(20):
        (folder / f"begin{i}").write_bytes(numbers.randbytes(200 * (i + 1)))


main()
