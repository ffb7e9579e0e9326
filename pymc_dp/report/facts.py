"""What a report is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pymc_dp.privacy.events import Event


@dataclass(frozen=True)
class Facts:
    """The facts of a released result; :class:`~pymc_dp.PrivacyReport` says what each one is."""

    statement: str
    epsilon: float
    delta: float
    valid: bool
    unit: str
    units: int | None
    relation: str
    epsilon_substitute_one: float
    algorithm: str
    noise: str
    accountant: str
    releases: tuple[Event, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    post_processing: bool = False
    software: Mapping[str, str] = field(default_factory=dict)
    sampled: str | None = None
    variables: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    account: Mapping[str, float] | None = None
    remark: str = ""
    misfit: str = ""
