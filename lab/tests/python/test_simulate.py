"""Tests the parts of ``herring simulate``: catalogue, timeline of a step, networks and sweeps."""

from __future__ import annotations

import itertools
import json
import math
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from herring import _core, models
from herring.errors import ConfigurationError, InvalidArgumentError
from herring_lab.simulate import bert, catalogue
from herring_lab.simulate.catalogue import Gradient, Layer
from herring_lab.simulate.network import PEERS, Network, load_costs, peer_seconds
from herring_lab.simulate.sweep import parse_sweep
from herring_lab.simulate.timeline import Buffer, Stages, fuse, fuse_evenly, play


@pytest.mark.parametrize("name", catalogue.MODELS)
def test_sizes_add_up_to_what_was_published(name: str) -> None:
    entry = catalogue.MODELS[name]
    gradients = catalogue.gradients(name)
    assert sum(each.elements for each in gradients) == entry.parameters
    assert gradients[-1].moment == 1
    assert all(0 < each.moment <= 1 for each in gradients)
    moments = [each.moment for each in gradients]
    assert moments == sorted(moments)


def test_layers_known_from_the_papers() -> None:
    vgg = catalogue.gradients("vgg-16")
    # The classifier has 90 % of VGG-16's parameters, and its gradients come first. The gradients of
    # the first convolution come last.
    assert [each.elements for each in vgg[:6]] == [1000, 4096000, 4096, 16777216, 4096, 102760448]
    assert vgg[5].moment < 0.01
    assert vgg[-1].elements == 3 * 64 * 9
    # The word embedding is also the output matrix, so its gradient is complete only at the end.
    for name, words in (("gpt-2", 50257 * 768), ("t5-large", 32128 * 1024)):
        assert catalogue.gradients(name)[-1] == Gradient(words, 1.0)
    # In Llama 2 they are different matrices.
    llama = catalogue.gradients("llama-2-7b")
    assert llama[0].elements == llama[-1].elements == 32000 * 4096
    # A picture takes 4.1 G multiplications, 0.118 G of them in the stem.
    resnet = catalogue.gradients("resnet-50")
    stem = 3 * 64 * 49 * 112**2
    assert 1 - resnet[-4].moment == pytest.approx(stem / 4.09e9, rel=0.01)


def test_bert_in_other_sizes_is_like_the_one_that_was_measured() -> None:
    large = catalogue.gradients("bert-large")
    assert [each.moment for each in large] == [each.moment for each in bert.gradients()]
    base = bert.gradients(bert.Shape(12, 768))
    known = bert.variables(bert.Shape(12, 768))
    assert len(known) == 5 + 12 * 16 + 9
    # The paper of BERT says 110 million. This is the published model with heads, without padding.
    assert sum(variable.elements for variable in known) - 6 * 769 == 110_106_428
    moments = {gradient.variable: gradient.moment for gradient in base}
    layers = [moments[5 + 16 * layer] for layer in range(12)]
    gaps = [before - after for before, after in itertools.pairwise(layers)]
    assert max(gaps) == pytest.approx(min(gaps))


def test_unknown_models_are_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'bart' is not known.*; there are resnet-50, .*gpt-2"
    ):
        catalogue.gradients("bart")
    with pytest.raises(ConfigurationError, match=r"'GPT2-xl' is not known \(perhaps gpt-2-xl\?\)"):
        catalogue.gradients("GPT2-xl")


def test_gradients_of_a_layer_come_when_its_work_is_done() -> None:
    made = catalogue.scaled([Layer([5]), Layer([10, 1], 30), Layer([7], 10), Layer([], 60)])
    assert made == [Gradient(7, 0.7), Gradient(1, 1.0), Gradient(10, 1.0), Gradient(5, 1.0)]
    even = catalogue.even_gradients(1000, 3)
    assert [each.elements for each in even] == [333, 333, 334]
    assert even[-1].moment == 1
    assert len(catalogue.even_gradients(2)) == 2


# -- a step in time -------------------------------------------------------------------------------


def test_buffers_are_those_of_the_plan() -> None:
    gradients = catalogue.gradients("bert-large")
    buffers = fuse(gradients, "float32", "float32", 64, 64, 0.45, 2 / 3)
    assert sum(each.size for each in buffers) == 4 * 336_232_258
    assert len({each.size for each in buffers[:-1]}) == 1
    assert buffers[-1].ready == pytest.approx(0.45)
    assert buffers[0].ready > 0.15  # The forward pass yields no gradients.
    # In 16 bits the same buffers take half the bytes.
    narrow = fuse(gradients, "float32", "bfloat16", 64, 64, 0.45, 2 / 3)
    assert [2 * each.size for each in narrow] == [each.size for each in buffers]
    # A buffer is ready when its last gradient is ready, not before.
    elements = [each.elements for each in gradients]
    made = _core.fusion_buffers(elements, "float32", 64, 64)
    end = 0
    for (size, last), buffer in zip(made, buffers):
        end += size
        assert sum(elements[:last]) * 4 < end <= sum(elements[: last + 1]) * 4
        assert buffer.ready == pytest.approx(0.15 + 0.3 * gradients[last].moment)
    with pytest.raises(InvalidArgumentError, match="float33"):
        _core.fusion_buffers([1], "float33", 1, 1)


def test_peers_close_buffers_at_a_size() -> None:
    gradients = [Gradient(10, 0.25), Gradient(30, 0.5), Gradient(5, 1.0)]
    assert fuse_evenly(gradients, 4, 100, 1.0, 1.0) == [Buffer(160, 0.5), Buffer(20, 1.0)]
    assert fuse_evenly(gradients, 4, math.inf, 1.0, 1.0) == [Buffer(180, 1.0)]


def test_averaging_is_hidden_but_for_the_last() -> None:
    buffers = [Buffer(100, 0.4), Buffer(100, 0.7), Buffer(100, 1.0)]
    hidden = play(buffers, Stages(0, 1e-3, latency=0.01), 1.0)
    assert hidden.exposed == pytest.approx(0.11)
    assert hidden.backlog == 0
    assert hidden.network == pytest.approx(0.3)
    # With slower links the second buffer waits for the first, and the third for both.
    slow = play(buffers, Stages(0, 5e-3, latency=0.01), 1.0)
    assert slow.seconds == pytest.approx(0.4 + 1.5 + 0.01)
    assert slow.backlog == pytest.approx(0.4)


def test_a_node_works_before_and_after_the_network() -> None:
    buffers = [Buffer(100, 0.0), Buffer(100, 0.0)]
    found = play(buffers, Stages(2e-3, 1e-3), 0.0)
    # The first stage takes 0.2 s for each buffer, and so does the last stage.
    assert found.seconds == pytest.approx(0.2 + 0.2 + 0.1 + 0.2)
    assert found.node == pytest.approx(0.4)
    started = play(buffers, Stages(0, 1e-3, start=0.5), 0.0)
    assert started.seconds == pytest.approx(1.2)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(0, 1e-2),
    st.floats(1e-6, 1e-2),
    st.floats(0, 0.1),
)
def test_a_step_is_never_shorter_than_its_parts(made, node, pace, latency) -> None:
    ready = sorted(moment for _, moment in made)
    buffers = [Buffer(size, moment) for (size, _), moment in zip(made, ready)]
    found = play(buffers, Stages(node, pace, latency=latency), 1.0)
    last = buffers[-1]
    assert found.seconds >= 1
    assert found.seconds >= last.ready + (2 * node + pace) * last.size + latency - 1e-9
    assert found.seconds >= ready[0] + found.network - 1e-9
    faster = play(buffers, Stages(node, pace / 2, latency=latency), 1.0)
    assert faster.seconds <= found.seconds


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": 0}, "--nodes is 0; it must be from 1 to 100000"),
        ({"nodes": 200_000}, "--nodes is 200000"),
        ({"workers": 0}, "--gpus-per-node is 0; it must be from 1 to 64"),
        ({"servers": -1}, "--servers is -1; it must be from 0 to 16"),
        ({"servers": 17}, "--servers is 17; it must be from 0 to 16"),
        ({"rate": 1.0}, r"--rate is 1 bit/s; it must be from 1e\+06"),
        ({"rtt": -1.0}, "--rtt is -1 s; it must be from 0 to 10 s"),
        ({"rtt": 11.0}, "--rtt is 11 s"),
        ({"loss": 0.2}, "--loss is 20%; it must be from 0% to 10%"),
        ({"loss": math.nan}, "--loss is nan"),
        ({"mtu": 100}, "--mtu is 100 bytes; it must be from 576 to 65521"),
        ({"buffer": 100.0}, "--buffer is 100 bytes; it must be from 9000"),
        ({"node_rate": 0.0}, "--node-rate is 0 bytes/s"),
        ({"late": -1.0}, "--late is -1 s"),
        ({"proxies": -1}, "--proxies is -1"),
    ],
)
def test_impossible_networks_are_refused(values, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Network(**{"nodes": 8, **values})


def test_slow_servers_may_be_more() -> None:
    assert Network(8, servers=64, rate=100e9, server_rate=25e9).most_servers == 64
    with pytest.raises(ConfigurationError, match="from 0 to 64"):
        Network(8, servers=65, rate=100e9, server_rate=25e9)


def test_a_scenario_has_the_hosts_that_a_job_has() -> None:
    made = Network(8, 2, 3, rtt=1e-3).scenario(1000, 64)
    assert [(each.count, each.workers, each.rtt) for each in made.hosts] == [(8, 2, 5e-4)]
    assert [(each.count, each.colocated) for each in made.servers] == [(3, False), (8, True)]
    assert [each.colocated for each in Network(8, servers=0).scenario(1, 64).servers] == [True]
    assert [each.count for each in Network(8, servers=8).scenario(1, 64).servers] == [8]
    # Each worker's engine and each proxy has a core; a proxy serves up to 8 nodes, at most 16 run.
    cores = [Network(n, 4, n).server_costs.cores for n in (2, 8, 9, 64, 12500)]
    assert cores == [1, 1, 2, 8, 16]
    assert Network(8, 4, 8, proxies=8).server_costs.cores == 8
    assert Network(8, 4, 8).node_costs.cores == 4
    assert Network(9, 4, 8).node_costs.cores == 6  # includes the proxies of a colocated server


def test_the_slowest_of_more_nodes_is_later() -> None:
    assert Network(1, late=1e-3).lateness == 0
    assert Network(64, late=1e-3).lateness == pytest.approx(6e-3)


@pytest.mark.parametrize("name", PEERS)
def test_peers_are_the_models_on_the_same_network(name: str) -> None:
    network = Network(16, 4, rate=10e9, rtt=100e-6)
    hosts = 64 if name == "ring" else 16
    latency = 50e-6 + network.costs.wakeup
    algorithm = "ring" if name == "hierarchical" else name
    expected = models.time(algorithm, hosts, 1e8, 10e9 / 8 / 1.02, latency)
    assert peer_seconds(name, network, 1e8, 1.02) == pytest.approx(expected)
    assert peer_seconds(name, Network(1, 4), 1e8, 1.02) == 0
    # If links are faster than processors, the processors count.
    fast = Network(16, 1, rate=1e12)
    slower = models.time(algorithm, 16, 1e8, 1e12 / 8, latency)
    assert peer_seconds(name, fast, 1e8, 1.02) > 1.5 * slower


def test_measured_costs_are_read(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"frame": 2e-6, "byte": 5e-11, "source": "a lab"}))
    costs, source = load_costs(str(file))
    assert (costs.frame, costs.byte, costs.cores, source) == (2e-6, 5e-11, 0, "a lab")
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "write seconds or numbers named frame, byte, wakeup, cores"),
        ('{"frames": 1}', "write seconds"),
        ('{"frame": "2us"}', "frame is '2us'"),
        ('{"byte": -1}', "byte is -1"),
        ('{"byte": true}', "byte is True"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            load_costs(str(file))
    with pytest.raises(ConfigurationError, match="No such file"):
        load_costs(str(tmp_path / "none"))


# -- sweeps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("nodes=2..16", [2, 4, 8, 16]),
        ("nodes=2..20", [2, 4, 8, 16, 20]),
        ("nodes=8..32:8", [8, 16, 24, 32]),
        ("nodes=1..100:x10", [1, 10, 100]),
        ("nodes=64,8", [8, 64]),
        ("servers=0..4:2", [0, 2, 4]),
        ("rate=10gbit..40gbit", [10e9, 20e9, 40e9]),
        ("rtt=0..2ms:1ms", [0, 1e-3, 2e-3]),
        ("loss=0%,0.1%", [0, 1e-3]),
    ],
)
def test_sweeps(text: str, values: list[float]) -> None:
    sweep = parse_sweep(text)
    assert sweep.kind == text.partition("=")[0]
    assert sweep.values == pytest.approx(values)
    whole = sweep.kind in ("nodes", "servers")
    assert all(isinstance(value, int) for value in sweep.values) == whole


def test_a_sweep_ends_where_it_says() -> None:
    sweep = parse_sweep("rtt=10us..100ms:x10")
    assert sweep.values[-1] == 0.1
    assert len(sweep.values) == 5
    assert parse_sweep("nodes=2..12800").values[-2:] == [8192, 12800]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes", "write one of nodes, servers, rate, rtt, loss"),
        ("mtu=1..2", "write one of nodes"),
        ("nodes=2.5", "'2.5' is not a whole number"),
        ("nodes=8..2", "8 is more than 2"),
        ("nodes=0..8", "0 cannot be doubled"),
        ("nodes=1..8:x1", "a factor must be more than 1"),
        ("nodes=1..8:0", "a step must be more than 0"),
        ("nodes=1..1000:1", "at most 100"),
        ("rate=1..2", "not a rate"),
        ("loss=1", "not a share"),
    ],
)
def test_impossible_sweeps_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_sweep(text)
