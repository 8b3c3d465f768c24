"""A metric is found on a page by its name and labels; one that is not there is no 0."""

import pytest

from deploy.local_metrics import sum_of

PAGE = """\
# HELP a_total x
# TYPE a_total counter
a_total{code="lost",node="1"} 2.0
a_total{code="protocol_error",node="1"} 7.0
a_total{code="protocol_error",node="2"} 8.0
# HELP a_total_more x
# TYPE a_total_more gauge
a_total_more 9.0
# HELP b x
# TYPE b gauge
b 1.5
"""


def test_a_metric_is_found_by_its_name_and_labels() -> None:
    assert sum_of(PAGE, "a_total", code="protocol_error", node="2") == 8.0
    assert sum_of(PAGE, "a_total", code="protocol_error") == 15.0
    assert sum_of(PAGE, "a_total", code="refused") == 0.0
    assert sum_of(PAGE, "b") == 1.5
    with pytest.raises(KeyError, match="c_total"):
        sum_of(PAGE, "c_total")
