"""What all tests share is in tests/."""

from quick import absent_devices_get_no_seed, few_checks  # noqa: F401
