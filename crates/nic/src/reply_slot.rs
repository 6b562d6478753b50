//! Reply slots: memory of a process in which the kernel programs of its own host write the reply to a request. So whoever spins
//! for it needs no system call, and the frame does not go up to a socket.
//!
//! ```text
//! process    state: number, waiting                        sees written, reads the result
//! program            reply comes: claimed, result, written
//! ```
//! A process that wants to sleep takes the state back. Replies go to its socket from then on. A reply that a program has
//! claimed comes within moments.

use crate::format::{REPLY_SLOTS, SLOTS_OF_A_PROCESS, WORDS, slot};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_link::shm::shared_words::SharedWords;

/// All reply slots of the domain on this host, of which a range is ours as long as the connection lives.
#[derive(Debug)]
pub(crate) struct ReplySlots {
    words: SharedWords,
    first: u32,
    /// A bit for each slot of ours that is in use.
    used: AtomicU32,
    _connection: Arc<UnixStream>,
}

impl ReplySlots {
    /// Those from slot `first` on, in the array of a domain.
    ///
    /// # Errors
    /// The error of mmap, or there are no such slots.
    pub fn map(
        array: BorrowedFd<'_>,
        first: u32,
        connection: Arc<UnixStream>,
    ) -> std::io::Result<Arc<ReplySlots>> {
        if first > REPLY_SLOTS - SLOTS_OF_A_PROCESS {
            return Err(std::io::Error::other("the service names slots that do not exist"));
        }
        let words = SharedWords::map(array, WORDS + slot::WORDS * REPLY_SLOTS as usize)?;
        Ok(Arc::new(ReplySlots { words, first, used: AtomicU32::new(0), _connection: connection }))
    }

    /// A free one, for an asker with a name like `name`. `None`: all are in use.
    pub fn take(self: &Arc<Self>, name: u64) -> Option<ReplySlot> {
        let mut used = self.used.load(Ordering::Relaxed);
        let own = loop {
            let own = used.trailing_ones();
            if own >= SLOTS_OF_A_PROCESS {
                return None;
            }
            match self.used.compare_exchange(used, used | 1 << own, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break own,
                Err(now) => used = now,
            }
        };
        let number = self.first + own;
        let name = name & !u64::from(REPLY_SLOTS - 1) | u64::from(number);
        let slot = ReplySlot { slots: self.clone(), own, begin: WORDS + slot::WORDS * number as usize, name };
        self.words.swap(slot.begin + slot::STATE, 0);
        self.words.swap(slot.begin + slot::ASKER, name);
        Some(slot)
    }
}

/// A slot of an asker.
#[derive(Debug)]
pub(crate) struct ReplySlot {
    slots: Arc<ReplySlots>,
    own: u32,
    begin: usize,
    name: u64,
}

impl ReplySlot {
    /// The asker's name, which leads replies here.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// The next reply that comes here is that to the request of this number.
    pub fn expect(&self, number: u64) {
        let (words, state) = (&self.slots.words, self.begin + slot::STATE);
        let mut before = words.load(state);
        loop {
            // A program that writes a reply for which we do not wait any more ends first.
            if before & 3 == slot::CLAIMED {
                std::hint::spin_loop();
                before = words.load(state);
                continue;
            }
            match words.compare_swap(state, before, number << 2 | slot::WAITING) {
                found if found == before => return,
                found => before = found,
            }
        }
    }

    /// Status and result of the reply to this request, if it is here.
    pub fn look(&self, number: u64) -> Option<(u8, u64)> {
        let word = |which| self.slots.words.load(self.begin + which);
        let is_here = word(slot::STATE) == number << 2 | slot::WRITTEN;
        is_here.then(|| (word(slot::STATUS) as u8, word(slot::RESULT)))
    }

    /// Lets replies to this request go to the socket. Returns the one that is here already.
    pub fn leave(&self, number: u64) -> Option<(u8, u64)> {
        let [waiting, claimed] = [slot::WAITING, slot::CLAIMED].map(|step| number << 2 | step);
        while self.slots.words.compare_swap(self.begin + slot::STATE, waiting, 0) == claimed {
            std::hint::spin_loop();
        }
        self.look(number)
    }
}

impl Drop for ReplySlot {
    fn drop(&mut self) {
        self.slots.words.swap(self.begin + slot::ASKER, 0);
        self.slots.used.fetch_and(!(1 << self.own), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// The slots of a process, and what a program does with one.
    fn slots() -> (Arc<ReplySlots>, SharedWords) {
        let file = tempfile::tempfile().unwrap();
        let words = WORDS + slot::WORDS * REPLY_SLOTS as usize;
        file.set_len(8 * words as u64).unwrap();
        let connection = Arc::new(UnixStream::pair().unwrap().0);
        let slots = ReplySlots::map(file.as_fd(), 32, connection).unwrap();
        (slots, SharedWords::map(file.as_fd(), words).unwrap())
    }

    #[test]
    fn a_reply_that_is_written_is_seen_and_none_comes_after_leaving() {
        let (slots, program) = slots();
        let own = slots.take(u64::MAX).unwrap();
        let begin = WORDS + 4 * 32;
        assert_eq!((own.name(), program.load(begin + slot::ASKER)), (u64::MAX << 10 | 32, own.name()));
        own.expect(7);
        assert_eq!((own.look(7), program.load(begin + slot::STATE)), (None, 7 << 2 | slot::WAITING));
        program.swap(begin + slot::STATE, 7 << 2 | slot::CLAIMED);
        program.swap(begin + slot::RESULT, 99);
        program.swap(begin + slot::STATUS, 3);
        assert_eq!(own.look(7), None);
        program.swap(begin + slot::STATE, 7 << 2 | slot::WRITTEN);
        assert_eq!([own.look(6), own.look(7), own.leave(7)], [None, Some((3, 99)), Some((3, 99))]);
        own.expect(8);
        assert_eq!((own.leave(8), program.load(begin + slot::STATE)), (None, 0));
    }

    #[test]
    fn a_process_has_sixteen_slots_which_it_uses_again() {
        let (slots, program) = slots();
        let mut own: Vec<ReplySlot> = (0..SLOTS_OF_A_PROCESS).map_while(|_| slots.take(0)).collect();
        let names: Vec<u64> = own.iter().map(ReplySlot::name).collect();
        assert_eq!(names, (32..48).collect::<Vec<u64>>());
        assert!(slots.take(0).is_none());
        let (at, freed) = (WORDS + 4 * 35 + slot::ASKER, own.remove(3));
        assert_eq!(program.load(at), freed.name());
        drop(freed);
        assert_eq!((program.load(at), slots.take(1 << 20).unwrap().name()), (0, 1 << 20 | 35));
        let file = tempfile::tempfile().unwrap();
        let connection = Arc::new(UnixStream::pair().unwrap().0);
        assert!(ReplySlots::map(file.as_fd(), REPLY_SLOTS - 15, connection).is_err());
    }
}
