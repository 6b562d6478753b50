//! The link over datagrams, which gets datagrams from anybody. With `cfg(fuzzing)` the seal is open (`datagram/seal.rs` of
//! `weir-link`): the fuzzer can write what only a member of the job could, and what a stranger could.

use std::sync::{Arc, Mutex};
use weir_link::datagram::network::{BATCH_DATAGRAMS, Batch, DatagramNetwork, LargeMessages, Received};
use weir_link::datagram::{DatagramLink, DatagramOptions};
use weir_link::memory::{OwnedMemory, UserMemory};
use weir_link::{Address, Arrival, Bell, Capabilities, Inspect, Link, LinkKind, Quota, RemoteCopy};
use weir_proto::{Direction, Instant, Peer, RemoteAddress};

const DATAGRAM_BYTES: usize = 1452;
const QUOTA: Quota = Quota { data_slots: 1000, start_slots: 100, credit_slots: 2 };
/// Most bytes of bundles that arrive out of order, for each of at most four peers.
const MOST_HELD_BYTES: u64 = 4 * 256 * 2 * DATAGRAM_BYTES as u64;

struct NoBell;

impl Bell for NoBell {
    fn ring(&self) {}
}

/// What arrives: sender and bytes.
type Arrivals = Arc<Mutex<Vec<(u8, Vec<u8>)>>>;

/// Length of the longest large message, and how many may wait, as a core provider has them. Unit: bytes.
const LARGE_BYTES: usize = 524;
const LARGE_RECEIVES: usize = 16;
/// Length of a copy of contents: several large messages.
const COPY_BYTES: usize = 3 * LARGE_BYTES;

struct Cable {
    /// It loses nothing, and has large messages.
    is_lossless: bool,
    arrive: Arrivals,
    large: Arc<Mutex<Vec<Vec<u8>>>>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    now: Arc<Mutex<u64>>,
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl DatagramNetwork for Cable {
    type Place = u8;

    fn kind(&self) -> LinkKind {
        LinkKind::LastChoice
    }

    fn part(&self) -> Vec<u8> {
        vec![0]
    }

    fn place_of(&self, part: &[u8]) -> Option<u8> {
        part.first().copied()
    }

    fn carries_contents(&self) -> bool {
        !self.is_lossless
    }

    fn largest_datagram(&self) -> usize {
        DATAGRAM_BYTES
    }

    fn is_lossless(&self) -> bool {
        self.is_lossless
    }

    fn buffered_datagrams(&self) -> Option<u64> {
        Some(100)
    }

    fn send(&mut self, _to: u8, bytes: &[u8], segment_bytes: usize, _in_fragments: bool) -> usize {
        let mut sent = locked(&self.sent);
        if sent.len() < 64 {
            sent.extend(bytes.chunks(segment_bytes).map(<[u8]>::to_vec));
        }
        bytes.len()
    }

    fn receive(&mut self, batch: &mut Batch<u8>) {
        let mut at = 0;
        for (from, bytes) in locked(&self.arrive).drain(..).take(BATCH_DATAGRAMS) {
            let range = at..at + bytes.len();
            at = range.end;
            batch.bytes[range.clone()].copy_from_slice(&bytes);
            batch.datagrams.push(Received { from, range, marked: from & 4 != 0 });
        }
    }

    fn may_have_arrivals(&self) -> bool {
        !locked(&self.arrive).is_empty()
    }

    fn now(&self) -> Instant {
        let mut now = locked(&self.now);
        *now += 100;
        Instant(*now)
    }

    fn large(&mut self) -> Option<&mut dyn LargeMessages<u8>> {
        if self.is_lossless { Some(self) } else { None }
    }

    fn wait(&mut self, until: Instant) {
        let mut now = locked(&self.now);
        *now = until.0.max(*now);
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(NoBell)
    }
}

impl LargeMessages<u8> for Cable {
    fn longest(&self) -> usize {
        LARGE_BYTES
    }

    fn begin(&mut self) -> usize {
        LARGE_RECEIVES
    }

    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8])) {
        locked(&self.large).drain(..).for_each(|mut message| take(&mut message));
    }

    /// Every fourth finds no room.
    fn send(&mut self, _to: u8, write: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let has_room = !locked(&self.now).is_multiple_of(4);
        if has_room {
            let mut room = [0; LARGE_BYTES];
            assert!(write(&mut room) <= LARGE_BYTES);
        }
        has_room
    }
}

/// Starts a copy of contents from peer 1, which has told no key: the fuzzer is the peer.
fn start_copy(link: &mut DatagramLink<Cable>, context: u64, memory: &UserMemory) {
    let remote = RemoteAddress { address: 0, key: 7 };
    let (peer, direction, bytes) = (Peer(1), Direction::Get, memory.bytes());
    let copy = RemoteCopy { context, peer, direction, remote, offset: 0, bytes };
    if let Some(copies) = link.remote_memory() {
        let _ = copies.start(&copy, memory, None); // refused if the peer is lost
    }
}

fn address_of(number: u8) -> Address {
    let base = Address::new(u64::from(number) + 1, [number; 16]);
    base.with_part(LinkKind::LastChoice, &[number]).expect("room for a part")
}

/// All datagrams come from one peer, to which the endpoint sends too.
pub fn arrive(bytes: &[u8]) {
    run(bytes, 1, false);
}

/// They come from four places, and one of them is nobody.
pub fn arrive_from_several(bytes: &[u8]) {
    run(bytes, 3, false);
}

/// They come over a network that declares to lose nothing, as a core provider does, beside large messages.
pub fn arrive_without_loss(bytes: &[u8]) {
    run(bytes, 3, true);
}

/// Datagrams: a byte for the sender, the mark or the kind, and the time until the next one, two for the length, and the bytes.
fn run(mut bytes: &[u8], peers: u8, is_lossless: bool) {
    let (arrive, sent, now) = (Arrivals::default(), Arc::default(), Arc::new(Mutex::new(1)));
    let large = Arc::new(Mutex::new(Vec::new()));
    let of_cable = Arc::clone(&large);
    let cable =
        Cable { is_lossless, arrive: Arc::clone(&arrive), large: of_cable, sent, now: Arc::clone(&now) };
    let options = DatagramOptions { close_ns: 0, ..DatagramOptions::new(QUOTA) };
    let mut link = DatagramLink::open(&Address::new(1, [0; 16]), cable, options);
    for number in 1..=peers {
        let _ = link.connect(Peer(number.into()), &address_of(number));
    }
    let memory = OwnedMemory::new(COPY_BYTES);
    let mut copies = 0;
    start_copy(&mut link, copies, &memory.view());
    while let Some((&[control, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])) % (DATAGRAM_BYTES + 1);
        let (datagram, rest) = rest.split_at(length.min(rest.len()));
        bytes = rest;
        let from = if peers == 1 { 1 } else { control & 3 };
        if is_lossless && control & 4 != 0 {
            locked(&large).push(datagram[..datagram.len().min(LARGE_BYTES)].to_vec());
        } else {
            locked(&arrive).push((from | control & 4, datagram.to_vec()));
        }
        // From nothing to half a minute.
        *locked(&now) += 1 << (control >> 3);
        poll(&mut link);
        while link.remote_memory().is_some_and(|remote| remote.next_result().is_some()) {
            copies += 1;
            start_copy(&mut link, copies, &memory.view());
        }
        assert!(link.mailbox_bytes() <= MOST_HELD_BYTES, "{} bytes are held", link.mailbox_bytes());
    }
    *locked(&now) += 60_000_000_000;
    poll(&mut link);
    link.close();
}

fn poll(link: &mut DatagramLink<Cable>) {
    // Each look takes what there is, so the number of arrivals is bounded by what was written.
    for _ in 0..10_000 {
        match link.poll() {
            None => return,
            Some(Arrival::Packet { packet, .. }) => {
                let memory = OwnedMemory::new(packet.payload_bytes as usize);
                link.copy_payload(&memory.view(), 0, packet.payload_bytes.into());
                link.retire();
            }
            Some(Arrival::Attached { lane, address, .. }) => {
                let number = (1..=3).find(|number| address_of(*number).identity() == address.identity());
                link.accept(lane, Peer(number.map_or(100, u32::from)));
            }
            Some(Arrival::Lost { peer, .. }) => link.forget(peer),
            Some(Arrival::Ready { .. } | Arrival::Acknowledged { .. } | Arrival::DetachRequested { .. }) => {}
        }
    }
    panic!("a poll does not end");
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use weir_proto::wire::{ATTACH_FRAME, CONTENTS_FRAME, LEASE_FRAME, LEAVE_FRAME, VERSION, WANT_FRAME};
    let frame = |word: u32, kind: u8| {
        let numbers = [1_u16.to_le_bytes().to_vec(), vec![100, 0, 0, 0, 10, 0, 0, 0, 2, 0, 0, 0]].concat();
        [&word.to_le_bytes()[..], &[VERSION, kind], &numbers].concat()
    };
    let header = |number: u32| {
        let epochs = [1_u16.to_le_bytes(), 1_u16.to_le_bytes(), [0; 2]].concat();
        [&[VERSION, 0][..], &epochs, &number.to_le_bytes(), &[0; 16]].concat()
    };
    let datagram = |number: u32, content: &[u8]| {
        let whole = [&header(number), content, &[0; 16]].concat();
        [&[0x80][..], &(whole.len() as u16).to_le_bytes(), &whole].concat()
    };
    let mut packet = super::wire::eager_bytes(0);
    packet[..4].copy_from_slice(&1_u32.to_le_bytes());
    let whole = [
        datagram(0, &[frame(0, ATTACH_FRAME), frame(0, LEASE_FRAME)].concat()),
        datagram(1, &packet),
        datagram(2, &frame(2, LEAVE_FRAME)),
    ]
    .concat();
    let readers = ["datagrams", "datagrams of several peers", "datagrams of a lossless network"];
    // The peer wants contents, and sends some: the pieces with the first numbers.
    let want =
        [&2_u32.to_le_bytes()[..], &[VERSION, WANT_FRAME], &[0; 18], &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]]
            .concat();
    let large = |number: u64| {
        let message = [&number.to_le_bytes()[..], &[3; LARGE_BYTES - 24], &[0; 16]].concat();
        [&[0x85][..], &(message.len() as u16).to_le_bytes(), &message].concat()
    };
    let begin = &whole[..whole.len() - datagram(2, &frame(2, LEAVE_FRAME)).len()];
    let contents = [begin, &datagram(2, &want), &large(1), &large(2), &large(4)].concat();
    // Without large messages they come in datagrams: one copy, and the beginning of the next one, which is refused then.
    let part = |position: u32, number: u64, bytes: usize| {
        let frame = [VERSION, CONTENTS_FRAME, bytes as u8, (bytes >> 8) as u8];
        let whole = [&position.to_le_bytes()[..], &frame, &number.to_le_bytes(), &vec![3; bytes]].concat();
        datagram(position, &whole)
    };
    let parts = [part(3, 1, 1000), part(4, 1, COPY_BYTES - 1000), part(5, 2, 7), part(6, 2, 0)].concat();
    let in_datagrams = [begin, &datagram(2, &want), &parts].concat();
    let others = [(readers[2], contents), (readers[0], in_datagrams.clone()), (readers[1], in_datagrams)];
    readers.map(|reader| (reader, whole.clone())).into_iter().chain(others).collect()
}
