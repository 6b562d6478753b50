//! Tests of the ring of one lane in one thread, on the heap: wraps and early wraps, publish words, counts of free
//! slots, malformed packets.

use super::*;
use crate::shm::heap_lane::{HeapLane, credit, eager};
use crate::shm::sync::Arc;

fn pair(slots: u32) -> (Writer<Arc<HeapLane>>, Reader<Arc<HeapLane>>) {
    let lane = Arc::new(HeapLane::new(slots));
    (Writer::new(Arc::clone(&lane)), Reader::new(lane))
}

fn send(writer: &mut Writer<Arc<HeapLane>>, bytes: &[u8]) {
    // SAFETY: the slice outlives the view and is only read.
    let memory = unsafe { UserMemory::contiguous(bytes.as_ptr().cast_mut(), bytes.len()) };
    let packet = eager(bytes.len() as u32);
    let slots = writer.fill(&packet, Some((&memory, 0)));
    writer.publish(slots);
}

fn receive(reader: &mut Reader<Arc<HeapLane>>) -> Option<Vec<u8>> {
    reader.arrived().then(|| {
        let (mut head, mut packet) = ([0; SLOT_BYTES], credit());
        let found = reader.read_head(&mut head, &mut packet).expect("a packet");
        let mut bytes = vec![0; packet.payload_bytes as usize];
        // SAFETY: the vector outlives the view.
        let memory = unsafe { UserMemory::contiguous(bytes.as_mut_ptr(), bytes.len()) };
        reader.copy_payload(&head, &found, &memory, 0, bytes.len() as u64);
        reader.retire(&found);
        bytes
    })
}

#[test]
fn runs_of_every_length_wrap_around() {
    let (mut writer, mut reader) = pair(8);
    for round in 0..2_000_u32 {
        let length = (round * 37 % (7 * 64 - 48)) as usize;
        let bytes: Vec<u8> = (0..length).map(|i| (i as u32 * 7 + round) as u8).collect();
        send(&mut writer, &bytes);
        assert_eq!(receive(&mut reader), Some(bytes));
        assert_eq!(receive(&mut reader), None);
    }
}

#[test]
fn payload_that_looks_like_a_publish_word_is_not_one() {
    // Two slots of body. Every word of the payload is the publish word of a later position.
    let (mut writer, mut reader) = pair(5);
    for position in 0..1_000_u64 {
        let next = publish_word(position * 3 + 3 + 1);
        let bytes: Vec<u8> = next.to_le_bytes().into_iter().cycle().take(16 + 128).collect();
        send(&mut writer, &bytes);
        assert_eq!(receive(&mut reader), Some(bytes));
        assert_eq!(receive(&mut reader), None);
    }
}

/// Between two packets of the writer the reader retires nothing, one packet or everything. This runs for all
/// relevant lengths of rings and runs, and distances between checks.
#[test]
fn early_wraps_lose_no_packet_and_reuse_no_unread_slot() {
    let mut wraps = 0;
    for (slots, early_wrap_slots) in (5..14).flat_map(|slots| (1..slots).map(move |early| (slots, early))) {
        let lane = Arc::new(HeapLane::new(slots));
        let mut writer = Writer::with_early_wrap_slots(Arc::clone(&lane), early_wrap_slots);
        let mut reader = Reader::new(lane);
        let mut rng = fastrand::Rng::with_seed(u64::from(slots * 32 + early_wrap_slots));
        let (mut unread, mut unread_slots) = (std::collections::VecDeque::new(), 0);
        for round in 0..2_000_u32 {
            let bytes = vec![round as u8; rng.usize(..3 * 64)];
            let filled = slots_of(&eager(bytes.len() as u32), 48);
            if unread_slots + filled < slots {
                let before = writer.at.slot;
                send(&mut writer, &bytes); // `begin` asserts that the writer owns the slots
                wraps += u32::from(writer.at.skipped_slot == before);
                unread.push_back(bytes);
                unread_slots += filled;
            }
            for _ in 0..[0, 1, usize::MAX, unread.len()][rng.usize(..4)].min(unread.len()) {
                let bytes = unread.pop_front().expect("as many as were counted");
                unread_slots -= slots_of(&eager(bytes.len() as u32), 48);
                assert_eq!(receive(&mut reader), Some(bytes), "{slots} {early_wrap_slots} {round}");
            }
            if unread.is_empty() {
                assert_eq!(receive(&mut reader), None);
                let words = (0..slots).map(|slot| reader.lane.word(slot).load(Ordering::Acquire));
                assert!(words.into_iter().all(|word| word == 0), "every slot that may be filled is empty");
            }
        }
    }
    assert!(wraps > 1_000, "{wraps}");
}

#[test]
fn a_sender_of_few_messages_stays_at_the_beginning_of_a_long_ring() {
    let (mut writer, mut reader) = pair(4096);
    for round in 0..10_000_u32 {
        send(&mut writer, &round.to_le_bytes());
        assert!(writer.at.slot <= EARLY_WRAP_SLOTS + 1, "{round}");
        assert_eq!(receive(&mut reader), Some(round.to_le_bytes().to_vec()));
    }
}

#[test]
fn an_early_wrap_word_without_a_packet_is_malformed() {
    let (mut writer, mut reader) = pair(8);
    let look =
        |reader: &mut Reader<Arc<HeapLane>>| reader.read_head(&mut [0; SLOT_BYTES], &mut credit()).err();
    writer.lane.word(0).store(EARLY_WRAP, Ordering::Release);
    assert_eq!(look(&mut reader), Some(MalformedPacket), "a wrap from slot 0");
    writer.lane.word(0).store(0, Ordering::Release);
    send(&mut writer, &[1]);
    receive(&mut reader);
    writer.lane.word(1).store(EARLY_WRAP, Ordering::Release);
    assert_eq!(look(&mut reader), Some(MalformedPacket), "a wrap to an empty slot");
    assert_eq!(look(&mut reader), Some(MalformedPacket), "the lane stays malformed");
}

#[test]
fn publish_words_are_never_zero() {
    assert_eq!(publish_word(0), 1);
    assert_eq!(publish_word((1 << 31) - 1), 1 << 31);
    assert_eq!(publish_word(1 << 31), 1);
    assert_eq!(publish_word(1 << 32), 1);
}

#[test]
fn positions_above_2_to_the_32_work() {
    let (mut writer, mut reader) = pair(4);
    let start = Cursor { position: (1 << 32) - 4, ..Cursor::START };
    (writer.at, reader.at) = (start, start);
    reader.lane.control().retired.0.store(start.position, Ordering::Release);
    for round in 0..16_u8 {
        send(&mut writer, &[round]);
        assert_eq!(receive(&mut reader), Some(vec![round]));
    }
}

#[test]
fn freed_slots_are_counted_once() {
    let (mut writer, mut reader) = pair(5);
    assert_eq!(writer.newly_free_slots(), 3);
    assert_eq!(writer.newly_free_slots(), 0);
    send(&mut writer, &[0; 60]); // two slots
    assert_eq!(writer.newly_free_slots(), 0);
    receive(&mut reader);
    assert_eq!(writer.newly_free_slots(), 2);
    reader.lane.control().retired.0.store(1 << 40, Ordering::Release); // a wrong value
    assert_eq!(writer.newly_free_slots(), 0);
}

#[test]
fn a_word_out_of_sequence_is_malformed() {
    let (mut writer, mut reader) = pair(4);
    writer.fill(&credit(), None);
    writer.lane.word(0).store(9, Ordering::Release);
    assert!(reader.arrived());
    assert_eq!(reader.read_head(&mut [0; SLOT_BYTES], &mut credit()).err(), Some(MalformedPacket));
}

#[test]
fn the_fault_of_a_malformed_header_is_known() {
    let (mut writer, mut reader) = pair(4);
    let slots = writer.fill(&credit(), None);
    // SAFETY: the version, in the slot that the writer has just filled and not published.
    unsafe { writer.lane.write(4, [1].as_ptr(), 1) };
    writer.publish(slots);
    let mut head = [0; SLOT_BYTES];
    assert_eq!(reader.read_head(&mut head, &mut credit()).err(), Some(MalformedPacket));
    assert_eq!(header_fault(&head), Some(PacketError::Version { have: 1 }));
}
