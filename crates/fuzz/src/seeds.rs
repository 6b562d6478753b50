//! Writes inputs to begin with into a directory: a valid one for each reader, and empty ones.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into());
    std::fs::create_dir_all(&directory)?;
    for (number, seed) in weir_fuzz::seeds().iter().enumerate() {
        std::fs::write(Path::new(&directory).join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}
