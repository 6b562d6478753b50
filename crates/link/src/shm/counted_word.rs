//! Words of shared memory that a test can watch ([`Word`]): before any access it ends or stops whoever accesses them.
//! Outside of tests they are plain atomic words.

#[cfg(not(test))]
pub use super::sync::AtomicU64 as Word;
#[cfg(test)]
pub use watched::{Word, before_access};

#[cfg(test)]
mod watched {
    use crate::shm::sync::{AtomicU64, Ordering};
    use std::cell::RefCell;

    /// What happens before one of the next accesses, and how many come before it.
    type Planned = (u32, Box<dyn FnOnce()>);

    thread_local! {
        static PLANNED: RefCell<Option<Planned>> = const { RefCell::new(None) };
    }

    /// Calls `act` on this thread before its access with this number to any word, from 0.
    pub fn before_access(number: u32, act: impl FnOnce() + 'static) {
        PLANNED.set(Some((number, Box::new(act))));
    }

    /// Counts an access.
    fn count() {
        let due = PLANNED.with_borrow_mut(|planned| match planned {
            Some((0, _)) => planned.take(),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        });
        if let Some((_, act)) = due {
            act();
        }
    }

    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct Word(AtomicU64);

    impl Word {
        pub fn load(&self, order: Ordering) -> u64 {
            count();
            self.0.load(order)
        }
        pub fn store(&self, value: u64, order: Ordering) {
            count();
            self.0.store(value, order);
        }
        pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
            count();
            self.0.fetch_max(value, order)
        }
        pub fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            count();
            self.0.compare_exchange(current, new, success, failure)
        }
    }
}
