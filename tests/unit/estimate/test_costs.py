"""Eqs 1, 2, 4 and 6, and the profile made without a measurement."""

import pytest

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import IterationCost, KvGeometry, ModelSpec
from maestroctl.domain.units import GIB
from maestroctl.estimate.kv_cache import estimate_kv_bytes
from maestroctl.estimate.memory_need import (
    estimate_asleep_bytes,
    estimate_awake_bytes,
    estimate_host_bytes,
    estimate_least_start_bytes,
    estimate_starting_bytes,
)
from maestroctl.estimate.profile_from_geometry import (
    estimate_command_profile,
    estimate_profile,
)
from maestroctl.estimate.readiness import estimate_activation_s, estimate_ready_s
from maestroctl.estimate.service_time import (
    estimate_decode_s,
    estimate_execution_s,
    estimate_iteration_s,
    estimate_prefill_s,
    estimate_slowdown,
)
from maestroctl.estimate.transfer import estimate_transfer_s
from maestroctl.testing.builders import make_node_profile

SMOLLM2 = KvGeometry(num_layers=30, num_kv_heads=3, head_dim=64)
WEIGHTS = 269_000_000
COST = IterationCost(c0_s=0.040, c1_s=0.002, c2_s=1e-6, cp_s=0.002, gamma=1.5)
PROFILE = make_node_profile("a", iteration=COST)


def test_iteration_adds_its_terms():
    assert estimate_iteration_s(COST, 4, 1000, 256) == pytest.approx(0.040 + 0.008 + 0.001 + 0.512)


def test_every_neighbour_stretches_iterations_by_what_gamma_is_above_one():
    assert [estimate_slowdown(COST.gamma, neighbours) for neighbours in (0, 1, 3)] == [
        1.0,
        1.5,
        2.5,
    ]


def test_execution_is_prefill_plus_decode_times_length():
    prefill = estimate_prefill_s(PROFILE, 100)
    decode = estimate_decode_s(PROFILE)
    assert (prefill, decode) == (pytest.approx(0.240), pytest.approx(0.042))
    assert estimate_execution_s(PROFILE, 100, 50) == pytest.approx(0.240 + 50 * 0.042)
    assert estimate_execution_s(PROFILE, 100, 50, cached_tokens=96) < estimate_execution_s(
        PROFILE, 100, 50
    )


def test_memory_of_each_phase():
    assert estimate_awake_bytes(PROFILE, 2 * GIB) == 7 * GIB
    assert estimate_starting_bytes(PROFILE, 2 * GIB) == 8 * GIB
    assert estimate_least_start_bytes(PROFILE) == 7 * GIB
    assert estimate_asleep_bytes(PROFILE) == 1 * GIB
    assert estimate_host_bytes(PROFILE, ResidencyTier.HOST) == 4 * GIB
    assert estimate_host_bytes(PROFILE, ResidencyTier.DISK) == 0


@pytest.mark.parametrize("status", list(EngineStatus))
def test_activation_never_grows_with_time_and_is_nothing_when_awake(status):
    first = estimate_activation_s(PROFILE, status)
    assert first >= estimate_activation_s(PROFILE, status, 1.0) >= 0
    assert (first == 0) == status.is_awake


def test_readiness_adds_queue_activation_and_round_trip():
    assert estimate_ready_s(2.0, 30.0, 0.5) == 32.5


def test_transfer_is_size_over_bandwidth_and_a_fixed_part():
    assert estimate_transfer_s(20 * 10**9, 10e9, 0.5) == 2.5
    with pytest.raises(ValueError):
        estimate_transfer_s(1, 0)


# --- profiles from geometry ---------------------------------------------------------------------


def make_spec(**fields) -> ModelSpec:
    return ModelSpec(ModelName("m"), **fields)


def test_cpu_profile_reproduces_what_was_seen():
    profile = estimate_profile(make_spec(kv_cache_bytes=1 * GIB), SMOLLM2, WEIGHTS, "cpu", 8192)
    awake = estimate_awake_bytes(profile, profile.kv_pool_bytes)
    assert awake == pytest.approx(3.5e9, rel=0.05)
    assert profile.context_bytes == 1_900_000_000
    assert profile.host_asleep_bytes == 0
    assert profile.cold_start_s == pytest.approx(32.0)
    assert profile.wake_s == pytest.approx(2.4)
    assert profile.sleep_s == 0.6
    assert estimate_decode_s(profile) == pytest.approx(0.043)
    assert estimate_prefill_s(profile, 1932) == pytest.approx(4.4, rel=0.05)
    assert profile.origin == "geometry"


def test_cuda_profile_of_an_8b_model_is_plausible():
    geometry = KvGeometry(num_layers=36, num_kv_heads=8, head_dim=128)
    profile = estimate_profile(make_spec(), geometry, 16 * 10**9, "cuda", 16_384)
    assert 0.010 < estimate_decode_s(profile) < 0.020
    assert 1.0 < profile.wake_s < 2.0
    assert profile.cold_start_s > 10 * profile.wake_s
    assert profile.host_asleep_bytes > 16 * 10**9


def test_default_pool_holds_four_full_sequences_or_the_whole_batch():
    full = estimate_kv_bytes(SMOLLM2, 2048)
    block = estimate_kv_bytes(SMOLLM2, 1)
    four = estimate_profile(make_spec(max_model_len=2048), SMOLLM2, WEIGHTS, "cpu", 8192)
    two = estimate_profile(
        make_spec(max_model_len=2048, max_batch=2), SMOLLM2, WEIGHTS, "cpu", 8192
    )
    assert four.kv_pool_bytes == 4 * full + block
    assert two.kv_pool_bytes == 2 * full + block
    assert four.kv_least_bytes == full + block


def test_length_is_at_most_what_the_model_was_made_for():
    profile = estimate_profile(make_spec(max_model_len=10**6), SMOLLM2, WEIGHTS, "cpu", 8192)
    assert profile.max_model_len == 8192


def test_given_pool_is_taken_and_a_small_one_lowers_the_length():
    large = estimate_profile(make_spec(kv_cache_bytes=GIB), SMOLLM2, WEIGHTS, "cpu", 8192)
    assert (large.kv_pool_bytes, large.max_model_len) == (GIB, 8192)
    given = estimate_kv_bytes(SMOLLM2, 1000) + estimate_kv_bytes(SMOLLM2, 1)
    small = estimate_profile(make_spec(kv_cache_bytes=given), SMOLLM2, WEIGHTS, "cpu", 8192)
    assert small.kv_pool_bytes == small.kv_least_bytes == given
    assert small.max_model_len == 1008  # whole blocks
    with pytest.raises(ValueError, match="holds no block"):
        estimate_profile(make_spec(kv_cache_bytes=1000), SMOLLM2, WEIGHTS, "cpu", 8192)


def test_weights_are_shared_by_the_devices_of_a_tensor_parallel_engine():
    one = estimate_profile(make_spec(), SMOLLM2, WEIGHTS, "cuda", 2048)
    two = estimate_profile(make_spec(tensor_parallel=2), SMOLLM2, WEIGHTS, "cuda", 2048)
    assert two.weights_bytes == one.weights_bytes // 2


def test_no_weights_is_an_error():
    with pytest.raises(ValueError, match="0 weight bytes"):
        estimate_profile(make_spec(), SMOLLM2, 0, "cpu", 2048)


def test_command_engine_needs_what_it_declares():
    spec = make_spec(memory_bytes=5 * GIB, command=("server",))
    profile = estimate_command_profile(spec)
    assert estimate_awake_bytes(profile, profile.kv_pool_bytes) == 5 * GIB
    assert estimate_least_start_bytes(profile) == 5 * GIB
    with pytest.raises(ValueError, match="needs `memory`"):
        estimate_command_profile(make_spec(command=("server",)))
