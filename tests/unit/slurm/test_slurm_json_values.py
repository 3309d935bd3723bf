"""Which answers of Slurm's can be used though they name an error."""

from __future__ import annotations

from typing import Any

import pytest

from lucid.errors import ClusterError
from lucid.slurm.accounting import accounted_from
from lucid.slurm.records.json import accounting_trouble, checked_list

SILENT = {
    "description": "Slurmdb query failed", "error_number": 111, "error": "Connection refused",
    "source": "slurmdb_tres_get",
}  # fmt: skip
OTHER = {"description": "Unable to contact slurm controller", "source": "slurm_load_jobs"}
ROWS = [{"job_id": 1}]


def test_a_list_is_used_though_accounting_is_silent() -> None:
    document = {"jobs": ROWS, "errors": [SILENT]}
    assert checked_list(document, "jobs", "jobs") == ROWS
    assert accounting_trouble(document) == "Slurmdb query failed: Connection refused"
    assert accounting_trouble({"jobs": ROWS, "errors": []}) == ""


@pytest.mark.parametrize(
    "document",
    [
        {"jobs": [], "errors": [SILENT]},
        {"jobs": ROWS, "errors": [SILENT, OTHER]},
        {"jobs": ROWS, "errors": [OTHER]},
        {"jobs": ROWS, "errors": ["slurmdb"]},
    ],
)
def test_an_empty_list_and_any_other_error_are_refused(document: Any) -> None:
    assert accounting_trouble(document) == ""
    with pytest.raises(ClusterError, match="answers with an error"):
        checked_list(document, "jobs", "jobs")


def test_what_slurmdbd_itself_lists_beside_an_error_is_refused() -> None:
    with pytest.raises(ClusterError, match="Slurmdb query failed: Connection refused"):
        accounted_from({"jobs": ROWS, "errors": [SILENT]})
