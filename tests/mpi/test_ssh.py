"""`weir run --hosts` and `weir doctor --hosts` over a real `ssh`, without any option that takes its place."""

import shutil
import subprocess

import launch
import netns
import pytest
from test_run_hosts import MPIS, hosts_of_ranks, left_behind, run_words, stress_program

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
reason = netns.reason_not_possible() or (None if SSHD and shutil.which("ssh") else "no sshd here; Debian: apt install openssh-server")
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

SERVER = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
StrictModes no
"""
CLIENT = """
Host h1 h2
    IdentityFile {folder}/id_ed25519
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


@pytest.fixture(scope="module")
def two():
    """Two hosts with a server each. The user's own directory of keys is hidden from them, and not touched."""
    with netns.Hosts(2) as hosts:
        folder = hosts.state / "ssh"
        folder.mkdir(mode=0o700)
        for key in ["id_ed25519", "host_key"]:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        (folder / "authorized_keys").write_text((folder / "id_ed25519.pub").read_text())
        (folder / "sshd_config").write_text(SERVER.format(folder=folder))
        (folder / "config").write_text(CLIENT.format(folder=folder))
        for name in [netns.LOGIN, *hosts.names]:
            hosts.enter(name, f"mkdir -p -m 700 ~/.ssh; mount --bind {folder} ~/.ssh")
        for name in hosts.names:
            hosts.enter(name, f"mkdir -p /run/sshd; {SSHD} -f {folder}/sshd_config")
        yield hosts


def weir(hosts, words, timeout=120):
    (hosts.state / "hostfile").write_text("h1\nh2\n")
    env = {name: value for name, value in hosts.login_environment().items() if name != "WEIR_REMOTE_SHELL"}
    return launch.run(hosts.words(netns.LOGIN, [launch.WEIR, *words]), timeout=timeout, env=env)


@pytest.mark.parametrize("mpi", MPIS)
def test_a_job_starts_over_ssh_and_its_report_has_all_ranks(two, mpi, tmp_path):
    report = tmp_path / "report.json"
    outcome = weir(two, run_words(two, mpi, 4, stress_program(mpi), "--json", report))
    assert outcome.ok and "all correct" in outcome.output, outcome
    told = launch.read_report(report)
    assert hosts_of_ranks(told) == {0: "h1", 1: "h1", 2: "h2", 3: "h2"} and told["remarks"] == [], told
    assert left_behind(two) == [], outcome


def test_the_doctor_checks_hosts_over_ssh(two):
    outcome = weir(two, ["doctor", "--hosts", two.state / "hostfile"])
    assert outcome.ok and "FAIL" not in outcome.output, outcome
    assert "h1" in outcome.output and "h2" in outcome.output, outcome
