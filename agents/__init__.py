"""What runs on the servers: the wire, the device, the experts, the request flow, frameworks and schedulers."""

import os

# One thread per process for linear algebra: a sum then has the same bits whatever the number of cores, and ten agents
# do not fight over two of them.  Libraries read this once, when first imported, so it stands here; what the user set
# counts.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
