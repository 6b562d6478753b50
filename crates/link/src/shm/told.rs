//! What a user has to know of a failed connection: its peer fault is a number, the reason is told here, once a process.

use std::io::{self, Write};
use std::sync::Once;

/// Says that two ranks do not agree whether there are credits. `conditional`: we have none.
pub fn other_flow(conditional: bool) {
    static TOLD: Once = Once::new();
    let name = |conditional| if conditional { "unlimited or hardware" } else { "a scheme with credits" };
    let (ours, theirs) = (name(conditional), name(!conditional));
    once(&TOLD, || {
        format!("FI_WEIR_FLOW of this rank is {ours}, of a peer {theirs}: all ranks need the same")
    });
}

/// Says that a peer's mailbox has no room for our lane, if that is what `error` is.
pub fn no_room(bytes: u64, dir: &std::path::Path, error: &io::Error) {
    static TOLD: Once = Once::new();
    if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM)) {
        once(&TOLD, || format!("no room for {bytes} bytes in {}: {error}", dir.display()));
    }
}

fn once(told: &Once, text: impl FnOnce() -> String) {
    // A standard error that is closed is no reason to fail.
    told.call_once(|| drop(writeln!(io::stderr(), "weir: {}", text())));
}
