//! A barrier by one counter in shared memory: what the node group is compared with. Nothing else can be simpler, so it is
//! the limit of a barrier among processes of one node.
//!
//! Its rule: each member adds 1 to `arrived`. The last one sets it to 0 and begins the next generation; the others look at
//! the generation, and yield after each look.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weir_link::shm::node_segment::SharedArea;

/// Words of the counter: two cache lines.
const ARRIVED: usize = 0;
const GENERATION: usize = 8;
/// Length of its memory. Unit: bytes.
pub const BYTES: u64 = 128;

/// Bound on a wait. A member that dies would stop the others for good.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The counter, for one member.
pub struct FlatCounter {
    words: SharedArea,
    members: u64,
}

impl FlatCounter {
    /// A counter of `members` members in words that are 0 at first.
    pub fn new(words: SharedArea, members: u32) -> FlatCounter {
        FlatCounter { words, members: members.into() }
    }

    /// Waits until all members have called it. `false`: a member did not come.
    pub fn barrier(&self) -> bool {
        let (arrived, generation) = (&self.words[ARRIVED], &self.words[GENERATION]);
        let now = generation.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::SeqCst) == self.members - 1 {
            arrived.store(0, Ordering::SeqCst);
            generation.store(now + 1, Ordering::SeqCst);
            return true;
        }
        let (mut looks, mut began) = (0_u32, None);
        while generation.load(Ordering::Acquire) == now {
            std::thread::yield_now();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 16) && began.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
                return false;
            }
        }
        true
    }
}
