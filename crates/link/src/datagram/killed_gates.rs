//! Tests of ranks that share tokens and are killed, or stopped and resumed late, before each of their accesses to the lines of the
//! node: with forked processes, real signals and real segments. Time passes only where a test advances it.

use super::send_gate::{Passage, SendGate};
use crate::shm::ShmLink;
use crate::shm::counted_word::before_access;
use crate::shm::forked_victim::{Victim, killed_before};
use crate::shm::node_segment::{JobKey, NodeSegment};
use crate::shm::options::for_tests;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use weir_proto::Instant;
use weir_proto::admission::HOLD_NS;

const NOW: Instant = Instant(7 * HOLD_NS);
/// Time between two requests. Longer than an allowance.
const STEP_NS: u64 = HOLD_NS / 20;
/// When living ranks begin, after the last step of a victim.
const BEGIN: Instant = Instant(NOW.0 + HOLD_NS / 100);
const PATH: u32 = 0;
const BYTES: u32 = 8;

/// A rank of the node that lives.
struct Rank {
    gate: SendGate,
    _node: NodeSegment,
    _mailbox: ShmLink,
}

fn join(directory: &Path) -> (NodeSegment, ShmLink) {
    let mailbox = ShmLink::open(&for_tests(directory)).expect("a mailbox");
    let node = NodeSegment::join(&mailbox, JobKey::new(&"a job")).expect("joined");
    (node, mailbox)
}

impl Rank {
    fn open(directory: &Path, tokens: u32) -> Rank {
        let (_node, _mailbox) = join(directory);
        Rank { gate: SendGate::with_tokens(tokens, Some(&_node.handle())), _node, _mailbox }
    }
}

/// Asks for tokens for so many bundles, and takes them if they are free. Otherwise the rank has a ticket.
fn takes(gate: &mut SendGate, now: Instant, bundles: u32) -> bool {
    gate.give_turn(PATH);
    let passes = gate.passage(now, PATH, bundles, BYTES) == Some(Passage::Admitted);
    if passes {
        gate.took(now, bundles, true);
    }
    passes
}

/// What a victim notes when it has taken tokens, has drawn a ticket, has given its tokens back, and has left.
const TOOK: u8 = 1;
const WAITS: u8 = 2;
const GAVE_BACK: u8 = 3;
const LEFT: u8 = 4;
/// All that it notes: it takes all tokens, draws a ticket, gives the tokens back, takes one with its ticket, and leaves.
const ALL_NOTES: [u8; 6] = [TOOK, WAITS, GAVE_BACK, TOOK, GAVE_BACK, LEFT];

/// A child has the line of `node`. It is killed before its access with number `access`, or after so many notes.
fn victim(node: &NodeSegment, tokens: u32, now: Instant, access: u32, most_notes: usize) -> Victim {
    killed_before(access, |notes| {
        let mut gate = SendGate::with_tokens(tokens, Some(&node.handle()));
        let mut steps = 0;
        let mut held = 0;
        for note in ALL_NOTES.into_iter().take(most_notes) {
            let now = now.plus_ns(steps * 1000);
            steps += 1;
            match note {
                TOOK => {
                    let bundles = if held == 0 && steps == 1 { tokens } else { 1 };
                    assert!(takes(&mut gate, now, bundles), "nobody else has tokens, nobody waits before it");
                    held = bundles;
                }
                WAITS => assert!(!takes(&mut gate, now, 1), "it has all tokens"),
                GAVE_BACK => {
                    gate.gave_back(now, held);
                    held = 0;
                }
                _ => gate.open(now),
            }
            notes.add(note);
        }
    })
}

/// The tokens that others find free after these notes: none before a ticket.
fn free_after(notes: &[u8], tokens: u32) -> u32 {
    match notes {
        [.., TOOK] if notes.len() > 1 => tokens - 1,
        [.., TOOK | WAITS] | [.., WAITS, GAVE_BACK] => 0,
        _ => tokens,
    }
}

/// What others find free after a victim has died: what it was before, or after the step in which it died.
fn free_beside(notes: &[u8], before: u32, tokens: u32) -> [u32; 2] {
    let has_begun = !notes.is_empty();
    let known = if has_begun { free_after(notes, tokens) } else { before };
    let next = &ALL_NOTES[..ALL_NOTES.len().min(notes.len() + 1)];
    [known, free_after(next, tokens)]
}

/// The living ranks send two messages each, from `begin` on. `free`: what is free at first, one of these or between them.
fn assert_the_living_share_all_tokens(
    living: &mut [Rank],
    tokens: u32,
    begin: Instant,
    free: &[u32],
    about: &str,
) {
    let mut now = begin;
    for round in 0..2 {
        // Each one passes at once, or draws a ticket.
        let mut passes = Vec::new();
        for (number, rank) in living.iter_mut().enumerate() {
            if takes(&mut rank.gate, now, 1) {
                passes.push(number);
            }
            now = now.plus_ns(STEP_NS);
        }
        let at_once = passes.len() as u32;
        assert!((0..at_once as usize).eq(passes.iter().copied()), "{about}: {passes:?} pass by a ticket");
        let is_expected = match round {
            0 => free.iter().min() <= Some(&at_once) && Some(&at_once) <= free.iter().max(),
            _ => at_once == tokens,
        };
        assert!(is_expected, "{about}: {at_once} pass at once in round {round}, {free:?} are free at first");
        passes.iter().for_each(|&number| living[number].gate.gave_back(now, 1));
        while passes.len() < living.len() {
            assert!(now.since_ns(begin) < 2 * HOLD_NS, "{about}: {passes:?} pass in round {round}");
            // The last ones ask first, so the order is that of tickets.
            let before = passes.len();
            for number in (before..living.len()).rev() {
                if !passes.contains(&number) && takes(&mut living[number].gate, now, 1) {
                    passes.insert(before, number);
                }
            }
            assert!(passes.is_sorted(), "{about}: {passes:?} is not the order of tickets");
            let held: u32 = living.iter().map(|rank| rank.gate.held()).sum();
            assert!(held <= tokens, "{about}: {held} tokens");
            now = now.plus_ns(STEP_NS);
            // A message is acknowledged, so its token goes to the next ticket.
            if held == tokens {
                living.iter_mut().find(|rank| rank.gate.held() > 0).expect("it").gate.gave_back(now, 1);
            }
        }
        for rank in living.iter_mut() {
            let held = rank.gate.held();
            rank.gate.gave_back(now, held);
        }
        now = now.plus_ns(STEP_NS);
    }
}

#[test]
fn a_rank_killed_before_any_access_to_lines_keeps_no_token_and_the_others_keep_their_order() {
    for tokens in [1, 2] {
        for access in 0.. {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let (entry, _mailbox) = join(directory.path());
            let mut living = [(); 3].map(|()| Rank::open(directory.path(), tokens));
            let Victim { notes, has_ended } = victim(&entry, tokens, NOW, access, ALL_NOTES.len());
            let about = format!("{tokens} tokens, killed before access {access}, {notes:?}");
            assert_eq!(notes, ALL_NOTES[..notes.len()], "{about}");
            let free = free_beside(&notes, tokens, tokens);
            assert_the_living_share_all_tokens(&mut living, tokens, BEGIN, &free, &about);
            if has_ended {
                assert!(access > 25, "the victim has {access} accesses");
                break;
            }
        }
    }
}

/// The line of a dead rank with tokens and a ticket is that of the next rank with its entry, which is killed too.
#[test]
fn a_rank_killed_before_any_access_to_the_line_of_a_dead_rank_keeps_nothing_of_it() {
    for tokens in [1, 2] {
        for access in 0.. {
            let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let (entry, _mailbox) = join(directory.path());
            let mut living = [(); 3].map(|()| Rank::open(directory.path(), tokens));
            let first = victim(&entry, tokens, NOW, u32::MAX, 2);
            assert_eq!(first.notes, [TOOK, WAITS]);
            let now = NOW.plus_ns(10_000);
            let Victim { notes, has_ended } = victim(&entry, tokens, now, access, ALL_NOTES.len());
            let about = format!("{tokens} tokens, the second killed before access {access}, {notes:?}");
            assert_eq!(notes, ALL_NOTES[..notes.len()], "{about}: it has nothing of the first one");
            // At first the tokens of the first one, or nothing, if the second one has cleared its line.
            let free =
                if notes.is_empty() { vec![0, tokens] } else { free_beside(&notes, 0, tokens).to_vec() };
            assert_the_living_share_all_tokens(&mut living, tokens, BEGIN, &free, &about);
            if has_ended {
                break;
            }
        }
    }
}

/// A rank is stopped before one of its accesses, so long that its line counts no more, and resumed. The others share all
/// tokens meanwhile, in the order of their tickets. Afterwards no token is missing.
/// This thread stops before its access with this number, tells `stopped`, and goes on when it is resumed. Returns where it tells
/// that it has ended.
fn stop_before(access: u32, stopped: mpsc::Sender<bool>, resumed: mpsc::Receiver<()>) -> mpsc::Sender<bool> {
    let ended = stopped.clone();
    before_access(access, move || {
        stopped.send(true).expect("the test waits");
        resumed.recv().expect("the test resumes it");
    });
    ended
}

#[test]
fn a_rank_stopped_before_any_access_to_lines_and_resumed_late_keeps_no_token_and_no_turn() {
    for access in 0.. {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut late = Rank::open(directory.path(), 1);
        let mut living = [(); 2].map(|()| Rank::open(directory.path(), 1));
        let clock = Arc::new(AtomicU64::new(NOW.0));
        let [read, advanced] = [(); 2].map(|()| Arc::clone(&clock));
        let read = move || Instant(read.load(Ordering::Acquire));
        let advance = |by_ns| Instant(advanced.fetch_add(by_ns, Ordering::AcqRel) + by_ns);
        let (stopped, is_stopped) = mpsc::channel();
        let (resume, resumed) = mpsc::channel::<()>();
        let rank = std::thread::spawn(move || {
            let ended = stop_before(access, stopped, resumed);
            for _ in 0..2 {
                while !takes(&mut late.gate, read(), 1) {
                    std::thread::yield_now();
                }
                assert_eq!(late.gate.held(), 1);
                late.gate.gave_back(read(), 1);
            }
            ended.send(false).expect("the test waits");
            late
        });
        let was_stopped = is_stopped.recv().expect("it stops or ends");
        // The first of the others gets the token at the latest when the line of the one that is stopped counts no more.
        let begin = advance(STEP_NS);
        let mut now = begin;
        let mut has_token = takes(&mut living[0].gate, now, 1);
        while !has_token {
            now = advance(STEP_NS);
            assert!(!takes(&mut living[1].gate, now, 1), "{access}: the order of tickets");
            has_token = takes(&mut living[0].gate, now, 1);
            assert!(now.since_ns(begin) < 2 * HOLD_NS, "{access}: it waits for one that is stopped");
        }
        assert!(!takes(&mut living[1].gate, now, 1), "{access}: there is one token");
        now = advance(HOLD_NS / 2);
        if was_stopped {
            resume.send(()).expect("it waits");
        }
        // It may have looked before it was stopped, so it may pass once beside the first one. Its ticket may be earlier
        // than that of the second one. All of them end.
        living[0].gate.gave_back(now, 1);
        let mut has_passed = false;
        while !has_passed {
            now = advance(STEP_NS);
            has_passed = takes(&mut living[1].gate, now, 1);
            assert!(now.since_ns(begin) < 1000 * HOLD_NS, "{access}: the second one waits for ever");
            std::thread::yield_now();
        }
        living[1].gate.gave_back(now, 1);
        while !rank.is_finished() {
            now = advance(STEP_NS);
            assert!(now.since_ns(begin) < 1_000_000 * HOLD_NS, "{access}: the late one waits for ever");
            std::thread::yield_now();
        }
        let late = rank.join().expect("no panic");
        assert_eq!(late.gate.held(), 0, "{access}");
        for rank in living.iter_mut().chain([&mut { late }]) {
            now = advance(STEP_NS);
            assert!(takes(&mut rank.gate, now, 1), "{access}: a token is missing");
            rank.gate.gave_back(now, 1);
        }
        if !was_stopped {
            assert!(access > 10, "the rank has {access} accesses");
            return;
        }
    }
}

/// A rank takes all tokens and is stopped before one of its accesses, so long that its line counts no more. Another one takes all
/// of them meanwhile. The first one has read the clock before it was stopped, so what the other one has taken since does not count
/// for it, and twice as many are held. From its next change on they all count, and nobody passes until they fit.
#[test]
fn a_rank_resumed_late_exceeds_the_tokens_by_its_own_and_nobody_passes_until_they_fit() {
    const TOKENS: u32 = 2;
    for access in 0.. {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut late = Rank::open(directory.path(), TOKENS);
        let [mut second, mut third] = [(); 2].map(|()| Rank::open(directory.path(), TOKENS));
        let (stopped, is_stopped) = mpsc::channel();
        let (resume, resumed) = mpsc::channel::<()>();
        let rank = std::thread::spawn(move || {
            let ended = stop_before(access, stopped, resumed);
            takes(&mut late.gate, NOW, TOKENS);
            ended.send(false).expect("the test waits");
            late
        });
        let was_stopped = is_stopped.recv().expect("it stops or ends");
        let now = NOW.plus_ns(HOLD_NS);
        assert!(takes(&mut second.gate, now, TOKENS), "{access}: nothing of the first one counts");
        if was_stopped {
            resume.send(()).expect("it waits");
        }
        let mut late = rank.join().expect("no panic");
        assert_eq!([&late, &second].map(|rank| rank.gate.held()), [TOKENS; 2], "{access}");
        let now = now.plus_ns(STEP_NS);
        late.gate.gave_back(now, 1);
        assert!(!takes(&mut late.gate, now, 1) && !takes(&mut third.gate, now, 1), "{access}: 3 are held");
        second.gate.gave_back(now, 1);
        assert!(!takes(&mut late.gate, now, 1) && !takes(&mut third.gate, now, 1), "{access}: 2 are held");
        late.gate.gave_back(now, 1);
        let now = now.plus_ns(STEP_NS);
        assert!(!takes(&mut third.gate, now, 1), "{access}: the late one comes first");
        assert!(takes(&mut late.gate, now, 1), "{access}: 1 is held");
        assert!(!takes(&mut third.gate, now, 1), "{access}: 2 are held");
        second.gate.gave_back(now, 1);
        assert!(takes(&mut third.gate, now.plus_ns(STEP_NS), 1), "{access}: 1 is held");
        if !was_stopped {
            // It looks how many lines there are, reads the two of the others and writes its own.
            assert_eq!(access, 1 + 2 * 3 + 1, "the accesses of the rank");
            break;
        }
    }
}

#[test]
fn far_below_the_limit_a_line_keeps_a_single_token_for_the_next_bundle_while_it_counts() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let [mut single, mut other] = [(); 2].map(|()| Rank::open(directory.path(), 64));
    let at = |us: u64| NOW.plus_ns(1000 * us);
    assert!(takes(&mut single.gate, at(0), 1));
    single.gate.gave_back(at(10), 1);
    assert!(!takes(&mut other.gate, at(20), 64), "one is in the line still");
    // Without a look it takes the token again, although the other one waits.
    assert!(single.gate.passage_at_once(at(1900), 1, || BYTES) == Some(Passage::Admitted));
    single.gate.took(at(1900), 1, true);
    assert_eq!(single.gate.passage_at_once(at(1901), 1, || BYTES), None, "the second needs a look");
    single.gate.gave_back(at(1910), 1);
    assert_eq!(single.gate.passage_at_once(at(2000), 1, || BYTES), None, "it is time to look");
    assert!(!takes(&mut other.gate, at(2001), 64));
    assert!(!takes(&mut single.gate, at(2002), 1), "the other one waits");
    assert!(takes(&mut other.gate, at(2003), 64), "what waits keeps nothing");
    // One that has ended does not say so. Its line counts no more after a while.
    other.gate.gave_back(at(2010), 64);
    assert!(takes(&mut single.gate, at(2020), 1));
    single.gate.gave_back(at(2030), 1);
    assert!(!takes(&mut other.gate, at(12_019), 64));
    assert!(takes(&mut other.gate, at(12_020), 64));
}
