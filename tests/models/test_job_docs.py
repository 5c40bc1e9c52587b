"""The page on the job file says what the models say."""

import re

import yaml

from longshore.models import errors
from longshore.models.array import ArraySpec
from longshore.models.code import Code
from longshore.models.data import DataSet
from longshore.models.document import load_document
from longshore.models.elastic import Malleable
from longshore.models.environment import JobEnvironment
from longshore.models.funding import FundingTerms
from longshore.models.job import CheckpointContract, JobSpec
from longshore.models.job_docs import PAGE, page
from longshore.models.job_examples import FULL_EXAMPLE
from longshore.models.retry import RetryPolicy, RetryRule
from longshore.models.topology import Conformance, Gang


def test_the_page_is_what_the_models_say():
    assert PAGE.read_text() == page(), "write it anew with `make docs`"


def test_the_full_example_is_a_job_file_with_every_field():
    load_document(FULL_EXAMPLE, "job.yaml", JobSpec)
    example = yaml.safe_load(FULL_EXAMPLE)
    # An element has no gang, image or checkpoint, with an image there is no environment, and who
    # is alone on its nodes has one size.
    assert set(example) == set(JobSpec.model_fields) - {
        "array", "engine", "environment", "sensitive",
    }  # fmt: skip
    assert set(example["checkpoint"]) == set(CheckpointContract.model_fields)
    assert set(example["data"]["imagenet"]) == {
        field.alias or name for name, field in DataSet.model_fields.items()
    }
    assert set(example["gang"]) == set(Gang.model_fields)
    assert set(example["malleable"]) == set(Malleable.model_fields)
    assert set(example["conformance"]) == set(Conformance.model_fields)
    assert set(example["funding"]) == set(FundingTerms.model_fields)
    assert set(example["retry"]) == set(RetryPolicy.model_fields)
    assert set(example["retry"]["user"]) == set(RetryRule.model_fields)


def test_the_page_has_a_row_for_every_error():
    every = {
        name for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.LongshoreError)
    }  # fmt: skip
    assert every - set(re.findall(r"^\| `(\w+)` \|", page(), re.MULTILINE)) == {"LongshoreError"}


def test_the_page_has_a_heading_for_every_field():
    headings = [line[4:] for line in page().splitlines() if line.startswith("### ")]
    assert headings == [
        *JobSpec.model_fields,
        *(f"array.{name}" for name in ArraySpec.model_fields),
        *(f"code.{name}" for name in Code.model_fields),
        *(f"environment.{name}" for name in JobEnvironment.model_fields),
        *(f"data.{field.alias or name}" for name, field in DataSet.model_fields.items()),
        *(f"gang.{name}" for name in Gang.model_fields),
        *(f"malleable.{name}" for name in Malleable.model_fields),
        *(f"conformance.{name}" for name in Conformance.model_fields),
        *(f"checkpoint.{name}" for name in CheckpointContract.model_fields),
        *(f"funding.{name}" for name in FundingTerms.model_fields),
        *(f"retry.{name}" for name in RetryPolicy.model_fields),
        *RetryRule.model_fields,
    ]
