//! `weir clean`: removes the mailboxes and node segments of crashed jobs.

use clap::Args;
use std::path::PathBuf;
use weir_engine::config::Settings;
use weir_mpi::mailboxes;
use weir_output::Failure;

/// Options of `weir clean`.
#[derive(Args, Debug)]
#[command(after_help = "\
A mailbox is removed if its process has ended and it belongs to this user. Mailboxes in use remain.
A node segment is removed if all processes that used it have ended.

Exit status: 0 on success, 1 if the directory cannot be read, 2 for a wrong option.")]
pub struct CleanArguments {
    /// Directory of the mailboxes [default: FI_WEIR_SHM_DIR, or /dev/shm].
    #[arg(long, value_name = "DIR")]
    shm_dir: Option<PathBuf>,
}

/// Removes stale mailboxes and node segments of this user and prints their number. Files in use remain.
///
/// # Errors
/// [`Failure`]: the directory cannot be read.
pub fn run(arguments: &CleanArguments) -> Result<u8, Failure> {
    let directory = match &arguments.shm_dir {
        Some(directory) => directory.clone(),
        None => Settings::from_environment()?.shm_dir,
    };
    let cannot_read = format!("cannot read the directory of mailboxes {}", directory.display());
    let removed = mailboxes::remove_stale(&directory).map_err(Failure::system(cannot_read))?;
    for path in &removed.paths {
        println!("removed {}", path.display());
    }
    println!("removed {} stale mailboxes from {}", removed.mailboxes, directory.display());
    if removed.node_segments > 0 {
        println!("removed {} stale node segments from {}", removed.node_segments, directory.display());
    }
    Ok(0)
}
