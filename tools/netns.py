#!/usr/bin/env python3
"""Pretended hosts on one machine, and MPI jobs across them over weir.

Each host has its own network, host name, processes, IPC and file systems, its own /dev/shm, and the addresses 10.99.0.N and
fd99::N. All hang on one bridge, where the launcher of the MPI runs as on a login node. Nothing is added to the machine's own network.
Needs root. The hosts end with this process.

    tools/netns.py --hosts 2 -n 4 -- out/env/intel/bin/IMB-MPI1 PingPong     # MPICH, 2 ranks on each host
    tools/netns.py --mpi intel --set FI_WEIR_LINK=udp -n 2 -- PROGRAM
    tools/netns.py --hosts 3 --shell                   # a shell on the login node: h1 COMMAND..., weir run --hosts FILE ...

A launcher starts its helpers with a program that takes the place of ssh. The tests use the class `Hosts`.
"""

import argparse
import ctypes
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import launch

NETWORK = "10.99.0"
NETWORK6 = "fd99::/64"
LAUNCHER_NETWORK = "10.98.0"
LOGIN = "login"
NAMESPACES = ["-n", "-u", "-i", "-m", "-p"]
# Takes the place of ssh: [options] HOST COMMAND...
AGENT = """#!/bin/bash
while [ $# -gt 0 ]; do case $1 in -[bceFiIJLlmoOpQRSW]) shift 2;; -*) shift;; *) break;; esac; done
host=${{1#*@}}; shift
exec env -u LD_PRELOAD nsenter -t "$(cat {state}/"$host".pid)" -n -u -i -m -p -- /bin/bash -c "cd {shared}; $*"
"""
PR_SET_PDEATHSIG = 1


def reason_not_possible():
    """Why this machine cannot pretend hosts, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    made = subprocess.run(["unshare", *NAMESPACES, "-f", "--mount-proc", "ip", "link", "set", "lo", "up"], capture_output=True)
    return None if made.returncode == 0 else f"no network namespaces here: {made.stderr.decode().strip()}"


def address6(number):
    """The address of IPv6 of a host, with the length of its prefix."""
    return NETWORK6.replace("::", f"::{number}")


def own_network(mpi):
    """Variables of the ranks of an MPI that uses its own network between hosts, without weir."""
    if mpi == "openmpi":
        return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}
    return over_tcp(mpi)


def with_collectives(is_on):
    """Variables of the ranks that do collective operations by groups (libweir-mpi.so), also across hosts, or by messages."""
    if not is_on:
        return {"FI_WEIR_COLLECTIVES": "0"}
    return {"LD_PRELOAD": str(launch.COLLECTIVES), "FI_WEIR_COLLECTIVES": "1", "FI_WEIR_COLLECTIVES_ACROSS": "1"}


def over_tcp(mpi):
    """Variables of the ranks of an MPI that uses the provider `tcp` of libfabric between hosts."""
    if mpi == "openmpi":
        return {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi", "OMPI_MCA_opal_common_ofi_provider_include": "tcp", "FI_PROVIDER": "tcp"}
    return {"I_MPI_OFI_PROVIDER": "tcp"} if mpi == "intel" else {"FI_PROVIDER": "tcp", "MPIR_CVAR_CH4_NETMOD": "ofi"}


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Hosts:
    """`count` hosts, called h1, h2 and so on. `mtu`: unit bytes. `launcher_network`: `mpiexec` uses a second network, eth1 on each
    host, so that faults of the first one do not meet the launcher of the MPI."""

    def __init__(self, count, mtu=1500, launcher_network=False):
        self.count, self.mtu, self.holders, self.pids, self.ended = count, mtu, {}, {}, []
        self.launcher_network = launcher_network
        self._folder = tempfile.TemporaryDirectory(prefix="weir-hosts-")
        self.state = pathlib.Path(self._folder.name)
        self.shared = self.state / "tmp"

    def __enter__(self):
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    @property
    def names(self):
        return [f"h{number}" for number in range(1, self.count + 1)]

    def _up(self):
        self.shared.mkdir()
        lines = ["127.0.0.1 localhost", f"{NETWORK}.254 {LOGIN}"]
        lines += [f"{NETWORK}.{number} {name}" for number, name in enumerate(self.names, 1)]
        (self.state / "hosts").write_text("\n".join(lines) + "\n")
        agent = self.state / "agent"
        agent.write_text(AGENT.format(state=self.state, shared=self.shared))
        agent.chmod(0o755)
        self._hold(LOGIN, ["-n", "-u", "-m"])
        # An address of its own: otherwise it is one of the ports' and changes with them.
        self.enter(LOGIN, f"ip link add br0 address 02:00:00:00:00:fe mtu {self.mtu} type bridge stp_state 0 forward_delay 0; "
                          "ip link set br0 up; "
                          f"ip addr add {NETWORK}.254/24 dev br0; ip addr add {address6(254)} dev br0 nodad")
        if self.launcher_network:
            self.enter(LOGIN, "ip link add br1 address 02:00:00:00:01:fe type bridge stp_state 0 forward_delay 0; "
                              f"ip link set br1 up; ip addr add {LAUNCHER_NETWORK}.254/24 dev br1")
        for name in self.names:
            self.boot(name)

    def number(self, name):
        """The last part of the address of a host. Its port at the bridge is called v and this number."""
        return self.names.index(name) + 1

    def boot(self, name):
        """A host begins, for the first time or after `kill`, with the same address."""
        number = self.number(name)
        self._hold(name, [*NAMESPACES, "-f", "--mount-proc", "--kill-child=KILL"])
        self.enter(name, "mount -t tmpfs tmpfs /dev/shm")
        self.enter(LOGIN, f"ip link add v{number} mtu {self.mtu} type veth peer name eth0 mtu {self.mtu} "
                          f"netns /proc/{self.pids[name]}/ns/net; ip link set v{number} master br0 up")
        self.enter(name, f"ip addr add {NETWORK}.{number}/24 dev eth0; ip addr add {address6(number)} dev eth0 nodad; "
                         "ip link set eth0 up")
        if self.launcher_network:
            self.enter(LOGIN, f"ip link add m{number} type veth peer name eth1 netns /proc/{self.pids[name]}/ns/net; "
                              f"ip link set m{number} master br1 up")
            self.enter(name, f"ip addr add {LAUNCHER_NETWORK}.{number}/24 dev eth1; ip link set eth1 up")

    def _hold(self, name, flags):
        """Starts the process that keeps the namespaces of a host."""
        holder = subprocess.Popen(["unshare", *flags, "--propagation", "private", "--", "sleep", "infinity"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, preexec_fn=_die_with_parent,
                                  start_new_session=True)
        self.holders[name] = holder
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and holder.poll() is None:
            pid = holder.pid
            if "-f" in flags:
                children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                pid = int(children[0]) if children else None
            if pid and pathlib.Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                self.pids[name] = pid
                break
            time.sleep(0.005)
        else:
            raise RuntimeError(f"cannot make the namespaces of {name}")
        (self.state / f"{name}.pid").write_text(str(pid))
        self.enter(name, f"hostname {name}; mount --bind {self.state}/hosts /etc/hosts; mount -t tmpfs tmpfs {self.shared}; "
                         "ip link set lo up")

    def words(self, name, command):
        """The command line that runs the words `command` on a host."""
        flags = ["-n", "-u", "-m"] if name == LOGIN else NAMESPACES
        return ["nsenter", "-t", str(self.pids[name]), *flags, "--", *map(str, command)]

    def enter(self, name, script, check=True):
        """Runs a shell script on a host."""
        return subprocess.run(self.words(name, ["sh", "-ec", script]), check=check, capture_output=True, text=True)

    def login_environment(self):
        """Variables with which `weir run --hosts` on the login node reaches the hosts. Each has a TMPDIR of its own."""
        return {"WEIR_REMOTE_SHELL": str(self.state / "agent"), "TMPDIR": str(self.shared),
                "PRTE_MCA_prte_tmpdir_base": str(self.shared),
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def kill(self, name):
        """The host is gone at once, with its processes and its network."""
        self.enter(LOGIN, f"ip link del v{self.number(name)}")
        if self.launcher_network:
            self.enter(LOGIN, f"ip link del m{self.number(name)}")
        os.kill(self.pids.pop(name), signal.SIGKILL)
        # The kernel has killed all its processes. It ends the last one only when a launcher outside has waited for its own.
        self.ended.append(self.holders.pop(name))

    def processes(self, name, program):
        """The processes of a host whose command line contains `program`, by their numbers on this machine."""
        space = os.readlink(f"/proc/{self.pids[name]}/ns/pid")
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == space and program.encode() in words[0]:
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended
        return found

    def mpiexec(self, mpi, ranks, program, *, per_host=None, settings=None, environment=None, flags=()):
        """Command line and environment of `program` with `ranks` ranks over weir. `per_host`: ranks on each host."""
        per_host = per_host or -(-ranks // self.count)
        variables = {"FI_PROVIDER_PATH": str(launch.PROVIDER.parent), "FI_PROVIDER": "weir", **(settings or {})}
        if environment is not None:
            variables = environment
        bin_dir, agent, names = launch.env_dir(mpi) / "bin", self.state / "agent", self.names
        env = launch.plain_environment(mpi)
        network, bridge = (LAUNCHER_NETWORK, "br1") if self.launcher_network else (NETWORK, "br0")
        if mpi == "openmpi":
            env["PRTE_MCA_prte_tmpdir_base"] = str(self.shared)
            words = [bin_dir / "mpirun", "--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", agent,
                     "--prtemca", "oob_tcp_if_include", f"{network}.0/24", "--host", ",".join(f"{name}:{per_host}" for name in names),
                     "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
            if environment is None:
                words += ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "opal_common_ofi_provider_include", "weir"]
            for name, value in {**variables, "LD_LIBRARY_PATH": env["LD_LIBRARY_PATH"]}.items():
                words += ["-x", f"{name}={value}"]
            env |= variables  # spawned ranks have the variables of the daemons, which this agent passes on
        else:
            words = [bin_dir / "mpiexec"]
            if mpi == "mpich":
                words += ["-launcher", "ssh", "-launcher-exec", agent, "-iface", bridge]
                if environment is None:
                    variables |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
            else:
                env |= {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent), "I_MPI_HYDRA_IFACE": bridge}
                if environment is None:
                    del variables["FI_PROVIDER"]
                    variables |= {"I_MPI_OFI_PROVIDER": "weir", "I_MPI_FABRICS": "ofi", "I_MPI_COLL_INTRANODE": "pt2pt"}
                    env.pop("FI_PROVIDER_PATH", None)
            words += ["-hosts", ",".join(names), "-ppn", str(per_host)]
            for name, value in variables.items():
                words += ["-genv", name, value]
        words += [*flags, "-n", str(ranks), *program]
        return self.words(LOGIN, words), env

    def down(self):
        for holder in self.holders.values():
            holder.kill()
        for name, holder in self.holders.items():
            if name in self.pids and name != LOGIN:
                try:
                    os.kill(self.pids[name], signal.SIGKILL)
                except ProcessLookupError:
                    pass
            holder.wait()
        for holder in self.ended:
            holder.kill()
            holder.wait()
        self._folder.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: %(default)s)")
    parser.add_argument("--mpi", default="mpich", choices=["mpich", "intel", "openmpi"], help="the MPI (default: %(default)s)")
    parser.add_argument("-n", type=int, default=2, help="number of ranks (default: %(default)s)")
    parser.add_argument("--mtu", type=int, default=1500, help="largest packet of the network in bytes (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the ranks")
    parser.add_argument("--collectives", choices=["on", "off"], default="off",
                        help="collective operations by groups, also across hosts (default: %(default)s)")
    parser.add_argument("--provider", help="libfabric provider instead of weir, for example tcp")
    parser.add_argument("--timeout", type=float, default=600, help="time limit in seconds (default: %(default)s)")
    parser.add_argument("--shell", action="store_true", help="a shell on the login node instead of a program")
    parser.add_argument("program", nargs="*")
    options = parser.parse_args()
    if reason := reason_not_possible():
        raise SystemExit(reason)
    settings = with_collectives(options.collectives == "on") | dict(pair.split("=", 1) for pair in options.set)
    with Hosts(options.hosts, options.mtu) as hosts:
        if options.shell:
            script = "".join(f'{name}() {{ {hosts.state}/agent {name} "$@"; }}; export -f {name}; ' for name in hosts.names)
            script += f"cd {shlex.quote(os.getcwd())}; exec bash --norc"
            return subprocess.call(hosts.words(LOGIN, ["bash", "-c", script]), env={**os.environ, **hosts.login_environment()})
        environment = None
        if options.provider:
            environment = {"FI_PROVIDER": options.provider, "MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", **settings}
        program = options.program
        if program and pathlib.Path(program[0]).exists():  # ranks begin in another directory
            program = [pathlib.Path(program[0]).absolute(), *program[1:]]
        words, env = hosts.mpiexec(options.mpi, options.n, program, settings=settings, environment=environment)
        process = subprocess.Popen(words, env={**os.environ, **env, launch.MARK: (mark := launch.new_mark())})
        try:
            return process.wait(options.timeout)
        except subprocess.TimeoutExpired:
            print(f"the time limit of {options.timeout:g} s ended it", file=sys.stderr)
            return 124
        finally:
            launch.end_marked(mark, patience=0.5)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
