//! Tests of the interleavings of several threads at the words of a mailbox: the ring, the announcements, the sleep and
//! wake-up, the claims, the lane queue and the cooperative copy.
//!
//! `make test-loom` runs them under loom, which tries all interleavings with a few preemptions. Otherwise each test
//! runs many times. Loom reports a lost packet or wake-up as a deadlock, and a slot that is read while it is written as
//! a race. The lanes are on the heap, and some tests play the owner of a mailbox; the rest of the code is the real one.

use super::cooperative_copy::{CooperativeCopy, CopyState};
use super::doorbell::{Doorbell, Episode, WokenEpisode, call};
use super::heap_lane::{HeapLane, credit, eager};
use super::inbox::{Inbox, PollLimits};
use super::lane_queue::{self, LaneQueue};
use super::outbox::{Outbox, SendStep};
use super::ring::{Found, LaneMemory, Reader, Writer};
use super::sync::{Arc, AtomicU64, Futex, Mutex, Ordering, Watched, explore, lock, thread, yield_now};
use crate::memory::UserMemory;
use std::collections::VecDeque;
use weir_proto::Peer;

type Sender = Outbox<Arc<HeapLane>, Arc<Doorbell>>;

const FOR_EVER_NS: u64 = u64::MAX;

fn memory(bytes: &mut [u8]) -> UserMemory {
    // SAFETY: the tests keep the bytes longer than the view.
    unsafe { UserMemory::contiguous(bytes.as_mut_ptr(), bytes.len()) }
}

fn post(outbox: &mut Sender, mark: u8, bytes: usize) {
    let mut payload = vec![mark; bytes];
    outbox.send(&eager(bytes as u32), Some((&memory(&mut payload), 0)));
}

fn collect(inbox: &mut Inbox<Arc<HeapLane>>, lane: u32) -> Vec<u8> {
    let (_, reader) = inbox.sender_and_reader(lane).expect("an open lane");
    let (bytes, found) = read(reader);
    inbox.retire(lane, &found);
    bytes
}

fn look<L: LaneMemory>(reader: &mut Reader<L>) -> Vec<u8> {
    let (bytes, found) = read(reader);
    reader.retire(&found);
    bytes
}

fn read<L: LaneMemory>(reader: &mut Reader<L>) -> (Vec<u8>, Found) {
    let (mut head, mut packet) = ([0; 64], credit());
    let found = reader.read_head(&mut head, &mut packet).expect("a whole packet");
    let mut bytes = vec![0; packet.payload_bytes as usize];
    let length = bytes.len() as u64;
    reader.copy_payload(&head, &found, &memory(&mut bytes), 0, length);
    (bytes, found)
}

/// A mailbox of two lanes.
fn mailbox(limits: PollLimits) -> (Arc<Doorbell>, Inbox<Arc<HeapLane>>, [Sender; 2]) {
    let doorbell = Arc::new(Doorbell::default());
    let mut inbox = Inbox::new(limits);
    let outboxes = [0, 1].map(|lane| {
        let memory = Arc::new(HeapLane::new(4));
        inbox.open_lane(lane, Peer(lane), Arc::clone(&memory));
        Outbox::new(lane, memory, Arc::clone(&doorbell), false)
    });
    (doorbell, inbox, outboxes)
}

const EAGER_TO_DEMOTE: PollLimits =
    PollLimits { max_active: 2, keep_active: 0, idle_polls: 1, full_fences: false };
const ONE_POLLED: PollLimits =
    PollLimits { max_active: 1, keep_active: 0, idle_polls: 2, full_fences: false };
const NEVER_DEMOTE: PollLimits =
    PollLimits { max_active: 2, keep_active: 2, idle_polls: u64::MAX, full_fences: false };

fn receive_all(doorbell: &Doorbell, inbox: &mut Inbox<Arc<HeapLane>>, mut wanted: [Vec<u8>; 2]) {
    while wanted.iter().any(|marks| !marks.is_empty()) {
        match inbox.next(doorbell) {
            Some(lane) => {
                let bytes = collect(inbox, lane);
                assert!(!wanted[lane as usize].is_empty(), "an additional packet");
                let mark = wanted[lane as usize].remove(0);
                assert!(bytes.iter().all(|&byte| byte == mark), "in order and whole");
            }
            None => inbox.sleep(doorbell, FOR_EVER_NS),
        }
    }
}

/// Sends messages of these sizes through a ring of `slots` slots, two of them reserved. The writer checks every
/// `early_wrap_slots` slots whether it can wrap early.
fn send_through_short_ring(slots: u32, early_wrap_slots: u32, sizes: &'static [usize]) {
    explore(4, move || {
        let lane = Arc::new(HeapLane::new(slots));
        let mut writer = Writer::with_early_wrap_slots(Arc::clone(&lane), early_wrap_slots);
        let mut reader = Reader::new(lane);
        let sender = thread::spawn(move || {
            let mut room = 0;
            for (mark, &bytes) in sizes.iter().enumerate() {
                let slots = if bytes > 16 { 2 } else { 1 };
                while room < slots {
                    match writer.newly_free_slots() {
                        0 => yield_now(),
                        more => room += more,
                    }
                }
                room -= slots;
                let mut payload = vec![mark as u8 + 1; bytes];
                let packet = eager(bytes as u32);
                let slots = writer.fill(&packet, Some((&memory(&mut payload), 0)));
                writer.publish(slots);
            }
        });
        for (mark, &bytes) in sizes.iter().enumerate() {
            while !reader.arrived() {
                yield_now();
            }
            assert_eq!(look(&mut reader), vec![mark as u8 + 1; bytes]);
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_slots_are_reused_only_after_they_are_retired() {
    send_through_short_ring(4, 4, &[1, 40, 8, 33]);
}

#[test]
fn loom_the_reader_follows_an_early_wrap_before_the_writer_reuses_the_slot() {
    send_through_short_ring(5, 1, &[1, 40, 8, 33]);
    send_through_short_ring(4, 2, &[8, 8, 33, 8]);
}

fn two_senders(preemptions: usize, limits: PollLimits, packets: [u8; 2]) {
    explore(preemptions, move || {
        let (doorbell, mut inbox, outboxes) = mailbox(limits);
        let mut number = 0;
        let senders = outboxes.map(|mut outbox| {
            let count = packets[number];
            number += 1;
            thread::spawn(move || (1..=count).for_each(|mark| post(&mut outbox, mark, 4)))
        });
        receive_all(&doorbell, &mut inbox, packets.map(|count| (1..=count).collect()));
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn loom_a_sender_of_a_polled_lane_wakes_a_sleeping_reader() {
    two_senders(2, NEVER_DEMOTE, [1, 1]);
}

#[test]
fn loom_a_demoted_lane_loses_no_packet() {
    two_senders(3, EAGER_TO_DEMOTE, [1, 1]);
}

#[test]
fn loom_one_sender_is_received_through_demotions_and_sleeps() {
    two_senders(3, EAGER_TO_DEMOTE, [3, 0]);
}

#[test]
fn loom_a_full_active_set_loses_no_packet() {
    two_senders(2, ONE_POLLED, [2, 1]);
}

/// The wake-up of an executor of the engine. A client pushes each submission to a ring, and then rings the bell. The
/// executor looks at the ring, polls the link, looks at the ring once more and sleeps. Meanwhile a sender rings too.
#[test]
fn loom_a_submission_ends_the_sleep_of_an_executor() {
    explore(3, || {
        let (doorbell, mut inbox, [mut sender, _]) = mailbox(EAGER_TO_DEMOTE);
        let ring = Arc::new(Mutex::new(VecDeque::new()));
        let client = {
            let (doorbell, ring) = (Arc::clone(&doorbell), Arc::clone(&ring));
            thread::spawn(move || {
                for submission in 1..=2 {
                    lock(&ring).push_back(submission);
                    doorbell.call_about(call::BELL);
                }
            })
        };
        let sender = thread::spawn(move || post(&mut sender, 1, 4));
        let (mut submissions, mut packets) = (Vec::new(), 0);
        while submissions.len() < 2 || packets < 1 {
            let submission = lock(&ring).pop_front();
            submissions.extend(submission);
            doorbell.take_calls(); // a poll of the link takes the bell, and reports nothing for it
            let polled = inbox.next(&doorbell);
            if let Some(lane) = polled {
                assert_eq!(collect(&mut inbox, lane), [1; 4]);
                packets += 1;
            }
            if submission.is_none() && polled.is_none() {
                let submission = lock(&ring).pop_front();
                if submission.is_none() {
                    inbox.sleep(&doorbell, FOR_EVER_NS);
                }
                submissions.extend(submission);
            }
        }
        assert_eq!(submissions, [1, 2]);
        client.join().unwrap();
        sender.join().unwrap();
    });
}

/// The reader sleeps elsewhere: at a descriptor that a watcher makes readable. The watcher starts at any time.
#[test]
fn loom_a_watcher_ends_the_sleep_of_a_reader_elsewhere() {
    explore(2, || {
        let (doorbell, mut inbox, [mut sender, _]) = mailbox(NEVER_DEMOTE);
        let descriptor = Arc::new(Futex::default());
        let watcher = {
            let (doorbell, descriptor) = (Arc::clone(&doorbell), Arc::clone(&descriptor));
            thread::spawn(move || {
                let mut look = doorbell.look();
                while !look.is_woken() {
                    doorbell.sleep_since(look, FOR_EVER_NS);
                    look = doorbell.look();
                }
                descriptor.word().store(1, Ordering::Release);
                descriptor.wake();
            })
        };
        let sender = thread::spawn(move || post(&mut sender, 1, 4));
        loop {
            match inbox.next(&doorbell) {
                Some(lane) => {
                    assert_eq!(collect(&mut inbox, lane), [1; 4]);
                    break;
                }
                None if inbox.begin_sleep(&doorbell) => descriptor.wait(0, FOR_EVER_NS),
                None => inbox.end_sleep(&doorbell),
            }
        }
        sender.join().unwrap();
        // The packet may have come before the sleep. Then nobody has woken the watcher.
        inbox.end_sleep(&doorbell);
        assert!(inbox.begin_sleep(&doorbell), "nothing is left");
        doorbell.wake(&mut WokenEpisode::default());
        watcher.join().unwrap();
    });
}

/// One sender stops for good after each step. The reader receives from the other one in any case.
#[test]
fn loom_a_stopped_sender_delays_nobody() {
    for last in SendStep::ALL {
        for limits in [EAGER_TO_DEMOTE, NEVER_DEMOTE] {
            explore(2, move || {
                let (doorbell, mut inbox, [mut stopped, mut other]) = mailbox(limits);
                let first = thread::spawn(move || {
                    stopped.send_until(last, &eager(4), Some((&memory(&mut [9; 4]), 0)));
                });
                let second = thread::spawn(move || post(&mut other, 1, 4));
                loop {
                    match inbox.next(&doorbell) {
                        Some(1) => {
                            assert_eq!(collect(&mut inbox, 1), [1; 4]);
                            break;
                        }
                        Some(_) => {
                            assert!(last >= SendStep::Publish);
                            assert_eq!(collect(&mut inbox, 0), [9; 4], "a whole packet or none");
                        }
                        None => inbox.sleep(&doorbell, FOR_EVER_NS),
                    }
                }
                first.join().unwrap();
                second.join().unwrap();
            });
        }
    }
}

/// Number of the first newcomer.
const FIRST: u64 = 7;

/// A mailbox of one lane, for tests of who holds it.
#[derive(Default)]
struct OneLane {
    doorbell: Doorbell,
    /// The doorbells of the newcomers.
    doorbells: [Doorbell; 2],
    lane_queue: LaneQueue,
    claims: [AtomicU64; 1],
    /// The sender that has left, or 0.
    left: AtomicU64,
    /// Written by the holder. Two holders at the same time would be a race.
    slots: Slots,
}

struct Slots(Watched<u64>);
impl Default for Slots {
    fn default() -> Slots {
        Slots(Watched::new(0))
    }
}
// SAFETY: only the holder of the lane touches it, which the test checks.
unsafe impl Sync for Slots {}

impl OneLane {
    /// Attaches as a sender does, and sleeps while it waits.
    fn attach(&self, id: u64) {
        if !self.lane_queue.has_waiters() && lane_queue::claim(&self.claims, id).is_some() {
            return;
        }
        let ticket = self.lane_queue.enter(id).expect("a place");
        self.doorbell.call_about(call::NEWCOMER);
        let (doorbell, mut episode) = (&self.doorbells[(id - FIRST) as usize], Episode::default());
        while self.lane_queue.assigned_lane(ticket).is_none() {
            doorbell.take_calls();
            if self.lane_queue.assigned_lane(ticket).is_none() {
                doorbell.sleep(&mut episode, false, FOR_EVER_NS, || doorbell.called());
            }
        }
        self.lane_queue.leave(ticket);
        assert_eq!(self.claims[0].load(Ordering::Acquire), id, "assigned to this newcomer");
    }

    /// Holds the lane for a moment.
    fn hold(&self, id: u64) {
        // SAFETY: loom checks the access for races.
        self.slots.0.with_mut(|slots| unsafe { *slots = id });
        self.left.swap(id, Ordering::Release); // loom could let the reader miss a plain store
        self.doorbell.call_about(call::AS_SENDER); // stands for the announcement of the last packet
    }

    fn serve(&self) {
        for waiter in self.lane_queue.waiters() {
            if self.lane_queue.assign_lane(waiter, &self.claims, |_| true).is_some() {
                self.doorbells[(waiter.segment - FIRST) as usize].call_about(call::AS_SENDER);
            }
        }
    }

    /// Acts as the owner until `leases` senders have left.
    fn act_as_owner(&self, leases: u32) {
        let (mut ended, mut episode) = (0, Episode::default());
        while ended < leases {
            if self.doorbell.take_calls() & call::NEWCOMER != 0 {
                self.serve();
            }
            let left = self.left.swap(0, Ordering::AcqRel);
            if left == 0 {
                self.doorbell.sleep(&mut episode, false, FOR_EVER_NS, || self.doorbell.called());
                continue;
            }
            // SAFETY: as above. A sender that has left writes no more.
            self.slots.0.with(|slots| assert_eq!(unsafe { *slots }, left));
            assert_eq!(self.claims[0].swap(0, Ordering::AcqRel), left);
            self.serve();
            ended += 1;
        }
    }
}

#[test]
fn loom_a_lane_has_one_holder_and_every_newcomer_gets_it() {
    explore(2, || {
        let lane = Arc::new(OneLane::default());
        let senders = [7, 8].map(|id| {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.attach(id);
                lane.hold(id);
            })
        });
        lane.act_as_owner(2);
        for sender in senders {
            sender.join().unwrap();
        }
        assert!(!lane.lane_queue.has_waiters());
    });
}

/// A newcomer stops with a place and no ticket, or with a ticket and a lane that it does not use. When the owner
/// clears it as dead, the other newcomer gets the lane.
#[test]
fn loom_a_stopped_newcomer_delays_the_other_only_until_it_is_cleared() {
    for halfway in [true, false] {
        explore(2, move || {
            let lane = Arc::new(OneLane::default());
            let stopped = {
                let lane = Arc::clone(&lane);
                thread::spawn(move || {
                    if halfway {
                        lane.lane_queue.enter_halfway(7);
                    } else {
                        lane.lane_queue.enter(7);
                    }
                })
            };
            let other = {
                let lane = Arc::clone(&lane);
                thread::spawn(move || {
                    lane.attach(8);
                    lane.hold(8);
                })
            };
            stopped.join().unwrap();
            lane.serve();
            // The owner finds the newcomer dead and clears the words that name it.
            for (place, _) in lane.lane_queue.occupants().filter(|&(_, id)| id == 7).collect::<Vec<_>>() {
                lane.lane_queue.free_place(place);
            }
            lane_queue::unclaim(&lane.claims, 0, 7);
            lane.serve();
            lane.act_as_owner(1);
            other.join().unwrap();
        });
    }
}

/// Two copies of two pieces, one after the other, with a helper that looks twice. Each piece is a watched cell. It is
/// a race if both sides copy it, or if the receiver reads it while the helper writes it.
#[test]
fn loom_two_sides_copy_each_piece_once() {
    const PIECE: u64 = 32 << 10;
    explore(2, || {
        let cooperative_copy = Arc::new(CooperativeCopy::default());
        let pieces = Arc::new(Pieces(std::array::from_fn(|_| Watched::new(0_u8))));
        let helper = {
            let (cooperative_copy, pieces) = (Arc::clone(&cooperative_copy), Arc::clone(&pieces));
            thread::spawn(move || {
                for _ in 0..2 {
                    cooperative_copy.help(|from, to, bytes| {
                        // Both addresses are of one copy, not a mixture of two.
                        assert_eq!((from, bytes), (to, PIECE));
                        pieces.copy((to as u32 / PIECE as u32) as usize, (to >> 32) as u8);
                        true
                    });
                }
            })
        };
        for round in 1..=2_u64 {
            let mut offer = cooperative_copy.offer(round << 32, round << 32, 2 * PIECE);
            while let Some(part) = cooperative_copy.take(&mut offer) {
                pieces.copy((part.offset / PIECE) as usize, round as u8);
            }
            while cooperative_copy.state(&mut offer) != CopyState::Complete {
                yield_now();
            }
            // SAFETY: all copying has ended, which loom checks.
            pieces.0.iter().for_each(|piece| piece.with(|byte| assert_eq!(unsafe { *byte }, round as u8)));
        }
        helper.join().unwrap();
    });
}

struct Pieces([Watched<u8>; 2]);

// SAFETY: only the side that took a piece copies it, which the test checks.
unsafe impl Sync for Pieces {}
// SAFETY: plain memory, owned by the value.
unsafe impl Send for Pieces {}

impl Pieces {
    fn copy(&self, piece: usize, mark: u8) {
        // SAFETY: the side that took the piece has it alone.
        self.0[piece].with_mut(|byte| unsafe { *byte = mark });
    }
}
