//! `weir clean`: removes mailboxes that crashed jobs have left behind.

use clap::Args;
use std::path::PathBuf;
use weir_engine::config::Settings;
use weir_mpi::mailboxes;
use weir_output::Failure;

/// Options of `weir clean`.
#[derive(Args, Debug)]
pub struct CleanArguments {
    /// Where mailboxes live [default: FI_WEIR_SHM_DIR, or /dev/shm].
    #[arg(long, value_name = "DIR")]
    shm_dir: Option<PathBuf>,
}

/// Removes stale mailboxes of this user and says how many there were. Mailboxes in use are left alone.
///
/// # Errors
/// [`Failure`], if the directory is wrong.
pub fn run(arguments: &CleanArguments) -> Result<u8, Failure> {
    let directory = match &arguments.shm_dir {
        Some(directory) => directory.clone(),
        None => Settings::from_environment()?.shm_dir,
    };
    let removed =
        mailboxes::remove_stale(&directory).map_err(Failure::system(format!("{}", directory.display())))?;
    for path in &removed {
        println!("removed {}", path.display());
    }
    println!("{} stale mailboxes in {}", removed.len(), directory.display());
    Ok(0)
}
