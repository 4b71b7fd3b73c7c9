"""The delegations that a repository must have: which role may list a target path."""

from __future__ import annotations

#: the first part of a target path -> the role that alone may list it; `{}` is the second part of the path
_ROLES = {
    "bundles": "models-{}",
    "engines": "engines",
    "rollout": "rollout",
    "devices": "rollout",
    "system": "system",
}


def role_of(path: str) -> str | None:
    """Return the role that alone may list a target path; None = a path that no part of edge-ota uses."""
    first, _, rest = path.partition("/")
    role = _ROLES.get(first)
    return role.format(rest.partition("/")[0]) if role and rest else None
