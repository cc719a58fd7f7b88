"""Checks what `herring kubernetes` writes against the published schemas."""

from __future__ import annotations

import pytest

from herring.command.kubernetes import JobOptions, manifests, to_yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate")
models = pytest.importorskip("kubeflow_trainer_api.models")
yaml = pytest.importorskip("yaml")


def cases() -> list[JobOptions]:
    """Returns options for every shape of job."""
    common = {
        "name": "digits",
        "image": "registry.example/trainer:1",
        "command": ["python", "t.py"],
    }
    shapes = [
        {},
        {"workers": 4, "servers": 2, "namespace": "team"},
        {"workers": 2, "per_pod": 8, "gpus": 8, "servers": 2, "restarts": 3},
        {"workers": 3, "secret": "own"},
    ]
    return [
        JobOptions(**common, **shape, kind=kind)
        for kind in ("jobset", "runtime")
        for shape in shapes
    ]


@pytest.mark.parametrize("options", cases(), ids=str)
def test_schemas(options: JobOptions) -> None:
    objects = list(yaml.safe_load_all(to_yaml(manifests(options))))
    for each in objects[:-1]:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    job = objects[-1]
    is_jobset = options.kind == "jobset"
    model = models.JobsetV1alpha2JobSet if is_jobset else models.TrainerV1alpha1TrainingRuntime
    # The model does not reject a misspelt field, but it does not return the field either.
    assert_within(job, model.from_dict(job).to_dict())
    spec = job["spec"] if is_jobset else job["spec"]["template"]["spec"]
    for replicated in spec["replicatedJobs"]:
        core = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": replicated["name"]},
            "spec": replicated["template"]["spec"],
        }
        kubernetes_validate.validate(core, kubernetes_validate.latest_version(), strict=True)


def assert_within(written: object, read: object) -> None:
    """Asserts that everything in `written` is also in `read`."""
    if isinstance(written, dict):
        assert isinstance(read, dict)
        for name, value in written.items():
            assert name in read, name
            assert_within(value, read[name])
    elif isinstance(written, list):
        assert isinstance(read, list)
        assert len(written) == len(read)
        for one, other in zip(written, read):
            assert_within(one, other)
    else:
        assert str(written) == str(read)
