"""Subsets of keys on several ranks: two and four processes against one."""

import gc
import time

import pytest
import sharded_checks
import torch
import torch.distributed as dist
from common import seeded
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.multiprocessing.spawn import spawn

import gumtrace as gt


@pytest.mark.slow
def test_two_and_four_ranks_are_one_process(tmp_path):
    spawn(sharded_checks.run, (4, str(tmp_path / "store")), nprocs=4)


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    time.sleep(0.1)  # torch 2.5 waits for its threads while it has the interpreter's lock, which they may need
    dist.destroy_process_group()
    gc.collect()  # caught errors may keep it alive


def test_there_must_be_a_group():
    with pytest.raises(RuntimeError, match=r"call torch.distributed.init_process_group on every rank first"):
        gt.ShardedSubset(torch.zeros(3), 1)


def test_one_rank_is_a_subset(alone):
    x = torch.randn(2, 7, generator=seeded())
    one, many = gt.Subset(x, 3), gt.ShardedSubset(x, 3)
    trace, ours = (d.sample_trace((5,), generator=seeded(1)) for d in (one, many))
    assert torch.equal(trace.winners, ours.winners)
    assert torch.equal(trace.value, ours.value)
    assert many.support.check(ours.value).all()
    assert repr(many) == "ShardedSubset(batch_shape=(2,), event_shape=(7,), dtype=torch.float32)"


@pytest.mark.parametrize("shape", [(7,), (2, 7)])
@pytest.mark.parametrize("call", ["enumerate_traces", "enumerate_support", "entropy", "log_prob", "distinct_traces"])
def test_what_needs_all_keys_is_refused(alone, call, shape):
    d = gt.ShardedSubset(torch.zeros(shape), 3)
    arguments = {"log_prob": (torch.zeros(7),), "distinct_traces": (2,)}.get(call, ())
    with pytest.raises(NotImplementedError, match=r"ShardedSubset: no rank has all keys, .*; take trace_log_prob"):
        getattr(d, call)(*arguments)


def test_relaxations_are_refused(alone):
    d = gt.ShardedSubset(torch.zeros(7), 3)
    with pytest.raises((NotImplementedError, ValueError, TypeError), match="ShardedSubset"):
        gt.relax(d, d.perturb(), 1.0)


@pytest.mark.parametrize("k", [1.5, None, torch.tensor([1, 2])])
def test_k_is_an_integer(alone, k):
    with pytest.raises((TypeError, ValueError), match="k must be an integer"):
        gt.ShardedSubset(torch.zeros(2, 7), k)


def test_lengths_are_refused(alone):
    with pytest.raises(TypeError, match="ShardedSubset: it takes no lengths; pass mask="):
        gt.ShardedSubset(torch.zeros(2, 7), 3, lengths=torch.tensor([7, 5]))


def test_transforms_are_refused(alone):
    x = torch.zeros(2, 7)
    d = gt.ShardedSubset(x[0], 3)
    for call in (lambda row: gt.ShardedSubset(row, 3, validate_args=False).sample(), lambda row: d.trace(row).value):
        with pytest.raises(NotImplementedError, match="ShardedSubset: ranks exchange numbers, which vmap and"):
            torch.func.vmap(call, randomness="different")(x)
    with pytest.raises(NotImplementedError, match=r"vmap and torch\.func"):
        torch.func.grad(lambda row: gt.ShardedSubset(row, 3).trace_log_prob(d.sample_trace()))(x[0])


@pytest.mark.slow
def test_compiled_with_breaks_in_the_graph(alone):
    x = torch.randn(2, 7, generator=seeded())

    def draw(x):
        return gt.ShardedSubset(x, 3).sample(generator=seeded(1))

    assert torch.equal(torch.compile(draw, backend="eager")(x), draw(x))


@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")  # of torch 2.5, on a CPU
def test_pieces_of_a_dtensor(alone):
    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.zeros(2, 7), mesh, [Shard(1)]).requires_grad_()
    d = gt.ShardedSubset(x.to_local(), 3, group=mesh.get_group())
    d.trace_log_prob(d.sample_trace(generator=seeded())).sum().backward()
    assert x.grad.to_local().abs().max() > 0.1
    with pytest.raises(TypeError, match=r"logits.to_local\(\) of a DTensor"):
        gt.ShardedSubset(x, 3)
