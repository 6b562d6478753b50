//! The JSON record that benchmarks, `weir tune` and `weir calibrate` write (`--json`, see `options.rs`): the name of
//! its format, weir's version and the time, then the results.

use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The record of `--json`: a head, and the results of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Record<R> {
    /// Name and version of the format.
    schema: &'static str,
    weir_version: &'static str,
    /// Unit: seconds since 1970.
    time_s: u64,
    #[serde(flatten)]
    results: R,
}

impl<R> Record<R> {
    /// A record of `results`, with the present time.
    pub fn new(schema: &'static str, results: R) -> Record<R> {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Record { schema, weir_version: env!("CARGO_PKG_VERSION"), time_s, results }
    }
}
