//! Huge pages for simulated worlds. A world of 1,024 ranks has hundreds of MiB, in many small pieces that are read in no
//! order, so most reads miss the processor's table of page addresses. With huge pages it has few entries to miss.
//! Since glibc 2.35 `malloc` asks the kernel for them if a tunable says so when the process starts. So a command that
//! simulates starts itself again.
//!
//! A huge page costs more than its small pages where a virtual machine's host supplies the memory at the first touch. A
//! world that reads its memory a few times only is slower with them. `weir bench sim` knows its worlds, and says for each
//! whether to use them ([`ask_for`]).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// glibc's variable for what is chosen at the start of a process.
const VARIABLE: &str = "GLIBC_TUNABLES";
/// `malloc` marks its memory with `MADV_HUGEPAGE`. Source: the manual of glibc, "Memory Allocation Tunables".
const NAME: &str = "glibc.malloc.hugetlb";

/// Starts this command again with huge pages, unless the variable already says whether to use them. Returns if it does, or
/// if the command cannot be started again: then it goes on without.
pub fn restart_with_huge_pages() {
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    command.arg0(arguments.next().unwrap_or_else(|| OsString::from("weir"))).args(arguments);
    if ask_for(&mut command) {
        // Returns only if it fails. A command without huge pages is slower, and has the same results.
        let _ = command.exec();
    }
}

/// Lets `command` start with huge pages. Returns `false` and changes nothing if the variable already says whether to use
/// them.
pub fn ask_for(command: &mut Command) -> bool {
    let tunables = with_huge_pages(std::env::var(VARIABLE).ok().as_deref());
    tunables.map(|tunables| command.env(VARIABLE, tunables)).is_some()
}

/// The value of the variable that adds huge pages to `given`. `None`: it names the tunable already.
fn with_huge_pages(given: Option<&str>) -> Option<String> {
    let given = given.unwrap_or_default();
    let names_it = given.split(':').any(|tunable| tunable.split('=').next() == Some(NAME));
    let separator = if given.is_empty() { "" } else { ":" };
    (!names_it).then(|| format!("{given}{separator}{NAME}=1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tunable_is_added_once_and_a_choice_of_the_user_is_kept() {
        let first = with_huge_pages(None).expect("added");
        assert_eq!(first, "glibc.malloc.hugetlb=1");
        assert_eq!(with_huge_pages(Some(&first)), None);
        assert_eq!(with_huge_pages(Some("glibc.malloc.check=1:glibc.malloc.hugetlb=0")), None);
        let added = with_huge_pages(Some("glibc.malloc.check=1"));
        assert_eq!(added.as_deref(), Some("glibc.malloc.check=1:glibc.malloc.hugetlb=1"));
    }
}
