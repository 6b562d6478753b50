#!/usr/bin/env python3
"""Records the packets that go to a pretended host, and sends them again to a later host with the same address.

    tools/old_packets.py record v1 udp FILE ADDRESS      # until standard input ends; prints how many
    tools/old_packets.py replay v1 udp FILE MAC RATE     # the same; RATE packets a second, from the first again and again

ADDRESS is that of the host: a bridge sends packets for other hosts there too, as long as it does not know where those are.
Bundles of datagrams, which the kernel has not split yet, are not recorded. UDP over IPv4 may go without a checksum:
those here do.
"""

import os
import pathlib
import select
import socket
import struct
import sys
import time

PROTOCOLS = {"udp": 17, "tcp": 6}
OUTGOING = 4  # of linux/if_packet.h: the bridge sends it toward the host
MOST, LONGEST_BYTES, ETHERNET = 2000, 1514, 14
SPARED = 254  # the node of the launcher


def opened(interface):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packets.bind((interface, 0))
    return packets


def input_has_ended(seconds):
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 1)


def record(interface, protocol, file, address):
    packets, found, receiver = opened(interface), [], socket.inet_aton(address)
    print("ready", flush=True)
    while not input_has_ended(0):
        if not select.select([0, packets], [], [])[0] == [packets]:
            continue
        frame, (_, _, kind, _, _) = packets.recvfrom(1 << 16)
        is_ours = frame[12:14] == b"\x08\x00" and frame[23] == PROTOCOLS[protocol] and frame[29] != SPARED
        is_meant = kind == OUTGOING and frame[30:34] == receiver
        if is_ours and is_meant and len(frame) <= LONGEST_BYTES and len(found) < MOST:
            found.append(frame)
    pathlib.Path(file).write_bytes(b"".join(struct.pack("<I", len(frame)) + frame for frame in found))
    print(len(found))


def replay(interface, protocol, file, mac, rate):
    content, frames, at = pathlib.Path(file).read_bytes(), [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        frame = bytearray(content[at + 4:at + 4 + length])
        frame[:6] = bytes.fromhex(mac.replace(":", ""))
        if protocol == "udp":
            header = ETHERNET + (frame[ETHERNET] & 15) * 4
            frame[header + 6:header + 8] = b"\0\0"
        frames.append(bytes(frame))
        at += 4 + length
    packets, sent = opened(interface), 0
    print("ready", flush=True)
    begun = time.monotonic()
    while not input_has_ended(0.002):
        while frames and sent < (time.monotonic() - begun) * float(rate):
            packets.send(frames[sent % len(frames)])
            sent += 1
    print(sent)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    {"record": record, "replay": replay}[sys.argv[1]](*sys.argv[2:])
