"""Holds the manifests, the chart's values and what helm renders of them against schemas. Needs PyYAML and jsonschema; with
kubernetes-validate the objects are held against those of Kubernetes, and with helm the chart is rendered."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import jsonschema
import yaml

try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None
    print("check-charts: no kubernetes-validate: objects are not held against Kubernetes' schemas", file=sys.stderr)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/paced"
MANIFESTS = ROOT / "deploy/kubernetes/paced.yaml"
# What of the schemas is looked at: a version of Kubernetes that the chart's kubeVersion allows.
KUBERNETES = "1.29"


def merged(base, over):
    """What helm makes of two files of values."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def check_object(thing, where):
    """One object: as Kubernetes wants it, and confined as all of ours are."""
    kind, name = thing["kind"], thing["metadata"]["name"]
    if kubernetes_validate and "monitoring.coreos.com" not in thing["apiVersion"]:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    if kind == "PrometheusRule":
        rules = [rule for group in thing["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
        for rule in rules:
            assert rule["annotations"]["runbook_url"].startswith(("docs/", "https://git.example.com/paced/blob/main/docs/")), where
        assert len({rule["annotations"]["runbook_url"].split("docs/")[0] for rule in rules}) == 1, where
    if kind == "Deployment":
        pod = thing["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False, where
        assert pod["securityContext"]["runAsNonRoot"] is True, where
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, where
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["capabilities"]["drop"] == ["ALL"], where
            assert container["resources"]["limits"]["memory"], where
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]}, where
    return f"{kind}/{name}"


def check_all(text, where):
    """All objects of one file: what they refer to is there, too."""
    things = [thing for thing in yaml.safe_load_all(text) if thing]
    names = [check_object(thing, where) for thing in things]
    assert len(names) == len(set(names)), f"{where}: an object comes twice in {names}"
    labels = [thing["spec"]["template"]["metadata"]["labels"] for thing in things if thing["kind"] == "Deployment"]
    for thing in things:
        selector = thing.get("spec", {}).get("selector", {})
        wanted = selector.get("matchLabels", selector) if thing["kind"] != "ServiceMonitor" else {}
        assert wanted.items() <= labels[0].items(), f"{where}: {thing['kind']} selects none of the pods"
    return names


def check_chart():
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    base = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(base, schema)
    undocumented = set(schema["properties"]) - set(base) - {"global"}
    assert not undocumented, f"values.yaml does not have {undocumented}"
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version, f"Chart.yaml is of {chart['appVersion']}, and paced is {version}"
    for wrong in ({"replicas": "2"}, {"replica": 2}, {"secret": {"keys": {"amqp": "a"}}}, {"image": {"digest": "x"}}, {"rules": {"runbookBase": "docs"}}):
        try:
            jsonschema.validate(merged(base, wrong), schema)
        except jsonschema.ValidationError:
            continue
        raise AssertionError(f"the schema takes {wrong}")
    for path in sorted((CHART / "ci").glob("*.yaml")):
        jsonschema.validate(merged(base, yaml.safe_load(path.read_text())), schema)
        if shutil.which("helm"):
            command = ["helm", "template", "release", str(CHART), "--namespace", "jobs", "--values", str(path)]
            rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            print(path.name, *check_all(rendered, path.name))
    if not shutil.which("helm"):
        print("check-charts: helm is not installed: the chart is not rendered", file=sys.stderr)


print(MANIFESTS.name, *check_all(MANIFESTS.read_text(), MANIFESTS.name))
check_chart()
