"""Checks without a build that each target of a Dockerfile has the bundled model where its programs
look for it: beside themselves (cli/src/locate.rs).

    image.py DOCKERFILE    what is wrong, a line each; exits with 1
"""

import pathlib
import sys

CONTEXT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ("trail-rt", "trail-dynamo")


def stages(path):
    """By name: the image it begins with, and its COPY instructions as lists of words."""
    found = {}
    for line in pathlib.Path(path).read_text().replace("\\\n", " ").splitlines():
        words = line.split()
        if words[:1] == ["FROM"]:
            copies = []
            found[words[3]] = (words[1], copies)
        elif words[:1] == ["COPY"]:
            copies.append(words[1:])
    return found


def files(found, name):
    """The paths in an image of the programs, and of what is copied from the context."""
    programs, others = [], {}
    while name in found:
        name, copies = found[name]
        for *sources, target in copies:
            if sources[0].startswith("--from="):
                programs += [target + source.rsplit("/", 1)[1] for source in sources[1:]]
            else:
                others |= {target: source for source in sources}
    return programs, others


def errors(path):
    found = stages(path)
    for target in TARGETS:
        programs, others = files(found, target)
        if not programs:
            yield f"{target}: it has no program"
        for program in programs:
            assets = f"{program.rsplit('/', 1)[0]}/assets"
            if not (CONTEXT / others.get(assets, "-") / "demo" / "config.json").is_file():
                yield f"{target}: {assets}/demo is missing, which {program} loads"


if __name__ == "__main__":
    lines = list(errors(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(1 if lines else 0)
