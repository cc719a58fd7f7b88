"""The lab: networks to try Herring on without owning them.

``herring.lab.cluster`` makes hosts out of Linux network namespaces, with links of a chosen rate and
switch queues of a chosen depth; ``check`` measures them, ``runner`` runs a job on them, ``cli`` is
``herring lab``. It needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2.
"""

from herring.lab.cluster import Cluster, ClusterError, Job, LateLinksError, remove_stale
from herring.lab.paths import Between
from herring.lab.strict import LinkReport, Path

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
