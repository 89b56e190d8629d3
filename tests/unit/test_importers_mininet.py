"""Mininet scripts become topology files: what is read, what is asked, what is refused, and that nothing is started."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from testbed.commands.importing import import_file
from testbed.importers.links import LinkChoices
from testbed.importers.mininet import is_script, tc_seconds
from testbed.importers.pipeline import Imported, import_topology
from testbed.importers.reading import ImportRefusedError
from testbed.importers.resolve import Choices
from testbed.load import load_topology
from testbed.topology import Link

DOC = (Path(__file__).parents[2] / "docs/mininet.md").read_text("utf-8")
HEAD = "from mininet.topo import Topo\n"


@pytest.fixture
def bring(tmp_path: Path):
    """Import a script as ``net.py``."""

    def run(text: str, *, wanted: str = "", **links) -> Imported:
        (tmp_path / "net.py").write_text(HEAD + text)
        name = f"net.py:{wanted}" if wanted else "net.py"
        return import_topology(tmp_path / name, Choices(device="l4", links=LinkChoices(**links)))

    return run


def pair(options: str, node: str = "", body: str = "") -> str:
    """A Topo of two hosts and one link."""
    return (
        "class Pair(Topo):\n    def build(self):\n"
        f"        self.addLink(self.addHost('h1', {node}), self.addHost('h2'), {options})\n{body}"
    )


def only_link(imported: Imported) -> Link:
    (link,) = imported.topology.links
    return link


def test_hosts_are_servers_and_switches_routers(bring) -> None:
    net = bring(
        "class Star(Topo):\n    def build(self):\n        s = self.addSwitch('s1')\n"
        "        for n in (1, 2): self.addLink(self.addHost(f'h{n}'), s, bw=10, delay='1ms')\n"
    ).topology

    assert {node.name: node.kind for node in net.nodes} == {"s1": "router", "h1": "server", "h2": "server"}
    assert {link.name for link in net.links} == {"h1-s1", "h2-s1"}


def test_link_options_hold_in_both_directions(bring) -> None:
    link = only_link(bring(pair("bw=12.5, delay='5ms', jitter='200us', loss=0.5, max_queue_size=40")))

    assert link.forward == link.backward
    there = link.forward
    assert (there.rate_bps, there.delay_s, there.jitter_s) == (12.5e6, 0.005, 0.0002)
    assert (there.loss, there.queue_packets) == (0.005, 40)


def test_options_of_one_interface_hold_for_what_leaves_it_and_common_ones_win(bring) -> None:
    own = "params1={'bw': 5, 'max_queue_size': 10, 'delay': '9ms'}, params2={'bw': 50}, delay='2ms'"
    link = only_link(bring(pair(own)))

    assert (link.forward.rate_bps, link.backward.rate_bps) == (5e6, 50e6)
    assert (link.forward.delay_s, link.backward.delay_s) == (0.002, 0.002)
    assert (link.forward.queue_packets, link.backward.queue_packets) == (10, None)


def test_what_the_script_does_not_give_is_asked_for_and_taken_from_the_options(bring) -> None:
    with pytest.raises(ImportRefusedError, match=r"no link has a rate.*\n.*no link has a delay"):
        bring(pair(""))
    link = only_link(bring(pair("bw=10"), rate_bps=1e9, delay_s=0.003))
    assert (link.forward.rate_bps, link.forward.delay_s) == (10e6, 0.003)


@pytest.mark.parametrize(
    ("options", "cpus"),
    [("cores=[0, 2]", 2), ("cores='0-2,5'", 4), ("cores=3", 1), ("cpu=-1", None), ("", None), ("cpu=.5, cores=0", 1)],
)
def test_processors_of_a_host(bring, monkeypatch: pytest.MonkeyPatch, options: str, cpus: float | None) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert bring(pair("bw=1, delay='1ms'", node=options)).topology.node("h1").cpus == cpus


def test_a_share_of_all_processors_is_told_with_the_machine_it_was_read_on(bring, monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    imported = bring(pair("bw=1, delay='1ms'", node="cpu=0.25"))

    assert imported.topology.node("h1").cpus == 2
    assert any("this machine has 8" in note for note in imported.notes)


def test_what_is_left_out_is_said(bring) -> None:
    controller = "from mininet.node import Controller\n"
    body = "        self.addNode('c0', cls=Controller)\n"
    imported = bring(controller + pair("bw=1, delay='1ms', use_hfsc=True", node="ip='10.9.9.9'", body=body))

    assert [node.name for node in imported.topology.nodes] == ["h1", "h2"]
    assert "controllers are not imported: routers find their ways by themselves" in imported.notes
    assert "2 options not imported, of nodes: ip; of links: use_hfsc" in imported.notes


def test_jitter_without_delay_has_no_effect_as_in_mininet(bring) -> None:
    imported = bring(pair("bw=1, jitter='1ms'"), delay_s=0.01)

    assert only_link(imported).forward.jitter_s == 0
    assert any("jitter without delay" in note for note in imported.notes)


TWO = (
    "class Base(Topo):\n    def build(self, n=1, rate=1):\n"
    "        for i in range(n): self.addLink(self.addHost(f'a{i}'), self.addHost(f'a{i + 1}'), bw=rate, delay='1ms')\n"
    "class Other(Base): pass\n"
)


def test_of_several_classes_one_is_named(bring) -> None:
    with pytest.raises(
        ImportRefusedError, match=r"net\.py: several topologies; name one, as net\.py:Base, of Base and"
    ):
        bring(TWO)
    assert len(bring(TWO, wanted="Other").topology.links) == 1
    with pytest.raises(ImportRefusedError, match="no topology 'Othr'; did you mean 'Other'"):
        bring(TWO, wanted="Othr")


def test_the_entry_of_topos_goes_before_classes_and_takes_arguments(bring) -> None:
    script = f"{TWO}topos = {{'mine': lambda n=1, rate=7: Other(n=n, rate=rate)}}\n"

    assert only_link(bring(script)).forward.rate_bps == 7e6
    net = bring(script, wanted="mine,3,rate=9").topology
    assert [link.forward.rate_bps for link in net.links] == [9e6] * 3


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("x = (\n", r"net\.py:2: not valid Python: '\(' was never closed"),
        ("\nimport nothing_of_that_name\n", r"net\.py:3: ModuleNotFoundError: No module named 'nothing_of"),
        ("class A(Topo):\n    def build(self):\n        self.addHst('h1')\n", r"net\.py:4: A: AttributeError: 'A' obj"),
        ("class A(Topo):\n    def build(self, k): pass\n", r"net\.py: A: TypeError: .*missing 1 required"),
        ("import sys\nsys.exit('no')\n", r"net\.py:3: SystemExit: no"),
        (
            "from mininet.net import Mininet\nnet = Mininet()\n",
            r"net\.py:3: the script makes a network when it is load",
        ),
        ("x = 1\n", r"net\.py: no class derived from mininet\.topo\.Topo and no 'topos'"),
        ("topos = {'a': lambda: 3}\n", r"net\.py: a makes no mininet\.topo\.Topo but int"),
        (pair("bw='10'"), r"net\.py: link h1 - h2: bw '10' is not a number"),
        (pair("bw=-1"), r"link h1 - h2: bw -1 is negative"),
        (pair("delay=5"), r"link h1 - h2: delay: 5 has no unit, which tc takes for us or ns"),
        (pair("delay='5ms 1ms'"), r"link h1 - h2: delay: '5ms 1ms' is no time such as '5ms'"),
        (pair("bw=1, delay='1ms', loss=150"), r"h1 - h2: a loss of 1\.5 is out of range"),
        (pair("bw=1, delay='1ms', max_queue_size=0"), r"h1 - h2: a queue of 0 packets is out of range: 1 to"),
        (pair("", node="cores='all'"), r"host h1: cores 'all' are no cores such as"),
        (pair("", node="cpu='half'"), r"host h1: cpu 'half' is no share"),
    ],
)
def test_a_mistake_is_one_message_with_its_place(bring, script: str, message: str) -> None:
    with pytest.raises(ImportRefusedError, match=message):
        bring(script)


def test_a_script_finds_its_neighbours_and_leaves_nothing_behind(bring, tmp_path: Path, capsys) -> None:
    from mininet.net import Mininet

    (tmp_path / "halls_of_us.py").write_text("RATE = 3\n")
    before, path = Mininet.__init__, list(sys.path)
    run = "if __name__ == '__main__':\n    raise SystemExit('run')\n"
    script = f"from halls_of_us import RATE\nprint('hello')\n{pair('bw=RATE, delay=chr(49) + chr(115)')}{run}"

    assert only_link(bring(script)).forward.rate_bps == 3e6
    assert {each.name for each in tmp_path.iterdir()} == {"net.py", "halls_of_us.py"}
    assert (Mininet.__init__, sys.path) == (before, path)
    assert capsys.readouterr().out == ""
    sys.modules.pop("halls_of_us")


def test_only_python_files_are_scripts() -> None:
    assert is_script(Path("a/b.py")) and is_script(Path("b.py:Mine,3"))  # noqa: PT018
    assert not is_script(Path("b.pyc")) and not is_script(Path("b.json:py"))  # noqa: PT018
    with pytest.raises(ImportRefusedError, match=r"gone\.py: no such file"):
        import_topology(Path("gone.py:A"), Choices())


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1s", 1), ("2 secs", 2), ("3MS", 3e-3), ("4usec", 4e-6), ("5ns", 5e-9), (0, 0), (".5ms", 5e-4)],
)
def test_times_of_tc(written: object, seconds: float) -> None:
    assert tc_seconds(written, "delay") == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["5", "ms", "5m", "-1ms", "1e999s", "5 secsecs", ""])
def test_texts_that_are_no_time_are_refused(written: str) -> None:
    with pytest.raises(ImportRefusedError, match="delay"):
        tc_seconds(written, "delay")


def test_the_help_says_that_the_script_is_run() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(import_file)
    text = " ".join(CliRunner().invoke(app, ["--help"], terminal_width=200).output.replace("│", " ").split())
    assert "run, with your rights" in text


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    (text,) = re.findall(r"Save as `my_topo\.py`:\n\n```python\n(.*?)```", DOC, re.DOTALL)
    (tmp_path / "my_topo.py").write_text(text)
    app = typer.Typer()
    app.command()(import_file)
    for command in re.findall(r"^    testbed import (.+)$", DOC, re.MULTILINE):
        file, _, target, *options = shlex.split(command)
        arguments = [str(tmp_path / file), "-o", str(tmp_path / target), *options]
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0

    net = load_topology(tmp_path / "campus.yaml")
    assert [node.name for node in net.servers] == ["h1a", "h1b", "h2a", "h2b"]
    seat = net.link("h1a-s1")
    assert (seat.forward.rate_bps, seat.backward.rate_bps, seat.forward.loss) == (20e6, 100e6, 0.001)
    assert net.link("s1-s0").forward.queue_packets == 200
    assert len(load_topology(tmp_path / "campus3.yaml").servers) == 6
