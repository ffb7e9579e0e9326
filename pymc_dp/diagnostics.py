"""What a run that released a surrogate says of it: one schema for all families, each number with its unit and its meaning."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Literal, NamedTuple, get_type_hints

Family = Literal["normal", "hierarchical", "polynomial"]

NOT_USABLE = "NOT USABLE"
"""How the last line of a run begins, of which the draws are of no use."""
SPENT_ON = {
    "sizes": "sizes and counts,\nto choose clipping bounds",
    "gradients": "gradients:\nwhere the posterior is",
    "curvature": "second derivatives:\nhow wide it is",
    "log_likelihood": "log-likelihoods:\nwhat shape it has",
}
"""What queries are about, in the words of the picture of a run's spending."""


@dataclass(frozen=True)
class Note:
    """A remark on a run, for the person who reads its result. A function of releases.

    Parameters
    ----------
    kind : str
        What it is about: the name of the diagnostic that gave rise to it, or ``"lost"``, ``"interrupted"``,
        ``"model"``.
    text : str
        Full sentences.
    parameters : tuple of str
        The parameters that are concerned, if not all are.
    """

    kind: str
    text: str
    parameters: tuple[str, ...] = ()


class Meaning(NamedTuple):
    """What a field says, in words, and in which unit."""

    words: str
    unit: str = ""

    def __str__(self) -> str:
        return self.words + (f"; in {self.unit}" if self.unit else "")


_SDS = "posterior sds"


@dataclass(frozen=True)
class GroupDiagnostics:
    """How far privacy noise moves the effects of one grouping.

    Parameters
    ----------
    number : int
        Of groups.
    privacy_shift, privacy_shift_largest, privacy_shift_smallest : float
        Medians over all groups, and over the quarters with the most and the least information.
    """

    number: Annotated[int, Meaning("number of groups")]
    privacy_shift: Annotated[
        float, Meaning("how far noise may have moved a group's effect, median", _SDS)
    ]
    privacy_shift_largest: Annotated[
        float, Meaning("the same of the quarter of groups with the most information", _SDS)
    ]
    privacy_shift_smallest: Annotated[
        float, Meaning("the same of the quarter of groups with the least information", _SDS)
    ]


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What a surrogate's releases say of themselves. Nothing in it is private.

    Every field explains itself, with its unit: report, log and pictures take the words from there. What a family
    cannot say is None. Posterior standard deviations are those without privacy noise.

    Parameters
    ----------
    usable : bool
        Whether the draws say something that the prior does not, as far as the releases tell.
    family : {"normal", "hierarchical", "polynomial"}
        Of the surrogate that the draws are from.
    privacy_shift : float, optional
        In posterior standard deviations, for every family. Not given for a run that is not usable: there it would
        rest on what the run itself refutes.
    others
        See :data:`MEANINGS`.
    """

    usable: Annotated[
        bool, Meaning("1 if the draws are of use, as far as the run can tell; 0 if not")
    ] = False
    family: Annotated[Family, Meaning("what stands for the likelihood")] = "normal"
    privacy_shift: Annotated[
        float | None,
        Meaning("how far noise may have moved the draws: root mean square over parameters", _SDS),
    ] = None
    log_density_noise: Annotated[
        float | None,
        Meaning(
            "standard deviation, over the draws, of what noise adds to the log-density", "nats"
        ),
    ] = None
    consistency: Annotated[
        float | None,
        Meaning(
            "how far the last query was from what the earlier ones predict, over what noise explains: about 1 or less "
            "is fine"
        ),
    ] = None
    prior_dominated: Annotated[
        tuple[str, ...] | None,
        Meaning(
            "parameters of which next to nothing was learnt: their draws are about the prior's"
        ),
    ] = None
    queries: Annotated[int | None, Meaning("places at which the records were asked on the way")] = (
        None
    )
    curvature: Annotated[
        float | None,
        Meaning(
            "how far the log-likelihood was seen to be from quadratic where the posterior is",
            "nats",
        ),
    ] = None
    reached: Annotated[
        float | None,
        Meaning("share of the log-likelihood at which the last query was planned: 1 is all of it"),
    ] = None
    leverage: Annotated[
        float | None,
        Meaning("how far the draws lean beyond the places that were asked: 1 is the most allowed"),
    ] = None
    misfit: Annotated[
        float | None, Meaning("what the polynomial misses at fresh draws, beside noise", "nats")
    ] = None
    misfit_noise: Annotated[
        float | None, Meaning("standard deviation of the noise in that", "nats")
    ] = None
    beyond_quadratic: Annotated[
        float | None, Meaning("size of the polynomial's part of degree 3 and more", "nats")
    ] = None
    degree: Annotated[int | None, Meaning("the polynomial's degree")] = None
    combined: Annotated[int | None, Meaning("results that were combined")] = None
    disagreement: Annotated[
        float | None,
        Meaning("p of what was combined differing as it does by chance: below .01 it disagrees"),
    ] = None
    disagreeing: Annotated[
        tuple[str, ...] | None, Meaning("what stands out of the others that were combined")
    ] = None
    groups: Annotated[tuple[GroupDiagnostics, ...], Meaning("the model's groupings")] = ()
    notes: Annotated[tuple[Note, ...], Meaning("remarks")] = ()

    def __post_init__(self) -> None:
        if not self.usable:
            object.__setattr__(self, "privacy_shift", None)

    @property
    def summary(self) -> str:
        """How a run ends, in one line: whether the draws are of use, and if not, why and what would help."""
        if not self.usable:
            return " ".join([f"{NOT_USABLE}:", *(note.text for note in self.notes)])
        if self.privacy_shift is None:
            return "usable"
        return f"usable, privacy shift {self.privacy_shift:.2f} posterior sds"

    def metadata(self, spent_on: Mapping[str, float]) -> dict[str, float | str]:
        """Names and values for a result's attributes: whatever is known, and the budget's shares by what they bought."""
        found: dict[str, float | str] = {}
        for of in fields(self):
            value = getattr(self, of.name)
            if value is None or of.name in ("groups", "notes"):
                continue
            if of.name == "usable":
                value = float(value)
            found[of.name] = (", ".join(value) or "none") if isinstance(value, tuple) else value
        for k, grouping in enumerate(self.groups):
            found |= {
                f"groups_{k}_{of.name}": getattr(grouping, of.name) for of in fields(grouping)
            }
        return found | {f"spent_on_{what}": share for what, share in spent_on.items()}


def _meanings(schema: type) -> dict[str, str]:
    """Of every field of a schema: one without stops the import."""
    hints = get_type_hints(schema, include_extras=True)
    return {of.name: str(hints[of.name].__metadata__[0]) for of in fields(schema)}


MEANINGS = _meanings(Diagnostics)
"""What each diagnostic means, with its unit."""
_OF_GROUPS = _meanings(GroupDiagnostics)


def meaning_of(name: str) -> str | None:
    """What an entry of :meth:`Diagnostics.metadata` means; None if it is none."""
    if name.startswith("spent_on_") and (what := name.removeprefix("spent_on_")) in SPENT_ON:
        return "share of the budget for " + SPENT_ON[what].replace("\n", " ")
    if name.startswith("groups_"):
        return _OF_GROUPS.get(name.split("_", 2)[-1])
    return MEANINGS.get(name)
