"""Rank detection: every launcher by a dictionary, and every way to get it wrong."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herring import _core
from herring.errors import ConfigurationError, HerringError
from herring.rendezvous.detect import (
    WorkerEnvironment,
    detect,
    detect_server,
    parse_address,
    parse_secret,
)
from herring.rendezvous.nodelist import first_host, tasks_on_node

SECRET = "00112233445566778899aabbccddeeff"

HERRING = {
    "HERRING_RANK": "3",
    "HERRING_SIZE": "4",
    "HERRING_LOCAL_RANK": "1",
    "HERRING_LOCAL_SIZE": "2",
    "HERRING_RENDEZVOUS": "host1:29600",
    "HERRING_SECRET_FILE": "/secret",
}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-123@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
    "HERRING_SECRET_FILE": "/secret",
}
LAUNCHERS = {
    "herring": HERRING,
    "torchrun": TORCHRUN,
    "openmpi": OPEN_MPI,
    "pmi": MPICH,
    "slurm": SLURM,
}


def ranks(found: WorkerEnvironment) -> tuple[int, int, int | None, int | None]:
    return found.rank, found.size, found.local_rank, found.local_size


def refused(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        detect(environ)
    return str(caught.value)


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_nothing_is_a_job_of_one() -> None:
    found = detect({"PATH": "/bin", "HERRING_RANK": "  "})
    assert ranks(found) == (0, 1, 0, 1)
    assert (found.source, found.rendezvous.kind, found.single_host) == ("single", "none", True)


def test_herring() -> None:
    found = detect(HERRING)
    assert ranks(found) == (3, 4, 1, 2)
    assert found.source == "herring"
    assert (found.rendezvous.kind, found.rendezvous.address) == ("address", "host1:29600")
    assert (found.secret_file, found.secret, found.servers) == ("/secret", None, 0)
    assert not found.single_host


def test_herring_without_local_ranks() -> None:
    found = detect(without(HERRING, "HERRING_LOCAL_RANK", "HERRING_LOCAL_SIZE"))
    assert ranks(found) == (3, 4, None, None)


def test_only_rank_0_takes_the_inherited_socket() -> None:
    environ = {**HERRING, "HERRING_RENDEZVOUS_FD": "7", "HERRING_LOCAL_RANK": "0"}
    assert detect(environ).rendezvous.descriptor is None
    rendezvous = detect({**environ, "HERRING_RANK": "0"}).rendezvous
    assert (rendezvous.kind, rendezvous.descriptor) == ("descriptor", 7)


def test_torchrun() -> None:
    found = detect(TORCHRUN)
    assert ranks(found) == (2, 4, 0, 2)
    assert (found.source, found.restart, found.store_is_served) == ("torchrun", 3, True)
    # The store's port belongs to torchrun's agent: rank 0 publishes there and binds its own.
    assert (found.rendezvous.kind, found.rendezvous.address) == ("torch", "host1:29500")
    assert not found.single_host


def test_torch_variables_set_by_hand() -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    found = detect({name: TORCHRUN[name] for name in names})
    assert ranks(found) == (2, 4, None, None)
    assert not found.store_is_served


def test_open_mpi_on_one_host() -> None:
    found = detect(OPEN_MPI)
    assert ranks(found) == (1, 2, 1, 2)
    assert (found.source, found.rendezvous.kind, found.single_host) == ("openmpi", "file", True)
    # The key comes from the launcher and is fit for a file name.
    assert "prterun-host-123-1" in found.rendezvous.key
    assert "/" not in found.rendezvous.key


def test_open_mpi_job_ids_keep_jobs_apart() -> None:
    other = {**OPEN_MPI, "PMIX_NAMESPACE": "prterun-host-123@2"}
    assert detect(OPEN_MPI).rendezvous.key != detect(other).rendezvous.key
    old = {**OPEN_MPI, "OMPI_MCA_ess_base_jobid": "77"}
    assert "-77-" in detect(old).rendezvous.key


def test_open_mpi_on_several_hosts_needs_a_rendezvous() -> None:
    environ = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}
    assert "HERRING_RENDEZVOUS is not set" in refused(environ)
    environ["HERRING_RENDEZVOUS"] = "10.0.0.1:5000"
    assert "HERRING_SECRET_FILE is not set" in refused(environ)
    environ["HERRING_SECRET_FILE"] = "/secret"
    assert detect(environ).rendezvous.address == "10.0.0.1:5000"


def test_mpich() -> None:
    found = detect(MPICH)
    assert ranks(found) == (1, 2, 1, 2)
    # Hydra gives no job id: the key comes from the launcher's process.
    assert (found.source, found.rendezvous.kind, found.rendezvous.key) == ("pmi", "file", "")


def test_pmix_under_slurm_takes_the_size_from_slurm() -> None:
    environ = {**SLURM, "PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.1234.0"}
    found = detect(environ)
    assert ranks(found) == (5, 8, 1, 4)
    assert (found.source, found.rendezvous.kind, found.rendezvous.host) == (
        "pmix",
        "address",
        "gpu07",
    )


def test_pmix_alone_knows_no_size() -> None:
    assert "PMI_SIZE is not" in refused({"PMIX_RANK": "0"})


def test_slurm() -> None:
    found = detect(SLURM)
    assert ranks(found) == (5, 8, 1, 4)
    assert (found.source, found.rendezvous.host) == ("slurm", "gpu07")
    assert 1024 <= found.rendezvous.port < 32768
    other = detect({**SLURM, "SLURM_JOB_ID": "1235"})
    assert found.rendezvous.port != other.rendezvous.port


def test_slurm_step_on_some_of_the_hosts() -> None:
    found = detect({**SLURM, "SLURM_STEP_NODELIST": "gpu08"})
    assert found.rendezvous.host == "gpu08"


def test_slurm_uneven_step() -> None:
    environ = without(SLURM, "SLURM_NTASKS_PER_NODE")
    environ.update(SLURM_STEP_TASKS_PER_NODE="5,3", SLURM_NODEID="1", SLURM_LOCALID="2")
    assert ranks(detect(environ)) == (5, 8, 2, 3)


def test_slurm_on_one_host_needs_no_secret() -> None:
    environ = without({**SLURM, "SLURM_NNODES": "1", "SLURM_LOCALID": "5"}, "HERRING_SECRET_FILE")
    found = detect(environ)
    assert ranks(found) == (5, 8, 5, 8)
    assert found.rendezvous.kind == "file"
    assert "1234.0" in found.rendezvous.key


def test_slurm_on_several_hosts_gets_its_secret_from_munge() -> None:
    assert detect(SLURM).rendezvous.kind == "address"
    rendezvous = detect(without(SLURM, "HERRING_SECRET_FILE")).rendezvous
    assert (rendezvous.kind, rendezvous.key) == ("munge", "herring/1234")
    assert rendezvous.address == detect(SLURM).rendezvous.address
    by_hand = {**without(SLURM, "HERRING_SECRET_FILE"), "HERRING_RENDEZVOUS": "host1:29600"}
    assert detect(by_hand).rendezvous.kind == "munge"
    # Only this host can reach loopback, and what is on one host meets by a file.
    loopback = detect({**by_hand, "HERRING_RENDEZVOUS": "127.0.0.1:29600"}).rendezvous
    assert loopback.kind == "address"


def test_slurm_servers_in_a_step_of_their_own() -> None:
    workers = {
        **without(SLURM, "HERRING_SECRET_FILE"),
        "HERRING_SERVERS": "2",
        "SLURM_STEP_ID": "3",
        "SLURM_STEP_NODELIST": "gpu07",
    }
    server = {**workers, "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "gpu08", "SLURM_PROCID": "0"}
    found = detect(workers)
    assert (found.servers, found.size, found.rendezvous.host) == (2, 8, "gpu07")
    assert detect_server(server).rendezvous == found.rendezvous
    assert detect({**workers, "SLURM_NNODES": "1", "SLURM_LOCALID": "5"}).rendezvous == (
        found.rendezvous
    )
    other = {"HERRING_JOB": "second"}
    assert detect({**workers, **other}).rendezvous.port != found.rendezvous.port
    assert detect_server({**server, **other}).rendezvous == detect({**workers, **other}).rendezvous


def heterogeneous(group: int, one_step: bool) -> dict[str, str]:
    """What Slurm 22.05 sets in a job of 3 tasks on n[3-4] and, as group 1, 2 tasks on n[1-2]."""
    lists = ["n[3-4]", "n[1-2]"]
    environ = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_ID": "6",
        "SLURM_JOB_ID_HET_GROUP_0": "6",
        "SLURM_JOB_ID_HET_GROUP_1": "7",
        "SLURM_JOB_NODELIST_HET_GROUP_0": lists[0],
        "SLURM_JOB_NODELIST_HET_GROUP_1": lists[1],
        "SLURM_STEP_ID": "0" if one_step else str(group),
        "SLURM_NTASKS": "5" if one_step else ["3", "2"][group],
        "SLURM_JOB_NODELIST": "n[1-4]" if one_step else lists[group],
        "SLURM_STEP_NODELIST": "n[1-4]" if one_step else lists[group],
        "SLURM_STEP_NUM_NODES": "4" if one_step else "2",
        "SLURM_STEP_TASKS_PER_NODE": "2,1(x3)" if one_step else ["2,1", "1(x2)"][group],
    }
    first = 3 if one_step and group == 1 else 0
    # Within one step nodes are numbered as they are sorted, and not as the counts stand.
    node = 2 if one_step and group == 0 else 0
    return {**environ, "SLURM_PROCID": str(first), "SLURM_LOCALID": "0", "SLURM_NODEID": str(node)}


@pytest.mark.parametrize("one_step", [True, False])
def test_slurm_heterogeneous_jobs(one_step: bool) -> None:
    more = {"HERRING_SIZE": "3"} if one_step else {"HERRING_SERVERS": "2"}
    found = detect({**heterogeneous(0, one_step), **more})
    assert (found.rank, found.size, found.servers) == (0, 3, 2)
    assert ranks(detect({**heterogeneous(0, one_step), **more, "SLURM_LOCALID": "1"}))[2:] == (
        None,
        None,
    )
    # Rank 0 is on the first node of group 0, which need not be the first of a sorted list.
    assert (found.rendezvous.kind, found.rendezvous.host) == ("munge", "n3")
    server = detect_server({**heterogeneous(1, one_step), **more})
    assert server.rendezvous == found.rendezvous
    if one_step:
        assert (server.rank, server.source) == (3, "slurm")
        message = refused({**heterogeneous(1, one_step), **more})
        assert "SLURM_PROCID=3 contradicts HERRING_SIZE=3" in message


def test_slurm_in_a_batch_script_is_a_job_of_one() -> None:
    # sbatch sets these for the script itself, which is nobody's task.
    batch = without(SLURM, "SLURM_STEP_ID")
    assert ranks(detect({**batch, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})) == (0, 1, 0, 1)
    interactive = {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_ID": str(0xFFFFFFFA)}
    assert detect(interactive).source == "single"


def test_mpirun_inside_an_allocation() -> None:
    mpi = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4", "SLURM_JOB_ID": "9"}
    first = {**mpi, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "0"}  # of the batch script
    second = {**first, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n2"}  # of mpirun's daemon
    found = detect(first)
    assert (found.source, found.rendezvous.kind, found.rendezvous.host) == (
        "openmpi",
        "munge",
        "n1",
    )
    assert detect(second).rendezvous == found.rendezvous
    server = detect_server({**second, "HERRING_SERVERS": "1"})
    assert server.rendezvous == detect({**first, "HERRING_SERVERS": "1"}).rendezvous


@pytest.mark.parametrize("base", [OPEN_MPI, MPICH], ids=["openmpi", "mpich"])
def test_servers_in_the_same_line(base: dict[str, str]) -> None:
    size = next(name for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if name in base)
    locals_ = {name: "4" for name in base if name.endswith(("LOCAL_SIZE", "LOCALNRANKS"))}
    line = {**base, size: "4", **locals_}
    found = detect({**line, "HERRING_SIZE": "2"})
    # How many of a host's ranks are workers, nobody knows before they meet.
    assert ranks(found) == (1, 2, None, None)
    assert (found.servers, found.launched, found.rendezvous.kind) == (2, 4, "file")
    behind = {name: "2" if value == "1" else value for name, value in line.items()}
    server = detect_server(behind)
    assert (server.rank, server.rendezvous) == (2, found.rendezvous)
    assert "contradicts HERRING_SIZE=2" in refused({**behind, "HERRING_SIZE": "2"})
    assert "HERRING_SIZE=5 contradicts" in refused({**line, "HERRING_SIZE": "5"})
    assert "HERRING_SERVERS=1 contradicts HERRING_SIZE=2" in refused(
        {**line, "HERRING_SIZE": "2", "HERRING_SERVERS": "1"}
    )
    assert detect({**line, "HERRING_SIZE": "4"}).servers == 0
    one = {**line, "HERRING_SIZE": "1", **{name: "0" for name in line if name.endswith("_RANK")}}
    one |= {name: "0" for name in line if name.endswith("LOCALRANKID")}
    assert (detect(one).size, detect(one).servers, detect(one).rendezvous.kind) == (1, 3, "file")
    apart = {**line, size: "6", "HERRING_SIZE": "2"}
    assert "HERRING_RENDEZVOUS is not set" in refused(apart)
    with pytest.raises(ConfigurationError, match="are on several hosts"):
        detect_server(apart)


def test_a_server_on_its_own() -> None:
    with pytest.raises(ConfigurationError, match=r"does not know where.*HERRING_RENDEZVOUS"):
        detect_server({"HERRING_RANK": "1", "HERRING_SIZE": "2", "WORLD_SIZE": "2"})
    # What is around it is nobody's business where the address was given.
    found = detect_server({"HERRING_RENDEZVOUS": "host2:7", "HERRING_SECRET": SECRET}, "")
    assert found.rendezvous.address == "host2:7"  # an empty option counts as not given
    found = detect_server({"PMI_RANK": "x", "HERRING_SECRET": SECRET}, "host1:5")
    assert (found.rendezvous.kind, found.rendezvous.address) == ("address", "host1:5")
    assert SECRET not in repr(found)
    assert detect_server({"SLURM_JOB_ID": "3"}, "host1:5").rendezvous.kind == "munge"


@pytest.mark.parametrize("name", ["SLURM_JOB_NODELIST", "SLURM_JOB_ID"])
def test_slurm_variables_of_the_rendezvous(name: str) -> None:
    assert f"{name} is not" in refused(without(SLURM, name))


def test_a_batch_allocation_alone_is_a_job_of_one() -> None:
    assert detect(without(SLURM, "SLURM_PROCID")).size == 1


def test_order_of_launchers() -> None:
    for count in range(1, len(LAUNCHERS) + 1):
        for names in itertools.combinations(LAUNCHERS, count):
            merged: dict[str, str] = {}
            for name in names:
                merged.update(LAUNCHERS[name])
            if "openmpi" not in names and "pmi" in names and "slurm" in names:
                merged["SLURM_NNODES"] = "1"
            if names[:2] == ("herring", "torchrun"):
                merged["RANK"] = merged["HERRING_RANK"]
            assert detect(merged).source == names[0], names


def test_rendezvous_holds_under_every_launcher() -> None:
    for name, environ in LAUNCHERS.items():
        found = detect({**environ, "HERRING_RENDEZVOUS": "[fd00::1]:77", "HERRING_SECRET": SECRET})
        assert found.rendezvous.address == "[fd00::1]:77", name


def test_a_loopback_rendezvous_is_one_host() -> None:
    environ = without(HERRING, "HERRING_SECRET_FILE")
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert detect({**environ, "HERRING_RENDEZVOUS": f"{host}:5000"}).single_host


def test_servers_need_a_rendezvous() -> None:
    assert "HERRING_RENDEZVOUS is not" in refused({"HERRING_SERVERS": "2"})
    found = detect({"HERRING_SERVERS": "2", "HERRING_RENDEZVOUS": "127.0.0.1:5000"})
    assert (found.size, found.servers, found.rendezvous.kind) == (1, 2, "address")


@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size", "base"),
    [
        ("HERRING_RANK", "HERRING_SIZE", "HERRING_LOCAL_RANK", "HERRING_LOCAL_SIZE", HERRING),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", TORCHRUN),
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            OPEN_MPI,
        ),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", MPICH),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", SLURM),
    ],
)
def test_contradictions_name_variable_and_value(
    rank: str, size: str, local_rank: str, local_size: str, base: dict[str, str]
) -> None:
    assert f"{size} is not" in refused(without(base, size))
    for value in ("4x", "-1", "1.5", "9" * 30, "٣"):
        message = refused({**base, rank: value})
        assert f"{rank}={value}" in message
        assert "allowed" in message
    for value in ("0", "-3", "two"):
        assert f"{size}={value}" in refused({**base, size: value})
    message = refused({**base, rank: base[size]})
    assert f"{rank}={base[size]}" in message
    assert f"{size}={base[size]}" in message
    message = refused({**base, local_rank: "99"})
    assert f"{local_rank}=99" in message
    assert f"{local_size}={base[local_size]}" in message
    if base is not SLURM:  # there it is an upper bound
        assert f"{local_size}=99" in refused({**base, local_size: "99"})


def test_torchrun_inside_of_another_launch_is_refused() -> None:
    """Otherwise each of torchrun's workers would be a job of its own, and average nothing."""
    left_over = {"HERRING_RANK": "0", "HERRING_SIZE": "1"}
    message = refused({**TORCHRUN, **left_over})
    assert "RANK=2 of torchrun contradicts HERRING_RANK=0" in message
    assert "unset HERRING_RANK" in message
    first = {**TORCHRUN, "RANK": "0", **left_over}
    assert "WORLD_SIZE=4 of torchrun contradicts HERRING_SIZE=1" in refused(first)
    # `herring run` inside torchrun sets all of them.
    assert detect({**TORCHRUN, **HERRING, "RANK": "3"}).source == "herring"


@pytest.mark.parametrize("name", ["HERRING_SIZE", "HERRING_LOCAL_RANK", "HERRING_LOCAL_SIZE"])
def test_ours_without_a_rank(name: str) -> None:
    message = refused({name: "1", **TORCHRUN})
    assert f"{name}=1" in message
    assert "HERRING_RANK" in message


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_size_without_rank(name: str) -> None:
    assert f"{name}=2" in refused({name: "2"})


def test_one_local_variable_without_the_other() -> None:
    assert "HERRING_LOCAL_SIZE is not" in refused(without(HERRING, "HERRING_LOCAL_SIZE"))
    assert "HERRING_LOCAL_RANK is not" in refused(without(HERRING, "HERRING_LOCAL_RANK"))


def test_by_hand_needs_a_rendezvous() -> None:
    message = refused(without(HERRING, "HERRING_RENDEZVOUS"))
    assert "HERRING_RENDEZVOUS" in message
    assert "HERRING_SIZE=4" in message


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
def test_torchrun_without_master(name: str) -> None:
    assert f"{name} is not" in refused(without(TORCHRUN, name))


@pytest.mark.parametrize(
    "address", ["host", "host:", ":1", "host:0", "host:65536", "a:b:1", "[::1]", "h o:1", "h:1 2"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HERRING_RENDEZVOUS"):
        parse_address(address)


def test_addresses() -> None:
    assert parse_address("host-1.example:29600") == ("host-1.example", 29600)
    assert parse_address("[fe80::1%eth0]:1") == ("fe80::1%eth0", 1)


@pytest.mark.parametrize("secret", ["00" * 15, "zz" * 16, "0" * 33])
def test_secrets_that_are_none_are_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_secret(secret)
    assert secret not in str(caught.value)


def test_a_secret_that_may_be_guessed_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(_core, "log_warning", said.append)
    parse_secret("ab" * 31)
    (line,) = said
    assert re.match("HERRING_SECRET is 31 bytes.*openssl rand", line)
    assert "abab" not in line
    parse_secret("ab" * 32)
    assert said == [line]


def test_the_secret_is_not_shown() -> None:
    found = detect({**without(HERRING, "HERRING_SECRET_FILE"), "HERRING_SECRET": SECRET})
    assert found.secret == bytes.fromhex(SECRET)
    assert SECRET not in repr(found)
    assert repr(found.secret) not in repr(found)


@pytest.mark.parametrize("job", ["a b", "x" * 65, "../etc", "ä"])
def test_job_names(job: str) -> None:
    assert "HERRING_JOB" in refused({"HERRING_JOB": job})


@given(
    st.dictionaries(
        st.sampled_from(sorted({name for each in LAUNCHERS.values() for name in each})),
        st.one_of(
            st.sampled_from(["0", "1", "2", "", "x", "-1", "n[1-2]"]),
            st.text("019-+.x[,] \u0663", max_size=6),
        ),
    )
)
def test_any_environment_gives_ranks_or_one_error(environ: dict[str, str]) -> None:
    try:
        found = detect(environ)
    except HerringError as error:
        assert isinstance(error, ConfigurationError)
        assert any(name in str(error) for name in (*environ, "HERRING_"))
    else:
        assert 0 <= found.rank < found.size
        if found.local_size is not None:
            assert found.local_rank is not None
            assert 0 <= found.local_rank < found.local_size <= found.size


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node", "node"),
        ("n[1-3]", "n1"),
        ("n[08-10,2],login", "n08"),
        ("r[1-2]n[3-4]-ib", "r1n3-ib"),
        ("a.b-c_d,[1-2]", "a.b-c_d"),
        ("n[1-999999999]", "n1"),
    ],
)
def test_the_first_host_of_a_node_list(text: str, host: str) -> None:
    assert first_host(text) == host


@pytest.mark.parametrize("text", ["", "n[1-", "n1]", "n[]", "n[a-b]", "a,,b", "a b", ",", "a,b["])
def test_node_lists_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SLURM_JOB_NODELIST"):
        first_host(text)


NAMES = st.from_regex(r"\A[a-z]{1,4}\Z")
NUMBERS = st.builds(
    lambda first, more, digits: (
        f"{first:0{digits}d}" + (f"-{first + more:0{digits}d}" if more else "")
    ),
    *(st.integers(0, 99), st.integers(0, 5), st.integers(1, 3)),
)
BRACKETS = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda ranges: f"[{','.join(ranges)}]")
HOSTS = st.builds("{}{}{}".format, NAMES, BRACKETS | NAMES, BRACKETS | NAMES)


@given(st.lists(HOSTS, min_size=1, max_size=4).map(",".join))
def test_another_parser_of_node_lists_finds_the_same_host(text: str) -> None:
    hostlist = pytest.importorskip("hostlist")  # in tests only: its licence is the GPL
    assert first_host(text) == hostlist.expand_hostlist(text)[0]


def test_tasks_on_node() -> None:
    assert [tasks_on_node("4(x2),3", node) for node in range(4)] == [4, 4, 3, None]
    with pytest.raises(ConfigurationError):
        tasks_on_node("4(x2", 0)
