//! Computes fingerprints of the sources of the simulator and of the protocol. The key of a record contains them, so that
//! another version does not take the record for its own. The sources of credits on demand have a fingerprint of their
//! own: only worlds of that scheme run them, so the records of all other worlds stay valid when they change.

use fnv::FnvHasher;
use std::hash::Hasher;
use std::path::{Path, PathBuf};

fn main() {
    let own = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = Vec::new();
    for sources in [own.join("src"), own.join("../proto/src")] {
        println!("cargo::rerun-if-changed={}", sources.display());
        collect(&sources, &mut files);
    }
    files.sort();
    let (demand, others): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|file| file.to_string_lossy().contains("demand_credits"));
    assert!(!demand.is_empty(), "the sources of credits on demand have moved");
    println!("cargo::rustc-env=WEIR_SIM_SOURCES={:016x}", fingerprint(&others));
    println!("cargo::rustc-env=WEIR_DEMAND_SOURCES={:016x}", fingerprint(&demand));
}

fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hash = FnvHasher::default();
    for file in files {
        hash.write(&std::fs::read(file).unwrap_or_default());
    }
    hash.finish()
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
