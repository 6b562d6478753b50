//! Readers of files and lines: headers in shared memory, hosts, counters, traces, and what helpers on other hosts say.

use std::path::Path;
use weir_engine::{stats, trace};
use weir_link::shm::from_outside;
use weir_mpi::hosts::Hosts;
use weir_mpi::remote::{self, Answer};

/// Headers of mailboxes and node segments: eight bytes for the length of the file, then the header.
pub fn segments(bytes: &[u8]) {
    let Some((length, header)) = bytes.split_first_chunk() else { return };
    let length = u64::from_le_bytes(*length);
    from_outside::mailbox_header(header, length);
    from_outside::node_segment_header(header, length);
}

/// A file of hosts.
pub fn hosts(bytes: &[u8]) {
    let Ok(hosts) = Hosts::parse(Path::new("hosts"), &String::from_utf8_lossy(bytes)) else { return };
    assert!(hosts.names().count() > 0);
    for ranks in [1, 7, 4096] {
        if let Ok(shares) = hosts.share(ranks) {
            assert_eq!(shares.iter().map(|share| share.1).sum::<u32>(), ranks);
            assert!(shares.iter().all(|share| share.1 > 0));
        }
    }
}

/// Counter pages and traces, which others have written.
pub fn counters_and_traces(bytes: &[u8]) {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
    let extensions = ["weir", "trace"];
    for extension in extensions {
        let _ = std::fs::write(directory.path().join(format!("a.{extension}")), bytes);
    }
    let _ = stats::read_dir(directory.path());
    let _ = trace::read_dir(directory.path());
}

/// What a helper prints.
pub fn answers(bytes: &[u8]) {
    for answer in remote::read_all(bytes) {
        if let Answer::Files(gathered) = answer {
            let content: usize = gathered.contents().map(|(_, content)| content.len()).sum();
            assert!(content <= bytes.len(), "no more than was sent");
        }
    }
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = vec![
        ("hosts", b"# comment\nnode1:3\nnode2 slots=2\n10.0.0.1\n".to_vec()),
        (
            "answers of helpers",
            b"welcome\nweir-host {\"version\":\"0.1.0\",\"formats\":[3,2,5],\"host\":\"h\"}\n\
              {\"Begun\":{\"shares_stats\":false,\"shares_traces\":true,\"is_maker\":false}}\n\
              {\"Files\":{\"files\":[{\"place\":\"Stats\",\"name\":\"a.weir\",\"bytes\":3}],\"living\":[1],\"now_ns\":5,\
              \"removed\":0,\"in_use\":[]}}\nabc{\"Tried\":null}\n"
                .to_vec(),
        ),
    ];
    for header in from_outside::examples() {
        seeds.push(("segments", [&(1_u64 << 40).to_le_bytes(), header.as_slice()].concat()));
    }
    if let Some(page) = counter_page() {
        seeds.push(("counters and traces", page));
    }
    seeds
}

/// The page of an endpoint.
fn counter_page() -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().ok()?;
    let scheme = weir_proto::Scheme::Static { piggyback: true };
    let writer = stats::Writer::create(directory.path(), scheme, 7).ok()?;
    std::fs::read(writer.path()).ok()
}
