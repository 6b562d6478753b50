//! Diagnostics of failed connections: messages on standard error.
//!
//! A failed connection gives the caller only a [`weir_proto::PeerFault`], which is a number. This module prints the
//! reason. Each message appears once in a process, because every rank of a job would repeat it for every peer.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Once;

/// Reports that one of two ranks uses credits and the other does not. `conditional`: this rank uses none.
pub fn report_flow_mismatch(conditional: bool) {
    static REPORTED: Once = Once::new();
    let schemes = |conditional| if conditional { "unlimited or hardware" } else { "a scheme with credits" };
    let (ours, theirs) = (schemes(conditional), schemes(!conditional));
    print_once(&REPORTED, || {
        format!(
            "cannot connect: FI_WEIR_FLOW of this rank is {ours}, of a peer {theirs}; \
             set the same scheme for all ranks"
        )
    });
}

/// Reports that the directory of a peer's mailbox has no space for a lane of `bytes` bytes, if `error` says so.
pub fn report_no_space(bytes: u64, dir: &Path, error: &io::Error) {
    static REPORTED: Once = Once::new();
    if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM)) {
        print_once(&REPORTED, || {
            format!(
                "cannot connect: no space for a lane of {bytes} bytes in {}: {error}; \
                 make it larger, or set FI_WEIR_SHM_DIR to another tmpfs",
                dir.display()
            )
        });
    }
}

fn print_once(reported: &Once, text: impl FnOnce() -> String) {
    // A closed standard error is no reason to fail.
    reported.call_once(|| drop(writeln!(io::stderr(), "weir: {}", text())));
}
