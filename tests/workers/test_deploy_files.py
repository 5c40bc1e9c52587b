"""The files in deploy/ say what this version of Longshore understands. No cluster has run them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup, TyperOption

from longshore.client.cli import command_line
from longshore.models.deployment import BUILD_VARIABLE, DEPLOYMENT_VARIABLE
from longshore.models.settings import Settings
from longshore.models.settings_sources import variable
from longshore.workers.control import GRACE
from tests.support.local_stack import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted(DEPLOY.glob("*.service"))
KINDS = {
    "Connection": "temporal.io/v1alpha1",
    "WorkerDeployment": "temporal.io/v1alpha1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "PersistentVolumeClaim": "v1",
    "Job": "batch/v1",
    "DaemonSet": "apps/v1",
    "Deployment": "apps/v1",
    "Service": "v1",
}
OF_TEMPORAL = {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY"}
"""As temporalio.envconfig reads them."""


def documents() -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> dict[str, Any]:
    return next(each for each in documents() if each["kind"] == kind)


def containers() -> list[tuple[str, dict[str, Any]]]:
    """Return kind and container of each that runs Longshore."""
    found = [
        (each["kind"], each["spec"].get("template")) for each in documents() if "spec" in each
    ]
    return [(kind, one) for kind, pod in found if pod for one in pod["spec"]["containers"]]


def test_every_document_is_of_a_kind_that_there_is_and_in_one_namespace():
    assert {each["kind"]: each["apiVersion"] for each in documents()} == KINDS
    assert {each["metadata"]["namespace"] for each in documents()} == {"longshore"}


def test_containers_run_commands_and_flags_that_there_are():
    commands = {one["args"][0] for _, one in containers()}
    assert commands == {"worker", "setup", "agent", "console"}
    for _, one in containers():
        _refuse_unknown_words(one["args"])


def test_units_and_the_image_run_commands_that_there_are():
    for path in UNITS:
        line = re.search(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
        assert line, path
        program, *words = line[1].split()
        assert Path(program).name == "longshore"
        _refuse_unknown_words(words)
    assert 'ENTRYPOINT ["longshore"]' in (DEPLOY / "Dockerfile").read_text()


def test_every_variable_is_a_setting_or_temporals_own():
    settings = {variable(name) for name in Settings.model_fields}
    given = {name for _, one in containers() for name in _variables(one)}
    assert given - settings - OF_TEMPORAL == {"NODE_NAME"}
    assert set(of_kind("ConfigMap")["data"]) <= settings
    example = (DEPLOY / "longshore.env.example").read_text()
    assert set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE)) <= settings | OF_TEMPORAL


def test_the_values_of_the_settings_are_understood(monkeypatch: pytest.MonkeyPatch):
    given = dict(of_kind("ConfigMap")["data"])
    for _, one in containers():
        given |= {each["name"]: each["value"] for each in one["env"] if "value" in each}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert Settings().health_address == "0.0.0.0:8086"


def test_every_store_is_one_that_agents_and_control_workers_reach():
    stores = {variable(name) for name in Settings.model_fields if name.endswith("_store")}
    given = {name: value for name, value in of_kind("ConfigMap")["data"].items() if name in stores}
    assert given.keys() == stores
    example = (DEPLOY / "longshore.env.example").read_text()
    assert all(f"\n{name}=" in example for name in stores)
    claims = of_kind("PersistentVolumeClaim")["metadata"]["name"]
    for kind in ("DaemonSet", "WorkerDeployment", "Deployment"):
        pod = of_kind(kind)["spec"]["template"]["spec"]
        assert {"name": "stores", "persistentVolumeClaim": {"claimName": claims}} in pod["volumes"]
        mounted = [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]
        for url in given.values():
            path = url.removeprefix("file://")
            assert any(path.startswith(f"{mount}/") for mount in mounted), (kind, url)


def test_the_user_of_the_image_may_write_where_it_is_to():
    made = re.sub(r"\\\n", "", (DEPLOY / "Dockerfile").read_text())
    (gid,) = map(int, re.findall(r"groupadd .*?--gid (\d+) longshore\b", made))
    ((uid, its_group),) = re.findall(r"useradd .*--uid (\d+) --gid (\d+) ", made)
    assert int(its_group) == gid
    assert re.findall(r"^USER (.*)$", made, re.MULTILINE) == [f"{uid}:{gid}"]
    for kind in ("DaemonSet", "WorkerDeployment", "Deployment"):
        pod = of_kind(kind)["spec"]["template"]["spec"]
        assert pod["securityContext"]["fsGroup"] == gid, kind
    agent = of_kind("DaemonSet")["spec"]["template"]["spec"]
    (own,) = agent["initContainers"]
    state = next(each for each in own["volumeMounts"] if each["name"] == "state")
    assert own["command"] == ["chown", f"{uid}:{gid}", state["mountPath"]]
    assert own["securityContext"]["runAsUser"] == 0


def test_every_reference_to_the_secret_names_a_key_of_it_and_agents_get_no_database():
    keys = set(of_kind("Secret")["stringData"])
    used: dict[str, set[str]] = {}
    for kind, one in containers():
        used[kind] = {key for each in one["env"] for key in _secret_keys(each)}
    assert used["DaemonSet"] == {"temporal-api-key", "agent-token"}
    assert set().union(*used.values()) == keys
    assert of_kind("Connection")["spec"]["apiKeySecretRef"]["key"] in keys


def test_control_workers_are_left_to_the_controller_and_have_time_to_end():
    deployment = of_kind("WorkerDeployment")["spec"]
    assert (
        deployment["workerOptions"]["connectionRef"]["name"]
        == (of_kind("Connection")["metadata"]["name"])
    )
    pod = deployment["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= GRACE.total_seconds() + 5
    set_by_controller = {*OF_TEMPORAL, DEPLOYMENT_VARIABLE, BUILD_VARIABLE}
    assert not set_by_controller & set(_variables(pod["containers"][0]))


def test_the_readme_says_what_was_not_tried():
    text = (DEPLOY / "README.md").read_text()
    assert "only by parsing" in text
    for path in [*MANIFESTS, *UNITS, DEPLOY / "Dockerfile"]:
        assert path.name in text, f"{path.name} is not explained"


def _refuse_unknown_words(words: list[str]) -> None:
    commands = command_line()
    assert isinstance(commands, TyperGroup)
    name, *rest = words
    assert name in commands.commands
    options = [each for each in commands.commands[name].params if isinstance(each, TyperOption)]
    known = {flag for option in options for flag in option.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def _variables(container: Mapping[str, Any]) -> Iterator[str]:
    return (each["name"] for each in container["env"])


def _secret_keys(variable: Mapping[str, Any]) -> Iterator[str]:
    reference = variable.get("valueFrom", {}).get("secretKeyRef")
    if reference:
        assert reference["name"] == of_kind("Secret")["metadata"]["name"]
        yield reference["key"]
