"""The metrics of nodes of a local cluster, one at a time, for tests and fault suites.

Owns the parsing of a page of metrics; must not know the meaning of any of them.
"""

from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import LocalCluster
from deploy.local_nodes import page

_TIMEOUT_S: Final = 60


def metric_of(cluster: LocalCluster, node_id: int, name: str, **labels: str) -> float:
    """Return the sum of the values of a node's metric with these labels.

    Raises KeyError for a metric that it does not have, OSError if it does not answer.
    """
    address = next(one.http_address for one in cluster.status() if one.node_id == node_id)
    content = page(address, "/metrics", cluster.node_directory(node_id) / "data", _TIMEOUT_S)
    return sum_of(content.decode(), name, **labels)


def sum_of(page: str, name: str, **labels: str) -> float:
    """Return the same sum from the text of a page; 0 for a metric without a value yet."""
    for family in text_string_to_metric_families(page):
        if family.name == name.removesuffix("_total"):
            return sum(
                sample.value
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )
    raise KeyError(name)
