"""A word has one meaning in the whole house, and a thing one word: the words of old do not come back.

Names are looked at by the syntax tree, since *part*, *use* and *more* are English: those of classes, functions, modules
and fields (arguments, and attributes that are assigned or declared). Prose is looked at in
strings, docstrings included, in the report's template and in the documentation.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import privet
import privet_papers
from doc_pages import PAGES

SOURCES = (Path(privet.__file__).parent, Path(privet_papers.__file__).parent)


def table(text: str) -> dict[str, str]:
    """Lines of `old: new, ...`."""
    pairs = (pair.split(": ") for pair in re.split(r",\s+|\n", text.strip()) if pair.strip(" ,"))
    return {old.strip(): new.strip(" ,") for old, new in pairs}


CLASSES = table("""
Columns: LedgerArrays, Levels: LossLevels, Bins: BinnedLevels, TooHard: NoLayerRule or QuadratureTooCostly
Builder: LedgerBuilder, Stairs: StepDecay, Time: InverseTime, Question: PricedRecipe, Steps: PlannedSteps
Setting: ScheduleContext, More: ExtensionCost, Outlook: Extension, Tuning: TrialBudget, _Hunt: GridThenRefine
Mark: LedgerPosition, Charges: ChargeReader, Tail: TornTail, CountFile: HighWaterMark, Share: PerExampleGradient
Single: OuterProduct, Outer: OuterProductSum, Viewed: Rearranged, Moved: Rearranged, Rows: EmbeddingRows
Blocks: SlicedUse
PulledBack: ThroughFunction, Tape: ForwardRecord, Use: ParameterUse, Names: CallNames, Fact: CallLayout
Unforeseen: UnseenCall, Recording: LoopRecord, Survey: TrialPass, Held: BufferGuard, Writes: BufferWrites
Shadow: CounterfactualBatch, Rule: ClippingRule or LayerRule, Sweep: RecurrentPass, Adaptive: AdaptiveClippingRule
Published: UncertifiedRule, Released: Release, Chooser: BatchSampler, Piece: PhysicalBatch, Ids: UserIds
Average: WeightAverage, JointAccount: DistributedAccount, Parts: TrainingSetup, Pace: LearningRateSchedule
Judge: EarlyStopping, Rounds: TrainingLoop or FederatedLoop, Watcher: Progress, Quiet: Progress, Plain: LogProgress
Live: LiveProgress, Change: LayerReplacement, Scene: NeighbouringPair, Lens: Projection, Declared: MechanismClaim
Frozen: FrozenRandomness, Guesses: GuessCount, Moment: AttackedStep, Prior: CandidateIdentification
Victims: TargetRecords, Shadows: ShadowModels, Attacked: AttackReport, Fleet: ClientPool, Answer: ClientReply
Local: LocalTraining, RecordClient: ExampleLevelClient, Where: DataFolders, Turn: RankTurn, Part: RankShard
Overheard: (nothing), Tried: AttackEvidence
""")

FUNCTIONS = table("""
joined: compose_ledgers, best_of: private_selection, repeated: repeated_runs, refuses: unsupported_reason
levels_of: loss_levels, line_for: saddle_point_line, epsilon_between: invert_delta_bounds, gridded: nonuniform_fft
fine: fine_quadrature, stairs: step_points, written: format_number, spelling: to_spec, values_of: schedule_values
price: cost, roughly: quick_upper_bound, sibling: certified_variant, law: trial_count_distribution
more: extend_rounds, begins: could_begin_with, counted: read_high_water_mark, forget: remove_high_water_mark
check_covered: check_preprocessing, without_proof: mark_uncertified, read_off: preprocessing_reason
shares_of: per_example_gradients, share_of: gradient_of_parameter, sq_norms: squared_norms, dense: materialize
gram_pays: prefers_gram, felt: cancellation_rows, with_care: sum_in_float64, let_go: release_tensors
recorded: gradients_of_recorded_losses, survey: trial_pass, set_aside: preserving_state
same_start: same_random_state, analyse: find_batch_dims, known_of: model_facts, _find_out: inspect_model
_agree: check_against_autograd, shares_in_chunks: gradients_in_chunks, check_apart: check_independent
check_alone: check_single_example, moved: changed_rows, through: run_recurrent, rule_for: clipping_rule
laid_as: match_strides, share: std_per_rank, fresh: os_randomness, numbers: numpy_generator, words: random_words
private: noise_is_secret, upto: until, averaged: ema_weights, together: run_on_first, gathered: all_gather
joint_release: distributed_release, spread: broadcast_weights, packed: encode_state, unpacked: decode_state
go_on: resume_run, going_on: resume_command, taken_up: resume, parts_for: build_setup
pace_for: learning_rate_schedule, fixed: replace_layers, judged_apart: train_validation_split
drawn_by_merit: exponential_mechanism, noisy_share: noisy_accuracy, right_answers: correct_counts, told: summarize
scenes: neighbouring_pairs, declared: mechanism_claim or claim, would_see: has_power
memberships: membership_inference, about_model: examine_model, about_plan: examine_plan
about_optimizer: examine_optimizer, grid_for: choose_grid, summed: sum_tensors, summed_on_first: sum_on_first
from_first: broadcast, part_of: noise_per_rank, whole_of: noise_of_all
relation: adjacency, norm_bound: l2_bound, bit_noise: statistics_noise, raw_scale: claimed_sensitivity
uncharged: issue_uncharged, mechanism_for: resolve_mechanism, account_of: make_account
""")

MODULES = table("""
engine: per_example / clipping / noise / sampling, clipped: per_example/gradients, summing: clipping/clipped_sum
share: per_example/forms, derived: per_example/derived_forms, rows: per_example/derived_forms or accounting/exchange
intercept: per_example/interception, tape: per_example/forward_record, recording: per_example/loop_record
survey: per_example/trial_pass, analysis: per_example/batch_dims, knowledge: per_example/model_facts
whole: per_example/example_by_example, apart: per_example/independence/model, shadow: per_example/independence/loop
mirrors: per_example/independence/counterfactuals, state: per_example/independence/buffers, layer: per_example/layers
broadcast: per_example/layers/elementwise, sweep: per_example/layers/recurrent_sweep, clip: clipping
secure: noise/discrete, contribution: sampling/users, curves: schedules/shapes, given: schedules/shapes
joined: schedules/shapes, curve: accounting/epsilon_curve, events: accounting/exchange
one_step: accounting/pld/accountant, moments: accounting/pld/loss_moments or attacks/observing
trapezoid: accounting/pld/loss_moments, aim: accounting/pld/saddle_point, crossing: accounting/pld/saddle_point
gridding: accounting/pld/frequencies, question: planning/pricing, steps: planning/planned_steps or training/training
trials: planning/tuning_budget, ahead: planning/frontier, more: planning/frontier, swap: planning/compare
ledger_file: ledger/file, ledger_lines: ledger/format, ledger_charges: ledger/format, ledger_reading: ledger/reading
ledger_count: ledger/reading, gate: training/checks, averaging: training/weights, joint: training/distributed
joint_release: noise/release, rounds: training/loop or federated/loop, parts: training/setup
optimizing: training/setup, evaluate: training/evaluation, stopping: training/evaluation, going_on: training/run
checkpoint_file: training/checkpoint_format, nest: training/checkpoint_format
checkpoint_fit: training/checkpoint_compat, tune_split: tuning/job, tune_score: tuning/choice
checkup: diagnosis/model_check, replace: diagnosis/replace_layers, scenes: auditing/neighbours
step: auditing/distinguishing, guessing: auditing/one_run, canary_bounds: auditing/bounds
sound: auditing/mechanism, controls: auditing/broken_mechanisms, victims: attacks/observing
invert: attacks/inversion, analytic: attacks/inversion, prior: attacks/identification
whole_run: attacks/identification, likelihood: attacks/membership, shadows: attacks/shadow_models
quality: attacks/outcome, sources: attacks/attack, aggregate: federated/clipped_updates, pool: federated/clients
local: federated/clients, records: federated/example_level, standing: federated/example_level
split: federated/partition, own: data/tables or data/images, packed: data/task, pictures: data/images
grams: datasets/ngrams, pickled: datasets/safe_pickle, made_up: datasets/synthetic_pictures
enlarged: datasets/mnist, choosing: reproduce/choice, readings: reproduce/kinds, drawn: reproduce/figures
experiments: privet_papers, shell: cli/common
""")

FIELDS = table("""
stairs: step_points, sibling: certified_variant, sq_norms: squared_norms, price: cost, upto: until
averaged: ema_weights, gathered: all_gather, declared: claim, set_aside: preserved, going_on: resumed
taken_up: resumed, shadow: counterfactual, prior: candidates, survey: trial, lens: projection, victim: target
rivals: baselines
relation: adjacency, as_published: uncertified, max_physical_batch: max_physical_batch_size
not_private: non_private_preprocessing, norm_bound: l2_bound, raw_batch: raw_batch_size, raw_bits: raw_statistics
bit_bound: statistics_bound, alarm: significance, judges: validation_fraction, is_lent: is_padding
covered: preprocessing_is_private, trials_law: trial_count_distribution
""")

GONE = {"class": CLASSES, "function": FUNCTIONS, "module": MODULES, "field": FIELDS}

# Public quantities, where they stand: as words by themselves these are English.
PLACES = table("""
Step.noise: noise_multiplier, Step.rate: sample_rate, Step.clip: clipping_norm
LedgerArrays.noise: noise_multiplier, LedgerArrays.rate: sample_rate
Recipe.noise: noise_multiplier, Recipe.rate: sample_rate, Recipe.clip: clipping_norm, Recipe.batch: batch_size
Recipe.size: dataset_size, Plan.scale: peak_noise_multiplier, Plan.batch: batch_size
PlannedSteps.scale: peak_noise_multiplier, PlannedSteps.rate: sample_rate, PlannedSteps.noise: noise_schedule
PlannedSteps.batch: batch_schedule, PlannedSteps.clip: clip_schedule, PlannedSteps.noises: noise_multipliers
PlannedSteps.rates: sample_rates, PlannedSteps.clips: clipping_norms
FrontierPoint.noise: noise_multiplier, FrontierPoint.batch: batch_size, Estimate.batch: batch_size
Method.wrong: caveat, Method.sound: is_certified
Settings.views: augmentations, Settings.average: ema_decay, Settings.reserve: steps_per_line
Training.views: augmentations, Training.average: ema_decay, Training.reserve: steps_per_line
Training.secure: secure_noise, Training.generator: randomness, Server.secure: secure_noise
Server.generator: randomness, Sampler.generator: randomness, Sampler.size: dataset_size
ClippingRule.factors: scales, AdaptiveClippingRule.threshold: current_clip, AdaptiveClippingRule.bits: statistics
AdaptiveClippingRule.transformed: transform, AdaptiveClippingRule.released: learn, UncertifiedRule.unsound: caveat
AdaptiveClippingRule.state: state_dict, AdaptiveClippingRule.restore: load_state_dict, LayerRule.shares: gradients
clipped_sum.clip: clipping_norm, clipped_sum.views: augmentations, attack.noise: noise_multiplier
attack.clip: clipping_norm, attack.rate: sample_rate, attack.batch: batch_size, spent.size: dataset_size
release.batch: batch_size, release.secure: secure_noise, release.generator: randomness, train.secure: secure_noise
audit.generator: randomness, add_noise.generator: randomness, extend.noise: noise_multiplier, extend.rate: sample_rate
estimate.batch: batch_size, auto_linear.noise: noise_multiplier
""")

# Functions named by a participle (`_made`, `_asked`) do not say what they do: a verb does, or a noun of what they give.
IRREGULAR = re.compile(
    "begun|broken|built|chosen|done|drawn|felt|found|given|gone|grown|held|kept|known|laid|left|lost|made|met|said|seen|"
    "sent|shown|sold|struck|taken|thrown|told|understood|written"
)
NAMES_OF_THE_FIELD = {"seeded", "bounded", "shuffled", "speed"}
MOST_PARTICIPLES = 48  # may only fall

RIDDLES = {
    r"\b[Mm]end (it|the|this|them)\b": "correct it",
    r"\b[Ww]ho (prices|priced)\b": "the accountant",
    r"\bthe innocent\b|\bone innocent\b": "false-positive rate",
    r"\bheight [0-9]": "noise multiplier 0.92 (constant)",
    r"\breleases? [0-9,]+ steps of\b": "157 steps, expected batch size 128, 4,000 examples",
    r"\bphysical pieces?\b": "physical batch",
    r"\bunlearnt\b|\boverheard\b": "plain words",
}


def identifiers(source: str) -> Iterator[tuple[str, str, int]]:
    """(kind, name, line) of what a file names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name, node.lineno
            fields = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
            yield from (("field", field.id, field.lineno) for field in fields if isinstance(field, ast.Name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "function", node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield "field", node.arg, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield "field", node.attr, node.lineno


def old_words(kinds: Iterable[tuple[str, str, int]], place: str = "") -> list[str]:
    """What is named by a word that is gone, with the new one."""
    named = ((kind, name, line, GONE[kind].get(name)) for kind, name, line in kinds)
    return [f"{place}:{line}: {kind} {name}: say {new}" for kind, name, line, new in named if new is not None]


def files() -> Iterator[tuple[Path, str]]:
    for source in SOURCES:
        for file in sorted(source.rglob("*.py")):
            yield file.relative_to(source.parent), file.read_text(encoding="utf-8")


def test_the_old_words_do_not_come_back():
    found = [word for file, source in files() for word in old_words(identifiers(source), str(file))]
    parts = {(part, file) for file, _ in files() for part in file.with_suffix("").parts[1:]}
    found += old_words((("module", part, 1) for part, _ in sorted(parts)), "a file or folder")
    assert found == []


def places(source: str) -> Iterator[tuple[str, int]]:
    """`Class.field`, `Class.method`, `Class.argument` of its `__init__`, `function.argument`, and their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield f"{node.name}.{item.target.id}", item.lineno
                elif isinstance(item, ast.FunctionDef):
                    yield f"{node.name}.{item.name}", item.lineno
                    if item.name == "__init__":
                        yield from ((f"{node.name}.{arg.arg}", arg.lineno) for arg in _arguments(item))
        elif isinstance(node, ast.FunctionDef):
            yield from ((f"{node.name}.{arg.arg}", arg.lineno) for arg in _arguments(node))


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def test_public_quantities_have_the_names_of_the_field():
    found = [f"{file}:{line}: {place}: say {PLACES[place]}" for file, source in files()
             for place, line in places(source) if place in PLACES and not is_kept(place, source)]  # fmt: skip
    assert found == []


def is_kept(place: str, source: str) -> bool:
    """`Training.average` is the average itself, not its decay."""
    return place == "Training.average" and "def average(self)" in source


def participles(source: str) -> list[str]:
    """Functions that are named by one; properties say what their value is, and may be."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        name, is_property = node.name.strip("_"), any("property" in ast.unparse(d) for d in node.decorator_list)
        is_participle = IRREGULAR.fullmatch(name) or re.fullmatch(r"[a-z]{3,}ed", name)
        if is_participle and not is_property and name not in NAMES_OF_THE_FIELD:
            found.append(node.name)
    return found


def test_functions_are_verbs_or_nouns():
    found = [f"{file}: {name}" for file, source in files() for name in participles(source)]
    assert len(found) <= MOST_PARTICIPLES, "\n".join(found)


def riddles(text: str) -> list[str]:
    """Wordings that nobody should have to guess at, with a plain one."""
    text = " ".join(text.split())
    return [f"{match[0]!r}: say {plain}" for riddle, plain in RIDDLES.items() for match in re.finditer(riddle, text)]


def strings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_prose_is_plain():
    found = [f"{file}: {word}" for file, source in files() for text in strings(source) for word in riddles(text)]
    templates = [file for source in SOURCES for file in source.rglob("*.j2")]
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    found += [f"{page.name}: {word}" for page in [*pages, *templates]
              for word in riddles(page.read_text(encoding="utf-8"))]  # fmt: skip
    assert templates
    assert found == []


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("class Tape: ...", "ForwardRecord"),
        ("class Clipper:\n    def rule_for(self): ...", "clipping_rule"),
        ("async def go_on(): ...", "resume_run"),
        ("def step(self, upto): ...", "until"),
        ("self.stairs = 3", "step_points"),
        ("class Curve:\n    rivals: int = 3", "baselines"),
    ],
)
def test_an_old_name_would_be_noticed(source, new):
    [found] = old_words(identifiers(source))
    assert found.endswith(f"say {new}")


def test_english_is_not_forbidden():
    assert old_words(identifiers("share = use(tape)\nfor more in shares: fixed = more.apart")) == []
    assert old_words([("module", "gradients", 1)]) == [] != old_words([("module", "engine", 1)])


def test_participles_and_riddles_would_be_noticed():
    assert participles("def _made(): ...\ndef made_of(): ...\n@property\ndef charged(self): ...") == ["_made"]
    assert riddles("x is no number. Mend\n it.") == ["'Mend it': say correct it"]
    assert all(not riddles(plain) for plain in RIDDLES.values())


def test_a_public_quantity_of_old_would_be_noticed():
    source = "class Step:\n    noise: float\n    def __init__(self, clip): ...\ndef spent(ledger, *, size): ..."
    assert {place for place, _ in places(source)} & set(PLACES) == {"Step.noise", "Step.clip", "spent.size"}
