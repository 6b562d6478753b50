//! Atomics, fences, the futex, locks and threads: the real ones, and those of the model checker.
//!
//! In two places of the mailbox the writer and the reader each store one word and then read the other's (Dekker's
//! pattern). They are the published slot with `polled`, and the published slot with `asleep`. One side must execute a
//! full fence there. The reader does, because it rarely becomes idle and senders send often. The sender has only a
//! [`light_fence`], which costs nothing at run time if both sides can use `membarrier`. The reader has a
//! [`heavy_fence`], which is `membarrier`. It returns after every running thread of every registered process has passed
//! a full fence. If the sender's fence comes before that point, the reader sees its slot. Otherwise the sender sees the
//! reader's word. The biased lock does the same among the threads of one process ([`heavy_fence_inside`]).
//!
//! A heavy fence interrupts cores that run registered processes. So a reader should rarely become idle, and poll for
//! a while before it sleeps. The example `costs` measures both fences.
//!
//! Only this file knows `cfg(loom)`. Under loom both fences are SeqCst fences. So the model assumes that `membarrier`
//! and a compiler fence together order like two full fences, which membarrier(2) promises.

#[cfg(loom)]
pub use modelled::*;
#[cfg(not(loom))]
pub use native::*;

#[cfg(not(loom))]
mod native {
    use crate::copy::copy;
    pub use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    use core::sync::atomic::{compiler_fence, fence};
    use rustix::thread::{MembarrierCommand, Timespec, futex};
    pub use std::sync::{Mutex, MutexGuard};
    #[cfg(test)]
    pub use std::{sync::Arc, thread};

    /// Atomics have the size of their values, so layouts can be asserted.
    pub const NATIVE: bool = true;
    /// Words of the announcement bitmap, of 64 lanes each. The summary has one bit for each.
    pub const BITMAP_WORDS: usize = 64;
    /// Places in the queue for a lane.
    pub const LANE_QUEUE_PLACES: usize = 64;
    /// Rounds of a node group that can be under way.
    pub const GROUP_ROUNDS: usize = 4;
    /// Words of a cache line in the memory of a node group.
    pub const GROUP_LINE_WORDS: usize = 8;

    /// Words that a member of a node group can contribute in a round: 1 KiB for each member, at least 8 KiB. Many members
    /// share 1 MiB, but have a word for each of them.
    pub const fn group_slot_words(members: u32) -> usize {
        let members = members as usize;
        let for_each = if members < 8 { 1024 } else { 128 * members };
        let shared = (32 << 10) / members / GROUP_LINE_WORDS * GROUP_LINE_WORDS;
        let most = if shared < 256 { 256 } else { shared };
        if for_each < most { for_each } else { most }
    }

    /// Copies bytes to the first words. By the protocol nobody else touches them meanwhile.
    pub fn write_words(words: &[AtomicU64], bytes: &[u8]) {
        assert!(bytes.len() <= size_of_val(words));
        // SAFETY: as many bytes as the words have at least; atomics may be written by shared references. If another
        // process breaks the protocol, the bytes are a mixture, which their reader gets as payload.
        unsafe { copy(bytes.as_ptr(), words.as_ptr().cast::<u8>().cast_mut(), bytes.len()) };
    }

    /// Copies bytes from the first words. By the protocol nobody writes them meanwhile.
    pub fn read_words(words: &[AtomicU64], bytes: &mut [u8]) {
        assert!(bytes.len() <= size_of_val(words));
        // SAFETY: as for `write_words`.
        unsafe { copy(words.as_ptr().cast::<u8>(), bytes.as_mut_ptr(), bytes.len()) };
    }

    fn membarrier(command: MembarrierCommand) -> bool {
        rustix::thread::membarrier(command).is_ok()
    }

    /// Registers this process, so that the heavy fences of other processes reach its threads. `false`: the kernel has
    /// no `membarrier`, or forbids it.
    pub fn register_across_processes() -> bool {
        membarrier(MembarrierCommand::RegisterGlobalExpedited)
    }

    /// Registers this process for [`heavy_fence_inside`].
    pub fn register_inside() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited)
    }

    /// A full fence on every running thread of every registered process. `false`: only on this thread. `full`: the
    /// other side executes full fences itself, so that a fence on this thread suffices.
    #[cold]
    pub fn heavy_fence(full: bool) -> bool {
        fence(Ordering::SeqCst);
        full || membarrier(MembarrierCommand::GlobalExpedited)
    }

    /// A full fence on every running thread of this process. `false`: only on this thread.
    #[cold]
    pub fn heavy_fence_inside() -> bool {
        fence(Ordering::SeqCst);
        membarrier(MembarrierCommand::PrivateExpedited)
    }

    /// The counterpart of a heavy fence. `full`: one side cannot use `membarrier`, so this is a full fence.
    #[inline(always)]
    pub fn light_fence(full: bool) {
        if full { fence(Ordering::SeqCst) } else { compiler_fence(Ordering::SeqCst) }
    }

    /// Loads after it happen after all loads before it.
    #[inline]
    pub fn read_fence() {
        fence(Ordering::Acquire);
    }

    /// A word to sleep on, shared between processes.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// The word.
        #[inline(always)]
        pub fn word(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps while the word is `expected`, for at most `at_most_ns`. May return early. Not of the private kind,
        /// because wakers are other processes.
        pub fn wait(&self, expected: u32, at_most_ns: u64) {
            let timeout = Timespec {
                tv_sec: (at_most_ns / 1_000_000_000) as _,
                tv_nsec: (at_most_ns % 1_000_000_000) as _,
            };
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, Some(&timeout));
        }

        /// Wakes a sleeper.
        pub fn wake(&self) {
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }
    }

    /// Takes a lock. A panic of an earlier holder does not harm the guarded values.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A number for the calling thread. No other thread ever has it.
    #[inline]
    pub fn this_thread() -> u64 {
        use core::cell::Cell;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
        NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
    }

    /// Yields the core.
    pub fn yield_now() {
        std::thread::yield_now();
    }

    /// Sleeps.
    pub fn sleep(time: core::time::Duration) {
        std::thread::sleep(time);
    }

    /// Sleeps until another thread unparks this one. May return early.
    pub fn park() {
        std::thread::park();
    }

    /// Tells the core that this is a spin loop.
    #[inline]
    pub fn spin_hint() {
        core::hint::spin_loop();
    }

    /// Plain memory of a slot on the heap. The model checker watches accesses to it.
    #[cfg(test)]
    #[derive(Debug)]
    pub struct Watched<T>(core::cell::UnsafeCell<T>);

    #[cfg(test)]
    impl<T> Watched<T> {
        /// Memory with this content.
        pub fn new(value: T) -> Watched<T> {
            Watched(core::cell::UnsafeCell::new(value))
        }
        /// For reading.
        pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
            look(self.0.get())
        }
        /// For writing.
        pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            change(self.0.get())
        }
    }

    /// Calls `call`, which parks its thread for good.
    #[cfg(test)]
    pub fn until_parked(call: impl FnOnce()) {
        call();
    }

    /// Runs a concurrent test often. Under `--cfg loom` the model checker runs it instead.
    #[cfg(test)]
    pub fn explore(_preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            test();
        }
    }
}

#[cfg(loom)]
#[allow(missing_docs)]
mod modelled {
    #[cfg(test)]
    pub use loom::sync::Arc;
    use loom::sync::Condvar;
    use loom::sync::atomic::fence;
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
    #[cfg(test)]
    pub use loom::thread;

    pub const NATIVE: bool = false;
    pub const BITMAP_WORDS: usize = 1;
    pub const LANE_QUEUE_PLACES: usize = 2;
    pub const GROUP_ROUNDS: usize = 2;
    pub const GROUP_LINE_WORDS: usize = 3;

    pub const fn group_slot_words(members: u32) -> usize {
        members as usize
    }

    pub fn write_words(words: &[AtomicU64], bytes: &[u8]) {
        for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
    }

    pub fn read_words(words: &[AtomicU64], bytes: &mut [u8]) {
        for (word, bytes) in words.iter().zip(bytes.chunks_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..bytes.len()]);
        }
    }

    pub fn register_across_processes() -> bool {
        true
    }
    pub fn register_inside() -> bool {
        true
    }
    pub fn heavy_fence(_full: bool) -> bool {
        fence(Ordering::SeqCst);
        true
    }
    pub fn heavy_fence_inside() -> bool {
        fence(Ordering::SeqCst);
        true
    }
    pub fn light_fence(_full: bool) {
        fence(Ordering::SeqCst);
    }
    pub fn read_fence() {
        fence(Ordering::Acquire);
    }

    /// A futex that never times out. A lost wake-up is then a deadlock, which loom reports.
    #[derive(Debug)]
    pub struct Futex {
        word: AtomicU32,
        mutex: Mutex<()>,
        sleepers: Condvar,
    }

    impl Default for Futex {
        fn default() -> Futex {
            Futex { word: AtomicU32::new(0), mutex: Mutex::new(()), sleepers: Condvar::new() }
        }
    }

    impl Futex {
        pub fn word(&self) -> &AtomicU32 {
            &self.word
        }
        pub fn wait(&self, expected: u32, _at_most_ns: u64) {
            let guard = self.mutex.lock().unwrap();
            // The kernel reads the word under its own lock, with full fences. A read-modify-write would read the newest
            // value too. But loom does not order it before a store that it has not seen, and a third thread would then
            // read its old value after that store.
            fence(Ordering::SeqCst);
            if self.word.load(Ordering::Acquire) == expected {
                drop(self.sleepers.wait(guard).unwrap());
            }
        }
        pub fn wake(&self) {
            drop(self.mutex.lock().unwrap());
            self.sleepers.notify_one();
        }
    }

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
    pub fn this_thread() -> u64 {
        // Not part of the model: any number that differs between the threads of one run.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        loom::thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        NUMBER.with(|number| *number)
    }
    pub fn yield_now() {
        loom::thread::yield_now();
    }
    pub fn spin_hint() {
        loom::thread::yield_now();
    }
    pub fn sleep(_time: core::time::Duration) {
        loom::thread::yield_now();
    }
    /// A thread that parks here stays parked. In the model it ends, because a model ends when all its threads do.
    pub fn park() {
        std::panic::resume_unwind(Box::new(Parked));
    }
    struct Parked;

    #[cfg(test)]
    pub fn until_parked(call: impl FnOnce()) {
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
            && !panic.is::<Parked>()
        {
            std::panic::resume_unwind(panic);
        }
    }

    #[cfg(test)]
    #[derive(Debug)]
    pub struct Watched<T>(loom::cell::UnsafeCell<T>);

    #[cfg(test)]
    impl<T> Watched<T> {
        pub fn new(value: T) -> Watched<T> {
            Watched(loom::cell::UnsafeCell::new(value))
        }
        pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
            self.0.with(look)
        }
        pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(change)
        }
    }

    #[cfg(test)]
    pub fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(test);
    }
}
