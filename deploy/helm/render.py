"""Renders the chart as `helm template trail` with a file of values would, by Helm's own engine.

    render.py VALUES.yaml NAMESPACE    manifests on stdout; exits with 1 if the chart does not lint
"""

import pathlib
import sys

import helm_python

CHART = pathlib.Path(__file__).parent / "trail-rt"


def main(path, namespace):
    values = helm_python.values_from_yaml(pathlib.Path(path).read_text())
    report = helm_python.lint(str(CHART), values, namespace=namespace)
    errors = [message for message in report["messages"] if message["severity"] > 1]
    if errors:
        print(*errors, sep="\n", file=sys.stderr)
        return 1
    chart = helm_python.Chart.load(str(CHART))
    chart.validate_schema(values)
    rendered = chart.render(values, name="trail", namespace=namespace)
    documents = [text for name, text in rendered.items() if name.endswith(".yaml")]
    print(*documents, sep="\n---\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
