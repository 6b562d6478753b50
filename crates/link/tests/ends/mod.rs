//! An endpoint of tests of the link over datagrams ([`End`]), over any network.
#![allow(dead_code, missing_docs, reason = "each test file uses a part")]

use fastrand::Rng;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use weir_link::datagram::network::DatagramNetwork;
use weir_link::datagram::{DatagramLink, DatagramOptions, SendGate, SendProxy};
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::{Address, Addressing, Arrival, Capabilities, LaneLease, Link, Quota, RemoteMemory};
use weir_proto::{Body, LinkBusy, Packet, Peer, PeerFault, Space};

pub const QUOTA: Quota = Quota { data_slots: 1000, start_slots: 100, credit_slots: 2 };
/// The most payload of an `eager` packet of this link.
pub const MOST_BYTES: usize = 64 * 64 - 48;

/// The payload of the message `number` from `from`.
pub fn payload_of(from: u64, number: u32) -> Vec<u8> {
    let mut random = Rng::with_seed(from << 32 | u64::from(number));
    let bytes = match random.u32(..16) {
        0 => MOST_BYTES,
        1..5 => random.usize(..=MOST_BYTES / 2),
        _ => random.usize(..64),
    };
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// An endpoint: its link, and what has happened.
pub struct End<N: DatagramNetwork> {
    pub link: DatagramLink<N>,
    pub identity: u64,
    pub leases: HashMap<Peer, LaneLease>,
    pub attached: Vec<LaneLease>,
    /// The number and the payload of each packet.
    pub received: HashMap<Peer, VecDeque<(u32, Vec<u8>)>>,
    pub ready: Vec<Peer>,
    pub acknowledged: Vec<(Peer, u64)>,
    pub lost: Vec<(Peer, PeerFault)>,
    /// The names of peers by identity.
    names: HashMap<u64, Peer>,
}

impl<N: DatagramNetwork> End<N> {
    pub fn open(network: N, identity: u64, options: DatagramOptions) -> End<N> {
        End::open_at(&Address::new(identity, [identity as u8; 16]), network, options)
    }

    /// The endpoint that has the address `base` on its other links.
    pub fn open_at(base: &Address, network: N, options: DatagramOptions) -> End<N> {
        End {
            link: DatagramLink::open(base, network, options),
            identity: base.identity(),
            leases: HashMap::new(),
            attached: Vec::new(),
            received: HashMap::new(),
            ready: Vec::new(),
            acknowledged: Vec::new(),
            lost: Vec::new(),
            names: HashMap::new(),
        }
    }

    /// Holds its packets back with `gate`.
    pub fn with_gate(self, gate: SendGate) -> End<N> {
        End { link: self.link.with_gate(Some(gate)), ..self }
    }

    /// Lets its bundles leave through `proxy`.
    pub fn with_proxy(self, proxy: SendProxy) -> End<N> {
        End { link: self.link.with_proxy(Some(proxy)), ..self }
    }

    /// The name of the endpoint at `address`.
    pub fn peer(&mut self, address: &Address) -> Peer {
        let next = Peer(self.names.len() as u32);
        *self.names.entry(address.identity()).or_insert(next)
    }

    pub fn connect(&mut self, address: &Address) -> Option<LaneLease> {
        let peer = self.peer(address);
        let lease = self.link.connect(peer, address);
        self.leases.extend(lease.map(|lease| (peer, lease)));
        lease
    }

    pub fn send(&mut self, to: Peer, number: u32) -> Result<(), LinkBusy> {
        let bytes = payload_of(self.identity, number);
        let memory = OwnedMemory::new(bytes.len());
        memory.view().write(0, &bytes);
        let length = bytes.len() as u32;
        let body = Body::Eager { space: Space::Tagged, tag: 7, data: None, length, acknowledge: None };
        let packet = Packet { number, ..Packet::new(body, length) };
        self.link.transmit(to, &packet, Some((&memory.view(), 0)))
    }

    /// Polls until there is nothing.
    pub fn poll(&mut self) {
        while let Some(arrival) = self.link.poll() {
            match arrival {
                Arrival::Packet { from, packet } => {
                    let memory = OwnedMemory::new(packet.payload_bytes as usize);
                    self.link.copy_payload(&memory.view(), 0, packet.payload_bytes.into());
                    self.link.retire();
                    let mut bytes = vec![0; packet.payload_bytes as usize];
                    memory.view().read(0, &mut bytes);
                    self.received.entry(from).or_default().push_back((packet.number, bytes));
                }
                Arrival::Attached { lane, address, lease } => {
                    let peer = self.peer(&address);
                    self.attached.push(lease);
                    self.link.accept(lane, peer);
                }
                Arrival::Ready { peer } => self.ready.push(peer),
                Arrival::Acknowledged { peer, packets } => self.acknowledged.push((peer, packets)),
                Arrival::Lost { peer, fault } => {
                    self.lost.push((peer, fault));
                    self.link.forget(peer);
                }
                Arrival::DetachRequested { .. } => panic!("no other link wants the lane"),
            }
        }
    }

    /// Takes what has arrived from `from`, whose identity is `identity`: numbers from `next` on, whole.
    pub fn check_received(&mut self, from: Peer, identity: u64, next: &mut u32) {
        for (number, bytes) in self.received.remove(&from).unwrap_or_default() {
            assert_eq!(number, *next, "order of the packets from {identity}");
            assert!(bytes == payload_of(identity, number), "bytes of packet {number} from {identity}");
            *next += 1;
        }
    }
}

pub fn memory_of<N: DatagramNetwork>(end: &mut End<N>) -> &mut dyn RemoteMemory {
    end.link.remote_memory().expect("remote memory")
}

pub fn bytes_of(memory: &UserMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes);
    bytes
}

/// The name of an end at another one.
pub fn peer_of<N: DatagramNetwork>(ends: &mut [End<N>], at: usize, other: usize) -> Peer {
    let address = ends[other].link.address();
    ends[at].peer(&address)
}

// For networks with a clock of their own.

/// Polls all until `done`.
pub fn run<N: DatagramNetwork>(ends: &mut [End<N>], mut done: impl FnMut(&mut [End<N>]) -> bool) {
    let begun = Instant::now();
    while !done(ends) {
        assert!(begun.elapsed() < Duration::from_secs(50), "nothing happens any more");
        ends.iter_mut().for_each(|end| end.poll());
    }
}

/// Lanes of all ends but the first at the first, and back.
pub fn connect_all<N: DatagramNetwork>(ends: &mut [End<N>]) {
    let first = ends[0].link.address();
    run(ends, |ends| {
        let (head, others) = ends.split_first_mut().expect("ends");
        let leases = others.iter_mut().map(|other| {
            let back = head.connect(&other.link.address());
            other.connect(&first).and(back)
        });
        leases.fold(true, |all, lease| all & lease.is_some())
    });
}

/// All ends but the first send `count` packets to the first, which has them all in order.
pub fn send_to_first<N: DatagramNetwork>(ends: &mut [End<N>], count: u32) {
    let first = ends[0].link.address();
    let mut sent = vec![0; ends.len()];
    let mut busy = vec![false; ends.len()];
    let mut received = vec![0; ends.len()];
    run(ends, |ends| {
        let (head, others) = ends.split_first_mut().expect("ends");
        for (index, other) in others.iter_mut().enumerate() {
            let to = other.peer(&first);
            busy[index] &= !std::mem::take(&mut other.ready).contains(&to);
            while sent[index] < count && !busy[index] {
                busy[index] = other.send(to, sent[index]).is_err();
                sent[index] += u32::from(!busy[index]);
            }
            let from = head.peer(&other.link.address());
            head.check_received(from, other.identity, &mut received[index]);
        }
        received[..others.len()].iter().all(|&number| number == count)
    });
    assert!(ends.iter().all(|end| end.lost.is_empty()));
}
