//! Settings and scripts for engines over faulty links.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_engine::config::Settings;
use weir_link::faulty::{Delays, Fault, Script};
use weir_proto::Scheme;

/// A directory for mailboxes.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

/// Settings with a budget for unexpected messages. With a small one many messages stay with their sender.
pub fn settings(directory: &tempfile::TempDir, scheme: Scheme, budget_bytes: u64) -> Settings {
    Settings {
        shm_dir: directory.path().to_owned(),
        scheme,
        eager_bytes: 2048,
        unexpected_budget_bytes: budget_bytes,
        ..Settings::default()
    }
}

/// A sequence of numbers for each seed.
fn draws(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

/// Delays what follows about a third of the arrivals by some polls.
pub fn delay_often(seed: u64) -> Delays {
    let mut draw = draws(seed);
    Box::new(move |_, _| {
        let draw = draw();
        if draw.is_multiple_of(3) { draw / 3 % 20 } else { 0 }
    })
}

/// Refuses about a third of the packets for some polls, and counts them.
pub fn refuse_often(seed: u64, refused: Arc<AtomicU64>) -> Script {
    let mut draw = draws(seed);
    Box::new(move |_, _| {
        let draw = draw();
        draw.is_multiple_of(3).then(|| {
            refused.fetch_add(1, Relaxed);
            Fault::Refuse { polls: draw / 3 % 20 }
        })
    })
}
