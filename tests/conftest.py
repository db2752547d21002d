"""One thread per process; hypothesis tries the same examples every time, new ones with HYPOTHESIS_PROFILE=explore."""

import os
import signal

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import HealthCheck, settings  # noqa: E402

COMMON = {"deadline": None, "max_examples": 50, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, database=None, **COMMON)
settings.register_profile("explore", **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
