//! Tests of the posted queue against a naive list, counts of visited receives, and memory. Nothing is timed.

use alloc::vec;

use super::*;

fn pattern(from: Option<u32>, tag: u64, ignore: u64) -> Pattern {
    Pattern { space: Space::Tagged, from: from.map(Peer), tag, ignore }
}

fn visits(queue: &PostedQueue) -> u64 {
    let indexed = queue.tagged.indexed.as_ref().expect("a long queue is indexed");
    queue.tagged.visits + indexed.indexes.iter().map(|index| index.visits.get()).sum::<u64>()
}

#[test]
fn a_cancel_among_many_receives_visits_few_of_them() {
    const COUNT: u32 = 10_000;
    let mut queue = PostedQueue::default();
    let post = |queue: &mut PostedQueue, number: u32| {
        queue.post(Request(number), pattern(Some(number % 7), u64::from(number), 0), 8, None);
    };
    (0..COUNT).for_each(|number| post(&mut queue, number));
    // The reverse order is the worst for a list. Receives that are posted in between are found as well.
    for number in (1000..COUNT).rev() {
        assert_eq!(queue.remove_request(Request(number)).map(|posted| posted.request), Some(Request(number)));
        if number % 10 == 0 {
            post(&mut queue, COUNT + number);
            assert!(queue.remove_request(Request(COUNT + number)).is_some());
        }
    }
    assert!(queue.remove_request(Request(COUNT)).is_none(), "no such receive");
    let each = visits(&queue) / u64::from(COUNT);
    assert!(each <= 20, "{each} visits a cancel");
}

#[test]
fn a_match_among_many_receives_visits_few_of_them() {
    const COUNT: u32 = 100_000;
    // With and without a sender, and any tag of a sender: each receive has its own tag or sender.
    for kind in 0..3 {
        let wanted = |number: u32| match kind {
            0 => pattern(Some(3), u64::from(number), 0),
            1 => pattern(None, u64::from(number), 0xf << 60),
            _ => pattern(Some(number), 0, u64::MAX),
        };
        let message = |number: u32| match kind {
            2 => (Peer(number), 99),
            _ => (Peer(3), u64::from(number)),
        };
        let mut queue = PostedQueue::default();
        let empty = queue.bytes();
        for number in 0..COUNT {
            queue.post(Request(number), wanted(number), 8, None);
        }
        // The first search builds the index. The reverse order is the worst for a list.
        for number in (0..COUNT).rev() {
            let (from, tag) = message(number);
            let (place, posted) = queue.find(Space::Tagged, from, tag).expect("posted");
            assert_eq!(posted.request, Request(number));
            queue.remove(place);
            if number == COUNT / 2 {
                let each = visits(&queue) / u64::from(COUNT);
                assert!(each <= 20, "{each} visits a receive");
            }
        }
        assert!(queue.find(Space::Tagged, Peer(3), 5).is_none());
        assert!(queue.bytes() <= empty + 32 * size_of::<Posted>(), "{} bytes when empty", queue.bytes());
    }
}

#[test]
fn a_removal_looks_at_few_receives_without_an_index() {
    const COUNT: u32 = 10_000;
    let mut queue = PostedQueue::default();
    let mut post = |number: u32, mask: u32| {
        queue.post(Request(number), pattern(Some(1), u64::from(number), 1 << mask), 8, None);
    };
    // Each mask is a selector. The first ones get all indexes.
    let first = MAX_INDEXES as u32;
    (0..first).for_each(|number| post(number, 40 + number));
    (first..COUNT).for_each(|number| post(number, 50));
    (COUNT..2 * COUNT).for_each(|number| post(number, 40));
    let looks = |queue: &PostedQueue| queue.tagged.indexed.as_ref().expect("a long queue").looks;
    let remove = |queue: &mut PostedQueue, numbers: core::ops::Range<u32>| {
        for number in numbers.rev() {
            assert!(queue.remove_request(Request(number)).is_some());
        }
    };
    remove(&mut queue, COUNT + COUNT / 2..2 * COUNT); // they have an index
    remove(&mut queue, first..COUNT);
    let each = looks(&queue) / u64::from(COUNT / 2 + COUNT - first);
    assert!((1..=20).contains(&each), "{each} looks a removal");
    let before = looks(&queue);
    remove(&mut queue, COUNT..COUNT + COUNT / 2);
    assert_eq!(looks(&queue), before, "all receives have an index");
}

#[test]
fn a_peer_without_posted_receives_uses_no_memory() {
    let mut queue = PostedQueue::default();
    queue.post(Request(0), pattern(Some(1), 0, 0), 8, None);
    queue.post(Request(1), pattern(Some(1), 0, 0), 8, None);
    let bytes = queue.bytes();
    queue.post(Request(2), pattern(Some(u32::MAX - 1), 0, 0), 8, None);
    assert_eq!(queue.bytes(), bytes, "the same list has room for all");
    assert_eq!(queue.directed_sources().collect::<Vec<_>>(), [Peer(1), Peer(u32::MAX - 1)]);
}

/// Random traffic against a plain list, with few and many selectors, short and long queues.
#[test]
fn the_posted_queue_equals_a_naive_list() {
    let (mut indexed_steps, mut unindexed_steps) = (0, 0);
    for seed in 0..80 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (senders, tags) = (1 << random.u32(0..8), 1 << random.u64(0..10));
        let masks = random.u32(1..10);
        let mut queue = PostedQueue::default();
        let mut naive: Vec<(Request, Pattern)> = vec![];
        for step in 0..3000 {
            let growing = step / 750 % 2 == 0;
            match random.u32(0..20) {
                0..12 if growing => {
                    let from = random.bool().then(|| random.u32(0..senders));
                    let mut pattern = pattern(from, random.u64(0..tags), (1 << random.u32(0..masks)) - 1);
                    pattern.space = if random.u32(0..8) == 0 { Space::Untagged } else { Space::Tagged };
                    queue.post(Request(step), pattern, 8, None);
                    naive.push((Request(step), pattern));
                }
                12 if !naive.is_empty() => {
                    let (request, pattern) = naive.remove(random.usize(0..naive.len()));
                    let removed = queue.remove_request(request).expect("posted");
                    assert_eq!((removed.request, removed.pattern()), (request, pattern));
                    assert!(queue.remove_request(request).is_none());
                }
                13 if random.u32(0..20) == 0 => {
                    let (peer, any_source_too) = (Peer(random.u32(0..senders)), random.bool());
                    let waits = |pattern: &Pattern| pattern.from.map_or(any_source_too, |from| from == peer);
                    let lost: Vec<Request> = queue
                        .remove_for_peer(peer, any_source_too)
                        .iter()
                        .map(|posted| posted.request)
                        .collect();
                    let expected: Vec<Request> = naive
                        .extract_if(.., |(_, pattern)| waits(pattern))
                        .map(|(request, _)| request)
                        .collect();
                    assert_eq!(lost, expected);
                }
                _ => {
                    let (from, tag) = (Peer(random.u32(0..senders)), random.u64(0..tags));
                    let space = if random.u32(0..8) == 0 { Space::Untagged } else { Space::Tagged };
                    let accepts = |(_, pattern): &(Request, Pattern)| {
                        pattern.space == space && pattern.accepts(from, tag)
                    };
                    let index = naive.iter().position(accepts);
                    let found = queue.find(space, from, tag);
                    assert_eq!(found.map(|(_, posted)| posted.request), index.map(|index| naive[index].0));
                    if let (Some(index), Some((place, _))) = (index, found) {
                        naive.remove(index);
                        queue.remove(place);
                    }
                }
            }
            assert_eq!(
                queue.has_any_source_receive(),
                naive.iter().any(|(_, pattern)| pattern.from.is_none())
            );
            if let Some(indexed) = &queue.tagged.indexed {
                indexed_steps += 1;
                unindexed_steps += usize::from(!indexed.unindexed.is_empty());
            }
            if step % 50 == 0 {
                let peers: BTreeSet<Peer> = naive.iter().filter_map(|(_, pattern)| pattern.from).collect();
                assert!(queue.directed_sources().eq(peers));
            }
        }
    }
    assert!(
        indexed_steps > 10_000 && unindexed_steps > 1000,
        "{indexed_steps} indexed, {unindexed_steps} with a rest"
    );
}
