//! The counters and traces that other hosts have sent: written as files of this host, and read as its own are.

use std::collections::BTreeSet;
use std::path::Path;
use weir_engine::stats::{self, EndpointReport, Reports};
use weir_engine::trace::{self, Traces};
use weir_mpi::remote::{Gathered, Place};

/// What hosts have sent.
#[derive(Debug, Default)]
pub struct Collected {
    /// Counters.
    pub reports: Reports,
    /// Traces.
    pub traces: Traces,
    /// The identities of endpoints whose processes run.
    pub living: BTreeSet<u64>,
    /// Lines for the user.
    pub remarks: Vec<String>,
    /// Whether a host has not sent its counters.
    pub lacks_counters: bool,
}

impl Collected {
    /// Takes the files of `host`, which go to `directory`. Times become those of this host's clock.
    ///
    /// # Errors
    /// A line for the user.
    pub fn take(&mut self, host: &str, directory: &Path, gathered: &Gathered) -> Result<(), String> {
        let ahead_ns = gathered.now_ns.wrapping_sub(stats::now_ns()) as i64;
        let own = |time_ns: u64| time_ns.saturating_sub_signed(ahead_ns);
        let failed = |error: std::io::Error| format!("{host}: {}: {error}", directory.display());
        let place = |place| directory.join(if place == Place::Stats { "stats" } else { "traces" });
        for of in [Place::Stats, Place::Traces] {
            std::fs::create_dir_all(place(of)).map_err(failed)?;
        }
        for (file, content) in gathered.contents() {
            // The name comes from outside. It must not lead to another directory.
            if Path::new(&file.name).file_name() != Some(file.name.as_ref()) {
                return Err(format!("{host}: its helper sent a file with the name {:?}", file.name));
            }
            std::fs::write(place(file.place).join(&file.name), content).map_err(failed)?;
        }
        let mut reports = stats::read_dir(&place(Place::Stats)).map_err(failed)?;
        for report in &mut reports.endpoints {
            report.host = Some(host.to_owned());
            (report.started_ns, report.polled_ns) = (own(report.started_ns), own(report.polled_ns));
            report.stalls.iter_mut().for_each(|stall| stall.since_ns = own(stall.since_ns));
            if gathered.living.contains(&report.pid) && !report.closed {
                self.living.insert(report.identity);
            }
        }
        let mut traces = trace::read_dir(&place(Place::Traces)).map_err(failed)?;
        for trace in &mut traces.traces {
            trace.subject.started_ns = own(trace.subject.started_ns);
        }
        self.reports.endpoints.extend(reports.endpoints);
        self.reports.skipped.extend(reports.skipped);
        self.traces.traces.extend(traces.traces);
        self.traces.skipped.extend(traces.skipped);
        if gathered.removed > 0 {
            self.remarks.push(format!("removed {} stale mailboxes on {host}", gathered.removed));
        }
        for process in &gathered.in_use {
            self.remarks.push(format!("process {process} of this run is still running on {host}"));
        }
        Ok(())
    }

    /// Adds the counters to those of this host, by rank.
    pub fn add_to(&mut self, reports: &mut Reports) {
        reports.endpoints.append(&mut self.reports.endpoints);
        reports.skipped.append(&mut self.reports.skipped);
        let key = |it: &EndpointReport| (it.rank.unwrap_or(u64::MAX), it.host.clone(), it.pid, it.started_ns);
        reports.endpoints.sort_by_key(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::stats::{State, Writer};
    use weir_mpi::remote::GatheredFile;
    use weir_proto::{Counters, Scheme};

    const S: u64 = 1_000_000_000;

    /// What a host sends whose clock is `ahead_ns` ahead of ours.
    fn sent(ahead_ns: i64, name: Option<&str>) -> Gathered {
        let directory = tempfile::tempdir().unwrap();
        let writer = Writer::create(directory.path(), Scheme::Unlimited, 77).unwrap();
        writer.update(&Counters { messages_sent: 5, ..Counters::default() }, &State::default());
        let own_name = writer.path().file_name().unwrap().to_str().unwrap();
        let bytes = std::fs::read(writer.path()).unwrap();
        Gathered {
            files: vec![GatheredFile {
                place: Place::Stats,
                name: name.unwrap_or(own_name).to_owned(),
                bytes: bytes.len() as u64,
            }],
            living: vec![u64::from(std::process::id())],
            now_ns: stats::now_ns().saturating_add_signed(ahead_ns),
            bytes,
            ..Gathered::default()
        }
    }

    #[test]
    fn counters_of_a_host_have_its_name_and_our_time() {
        let directory = tempfile::tempdir().unwrap();
        for (ahead_s, host) in [(3600, "h2"), (-3600, "h3")] {
            let mut collected = Collected::default();
            let ahead_ns = ahead_s * S as i64;
            collected.take(host, &directory.path().join(host), &sent(ahead_ns, None)).unwrap();
            let [report] = collected.reports.endpoints.as_slice() else { panic!("{collected:?}") };
            assert_eq!((report.host.as_deref(), report.counters.messages_sent), (Some(host), 5));
            // The page was written now by our clock; the other host says that its clock is elsewhere.
            let shifted_s = report.polled_ns.abs_diff(stats::now_ns()) / S;
            assert!((3595..=3605).contains(&shifted_s), "{shifted_s} s");
            assert_eq!(collected.living, BTreeSet::from([77]));
        }
    }

    #[test]
    fn a_file_name_that_leads_elsewhere_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["../x.weir", "/tmp/x.weir", "a/b.weir", "..", ""] {
            let taken = Collected::default().take("h2", directory.path(), &sent(0, Some(name)));
            assert!(taken.unwrap_err().starts_with("h2: its helper sent a file with the name"), "{name}");
        }
    }
}
