//! A child process that is killed before one of its accesses to counted words ([`killed_before`]), and what it has noted
//! until then. For tests.

use super::counted_word::before_access;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A page that a child shares with its parent: the child notes there what it has done, byte by byte.
pub struct Notes(*mut u8);

impl Notes {
    const BYTES: usize = 4096;

    fn new() -> Notes {
        // SAFETY: new memory, which belongs to this value.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Notes::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(page != libc::MAP_FAILED);
        Notes(page.cast())
    }

    /// Notes a number, not 0.
    pub fn add(&self, number: u8) {
        let count = self.read().len();
        assert!(count < Notes::BYTES);
        // SAFETY: inside of the page, which only one process writes at a time.
        unsafe { self.0.add(count).write_volatile(number) };
    }

    fn read(&self) -> Vec<u8> {
        // SAFETY: as above.
        (0..Notes::BYTES)
            .map(|at| unsafe { self.0.add(at).read_volatile() })
            .take_while(|&it| it != 0)
            .collect()
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // SAFETY: the page of `new`.
        unsafe { libc::munmap(self.0.cast(), Notes::BYTES) };
    }
}

/// What a child has noted after all that it had to do.
const ENDED: u8 = u8::MAX;

/// What a killed child has left.
pub struct Victim {
    pub notes: Vec<u8>,
    /// It had no access with that number: it was killed after all that it had to do.
    pub has_ended: bool,
}

/// A forked child does `act`, and is killed before its access with number `access` to counted words, from 0, or at the
/// end.
pub fn killed_before(access: u32, act: impl FnOnce(&Notes)) -> Victim {
    let notes = Notes::new();
    // SAFETY: the child ends here. It never returns into the caller's code.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process.
        before_access(access, || unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        });
        let has_ended = catch_unwind(AssertUnwindSafe(|| act(&notes)));
        if has_ended.is_err() {
            // SAFETY: ends this process, in a way that its parent does not expect.
            unsafe { libc::_exit(1) };
        }
        notes.add(ENDED);
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status}");
    let mut notes = notes.read();
    let has_ended = notes.pop_if(|note| *note == ENDED).is_some();
    Victim { notes, has_ended }
}
