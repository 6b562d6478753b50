//! Random cases: operations that the members of a team begin at once, or changes of words of each other.

use fastrand::Rng;
use weir_link::shm::node_group::Operation;
use weir_proto::offload::reduce::{MAX_VECTOR_BYTES, Vector};
use weir_proto::offload::{Combination, WordOperation, WordType, WordUpdate};

/// Words that a member may change at each other one. Nobody else changes them, so what it finds follows from its own list.
pub const WORDS_EACH: u32 = 6;
/// Longest block of an operation that only copies. Unit: bytes.
const LONGEST_BLOCK: u32 = 12_000;
/// Bound of the length of a multi-send. Unit: bytes.
pub const LONGEST_MULTI_SEND: usize = 3000;
/// Most words of a multi-send that fits a frame of the kernel programs.
const MAX_FRAME_WORDS: usize = weir_nic::format::MAX_VECTOR_WORDS;

/// An operation, and what each member gives.
#[derive(Clone, Debug)]
pub struct Collective {
    pub operation: Operation,
    pub data: Vec<Vec<u8>>,
}

/// A change of a word of another member.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub to: u32,
    /// Below [`WORDS_EACH`].
    pub word: u32,
    pub update: WordUpdate,
}

/// What a team does.
#[derive(Clone, Debug)]
pub enum Case {
    /// All of these, begun before the first one ends.
    Collectives(Vec<Collective>),
    /// The changes of each member, in their order.
    Words(Vec<Vec<Change>>),
    /// A lock that members acquire and release.
    Lock(LockCase),
    /// The multi-sends of each member, in their order.
    MultiSends(Vec<Vec<MultiSend>>),
}

/// A lock of a team, and who asks for it when.
#[derive(Clone, Debug)]
pub struct LockCase {
    /// The member with the tail.
    pub home: u32,
    pub asks: Asks,
}

/// In which order members ask.
#[derive(Clone, Debug)]
pub enum Asks {
    /// Queues of different members, one after the other. A member asks when the one before it has. The first one has
    /// the lock until all of its queue have asked. So all words follow from the case.
    InTurn(Vec<Vec<u32>>),
    /// Each member asks so often, as fast as it can.
    Freely(Vec<u32>),
}

/// A message to several other members. Its bytes follow from its sender and its place in the list ([`message`]).
#[derive(Clone, Debug)]
pub struct MultiSend {
    /// Each one once.
    pub to: Vec<u32>,
    pub bytes: usize,
}

/// The bytes of a multi-send.
pub fn message(from: u32, number: usize, bytes: usize) -> Vec<u8> {
    let mut random = Rng::with_seed(u64::from(from) << 32 | number as u64);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

/// The lengths of the messages from each sender to `to`, in their order.
pub fn lengths_to(lists: &[Vec<MultiSend>], to: u32) -> Vec<Vec<usize>> {
    let of =
        |list: &Vec<MultiSend>| list.iter().filter(|it| it.to.contains(&to)).map(|it| it.bytes).collect();
    lists.iter().map(of).collect()
}

/// What each member gets of each operation, as bytes. Of changes: the old words. Of locks: its turns and the words at
/// the end. Of multi-sends: the length of each message, by sender.
pub type Results = Vec<Vec<Vec<u8>>>;

/// How the operations of a case are drawn. Some executors have only few.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    All,
    /// Those of the machine of groups.
    OfMachines,
    /// Barriers, and all-reduces that fit a frame.
    OfFrames,
}

impl Case {
    pub fn draw(members: u32, random: &mut Rng) -> Case {
        if members > 1 && random.u8(..4) == 0 {
            return Case::Words((0..members).map(|rank| draw_changes(rank, members, random)).collect());
        }
        match random.u8(..24) {
            0 | 1 => return Case::Lock(draw_lock(members, random)),
            2 | 3 if members > 1 => return Case::MultiSends(draw_multi_sends(members, random)),
            _ => {}
        }
        let choice = random.choice([Choice::All, Choice::OfMachines, Choice::OfFrames]).expect("three");
        let count = random.u8(1..=4);
        let collectives = (0..count).map(|_| {
            let operation = draw_operation(choice, members, random);
            let data = (0..members).map(|rank| draw_data(operation, rank, members, random)).collect();
            Collective { operation, data }
        });
        Case::Collectives(collectives.collect())
    }
}

fn draw_operation(choice: Choice, members: u32, random: &mut Rng) -> Operation {
    let is_long = random.u8(..12) == 0;
    let bytes = if is_long { random.u32(..LONGEST_BLOCK) } else { random.u32(..40) };
    let root = if choice == Choice::All { random.u32(..members) } else { 0 };
    let vector = draw_vector(choice, is_long, random);
    let kinds = match choice {
        Choice::All => 8,
        Choice::OfMachines => 5,
        Choice::OfFrames => 2,
    };
    match random.u8(..kinds) {
        0 => Operation::Barrier,
        1 => Operation::AllReduce(vector),
        2 => Operation::Reduce { root, vector },
        3 => Operation::Broadcast { root: random.u32(..members), bytes },
        4 => Operation::AllToAll { bytes: bytes / 4 },
        5 => Operation::AllGather { bytes },
        6 => Operation::Gather { root, bytes },
        _ => Operation::Scatter { root, bytes },
    }
}

fn draw_vector(choice: Choice, is_long: bool, random: &mut Rng) -> Vector {
    use WordOperation::{And, Max, Min, Or, Product, Sum};
    let of_frames = choice == Choice::OfFrames;
    let combination = loop {
        let combination = Combination {
            operation: random.choice(WordOperation::ALL).expect("some"),
            word_type: random.choice(WordType::ALL).expect("some"),
        };
        let fits_frames = matches!(combination.operation, And | Max | Min | Or | Product | Sum);
        if combination.is_valid() && (fits_frames || !of_frames) {
            break combination;
        }
    };
    let most_bytes = if of_frames { 1024 } else { MAX_VECTOR_BYTES };
    let most = most_bytes / combination.word_type.bytes();
    let elements = if is_long { random.u32(1..=most) } else { random.u32(1..=4) };
    Vector { bytes: elements * combination.word_type.bytes(), combination }
}

fn draw_data(operation: Operation, rank: u32, members: u32, random: &mut Rng) -> Vec<u8> {
    let bytes = operation.data_bytes(rank, members);
    match operation {
        Operation::Reduce { vector, .. } | Operation::AllReduce(vector) => {
            let word_bytes = vector.combination.word_type.bytes() as usize;
            let element =
                |_| draw_word(vector.combination, random).to_le_bytes().into_iter().take(word_bytes);
            (0..bytes / word_bytes).flat_map(element).collect()
        }
        _ => std::iter::repeat_with(|| random.u8(..)).take(bytes).collect(),
    }
}

/// The bits of a value. Floats have any size, so that their sums depend on the order.
fn draw_word(combination: Combination, random: &mut Rng) -> u64 {
    let is_compared = matches!(combination.operation, WordOperation::Min | WordOperation::Max);
    let float = |random: &mut Rng| match random.u8(..12) {
        0 => 0.0,
        1 => -0.0,
        2 => f64::INFINITY,
        3 => 1.0,
        4 if is_compared => f64::NAN,
        _ => (random.f64() - 0.5) * 10_f64.powi(random.i32(-15..15)),
    };
    match combination.word_type {
        WordType::F32 => (float(random) as f32).to_bits().into(),
        WordType::F64 => float(random).to_bits(),
        _ if random.bool() => random.u64(..3),
        WordType::I32 | WordType::U32 => random.u32(..).into(),
        WordType::I64 | WordType::U64 => random.u64(..),
    }
}

fn draw_lock(members: u32, random: &mut Rng) -> LockCase {
    let home = random.u32(..members);
    let asks = if random.bool() {
        let queue = |random: &mut Rng| {
            let mut queue: Vec<u32> = (0..members).collect();
            random.shuffle(&mut queue);
            queue.truncate(random.usize(1..=queue.len()));
            queue
        };
        Asks::InTurn((0..random.u8(1..=2)).map(|_| queue(random)).collect())
    } else {
        Asks::Freely((0..members).map(|_| random.u32(..4)).collect())
    };
    LockCase { home, asks }
}

fn draw_multi_sends(members: u32, random: &mut Rng) -> Vec<Vec<MultiSend>> {
    let of_frames = random.bool();
    let draw = |rank: u32, random: &mut Rng| {
        let mut to: Vec<u32> = (0..members).filter(|other| *other != rank).collect();
        if of_frames {
            return MultiSend { to, bytes: 8 * random.usize(1..=MAX_FRAME_WORDS) };
        }
        random.shuffle(&mut to);
        to.truncate(random.usize(1..=to.len()));
        let most = random.choice([1, 100, LONGEST_MULTI_SEND]).expect("three");
        MultiSend { to, bytes: random.usize(..most) }
    };
    let list = |rank| (0..random.u8(..4)).map(|_| draw(rank, random)).collect();
    (0..members).map(list).collect()
}

/// The changes of a member. The last ones fetch all words of the list and leave 0, as the next case expects. A word has one
/// type in a case.
fn draw_changes(rank: u32, members: u32, random: &mut Rng) -> Vec<Change> {
    use WordOperation::{And, CompareSwap, Or, Read, Sum, Write, Xor};
    let of_frames = random.bool();
    let place = |random: &mut Rng| {
        let word_type = if of_frames { WordType::U64 } else { random.choice(WordType::ALL).expect("some") };
        ((rank + random.u32(1..members)) % members, random.u32(..WORDS_EACH), word_type)
    };
    let mut places: Vec<(u32, u32, WordType)> = (0..random.u8(1..=3)).map(|_| place(random)).collect();
    places.sort_unstable_by_key(|(to, word, _)| (*to, *word));
    places.dedup_by_key(|(to, word, _)| (*to, *word));
    let change = |(to, word, word_type), operation: WordOperation, random: &mut Rng| {
        // As for a write, so that arithmetic finds no value that is not a number.
        let value = |random: &mut Rng| draw_word(Combination { operation: Write, word_type }, random);
        let operand = if operation == Read { 0 } else { value(random) };
        let compare = if operation.compares() { value(random) } else { 0 };
        Change { to, word, update: WordUpdate { operation, word_type, operand, compare } }
    };
    let mut list: Vec<Change> = places.iter().map(|at| change(*at, Write, random)).collect();
    for _ in 0..random.u8(..12) {
        let at = random.choice(&places).expect("some");
        let operation = loop {
            let operation = random.choice(WordOperation::ALL).expect("some");
            let is_of_frames = matches!(operation, Read | Write | CompareSwap | Sum | And | Or | Xor);
            if operation.has_type(at.2) && (is_of_frames || !of_frames) {
                break operation;
            }
        };
        list.push(change(*at, operation, random));
    }
    let last = places.iter().map(|at| change(*at, Write, random));
    list.extend(last.map(|last| Change { update: WordUpdate { operand: 0, ..last.update }, ..last }));
    list
}
