"""Marks the tests that repeat in a further layout what others show.

`make test` leaves them out, and `make test-thorough` runs them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

# Of each family at least one case stays that crosses the network, and one inside a node where the
# code differs. "[" and "]" stand for themselves.
THOROUGH = (
    "test_algorithms.py::test_every_algorithm[alone]",
    "test_algorithms.py::test_every_algorithm[colocated-servers]",
    "test_algorithms.py::test_every_algorithm[two]",
    "test_bench_on_gpus.py::test_results_on_the_stand_in_*[allreduce-bfloat16]",
    "test_bench_on_gpus.py::test_results_on_the_stand_in_*[planned-bfloat16]",
    "test_collectives.py::test_collective[*-alone]",
    "test_collectives.py::test_collective[*-colocated-servers]",
    "test_cuda_butterfly.py::test_the_bits_of_the_host[3]",
    "test_cuda_butterfly_peers.py::test_the_bits_of_the_host_and_no_copies_*[alone-on-nodes]",
    "test_cuda_butterfly_peers.py::test_the_bits_of_the_host_and_no_copies_*[asked-not-to]",
    "test_cuda_butterfly_peers.py::test_the_bits_of_the_host_and_no_copies_*[five]",
    "test_cuda_butterfly_peers.py::test_the_bits_of_the_host_and_no_copies_*[four]",
    "test_cuda_butterfly_peers.py::test_the_bits_of_the_host_and_no_copies_*[three]",
    "test_cuda_butterfly_peers.py::test_the_bits_of_the_host_and_no_copies_*[two]",
    "test_cuda_butterfly_peers.py::test_who_ends_in_the_middle_parks_nobody[1-*]",
    "test_devices.py::test_right_under_jitter[*-alone]",
    "test_devices.py::test_right_under_jitter[*-colocated-servers]",
    "test_devices.py::test_right_under_jitter[*-host-dedicated-servers]",
    "test_devices_fail.py::test_a_call_behind_a_kernel_that_does_not_end_hears_of_the_job[leaves]",
    "test_devices_fail.py::test_a_driver_that_fails_ends_in_an_error_on_all_ranks[*-once]",
    "test_devices_fail.py::test_nobody_takes_what_a_failed_round_left_for_averages[aborts-*]",
    "test_devices_fail.py::test_servers_die_while_gpus_are_averaged[host]",
    "test_devices_lost.py::test_in_torchs_backend_all_ranks_get_an_error_that_names_it[all_reduce]",
    "test_devices_lost.py::test_in_torchs_backend_all_ranks_get_an_error_that_names_it[broadcast]",
    "test_devices_lost.py::test_in_torchs_backend_all_ranks_get_an_error_that_names_it[reduce_*]",
    "test_elastic_objects.py::test_torch_needs_no_pickle[json]",
    "test_encryption.py::test_everything_works[*-colocated]",
    "test_encryption.py::test_everything_works[algorithms-single]",
    "test_failover.py::test_calls_in_flight_outlive_servers[one-on-each-node]",
    "test_failover.py::test_calls_in_flight_outlive_servers[several-flows]",
    "test_failover.py::test_joins_outlive_servers[one-on-each-node]",
    "test_failover.py::test_joins_outlive_servers[several-flows]",
    "test_failover.py::test_messages_outlive_servers[3]",
    "test_flush.py::test_ranks_that_make_different_numbers_of_steps_end_alike[colocated]",
    "test_gpus_add.py::test_gpus_add_with_the_bits_of_processors[asked-for]",
    "test_gpus_add.py::test_gpus_add_with_the_bits_of_processors[kernels-wait-two-nodes]",
    "test_gpus_add.py::test_gpus_add_with_the_bits_of_processors[one-gpu]",
    "test_gpus_add.py::test_gpus_add_with_the_bits_of_processors[peers]",
    "test_gpus_add.py::test_gpus_cast_gradients_to_the_wire_dtype[one-gpu]",
    "test_gpus_add.py::test_plans_that_come_and_go_do_not_pin_ever_more_memory[host]",
    "test_gpus_add.py::test_who_ends_in_a_round_that_gpus_add_parks_nobody[*-ipc-1]",
    "test_grouped.py::test_lists_of_everything[dedicated-servers]",
    "test_groups.py::test_every_collective_in_a_group[dedicated-servers]",
    "test_horovod.py::test_case[one-node-*]",
    "test_interrupts.py::test_an_uncaught_ctrl_c_ends_the_process_soon[*-colocated-servers]",
    "test_interrupts.py::test_ctrl_c_comes_out_of_a_wait[*-one-node]",
    "test_join.py::test_all_reduces_go_on_without_those_who_joined[dedicated-servers]",
    "test_launch_torch.py::test_a_script_of_torchrun_runs_as_it_is[one-node-*]",
    "test_leaving.py::test_uneven_data_in_training_names_who_ran_out_of_it[batch-norm]",
    "test_leaving.py::test_who_leaves_after_rank_0_is_missed_at_once[*-named]",
    "test_node_threads.py::test_the_bits_are_those_of_one_thread[uneven-nodes]",
    "test_notes.py::test_notes[every-byte-arrives-colocated-servers]",
    "test_notes.py::test_notes[every-byte-arrives-one-node]",
    "test_objects.py::test_horovods_functions_send_what_the_setting_allows[json]",
    "test_orders.py::test_any_order_of_submission_on_every_rank[one-server-2]",
    "test_orders.py::test_any_order_of_submission_on_every_rank[one-server-4]",
    "test_orders.py::test_any_order_of_submission_on_every_rank[two-servers-1]",
    "test_orders.py::test_any_order_of_submission_on_every_rank[two-servers-2]",
    "test_teardown.py::test_leaving_with_operations_in_flight[direct-*]",
    "test_torch.py::test_case[colocated-servers-*]",
    "test_torch.py::test_case[dedicated-servers-*]",
    "test_torch.py::test_case[one-node-*]",
    "test_torch_backend.py::test_case[torchrun-*]",
    "test_torch_backend.py::test_death_in_stock_ddp[hook]",
    "test_torch_backend.py::test_script_begins_its_own_group[('herring',)]",
    "test_torch_backend.py::test_script_begins_its_own_group[('nccl',)]",
    "test_torch_backend.py::test_script_begins_its_own_group[()]",
    "test_torch_backend.py::test_script_in_a_group[0]",
    "test_torch_groups.py::test_case[*-one-node]",
    "test_torch_loops.py::test_loop[two-nodes-*]",
    "test_torch_reconfigure.py::test_members_die_and_others_take_their_places[one-node]",
)


def _matches(item: pytest.Item, pattern: str) -> bool:
    literal = pattern.replace("[", "[[]")
    return fnmatchcase(f"{item.path.name}::{item.name}", literal)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raises UsageError for an entry of `THOROUGH` that no test of its file has."""
    collected = {item.path.name for item in items}
    for pattern in THOROUGH:
        marked = [item for item in items if _matches(item, pattern)]
        for item in marked:
            item.add_marker(pytest.mark.thorough)
        whole = not any("::" in argument for argument in config.args)
        if whole and not marked and pattern.partition("::")[0] in collected:
            raise pytest.UsageError(f"THOROUGH in {__file__}: no test is called {pattern}")
