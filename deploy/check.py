"""Checks rendered manifests without a cluster: schemas, and references between objects.

    check.py RENDERED.yaml            what is wrong, a line each; exits with 1
    check.py RENDERED.yaml OTHER.yaml  also that both have the same objects
"""

import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

SCHEMAS = yaml.safe_load((pathlib.Path(__file__).parent / "schemas.yaml").read_text())
WORKLOADS = ("Deployment", "StatefulSet")


def load(path):
    """The objects of a file, by kind and name."""
    objects = [o for o in yaml.safe_load_all(pathlib.Path(path).read_text()) if o]
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


def schema_error(manifest):
    """The complaint of the schema of the object's kind; None if there is none."""
    own = SCHEMAS.get(f"{manifest['apiVersion']}/{manifest['kind']}")
    try:
        if own is None:
            kubernetes_validate.validate(manifest, "1.37", strict=True)
        else:
            body = {k: v for k, v in manifest.items() if k not in ("apiVersion", "kind")}
            parts = {"metadata": {"$ref": "#/$defs/metadata"}, "spec": own}
            jsonschema.validate(body, {
                "$defs": SCHEMAS["$defs"], "properties": parts, "additionalProperties": False,
            })
    except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
        return str(error.message)
    except kubernetes_validate.SchemaNotFoundError:
        return "no schema is known for this kind: add it to schemas.yaml"
    return None


def labels_of(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def ports_of(workload):
    pod = workload["spec"]["template"]["spec"]
    return [port for container in pod["containers"] for port in container.get("ports", [])]


def selected(objects, selector):
    """The workloads whose pods a selector takes."""
    chosen = [o for (kind, _), o in objects.items() if kind in WORKLOADS]
    return [o for o in chosen if selector and selector.items() <= labels_of(o).items()]


def workload_errors(objects, workload):
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    if not selected({("Deployment", ""): workload}, spec["selector"]["matchLabels"]):
        yield "its selector does not take its own pods"
    account = pod.get("serviceAccountName")
    if account and ("ServiceAccount", account) not in objects:
        yield f"there is no service account {account}"
    if "serviceName" in spec and ("Service", spec["serviceName"]) not in objects:
        yield f"there is no service {spec['serviceName']}"
    volumes = {v["name"] for v in pod.get("volumes", [])}
    volumes |= {v["metadata"]["name"] for v in spec.get("volumeClaimTemplates", [])}
    names = {port["name"] for port in ports_of(workload)}
    for container in pod["containers"]:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if container[probe]["httpGet"]["port"] not in names:
                yield f"{probe} asks a port that the container does not have"
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"there is no volume {mount['name']}"
        drain = drain_seconds(container)
        if drain is None:
            yield "it does not say how long it drains: --drain-seconds"
        elif pause_seconds(container) + drain > pod["terminationGracePeriodSeconds"]:
            yield "it is killed before its drain ends"


def pause_seconds(container):
    """Time between the end of new connections and the drain: the hook's, and Dynamo's own."""
    name = "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"
    own = sum(int(e["value"]) for e in container["env"] if e["name"] == name)
    return container["lifecycle"]["preStop"]["sleep"]["seconds"] + own


def drain_seconds(container):
    """Time that the container gives its requests; None if it does not say. Dynamo's variables
    alone are not enough: of two limits the shorter one counts."""
    args = container.get("args", [])
    return int(args[args.index("--drain-seconds") + 1]) if "--drain-seconds" in args else None


def reference_errors(objects, manifest):
    kind, spec = manifest["kind"], manifest.get("spec", {})
    if kind in WORKLOADS:
        yield from workload_errors(objects, manifest)
    elif kind == "Service":
        pods = selected(objects, spec["selector"])
        names = {port["name"] for pod in pods for port in ports_of(pod)}
        if not {port["targetPort"] for port in spec["ports"]} <= names:
            yield "it has no pods with its ports"
    elif kind == "NetworkPolicy":
        pods = selected(objects, spec["podSelector"]["matchLabels"])
        names = {port["name"] for pod in pods for port in ports_of(pod)}
        allowed = {port["port"] for rule in spec["ingress"] for port in rule.get("ports", [])}
        if not allowed <= names:
            yield "it allows ports that its pods do not have"
    elif kind in ("PodDisruptionBudget", "InferencePool"):
        pods = selected(objects, spec["selector"]["matchLabels"])
        numbers = {port["containerPort"] for pod in pods for port in ports_of(pod)}
        if not pods or not {p["number"] for p in spec.get("targetPorts", [])} <= numbers:
            yield "it selects no pods with its ports"
    elif kind == "ServiceMonitor":
        services = [o for (k, _), o in objects.items() if k == "Service"]
        wanted = spec["selector"]["matchLabels"].items()
        services = [s for s in services if wanted <= s["metadata"]["labels"].items()]
        ports = {port["name"] for service in services for port in service["spec"]["ports"]}
        if not {endpoint["port"] for endpoint in spec["endpoints"]} <= ports:
            yield "it selects no service with its ports"
    elif kind == "HorizontalPodAutoscaler":
        target = objects.get((spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]))
        if target is None:
            yield "there is nothing of that name to scale"
        elif "replicas" in target["spec"]:
            yield "its target sets the number of replicas too"
    elif kind == "RoleBinding":
        for ref in [manifest["roleRef"], *manifest["subjects"]]:
            if (ref["kind"], ref["name"]) not in objects:
                yield f"there is no {ref['kind']} {ref['name']}"


def errors(path):
    objects = load(path)
    for (kind, name), manifest in objects.items():
        error = schema_error(manifest)
        found = [error] if error else reference_errors(objects, manifest)
        yield from (f"{kind}/{name}: {line}" for line in found)


def differences(path, other):
    # A chart keeps its definitions apart, without labels.
    mine, theirs = (
        {key: o for key, o in load(p).items() if key[0] != "CustomResourceDefinition"}
        for p in (path, other)
    )
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            yield f"{'/'.join(key)}: differs from {other}"


def main(path, *others):
    found = list(errors(path)) + [line for other in others for line in differences(path, other)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
