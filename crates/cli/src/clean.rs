//! `weir clean`: removes the mailboxes of crashed jobs.

use clap::Args;
use std::path::PathBuf;
use weir_engine::config::Settings;
use weir_mpi::mailboxes;
use weir_output::Failure;

/// Options of `weir clean`.
#[derive(Args, Debug)]
#[command(after_help = "\
A mailbox is removed if its process has ended and it belongs to this user. Mailboxes in use remain.

Exit status: 0 on success, 1 if the directory cannot be read, 2 for a wrong option.")]
pub struct CleanArguments {
    /// Directory of the mailboxes [default: FI_WEIR_SHM_DIR, or /dev/shm].
    #[arg(long, value_name = "DIR")]
    shm_dir: Option<PathBuf>,
}

/// Removes stale mailboxes of this user and prints their number. Mailboxes in use remain.
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
    for path in &removed {
        println!("removed {}", path.display());
    }
    println!("removed {} stale mailboxes from {}", removed.len(), directory.display());
    Ok(0)
}
