#!/usr/bin/env python3
"""A packet filter at the interface of a pretended host: drops or changes a part of what arrives.

    tools/xdp.py eth0 --protocol udp --drop 100          # drops 100 of 1000 datagrams, until standard input ends
    tools/xdp.py eth0 --protocol udp --change 10 --at 90

It is a program of XDP, some thirty instructions that this file assembles, so no compiler and no package is needed. The kernel
removes it with the process. At its end the process prints how many packets it has dropped or changed. The tests use the class
`Filter`. Needs root. Source of the encoding: linux/bpf.h, and the kernel's documentation of the instruction set.
"""

import argparse
import ctypes
import os
import socket
import struct
import subprocess
import sys

BPF = 321  # the system call of x86-64
MAP_CREATE, MAP_LOOKUP, PROG_LOAD, LINK_CREATE = 0, 1, 5, 28
ARRAY, XDP_PROGRAM, XDP_ATTACH = 2, 6, 37
DROP, PASS = 1, 2
GET_PRANDOM, LOOKUP = 7, 1
PROTOCOLS = {"udp": 17, "tcp": 6}
ETHERNET, IPV4_PROTOCOL = 14, 23


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, 128)
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(BPF, command, buffer, 128)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf command {command}: {os.strerror(number)}")
    return result


def instruction(code, to=0, source=0, jump=0, value=0):
    return struct.pack("<BBhi", code, source << 4 | to, jump, value)


def assemble(counter, protocol, drop, change, at):
    """The program. `counter`: descriptor of an array of one number. `drop`, `change`: of 1000 packets."""
    needed = max(at + 1 if change else 0, ETHERNET + 20)
    head = [
        instruction(0x61, 7, 1, 0),                 # r7 = first byte of the packet
        instruction(0x61, 3, 1, 4),                 # r3 = its end
        instruction(0xbf, 4, 7),                    # r4 = r7
        instruction(0x07, 4, value=needed),         # r4 += needed
        ("pass", 0x2d, 4, 3, 0),                    # if r4 > r3: pass
        instruction(0x69, 5, 7, 12),                # r5 = type of the frame
        ("pass", 0x55, 5, 0, socket.htons(0x0800)),  # if it is not IPv4: pass
    ]
    if protocol:
        head += [instruction(0x71, 5, 7, IPV4_PROTOCOL), ("pass", 0x55, 5, 0, PROTOCOLS[protocol])]
    head += [
        instruction(0x85, value=GET_PRANDOM),       # r0 = random
        instruction(0x97, 0, value=1000),           # r0 %= 1000
        ("pass", 0x35, 0, 0, drop or change),       # if r0 >= rate: pass
        instruction(0x62, 10, 0, -4, 0),            # key = 0
        instruction(0xbf, 2, 10),
        instruction(0x07, 2, value=-4),
        instruction(0x18, 1, 1, 0, counter), instruction(0),
        instruction(0x85, value=LOOKUP),
        ("act", 0x15, 0, 0, 0),                     # if r0 == 0: act
        instruction(0xb7, 1, value=1),
        instruction(0xdb, 0, 1),                    # the counter += 1
    ]
    act = [instruction(0xb7, 0, value=DROP), instruction(0x95)] if drop else [
        instruction(0x71, 1, 7, at), instruction(0xa7, 1, value=0x55), instruction(0x73, 7, 1, at)]
    places = {"act": len(head), "pass": len(head) + len(act)}
    code = [word if isinstance(word, bytes)
            else instruction(word[1], word[2], word[3], places[word[0]] - number - 1, word[4])
            for number, word in enumerate(head)]
    return b"".join([*code, *act, instruction(0xb7, 0, value=PASS), instruction(0x95)])


def attach(interface, protocol, drop, change, at):
    """Returns the counter. The program stays as long as this process has the descriptors."""
    counter = bpf(MAP_CREATE, struct.pack("<IIII", ARRAY, 4, 8, 1))
    code = ctypes.create_string_buffer(assemble(counter, protocol, drop, change, at))
    licence, log = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(1 << 16)
    words = (len(code) - 1) // 8
    try:
        program = bpf(PROG_LOAD, struct.pack("<IIQQIIQI", XDP_PROGRAM, words, ctypes.addressof(code), ctypes.addressof(licence),
                                             1, len(log), ctypes.addressof(log), 0))
    except OSError as error:
        raise SystemExit(f"{error}: {log.value.decode()}")
    bpf(LINK_CREATE, struct.pack("<IIII", program, socket.if_nametoindex(interface), XDP_ATTACH, 0))
    return counter


def count(counter):
    key, value = ctypes.c_uint32(0), ctypes.c_uint64(0)
    bpf(MAP_LOOKUP, struct.pack("<IIQQQ", counter, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return value.value


class Filter:
    """A filter at `eth0` of a host, until `end`. `drop`, `change`: packets of 1000 that are dropped, or changed at byte `at`."""

    def __init__(self, hosts, name, *, protocol=None, drop=0, change=0, at=80):
        words = [sys.executable, __file__, "eth0", "--drop", drop, "--change", change, "--at", at]
        words += ["--protocol", protocol] if protocol else []
        self.process = subprocess.Popen(hosts.words(name, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the packet filter does not start")

    def end(self):
        """Removes the filter. Returns the number of packets that it has dropped or changed; None, if the host has gone."""
        output, _ = self.process.communicate()
        return int(output) if output.strip() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interface")
    parser.add_argument("--protocol", choices=list(PROTOCOLS), help="only these packets of IPv4 (default: all of IPv4)")
    parser.add_argument("--drop", type=int, default=0, help="packets of 1000 that are dropped")
    parser.add_argument("--change", type=int, default=0, help="packets of 1000 in which a byte is changed")
    parser.add_argument("--at", type=int, default=80, help="number of that byte, from the begin of the frame (default: %(default)s)")
    options = parser.parse_args()
    counter = attach(options.interface, options.protocol, options.drop, options.change, options.at)
    print("ready", flush=True)
    sys.stdin.read()
    print(count(counter))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
