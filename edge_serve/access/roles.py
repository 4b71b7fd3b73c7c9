"""Roles of clients. Each role includes those before it."""

from __future__ import annotations

import enum


class Role(enum.IntEnum):
    """A role of a client (docs/security.md)."""

    NONE = 0
    #: whether the server and its models live and are ready
    HEALTH = 1
    #: metadata, configurations, statistics, the repository's index, metrics, settings
    READ = 2
    #: inference
    INFER = 3
    #: loading and unloading, changing settings, registering shared memory
    ADMIN = 4

    @property
    def word(self) -> str:
        """The name of the role in files and settings."""
        return self.name.lower()


#: roles that a file may give
GIVEN = (Role.HEALTH, Role.READ, Role.INFER, Role.ADMIN)


def parse_role(word: str) -> Role:
    """Return the role with a name of a file.

    Raises:
        ValueError: no role has this name.
    """
    for role in GIVEN:
        if role.word == word:
            return role
    raise ValueError(f"found role '{word}', expected one of {', '.join(role.word for role in GIVEN)}")
