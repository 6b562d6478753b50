//! Computes a fingerprint of the sources of the simulator and of the protocol. A record names the fingerprint of the
//! version that ran it, so that another version does not take the record for its own.

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
    let mut hash = FnvHasher::default();
    for file in files {
        hash.write(&std::fs::read(&file).unwrap_or_default());
    }
    println!("cargo::rustc-env=WEIR_SIM_SOURCES={:016x}", hash.finish());
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
