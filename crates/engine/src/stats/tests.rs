//! Tests of counter pages: what is stored is read back, and files that are no pages are named.

use super::*;

fn state() -> State {
    let stall = |to| Stall::from_words([to, 2, 3, 4, 5, 6, 7, 8, 1]);
    State {
        mailbox_bytes: 16384,
        peak_mailbox_bytes: 32768,
        peers: 3,
        backlog: 11,
        unexpected_messages: 12,
        unexpected_bytes: 13,
        peer_state_bytes: 14,
        ranks: Ranks { node: 15, job: 16 },
        operations: operations(),
        stalls: (1..=9).map(stall).collect(),
        held_credits: vec![HeldCredits::from_words([6, 5, 4, 3, 2])],
        lending: Lending::from_words([64, 3, 16, 2, 9, 8, 7, 6]),
        loans: (1..=40).map(|from| Loan::from_words([from, 2, 3, 1, 4, 9, 0])).collect(),
        network: Some(NetworkReport::from_values(std::array::from_fn(|index| 500 + index as u64))),
    }
}

fn operations() -> Operations {
    let sums = |count| OperationSums::from_words([count, 100, 1, 50, 60]);
    OperationClass::all().step_by(7).zip((1..).map(sums)).collect()
}

/// The page of an endpoint of this process.
pub(crate) fn sample_report() -> EndpointReport {
    let directory = tempfile::tempdir().unwrap();
    let _writer = Writer::create(directory.path(), Scheme::Unlimited, 50).unwrap();
    read_dir(directory.path()).unwrap().endpoints.remove(0)
}

fn some_counters() -> Counters {
    let mut values = [0; Counters::NAMES.len()];
    values.iter_mut().zip(100..).for_each(|(value, number)| *value = number);
    Counters::from_values(values)
}

#[test]
fn counters_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let scheme = Scheme::Static { piggyback: true };
    let writer = Writer::create(directory.path(), scheme, 99).unwrap();
    writer.update(&some_counters(), &state());
    let reports = read_dir(directory.path()).unwrap();
    let ([report], []) = (&reports.endpoints[..], &reports.skipped[..]) else { panic!("{reports:?}") };
    assert_eq!(report.counters, some_counters());
    assert_eq!((report.mailbox_bytes, report.peers, report.identity), (16384, 3, 99));
    assert_eq!(report.peak_mailbox_bytes, 32768);
    assert_eq!((report.backlog, report.unexpected_messages, report.unexpected_bytes), (11, 12, 13));
    assert_eq!((report.peer_state_bytes, report.stalled_peers), (14, 9));
    assert_eq!(report.operations, operations());
    assert_eq!(report.stalls, state().stalls[..MAX_STALLS]);
    assert_eq!(report.held_credits, state().held_credits);
    assert_eq!(report.lending, state().lending);
    assert_eq!(report.loans, state().loans[..MAX_LOANS]);
    assert_eq!(report.network, state().network);
    assert!(report.polled_ns >= report.started_ns);
    assert_eq!(report.scheme, Some(scheme));
    assert_eq!(report.pid, u64::from(std::process::id()));
    assert!(report.started_ns > 1_600_000_000_000_000_000);
    assert!(!report.closed);
}

#[test]
fn close_marks_the_page_and_drop_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let closed = Writer::create(directory.path(), Scheme::Unlimited, 1).unwrap();
    let dropped = Writer::create(directory.path(), Scheme::Unlimited, 2).unwrap();
    let closed_path = closed.path().to_owned();
    closed.close(&some_counters(), &state());
    drop(dropped);
    let reports = read_dir(directory.path()).unwrap();
    assert_eq!(reports.endpoints.len(), 2);
    for report in reports.endpoints {
        assert_eq!(report.closed, report.path == closed_path);
    }
}

#[test]
fn torn_and_foreign_files_are_reported_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let good = Writer::create(directory.path(), Scheme::Unlimited, 1).unwrap();
    let bytes = std::fs::read(good.path()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let put = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).unwrap();
    put("a.txt", b"hello");
    put("b.weir", &bytes[..20]);
    put("c.weir", &vec![0; bytes.len()]);
    CounterPage::create(&at("d.weir"), VERSION + 1, &[0; metadata::COUNT], WORDS).unwrap();
    std::fs::create_dir(at("e.weir")).unwrap();
    CounterPage::create(&at("f.weir"), VERSION, &[0; metadata::COUNT], WORDS - 1).unwrap();
    put("g.weir", &[bytes.clone(), vec![0; 1 << 16]].concat());
    let reports = read_dir(directory.path()).unwrap();
    assert_eq!(reports.endpoints.len(), 1);
    let why: Vec<_> = reports.skipped.iter().map(|skipped| skipped.why.as_str()).collect();
    let no_page = "it is no complete counter page of weir";
    assert_eq!(
        why,
        [
            "its name does not end in .weir",
            no_page,
            no_page,
            &format!("it has version {}; this weir reads version {VERSION}", VERSION + 1),
            "it is not a regular file",
            &format!("it has {0} + {1} words instead of {0} + {WORDS}", metadata::COUNT, WORDS - 1),
            &format!("it has {} bytes; a counter page has at most 65536", bytes.len() + (1 << 16)),
        ]
    );
}
