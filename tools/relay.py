"""A relay between a pretended host and the bridge: loses, repeats, delays and changes a part of the frames (`relay.c`).

    host eth0 == v1  relay  q1 == p1  bridge

While there is none, v1 itself is the port of the bridge. The kernel has no netem here, and packet filters neither repeat nor
delay a frame.
"""

import json
import subprocess

import launch
import netns

SOURCE = launch.ROOT / "tools" / "relay.c"
PROTOCOLS = {None: 0, "udp": 17, "tcp": 6}
TOWARD = {"host": 1, "network": 2, "both": 3}
MOST_SEGMENTS = 65535  # what an interface has unless told otherwise


def compiled():
    """The program, compiled if its source has changed."""
    target = launch.OUT / "tests" / "relay"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", target, SOURCE], check=True)
    return target


class Relay:
    """A relay at the cable of a host, until `end`. Frames to and from the launcher's node pass unchanged.

    - `protocol`: `udp` or `tcp`, for faults of such frames only; None: of all.
    - `toward`: `host`, `network` or `both`, the direction of frames that have faults.
    - `what`: frames of a thousand to `drop`, `duplicate`, `reorder`, `corrupt`; `longest`, a limit in bytes; and `seed`.
    """

    def __init__(self, hosts, name, *, protocol=None, toward="both", **what):
        self.hosts, self.name, self.number = hosts, name, hosts.number(name)
        number = self.number
        # The kernel splits what programs send in one piece before it leaves, as for an interface of real hardware.
        hosts.enter(name, "ip link set eth0 gso_max_segs 1")
        hosts.enter(netns.LOGIN, f"ip link add q{number} mtu {hosts.mtu} type veth peer name p{number} mtu {hosts.mtu}; "
                                 f"ip link set q{number} addrgenmode none arp off up; ip link set p{number} gso_max_segs 1 up")
        options = {"protocol": PROTOCOLS[protocol], "toward": TOWARD[toward], "spare": 254, **what}
        words = [compiled(), f"v{number}", f"q{number}", *(f"{option}={value}" for option, value in options.items())]
        self.process = subprocess.Popen(hosts.words(netns.LOGIN, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the relay does not start")
        hosts.enter(netns.LOGIN, f"ip link set v{number} nomaster arp off; ip link set p{number} master br0")

    def counts(self):
        """What it has done so far."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        """Removes the relay. Returns its counts. The host may have gone."""
        number = self.number
        self.hosts.enter(netns.LOGIN, f"ip link set p{number} nomaster; ip link set v{number} arp on master br0", check=False)
        output, _ = self.process.communicate()
        self.hosts.enter(netns.LOGIN, f"ip link del q{number}")
        if self.name in self.hosts.pids:
            self.hosts.enter(self.name, f"ip link set eth0 gso_max_segs {MOST_SEGMENTS}")
        return json.loads(output)
