"""Configurations that were recorded when the order was a key of its own."""

from typing import Any

USUAL = {"curriculum": "", "curriculum_share": 0.5, "curriculum_steps": 0, "sinusoidal": False}


def translate(config: dict[str, Any]) -> dict[str, Any]:
    """With the order in trunk and trunk_args; as it is where there is none."""
    order = config.get("order", "left_to_right")
    rest = {key: value for key, value in config.items() if key not in ("order", "curriculum_end", *USUAL)}
    if order == "left_to_right":
        return rest
    args = {key: config[key] for key in USUAL if config.get(key, USUAL[key]) != USUAL[key]}
    trunk, own = ("masked", {}) if order == "masked" else ("any_order", {"order": order})
    return rest | {"trunk": trunk, "trunk_args": own | args}
