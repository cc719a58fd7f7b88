"""Emulates clusters, so that Herring can be tried on networks that do not exist.

The module ``cluster`` makes hosts out of Linux network namespaces, with links of a chosen rate and
switch queues of a chosen depth. ``check`` measures these links, ``runner`` runs a job on the hosts,
and ``cli`` is the command ``herring lab``. All of them need root (or CAP_NET_ADMIN and
CAP_SYS_ADMIN) and iproute2.
"""

from herring_lab.emulate.cluster import Cluster, ClusterError, Job, LateLinksError, remove_stale
from herring_lab.emulate.paths import Between
from herring_lab.emulate.strict import LinkReport, Path

__all__ = [
    "Between",
    "Cluster",
    "ClusterError",
    "Job",
    "LateLinksError",
    "LinkReport",
    "Path",
    "remove_stale",
]
