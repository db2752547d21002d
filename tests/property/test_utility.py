"""The utility estimate on random plans: more noise never scores higher, and it is always a share."""

from hypothesis import given, strategies as st

from privet.planning import Profile
from privet.planning.planned_steps import PlannedSteps
from privet.planning.utility import estimate

SIZE = 60000
levels = st.floats(-3, 3).map(lambda x: 10.0**x)
shapes = st.sampled_from(
    ["constant", "exponential:end=0.1", "linear:end=3", "step:factor=0.5,every=40", "cosine:end=0.2"]
)
profiles = st.builds(
    Profile,
    norms=st.lists(levels, min_size=1, max_size=6).map(tuple),
    dimension=st.integers(1, 10**7),
    alignment=st.floats(0.01, 1),
    half_life=levels.map(lambda x: max(1.0, x)),
)
runs = st.fixed_dictionaries(
    {
        "length": st.integers(1, 300),
        "sample_rate": st.floats(1e-4, 1),
        "clip_schedule": shapes,
        "peak_noise_multiplier": levels,
    }
)
OWN = 1e-9  # the learning rate is found to 1e-5, and the gap is flat there


@given(run=runs, noise=shapes, profile=profiles)
def test_it_is_a_share(run: dict, noise: str, profile: Profile) -> None:
    found = estimate(PlannedSteps(**run, noise_schedule=noise), dataset_size=SIZE, profile=profile)
    assert 0 <= found.gap <= 1
    assert 0 <= found.kept <= 1
    assert found.noise_energy >= 0


@given(run=runs, noise=shapes, profile=profiles, more=st.floats(1, 10))
def test_more_noise_never_scores_higher(run: dict, noise: str, profile: Profile, more: float) -> None:
    quiet = estimate(PlannedSteps(**run, noise_schedule=noise), dataset_size=SIZE, profile=profile)
    loud = estimate(
        PlannedSteps(**run | {"peak_noise_multiplier": run["peak_noise_multiplier"] * more}, noise_schedule=noise),
        dataset_size=SIZE,
        profile=profile,
    )
    assert loud.utility <= quiet.utility + OWN


@given(run=runs, profile=profiles, at=st.floats(0, 0.9))
def test_more_noise_in_a_part_never_scores_higher(run: dict, profile: Profile, at: float) -> None:
    quiet = estimate(PlannedSteps(**run), dataset_size=SIZE, profile=profile)
    part = f"constant until {at + 0.05} then 2"
    loud = estimate(PlannedSteps(**run, noise_schedule=part), dataset_size=SIZE, profile=profile)
    assert loud.utility <= quiet.utility + OWN


@given(run=runs, noise=shapes, profile=profiles, more=st.floats(1, 10))
def test_a_larger_model_never_scores_higher(run: dict, noise: str, profile: Profile, more: float) -> None:
    larger = Profile(
        norms=profile.norms, alignment=profile.alignment, half_life=profile.half_life,
        dimension=int(profile.dimension * more),
    )  # fmt: skip
    steps = PlannedSteps(**run, noise_schedule=noise)
    assert (
        estimate(steps, dataset_size=SIZE, profile=larger).utility
        <= estimate(steps, dataset_size=SIZE, profile=profile).utility + OWN
    )
