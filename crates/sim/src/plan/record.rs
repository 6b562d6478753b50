//! Records: one line of JSON for each world that has ended, found by the key of the world. [`Store`] is the file of
//! records. The key also decides whether a release build checks the world.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use super::SchemeName;
use super::setup::{Programs, Settings, Setup};

/// Hash of everything that determines a world, as 16 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub String);

/// Statistics of the numbers that programs recorded under one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// The values of rank 0 in order, at most [`MAX_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of_rank_0: Vec<f64>,
}

/// Bound of [`Measure::of_rank_0`].
pub const MAX_KEPT: usize = 4096;

/// Result of a world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Key of the world.
    pub key: Key,
    /// Settings, as the plan states them.
    pub settings: Settings,
    /// Trace hash, hexadecimal. The same world gives the same hash on every host.
    pub trace: String,
    /// End of the last program. Unit: ns.
    pub finished_ns: f64,
    /// The first measure of the workload, as mean over ranks; without measures `finished_ns`. The unit is ns,
    /// except for workloads whose first measure has another one.
    pub time_ns: f64,
    /// Everything that programs recorded. With dynamic credits also the state of all receivers' pools at the
    /// end ([`PoolReading`](crate::world::PoolReading)).
    pub measures: std::collections::BTreeMap<String, Measure>,
    /// Number of events.
    pub events: u64,
    /// Packets over wires, summed over all wires.
    pub packet_hops: u64,
    /// Packets sent, with credit packets.
    pub packets: u64,
    /// Explicit credit packets sent.
    pub credit_packets: u64,
    /// Messages sent.
    pub messages: u64,
    /// Number of times that a message began to wait for credit.
    pub stalls: u64,
    /// Waiting time, summed over pairs. Unit: ns.
    pub stalled_ns: u64,
    /// Packets that found no buffer (scheme `hardware`).
    pub rnr_naks: u64,
    /// Packets that full queues dropped.
    #[serde(default)]
    pub drops: u64,
    /// Packets that long queues marked.
    #[serde(default)]
    pub marks: u64,
    /// Most buffers of one sender (scheme `adaptive`).
    pub peak_quota_slots: u64,
    /// Median latency of a message. Unit: ns.
    pub latency_p50_ns: u64,
    /// 99th percentile of the latency. Unit: ns.
    pub latency_p99_ns: u64,
    /// Most filled slots of one mailbox.
    pub peak_mailbox_slots: u32,
    /// Whether the external checks were on.
    #[serde(default)]
    pub checked: bool,
    /// Wall-clock time of the run. Unit: s.
    pub wall_s: f64,
}

/// One world of this many runs with the external checks, see [`Setup::is_sampled`].
pub const SAMPLE: u64 = 16;

impl Setup {
    /// Whether this world is of the sample that runs with the external checks in release builds too: its key begins with 0.
    pub fn is_sampled(&self) -> bool {
        self.key().0.starts_with('0')
    }

    /// The key of this world.
    pub fn key(&self) -> Key {
        self.key_with(env!("WEIR_DEMAND_SOURCES"))
    }

    /// The key, if `demand_sources` is the fingerprint of the sources that only worlds of credits on demand run.
    pub(super) fn key_with(&self, demand_sources: &str) -> Key {
        let mut hash = FnvHasher::default();
        add(&mut hash, env!("WEIR_SIM_SOURCES").as_bytes());
        if self.settings.scheme == SchemeName::Demand {
            add(&mut hash, demand_sources.as_bytes());
        }
        let settings = serde_json::to_string(&self.settings).expect("settings have names for keys");
        add(&mut hash, settings.as_bytes());
        // The parameters themselves, because a file may change under the same name.
        add(&mut hash, format!("{:?}", self.network).as_bytes());
        if let Programs::Goal(_, text) = &self.programs {
            add(&mut hash, &text.to_le_bytes());
        }
        Key(format!("{:016x}", hash.finish()))
    }
}

/// Hash of the text of a schedule.
pub(super) fn hash(text: &str) -> u64 {
    let mut hash = FnvHasher::default();
    add(&mut hash, text.as_bytes());
    hash.finish()
}

/// Adds a part and its end to a hash, so that "ab", "c" and "a", "bc" differ. FNV-1a is the same on every host and with
/// every compiler.
fn add(hash: &mut FnvHasher, part: &[u8]) {
    hash.write(part);
    hash.write(&[0xff]);
}

/// A file of records, to which new ones are appended.
#[derive(Debug)]
pub struct Store {
    file: File,
    records: HashMap<Key, Record>,
}

impl Store {
    /// Opens or creates a file. Ignores lines that are not records (truncated, or of another version); their
    /// worlds run again.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn open(path: &Path) -> io::Result<Store> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut records = HashMap::new();
        for line in BufReader::new(&file).split(b'\n') {
            if let Ok(record) = serde_json::from_slice::<Record>(&line?) {
                records.insert(record.key.clone(), record);
            }
        }
        // The next record must start on a new line.
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Store { file, records })
    }

    /// The record of a world, if it has run before.
    pub fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key)
    }

    /// Appends a record with one write.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn add(&mut self, record: Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(&record).map_err(io::Error::other)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.records.insert(record.key.clone(), record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn record(key: &str) -> Record {
        let settings = Settings {
            network: String::from("ideal"),
            ranks: 2,
            ranks_per_node: 0,
            mesh_nodes: String::new(),
            scheme: SchemeName::Static,
            piggyback: false,
            slots_per_peer: 30,
            credit_slots: 2,
            eager_bytes: 2048,
            start_skew_ns: 0,
            rnr_timer_ns: 0,
            start_slots: 0,
            nic: None,
            faults: None,
            reliability: None,
            workload: serde_json::json!({"alltoall": {"message_bytes": 8}}),
            seed: 1,
        };
        Record {
            key: Key(key.to_owned()),
            settings,
            trace: String::from("12"),
            finished_ns: 1.5,
            time_ns: 1.5,
            measures: Default::default(),
            events: 1,
            packet_hops: 1,
            packets: 1,
            credit_packets: 0,
            messages: 1,
            stalls: 0,
            stalled_ns: 0,
            rnr_naks: 0,
            drops: 0,
            marks: 0,
            peak_quota_slots: 0,
            latency_p50_ns: 1,
            latency_p99_ns: 1,
            peak_mailbox_slots: 1,
            checked: true,
            wall_s: 0.25,
        }
    }

    #[test]
    fn a_hash_is_the_same_in_every_version() {
        assert_eq!(hash(""), 0xaf64724c8602eb6e);
        assert_eq!(hash("num_ranks 2\n"), 0x594c68a83e4bc922);
    }

    #[test]
    fn written_records_are_read_and_a_truncated_line_is_ignored() {
        let directory = std::env::temp_dir().join(format!("weir-records-{}", std::process::id()));
        let path = directory.join("worlds.jsonl");
        std::fs::create_dir_all(&directory).expect("a directory");
        let _ = std::fs::remove_file(&path);
        Store::open(&path).expect("open").add(record("a")).expect("add");
        let mut file = OpenOptions::new().append(true).open(&path).expect("open");
        file.write_all(br#"{"key":"b","settings""#).expect("write"); // interrupted
        let mut store = Store::open(&path).expect("open");
        assert_eq!(store.get(&Key(String::from("a"))), Some(&record("a")));
        assert!(store.get(&Key(String::from("b"))).is_none());
        store.add(record("b")).expect("add");
        let store = Store::open(&path).expect("open");
        assert!(["a", "b"].iter().all(|key| store.get(&Key((*key).to_owned())).is_some()));
        std::fs::remove_dir_all(&directory).expect("remove");
    }
}
