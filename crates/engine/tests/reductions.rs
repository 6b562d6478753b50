//! Tests of reductions of a group, an offloaded machine, over shared memory: results, a missing member, and a lost one.

#[path = "common/faults.rs"]
mod faults;

use std::time::{Duration, Instant};

use faults::{directory, settings};
use weir_engine::{Completion, Engine, Operation, Post, PostError, ReduceArguments};
use weir_link::memory::OwnedMemory;
use weir_proto::offload::group::{MAX_ROUNDS, Membership, Shape};
use weir_proto::offload::reduce::MAX_VECTOR_BYTES;
use weir_proto::offload::{Combination, WordOperation, WordType};
use weir_proto::{Outcome, Peer, PeerFault, Scheme};

const GROUP: u32 = 3;
const MEMBERS: usize = 5;
const SUM: Combination = Combination { operation: WordOperation::Sum, word_type: WordType::F64 };

fn engines(directory: &tempfile::TempDir) -> Vec<Engine> {
    let settings = settings(directory, Scheme::Dynamic { piggyback: true }, 1 << 20);
    let open = |_| Engine::open(&settings, MEMBERS as u32, false).expect("an endpoint");
    (0..MEMBERS).map(open).collect()
}

fn join(engines: &mut [Engine], rank: usize, patience_ns: Option<u64>) {
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address()).collect();
    let members: Vec<Peer> = addresses.iter().map(|address| engines[rank].peer(address)).collect();
    let membership =
        Membership { group: GROUP, members, rank: rank as u32, patience_ns, shape: Shape::default() };
    engines[rank].join_group(membership).expect("the first group");
}

fn start(engine: &mut Engine, memory: &OwnedMemory) -> Result<(), PostError> {
    let post = Post { context: 9, cookie: 0 };
    engine.reduce(post, ReduceArguments { group: GROUP, combination: SUM, memory: memory.view() })
}

/// Makes progress until each of `ranks` has a completion.
fn complete(engines: &mut [Engine], ranks: &[usize]) -> Vec<Completion> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut found = vec![None; ranks.len()];
    while found.iter().any(Option::is_none) {
        assert!(Instant::now() < deadline, "nothing completes: {found:?}");
        engines.iter_mut().for_each(|engine| {
            engine.progress();
        });
        for (rank, found) in ranks.iter().zip(&mut found) {
            *found = found.or_else(|| engines[*rank].next_completion());
        }
    }
    found.into_iter().flatten().collect()
}

fn values(memory: &OwnedMemory) -> Vec<f64> {
    let mut bytes = vec![0; memory.view().bytes() as usize];
    memory.view().read(0, &mut bytes);
    bytes.chunks(8).map(|bytes| f64::from_ne_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

fn vector(values: impl IntoIterator<Item = f64>) -> OwnedMemory {
    let bytes: Vec<u8> = values.into_iter().flat_map(f64::to_ne_bytes).collect();
    let memory = OwnedMemory::new(bytes.len());
    memory.view().write(0, &bytes);
    memory
}

#[test]
fn the_root_gets_the_sum_in_the_order_of_ranks() {
    let directory = directory();
    let mut engines = engines(&directory);
    let elements = MAX_VECTOR_BYTES as usize / 8;
    let value = |rank: usize, element: usize| (element as f64 + 0.1) * 10f64.powi(rank as i32 * 4);
    let vectors: Vec<OwnedMemory> =
        (0..MEMBERS).map(|rank| vector((0..elements).map(|element| value(rank, element)))).collect();
    for rank in 0..MEMBERS {
        join(&mut engines, rank, None);
        start(&mut engines[rank], &vectors[rank]).expect("the first reduction");
    }
    let all: Vec<usize> = (0..MEMBERS).collect();
    for completion in complete(&mut engines, &all) {
        assert_eq!((completion.operation, completion.outcome), (Operation::Collective, Outcome::Done));
        assert_eq!(completion.post.context, 9);
    }
    let sum = |element| {
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|rank| value(rank, element));
        ((a + b) + (c + d)) + e
    };
    assert_eq!(values(&vectors[0]), (0..elements).map(sum).collect::<Vec<_>>());
    assert_eq!(values(&vectors[2])[7], value(2, 7), "only the root's memory changes");
    let long = OwnedMemory::new(MAX_VECTOR_BYTES as usize + 8);
    start(&mut engines[0], &long).expect("taken");
    assert_eq!(complete(&mut engines, &[0])[0].outcome, Outcome::Refused);
}

#[test]
fn a_missing_member_ends_reductions_when_the_timer_of_the_group_expires() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let directory = directory();
    let mut engines = engines(&directory);
    join(&mut engines, 0, Some(PATIENCE.as_nanos() as u64));
    let memory = vector([1.0]);
    let began = Instant::now();
    for _ in 0..MAX_ROUNDS {
        start(&mut engines[0], &memory).expect("within the bound");
    }
    assert_eq!(start(&mut engines[0], &memory), Err(PostError::Again { limit: MAX_ROUNDS }));
    let missing = engines[1].address();
    let missing = engines[0].peer(&missing);
    let lost = Outcome::Lost { peer: Some(missing), fault: PeerFault::NotReady };
    for _ in 0..MAX_ROUNDS {
        assert_eq!(complete(&mut engines, &[0])[0].outcome, lost);
    }
    assert!(began.elapsed() >= PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_lost_member_ends_the_reductions_of_all_others() {
    let directory = directory();
    let mut engines = engines(&directory);
    (0..MEMBERS).for_each(|rank| join(&mut engines, rank, None));
    let memories: Vec<OwnedMemory> = (0..MEMBERS).map(|_| vector([1.0])).collect();
    // Member 3 contributes to none. Member 2 is its parent, and member 0 waits for member 2.
    for rank in [0, 2] {
        start(&mut engines[rank], &memories[rank]).expect("the first reduction");
    }
    engines.iter_mut().for_each(|engine| {
        engine.progress();
    });
    let lost_address = engines[3].address();
    let mut closing = engines.remove(3);
    closing.close();
    drop(closing);
    for completion in complete(&mut engines, &[0, 2]) {
        assert!(matches!(completion.outcome, Outcome::Lost { .. }), "{completion:?}");
    }
    let lost = engines[0].peer(&lost_address);
    start(&mut engines[0], &memories[0]).expect("taken");
    let outcome = complete(&mut engines, &[0])[0].outcome;
    assert!(matches!(outcome, Outcome::Lost { peer: Some(peer), .. } if peer == lost), "{outcome:?}");
}
