"""What docs/trust.md promises, as data: which attempts work on which setting. All others are refused everywhere."""

SETTINGS = ("namespaces, root", "namespaces, user", "alone, root", "alone, user", "off, user")
_ALONE = ("alone, root", "alone, user", "off, user")
_OFF = ("off, user",)
WORKS: dict[str, tuple[str, ...]] = {
    "processes": _ALONE,
    "home_facts": _ALONE,
    "pin_bystander": ("alone, user", "off, user"),
    **dict.fromkeys(
        (
            "environment",
            "memory_file",
            "memory_call",
            "signal",
            "zygote_signal",
            "other_child",
            "renice",
            "pin_judge",
            "tcp",
            "udp",
            "abstract",
            "named",
            "named_packet",
            "home",
            "home_names",
            "home_mode",
            "checkout",
            "import",
            "shadow",
            "write_outside",
            "truncate",
            "caches",
            "own_build",
            "replace_build",
            "user_namespace",
            "kernel",
            "timers",
        ),
        _OFF,
    ),
}
UNTRIED = {"ptrace": "off, user"}
"""Without a jail it would stop the judge for good."""
