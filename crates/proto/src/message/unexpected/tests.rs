//! Tests of the unexpected queue: its results against a naive list, memory for each message, and visits for each
//! search. They count instead of timing.

extern crate std;

use alloc::vec;

use super::*;
use crate::ENVELOPE_BYTES;

const EXACT: u64 = 0;
/// As in MPICH: every receive ignores the protocol bits.
const PROTOCOL: u64 = 0xf << 60;
/// As with MPI_ANY_TAG: everything but the context is ignored.
const ANY_TAG: u64 = PROTOCOL | 0xffff_ffff;

fn message(from: u32, tag: u64) -> Unexpected {
    let envelope = Envelope { from: Peer(from), tag, data: Some(u64::from(from)), length: 2048 };
    let payload = Payload::WithSender {
        transfer: Transfer(tag as u32),
        address: RemoteAddress::without_key(0x7fff_1234_5678),
    };
    let space = Space::Tagged;
    Unexpected { space, envelope, payload, acknowledge: None, claimed: false, seen: false }
}

fn pattern(from: Option<u32>, tag: u64, ignore: u64) -> Pattern {
    Pattern { space: Space::Tagged, from: from.map(Peer), tag, ignore }
}

/// The four kinds of patterns of MPI libraries: with and without a sender, one tag and any tag.
fn kinds(from: u32, tag: u64) -> [Pattern; MAX_INDEXES] {
    [(Some(from), PROTOCOL), (None, PROTOCOL), (Some(from), ANY_TAG), (None, ANY_TAG)]
        .map(|(from, ignore)| pattern(from, tag, ignore))
}

fn fill(queue: &mut UnexpectedQueue, count: u64, message: impl Fn(u64) -> Unexpected) -> Vec<MessageId> {
    (0..count).map(|number| queue.push(message(number))).collect()
}

fn tagged(queue: &UnexpectedQueue) -> &SpaceList {
    &queue.waiting.as_ref().expect("a message has waited").spaces[space_index(Space::Tagged)]
}

/// Entries visited so far, in lists and in current indexes.
fn visits(queue: &UnexpectedQueue) -> u64 {
    let Some(waiting) = &queue.waiting else { return 0 };
    let listed = &waiting.spaces[space_index(Space::Tagged)];
    listed.visits + listed.indexes.iter().map(|used| used.index.visits.get()).sum::<u64>()
}

#[test]
fn entries_survive_packing() {
    let payloads = [
        Payload::Whole,
        Payload::Arriving { bytes: 77 },
        Payload::WithSender { transfer: Transfer(9), address: RemoteAddress::without_key((1 << 48) - 1) },
        Payload::WithSender { transfer: Transfer(u32::MAX), address: RemoteAddress::without_key(u64::MAX) },
        Payload::WithSender { transfer: Transfer(9), address: RemoteAddress { address: 0, key: 1 } },
    ];
    let datas = [None, Some(0), Some(u64::from(u32::MAX)), Some(1 << 32)];
    let mut queue = UnexpectedQueue::default();
    let mut expected = vec![];
    for (number, (payload, data)) in
        payloads.into_iter().flat_map(|payload| datas.map(|data| (payload, data))).enumerate()
    {
        for (from, length) in [(0, 0), ((1 << 24) - 1, u64::from(u32::MAX)), (1 << 24, 5), (3, 1 << 32)] {
            let space = if number % 2 == 0 { Space::Tagged } else { Space::Untagged };
            let envelope = Envelope { from: Peer(from), tag: u64::MAX - number as u64, data, length };
            let acknowledge = (number % 3 == 0).then_some(Transfer(4));
            let message =
                Unexpected { space, envelope, payload, acknowledge, claimed: false, seen: number % 5 == 0 };
            expected.push((queue.push(message), message));
        }
    }
    for &(name, message) in &expected {
        assert_eq!(queue.get(name), Some(message));
        let wanted = Pattern {
            space: message.space,
            from: Some(message.envelope.from),
            tag: message.envelope.tag,
            ignore: EXACT,
        };
        assert_eq!(queue.find(&wanted), Some(name));
    }
    for (name, message) in expected {
        assert_eq!(queue.remove(name), message);
    }
    assert_eq!(
        (
            queue.count(),
            queue.buffered_bytes(),
            queue.waiting.as_ref().map_or(0, |waiting| waiting.wide.len())
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_million_messages_use_64_bytes_each_and_release_them() {
    assert_eq!(size_of::<Entry>(), 36);
    // Distinct tags are the worst case for the indexes, one tag the best.
    for (count, tags) in [(1_000_000, 1_000_000), (200_000, 1)] {
        let mut queue = UnexpectedQueue::default();
        let names = fill(&mut queue, count, |number| message(number as u32 % 1000, number % tags));
        for pattern in kinds(1, 1 << 40) {
            assert_eq!(queue.find(&pattern), None);
        }
        assert_eq!(tagged(&queue).indexes.len(), MAX_INDEXES, "every kind has its index");
        let bytes = queue.bytes();
        std::println!("{count} messages, {tags} tags: {:.2} bytes each", bytes as f64 / count as f64);
        assert!(bytes <= count as usize * ENVELOPE_BYTES as usize, "{bytes} bytes");
        // Also while the queue shrinks from the oldest message on.
        for (number, &name) in names.iter().enumerate() {
            queue.remove(name);
            if number % 100_000 == 0 {
                let bound = queue.count() as usize * ENVELOPE_BYTES as usize + FIXED_BYTES;
                assert!(queue.bytes() <= bound, "{} bytes for {}", queue.bytes(), queue.count());
            }
        }
        assert!(queue.bytes() <= FIXED_BYTES, "{} bytes when empty", queue.bytes());
    }
}

#[test]
fn a_short_queue_uses_64_bytes_per_message_and_one_chunk_per_kind() {
    let mut queue = UnexpectedQueue::default();
    for number in 0..100_000u64 {
        queue.push(message(number as u32 % 3, number));
        if number % 1000 == 40 {
            kinds(0, 1 << 40).iter().for_each(|pattern| assert_eq!(queue.find(pattern), None));
        }
        let bound = queue.count() as usize * ENVELOPE_BYTES as usize + FIXED_BYTES;
        assert!(queue.bytes() <= bound, "{} bytes for {}", queue.bytes(), queue.count());
    }
}

/// Queues `count` other messages, one wanted message, and `count` more. Returns the maximum of visits of a search and a
/// removal, once the index exists.
fn visits_past(count: u64, in_the_way: impl Fn(u64) -> Unexpected, wanted: Pattern) -> u64 {
    let mut queue = UnexpectedQueue::default();
    let ours = message(wanted.from.map_or(7, |peer| peer.0), wanted.tag);
    fill(&mut queue, count, &in_the_way);
    queue.push(ours);
    fill(&mut queue, count, &in_the_way);
    let mut most = 0;
    queue.find(&wanted);
    for _ in 0..20 {
        let before = visits(&queue);
        let found = queue.find(&wanted).expect("the wanted message");
        assert_eq!(queue.find(&wanted), Some(found), "a second search finds the same");
        assert_eq!(queue.remove(found).envelope.tag, wanted.tag);
        queue.push(ours);
        most = most.max(visits(&queue) - before);
    }
    most
}

#[test]
fn a_search_visits_few_messages_of_other_keys() {
    let context = |tag: u64| 5 << 40 | tag;
    type InTheWay = fn(u64) -> Unexpected;
    // The same tag from another sender; other tags of the sender; distinct tags; another context from many senders.
    let arrangements: [InTheWay; 4] = [
        |_| message(1, 5 << 40 | 9),
        |_| message(7, 6 << 40 | 8),
        |number| message(7, 6 << 40 | number),
        |number| message(number as u32 % 5000 + 10, 6 << 40 | 9),
    ];
    for (number, in_the_way) in arrangements.into_iter().enumerate() {
        for (kind, wanted) in kinds(7, context(9)).into_iter().enumerate() {
            if number == 0 && wanted.from.is_none() {
                continue; // The others match the pattern too.
            }
            let few = visits_past(5, in_the_way, wanted);
            for count in [1000, 100_000] {
                let many = visits_past(count, in_the_way, wanted);
                assert!(many <= 100, "arrangement {number}, kind {kind}: {many} past {count}, {few} past 5");
            }
        }
    }
}

#[test]
fn draining_three_senders_in_turn_visits_few_entries_per_message() {
    const EACH: u64 = 40_000;
    for ignore in [EXACT, PROTOCOL, ANY_TAG] {
        let mut queue = UnexpectedQueue::default();
        fill(&mut queue, 3 * EACH, |number| message(number as u32 % 3, (5 << 40) | (number / 3 % 7)));
        for from in [2, 1, 0] {
            for number in 0..EACH {
                let wanted = pattern(Some(from), (5 << 40) | (number % 7), ignore);
                let found = queue.find(&wanted).expect("its message");
                assert_eq!(queue.remove(found).envelope.from, Peer(from));
            }
        }
        let each = visits(&queue) / (3 * EACH);
        assert!(each <= 20, "{each} visits a message");
    }
}

#[test]
fn extra_selectors_replace_indexes_within_the_stated_bound() {
    const COUNT: u64 = 2000;
    let mut queue = UnexpectedQueue::default();
    fill(&mut queue, COUNT, |number| message(1, number << 8));
    let wanted = queue.push(message(2, COUNT << 8));
    const SEARCHES: u64 = 700;
    let mut builds = 0;
    let mut selectors = vec![];
    for search in 0..SEARCHES {
        // Seven masks in turn; only the last message matches.
        let ignore = (1 << (search % 7)) - 1;
        assert_eq!(queue.find(&pattern(Some(2), COUNT << 8, ignore)), Some(wanted));
        let now: Vec<_> = tagged(&queue).indexes.iter().map(|used| used.index.selector()).collect();
        builds += u64::from(now != selectors);
        selectors = now;
    }
    assert!(tagged(&queue).indexes.len() == MAX_INDEXES && builds > MAX_INDEXES as u64);
    assert!(builds <= MAX_INDEXES as u64 + SEARCHES / WALKED_BEFORE_EXCHANGE, "{builds} indexes built");
    assert!(tagged(&queue).visits <= SEARCHES * (COUNT + 1));
}

#[test]
fn indexes_are_dropped_when_few_messages_remain() {
    let mut queue = UnexpectedQueue::default();
    let names = fill(&mut queue, 100, |tag| message(0, tag));
    queue.find(&pattern(Some(0), 99, EXACT));
    assert_eq!(tagged(&queue).indexes.len(), 1);
    for &name in &names[1..] {
        queue.remove(name);
    }
    assert_eq!(tagged(&queue).indexes.len(), 0);
    assert_eq!(queue.find(&pattern(Some(0), 0, EXACT)), Some(names[0]));
}

/// Random traffic against a plain list, with few and many keys, short and long queues.
#[test]
fn the_unexpected_queue_equals_a_naive_list() {
    let (mut exchanges, mut longest) = (0, 0);
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (senders, tags) = (1 << random.u32(0..8), 1 << random.u64(0..12));
        let masks = &[EXACT, 1, 6, PROTOCOL, ANY_TAG, u64::MAX, 0xff00][..random.usize(1..=7)];
        let mut queue = UnexpectedQueue::default();
        let mut naive: Vec<(MessageId, Unexpected)> = vec![];
        let mut claimed: Vec<(MessageId, Unexpected)> = vec![];
        for step in 0..4000 {
            let growing = step / 1000 % 2 == 0;
            match random.u32(0..20) {
                0..4 => {}
                4..14 if growing => {
                    let mut message = message(random.u32(0..senders), random.u64(0..tags));
                    message.space = if random.u32(0..8) == 0 { Space::Untagged } else { Space::Tagged };
                    match random.u32(0..10) {
                        0 => message.envelope.data = Some(random.u64(..)),
                        1 => message.envelope.length = random.u64(..1 << 40),
                        2 => message.payload = Payload::Whole,
                        3 => message.payload = Payload::Arriving { bytes: 5 },
                        4 => message.envelope.from = Peer((1 << 24) + random.u32(0..senders)),
                        _ => {}
                    }
                    naive.push((queue.push(message), message));
                }
                14 if !claimed.is_empty() => {
                    let (name, message) = claimed.swap_remove(random.usize(0..claimed.len()));
                    assert_eq!(queue.remove(name), message);
                }
                15 if !naive.is_empty() => {
                    // Out of order, as when a sender is lost.
                    let (name, message) = naive.remove(random.usize(0..naive.len()));
                    assert_eq!(queue.remove(name), message);
                }
                16 if !naive.is_empty() => {
                    let index = random.usize(0..naive.len());
                    let (name, message) = &mut naive[index];
                    message.payload = Payload::Whole;
                    message.seen = true;
                    let change = |edited: &mut Unexpected| {
                        (edited.payload, edited.seen) = (Payload::Whole, true);
                    };
                    assert_eq!(queue.edit(*name, change), Some(()));
                }
                action => {
                    let wanted = Pattern {
                        space: if random.u32(0..8) == 0 { Space::Untagged } else { Space::Tagged },
                        from: random.bool().then(|| Peer(random.u32(0..senders))),
                        tag: random.u64(0..tags),
                        ignore: masks[random.usize(0..masks.len())],
                    };
                    let accepted = |(_, message): &(MessageId, Unexpected)| {
                        message.space == wanted.space
                            && wanted.accepts(message.envelope.from, message.envelope.tag)
                    };
                    let index = naive.iter().position(accepted);
                    assert_eq!(queue.find(&wanted), index.map(|index| naive[index].0), "{wanted:?}");
                    let Some(index) = index else { continue };
                    match action {
                        17 => {
                            let (name, mut message) = naive.remove(index);
                            queue.claim(name);
                            message.claimed = true;
                            assert_eq!(queue.get(name), Some(message));
                            claimed.push((name, message));
                        }
                        18 => {}
                        _ => {
                            let (name, message) = naive.remove(index);
                            assert_eq!(queue.remove(name), message);
                        }
                    }
                }
            }
            longest = longest.max(naive.len());
            exchanges += usize::from(queue.waiting.is_some() && tagged(&queue).indexes.len() == MAX_INDEXES);
            let all = || naive.iter().chain(&claimed).map(|(_, message)| message);
            assert_eq!(queue.count() as usize, naive.len() + claimed.len());
            if step % 64 == 0 {
                assert_eq!(queue.buffered_bytes(), all().map(Unexpected::buffered_bytes).sum());
                let lost = Peer(random.u32(0..senders));
                let incomplete = |(_, message): &&(MessageId, Unexpected)| {
                    message.envelope.from == lost && message.payload != Payload::Whole
                };
                let mut expected: Vec<MessageId> =
                    naive.iter().filter(incomplete).map(|(name, _)| *name).collect();
                let mut found = queue.incomplete_from(lost);
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected);
            }
        }
    }
    assert!(
        longest > 500 && exchanges > 1000,
        "{longest} waiting at most, {exchanges} steps with all indexes"
    );
}
