"""Cases for sub-groups, messages, and the lifetime of process groups."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

import herring

from .support import case, forget, gloo, raises, same


def _ones(group: object, *shape: int) -> torch.Tensor:
    tensor = torch.ones(shape)
    dist.all_reduce(tensor, group=group)
    return tensor


@case
def sub_groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    lists = [[0, 1], [1, 2, 3], [0, 2], [3], [0, 1, 2, 3]]
    groups = [dist.new_group(ranks) for ranks in lists]
    for ranks, group in zip(lists, groups):
        if rank in ranks:
            assert group.name() == "herring" and group.size() == len(ranks)
            assert dist.get_process_group_ranks(group) == ranks
    works = []
    mine = [(ranks, group) for ranks, group in zip(lists, groups) if rank in ranks]
    for ranks, group in mine if rank % 2 else reversed(mine):  # the order between groups is free
        tensor = torch.full((50_000,), rank + 1.0)
        works.append((ranks, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for ranks, tensor, work in works:
        work.wait()
        same(tensor, torch.full((50_000,), sum(ranks) + float(len(ranks))))
    for ranks, group in mine:
        gathered = [torch.empty(1) for _ in ranks]
        dist.all_gather(gathered, torch.tensor([float(rank)]), group)
        assert [int(one) for one in gathered] == ranks
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, ranks[-1], group)
        assert int(tensor) == ranks[-1]
    assert dist.all_reduce(torch.ones(1), group=groups[3]) is None  # warns outside the group
    turned = dist.new_group([2, 0, 3, 1], sort_ranks=False)
    order = dist.get_process_group_ranks(turned)
    assert order == [2, 0, 3, 1] and order[turned.rank()] == rank
    whole = torch.empty(2 * size)
    dist.all_gather_single(whole, torch.full((2,), float(rank)), turned)
    same(whole, torch.tensor(order).float().repeat_interleave(2))
    lists_of = [torch.empty(r + 1) for r in order]
    dist.all_gather(lists_of, torch.full((rank + 1,), float(rank)), turned)
    assert [int(one[0]) for one in lists_of] == order
    part = torch.empty(1)
    dist.reduce_scatter_single(part, torch.arange(4.0), group=turned)
    assert part.item() == 4 * turned.rank()
    for r in range(size):
        part = torch.empty(1)
        dist.reduce_scatter(part, [torch.tensor([n + 0.5]) for n in range(size)], group=turned)
        assert part.item() == 4 * (turned.rank() + 0.5)
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, r, turned)
        assert int(tensor) == r
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.arange(4.0) + 10 * turned.rank(), group=turned)
    same(swapped, torch.arange(4.0) * 10 + turned.rank())
    kept = [torch.empty(1) for _ in order] if rank == 3 else None
    dist.gather(torch.tensor([float(rank)]), kept, 3, turned)
    assert kept is None or [int(one) for one in kept] == order
    parts = [torch.tensor([float(r)]) for r in order] if rank == 1 else None
    taken = torch.empty(1)
    dist.scatter(taken, parts, 1, turned)
    assert int(taken) == rank
    for _, group in mine:
        dist.destroy_process_group(group)
        raises(ValueError, "", dist.all_reduce, torch.ones(1), group=group)
    local, _ = dist.new_subgroups(2)
    same(_ones(local, 3), torch.full((3,), 2.0))
    if rank < 2:  # only members create this group
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        same(_ones(pair, 3), torch.full((3,), 2.0))
    every = dist.new_group()
    same(_ones(every, 3), torch.full((3,), float(size)))
    # PyTorch 2.15 names a group by the number of groups that this rank has made. Ranks would look
    # for each other under different names in each group of Gloo that is made after this case.
    if rank >= 2:
        dist.new_group([2, 3], use_local_synchronization=True)


@case
def barriers_name_who_is_missing() -> None:
    rank = dist.get_rank()
    dist.monitored_barrier()
    dist.distributed_c10d.monitored_barrier(dist.group.WORLD, timedelta(seconds=60), True)
    short = timedelta(seconds=0.3)
    for wait_all_ranks, words in (
        (False, "Rank 0 failed to pass monitoredBarrier in 300 ms: "),
        (True, "Ranks 0, 2 failed to pass monitoredBarrier in 300 ms: "),
    ):
        group = dist.new_group([1, 2, 3])  # the words have the ranks inside the group
        if rank == 2:
            raises(RuntimeError, words, dist.monitored_barrier, group, short, wait_all_ranks)
        dist.barrier()
    group = dist.new_group()
    if rank == 1:  # no time at all is not the group's time
        words = "Rank 0 failed to pass monitoredBarrier in 1 ms: "
        raises(RuntimeError, words, dist.monitored_barrier, group, timedelta())
    dist.barrier()
    group = dist.new_group(timeout=short)
    if rank == 1:
        # torch's own tests look for these words.
        raises(RuntimeError, "timed out: barrier", dist.barrier, group)
        raises(RuntimeError, " timeout (", dist.all_reduce, torch.ones(1), group=group)
    dist.barrier()
    dist.monitored_barrier(gloo())  # is torch's own


@case
def messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.uint16):
        for count in (1, 0, 100_000):
            send, found = torch.full((count,), rank, dtype=dtype), torch.empty(count, dtype=dtype)
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.irecv, found, before), dist.P2POp(dist.isend, send, after)]
            ):
                work.wait()
            same(found, torch.full((count,), before, dtype=dtype))
    if rank == 0:
        for _ in range(2 * (size - 1)):
            found = torch.empty(2)
            source = dist.recv(found, tag=3)
            same(found, torch.full((2,), float(source)))
        strided = torch.zeros(4, 2)
        dist.recv(strided[:, 0], 1, tag=4)
        same(strided, torch.tensor([[1.0, 0.0]] * 4))
    else:
        for _ in range(2):
            dist.send(torch.full((2,), float(rank)), 0, tag=3)
        if rank == 1:
            dist.send(torch.ones(4, 2)[:, 1], 0, tag=4)
    ordered = [torch.empty(1) for _ in range(3)]
    if rank == 2:  # tags match messages, not their order
        works = [dist.isend(torch.tensor([float(tag)]), 3, tag=tag) for tag in (7, 8, 9)]
    elif rank == 3:
        works = [dist.irecv(one, 2, tag=tag) for one, tag in zip(ordered, (9, 7, 8))]
    else:
        works = [dist.isend(torch.ones(3), rank), dist.irecv(kept := torch.empty(3), rank)]
    for work in works:
        work.wait()
    if rank == 3:
        assert [int(one) for one in ordered] == [9, 7, 8]
    if rank < 2:
        same(kept, torch.ones(3))
        objects = [{"a": 1}, "b"] if rank == 0 else [None, None]
        if rank == 0:
            dist.send_object_list(objects, 1)
        else:
            assert dist.recv_object_list(objects, 0) == 0 and objects == [{"a": 1}, "b"]
        wrong = torch.empty(2 + rank)
        call = dist.send if rank == 0 else dist.recv
        raises(herring.MismatchError, "", call, wrong, 1 - rank)


@case
def devices_of_other_backends() -> None:
    for config in ("cpu:herring,cuda:nccl", "cuda:herring,cpu:herring", "cpu:gloo,cuda:herring"):
        group = dist.new_group(backend=config)
        assert {device.type for device in group._device_types} == {"cpu", "cuda"}
        same(_ones(group, 3), torch.full((3,), float(dist.get_world_size())))
        by_gloo = isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
        assert by_gloo == config.startswith("cpu:gloo")
        dist.barrier(group)
        dist.destroy_process_group(group)
    if not dist.is_nccl_available():
        raises(RuntimeError, "NCCL", dist.new_group, backend="cuda:nccl,cpu:herring")


class _Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        assert os.getpid() != _parent
        return torch.full((2,), float(index))


_parent = os.getpid()


@case
def forked_data_loader() -> None:
    sampler = torch.utils.data.DistributedSampler(_Rows(), shuffle=False)
    loader = torch.utils.data.DataLoader(
        _Rows(), batch_size=1, sampler=sampler, num_workers=2, multiprocessing_context="fork"
    )
    total = torch.zeros(1)
    for batch in loader:
        dist.all_reduce(batch)
        total += batch[0, 0]
    assert total.item() == sum(range(12))


@case
def once_more() -> None:
    url = "herring://" if "HERRING_RANK" in os.environ else "env://"
    dist.all_reduce(torch.ones(1), group=gloo())
    for _ in range(2):
        forget()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("herring", init_method=url)
        same(_ones(None, 4), torch.full((4,), float(dist.get_world_size())))
