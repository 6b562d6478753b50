//! `weir host-helper`: the process on another host. It reads requests from standard input and answers to standard output
//! until that ends.

use super::own_greeting;
use std::fs::DirBuilder;
use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_engine::stats;
use weir_link::udp::UdpOptions;
use weir_link::udp::probe::{Probe, can_connect};
use weir_mpi::remote::{Answer, Begun, GREETING, Gathered, GatheredFile, Opened, Place, Request, TOKEN};
use weir_mpi::{mailboxes, provider_file};
use weir_output::Failure;

/// Time for another host that shares the directory to make it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for a datagram or a connection of a trial.
const TRIAL: Duration = Duration::from_millis(500);
const CONNECTION: Duration = Duration::from_secs(2);
/// Round trips of which the shortest counts.
const ROUND_TRIPS: u32 = 5;
/// The longest file that is sent. Unit: bytes.
const LONGEST_FILE: u64 = 1 << 30;

/// The run of this helper. Dropping it removes the directory that the helper has made.
#[derive(Debug, Default)]
struct Run {
    made: Option<PathBuf>,
    directories: Vec<Watched>,
    shm: PathBuf,
    /// The sockets of `weir doctor --hosts`.
    probe: Option<Probe>,
    /// Sockets at further ports.
    further: Vec<Probe>,
}

/// A directory whose files are sent.
#[derive(Debug)]
struct Watched {
    place: Place,
    path: PathBuf,
    /// The command that asks sees the same directory.
    is_shared: bool,
    /// Files of other runs.
    before: Vec<PathBuf>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(directory) = &self.made {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// Serves until standard input ends.
///
/// # Errors
/// [`Failure::System`]: the output is closed.
pub fn serve() -> Result<u8, Failure> {
    let stdout = &mut io::stdout();
    let greeting = serde_json::to_string(&own_greeting()).map_err(io::Error::from);
    let greeted = greeting.and_then(|greeting| {
        writeln!(stdout, "{GREETING}{greeting}")?;
        stdout.flush()
    });
    greeted.map_err(Failure::system("standard output"))?;
    let mut run = Run::default();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = match serde_json::from_str(&line) {
            Ok(request) => perform(&mut run, request).unwrap_or_else(Answer::Failed),
            Err(error) => Answer::Failed(format!("request: {error}")),
        };
        if send(stdout, &answer).is_err() {
            break;
        }
    }
    Ok(0)
}

fn send(stdout: &mut impl Write, answer: &Answer) -> io::Result<()> {
    writeln!(stdout, "{}", serde_json::to_string(answer)?)?;
    if let Answer::Files(gathered) = answer {
        stdout.write_all(&gathered.bytes)?;
    }
    stdout.flush()
}

fn perform(run: &mut Run, request: Request) -> Result<Answer, String> {
    match request {
        Request::Begin { run: directory, stats, traces, shm, provider, token } => {
            let watched = [Some((Place::Stats, stats)), traces.map(|traces| (Place::Traces, traces))];
            run.shm = shm;
            let begun = begin(run, &directory, watched.into_iter().flatten(), &token)?;
            if run.made.is_some() {
                place_provider(&provider, &directory)?;
            }
            Ok(Answer::Begun(begun))
        }
        Request::Adopt { run: directory, stats, traces, shm, token } => {
            let watched = [Some((Place::Stats, stats)), traces.map(|traces| (Place::Traces, traces))];
            run.shm = shm;
            adopt(run, &directory, watched.into_iter().flatten(), &token).map(Answer::Begun)
        }
        Request::Gather => gather(run).map(Answer::Files),
        Request::Look { stats } => look(&stats).map(Answer::Files),
        Request::Open { key, net, ports, further_ports, buffer_bytes } => {
            let ports = ports.map(|(first, last)| first..=last);
            let options = UdpOptions { net, ports, buffer_bytes, ..UdpOptions::default() };
            let probe = Probe::open(&options, key).map_err(|error| error.to_string())?;
            let at = |port| UdpOptions { ports: Some(port..=port), ..options.clone() };
            // A port that is not free serves another process, and is not tried.
            run.further =
                further_ports.into_iter().filter_map(|port| Probe::open(&at(port), key).ok()).collect();
            Ok(Answer::Opened(describe(run.probe.insert(probe), &run.further)))
        }
        Request::FindProvider { provider } => Ok(Answer::Tried(find_provider(provider.as_deref()).err())),
        Request::Connect { to } => Ok(Answer::Tried(error_of(can_connect(to, CONNECTION)))),
        Request::ConnectEach { to } => Ok(Answer::TriedEach(connect_each(&to))),
        Request::Send { .. }
        | Request::Seen { .. }
        | Request::SendEach { .. }
        | Request::SeenEach { .. }
        | Request::RoundTrip { .. } => {
            let probe = run.probe.as_ref().ok_or("the sockets are not open")?;
            Ok(try_path(probe, &run.further, &request))
        }
    }
}

fn describe(probe: &Probe, further: &[Probe]) -> Opened {
    Opened {
        place: probe.place(),
        interface: probe.interface().to_owned(),
        mtu_bytes: probe.mtu(),
        // The kernel reserves twice what it grants.
        buffer_bytes: probe.buffer_bytes() / 2,
        header_bytes: probe.header_bytes(),
        further_ports: further.iter().map(|probe| probe.place().port()).collect(),
    }
}

/// Connects to all at the same time, since one that drops packets costs the whole time limit.
fn connect_each(to: &[SocketAddr]) -> Vec<Option<String>> {
    std::thread::scope(|scope| {
        let tried: Vec<_> =
            to.iter().map(|&place| scope.spawn(move || error_of(can_connect(place, CONNECTION)))).collect();
        tried.into_iter().map(|tried| tried.join().expect("a connection does not panic")).collect()
    })
}

fn try_path(probe: &Probe, further: &[Probe], request: &Request) -> Answer {
    let at = |port: u16| further.iter().find(|probe| probe.place().port() == port).unwrap_or(probe);
    match *request {
        Request::SendEach { ref to, trial, bytes, count } => {
            let send =
                |(&to, trial): (&SocketAddr, u64)| error_of(at(to.port()).send(to, trial, bytes, count));
            Answer::TriedEach(to.iter().zip(trial..).map(send).collect())
        }
        Request::SeenEach { ref ports, trial, datagrams } => {
            let end = Instant::now() + TRIAL;
            let seen = |(&port, trial): (&u16, u64)| {
                let left = end.saturating_duration_since(Instant::now());
                at(port).trial_seen(trial, datagrams, left).datagrams
            };
            Answer::SeenEach(ports.iter().zip(trial..).map(seen).collect())
        }
        Request::Send { to, trial, bytes, count } => {
            Answer::Tried(error_of(probe.send(to, trial, bytes, count)))
        }
        Request::Seen { trial, datagrams } => {
            let seen = probe.trial_seen(trial, datagrams, TRIAL);
            Answer::Seen(seen.datagrams, seen.largest_bytes)
        }
        Request::RoundTrip { to, trial } => {
            let shortest = probe.round_trip(to, trial, ROUND_TRIPS, TRIAL);
            Answer::RoundTrip(shortest.map(|shortest| shortest.as_nanos() as u64))
        }
        _ => Answer::Failed(String::from("this request needs no sockets")),
    }
}

fn error_of(tried: io::Result<()>) -> Option<String> {
    tried.err().map(|error| error.to_string())
}

fn begin(
    run: &mut Run,
    directory: &Path,
    watched: impl Iterator<Item = (Place, PathBuf)>,
    token: &str,
) -> Result<Begun, String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    let mut is_made = false;
    if !has_token(directory, token) {
        match DirBuilder::new().mode(0o700).create(directory) {
            Ok(()) => is_made = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => wait_for_token(directory, token)?,
            Err(error) => return Err(failed(error)),
        }
    }
    if is_made {
        run.made = Some(directory.to_owned());
    }
    for (place, path) in watched {
        let is_shared = !is_made && path.starts_with(directory) || has_token(&path, token);
        if is_made && path.starts_with(directory) {
            std::fs::create_dir(&path).map_err(failed)?;
        } else if !path.is_dir() {
            return Err(format!("{}: no such directory; make it on every host", path.display()));
        }
        let before = files_in(&path);
        run.directories.push(Watched { place, path, is_shared, before });
    }
    if is_made {
        // Last: other hosts that share this directory, but not that of the command, may use it now.
        std::fs::write(directory.join(TOKEN), token).map_err(failed)?;
    }
    Ok(begun(run))
}

fn begun(run: &Run) -> Begun {
    let shares = |place| run.directories.iter().filter(|it| it.place == place).all(|it| it.is_shared);
    Begun {
        shares_stats: shares(Place::Stats),
        shares_traces: shares(Place::Traces),
        is_maker: run.made.is_some(),
    }
}

/// Takes over the directory that an earlier helper of this run has made. Directories elsewhere are left alone: which of
/// their files belong to other runs is not known any more.
fn adopt(
    run: &mut Run,
    directory: &Path,
    watched: impl Iterator<Item = (Place, PathBuf)>,
    token: &str,
) -> Result<Begun, String> {
    if !has_token(directory, token) {
        return Err(format!("{}: is not there any more, or belongs to something else", directory.display()));
    }
    run.made = Some(directory.to_owned());
    let inside = watched.filter(|(_, path)| path.starts_with(directory));
    let own = |(place, path)| Watched { place, path, is_shared: false, before: Vec::new() };
    run.directories.extend(inside.map(own));
    Ok(begun(run))
}

/// The plug-in of this host. `provider`: where it is on the host of the command.
fn find_provider(provider: Option<&Path>) -> Result<PathBuf, String> {
    let found = match provider.filter(|provider| provider.is_file()) {
        Some(provider) => Ok(provider.to_owned()),
        None => provider_file::find_for_this_command(),
    };
    let found = found.map_err(|error| error.to_string())?;
    match provider_file::is_library(&found) {
        Ok(true) => Ok(found),
        Ok(false) => Err(format!("{} is no library", found.display())),
        Err(error) => Err(format!("{}: {error}", found.display())),
    }
}

/// Puts the plug-in where the ranks look for it. `provider`: where it is on the host of the command.
fn place_provider(provider: &Path, directory: &Path) -> Result<(), String> {
    let found = find_provider(Some(provider))?;
    provider_file::isolate(&found, directory).map(drop).map_err(|failure| failure.to_string())
}

fn has_token(directory: &Path, token: &str) -> bool {
    std::fs::read_to_string(directory.join(TOKEN)).is_ok_and(|found| found == token)
}

/// Another host that shares the directory has made it.
fn wait_for_token(directory: &Path, token: &str) -> Result<(), String> {
    let begun = Instant::now();
    while !has_token(directory, token) {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{}: exists and belongs to something else", directory.display()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

/// Processes of endpoints in a directory, without those of files that are to be left out.
fn processes(directory: &Path, without: &[PathBuf], open_only: bool) -> Vec<u64> {
    let reports = stats::read_dir(directory).unwrap_or_default();
    let ours = reports.endpoints.into_iter().filter(|endpoint| !without.contains(&endpoint.path));
    ours.filter(|endpoint| !(open_only && endpoint.closed)).map(|endpoint| endpoint.pid).collect()
}

fn gather(run: &Run) -> Result<Gathered, String> {
    let own = |it: &&Watched| it.place == Place::Stats && !it.is_shared;
    let ours = run.directories.iter().filter(own).flat_map(|it| processes(&it.path, &it.before, false));
    let ours: Vec<u32> = ours.map(|process| process as u32).collect();
    // The counters are final once the processes have ended, for which this waits.
    let cleaned = mailboxes::remove_after_run(&run.shm, &ours);
    let (removed, in_use) = cleaned.map_err(|error| format!("{}: {error}", run.shm.display()))?;
    let mut gathered = Gathered { now_ns: stats::now_ns(), removed, in_use, ..Gathered::default() };
    for watched in run.directories.iter().filter(|it| !it.is_shared) {
        add_files(&mut gathered, watched.place, &watched.path, &watched.before)?;
    }
    Ok(gathered)
}

fn look(directory: &Path) -> Result<Gathered, String> {
    let mut living = processes(directory, &[], true);
    living.retain(|process| Path::new(&format!("/proc/{process}")).exists());
    let mut gathered = Gathered { now_ns: stats::now_ns(), living, ..Gathered::default() };
    add_files(&mut gathered, Place::Stats, directory, &[])?;
    Ok(gathered)
}

fn add_files(
    gathered: &mut Gathered,
    place: Place,
    directory: &Path,
    without: &[PathBuf],
) -> Result<(), String> {
    for path in files_in(directory) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|about| about.is_file());
        if without.contains(&path) || !is_file || name == TOKEN {
            continue;
        }
        // A file may grow meanwhile.
        let opened = std::fs::File::open(&path);
        let read = opened.and_then(|file| file.take(LONGEST_FILE).read_to_end(&mut gathered.bytes));
        match read {
            Ok(bytes) => {
                gathered.files.push(GatheredFile { place, name: name.to_owned(), bytes: bytes as u64 });
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(stats: &Path) -> impl Iterator<Item = (Place, PathBuf)> {
        std::iter::once((Place::Stats, stats.to_owned()))
    }

    #[allow(clippy::field_reassign_with_default, reason = "it cannot be moved out of")]
    fn run_in(shm: &Path) -> Run {
        let mut run = Run::default();
        run.shm = shm.to_owned();
        run
    }

    #[test]
    fn a_directory_with_the_token_is_shared_and_its_files_are_not_sent() {
        let root = tempfile::tempdir().unwrap();
        let stats = root.path().join("stats");
        std::fs::create_dir(&stats).unwrap();
        std::fs::write(root.path().join(TOKEN), "t").unwrap();
        let mut run = run_in(root.path());
        let begun = begin(&mut run, root.path(), watch(&stats), "t").unwrap();
        assert_eq!(begun, Begun { shares_stats: true, shares_traces: true, is_maker: false });
        std::fs::write(stats.join("a.weir"), "abc").unwrap();
        assert_eq!(gather(&run).unwrap().files, []);
        drop(run);
        assert!(stats.exists(), "only the maker removes a directory");
    }

    #[test]
    fn the_directory_of_a_killed_helper_is_taken_over_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let (directory, stats) = (root.path().join("run"), root.path().join("run/stats"));
        let mut killed = run_in(root.path());
        assert!(begin(&mut killed, &directory, watch(&stats), "t").unwrap().is_maker);
        std::mem::forget(killed);
        std::fs::write(stats.join("a.weir"), "abc").unwrap();
        let elsewhere = root.path().join("other.weir");
        std::fs::write(&elsewhere, "of another run").unwrap();
        let watched = || watch(&stats).chain([(Place::Traces, root.path().to_owned())]);

        let refused = adopt(&mut run_in(root.path()), &directory, watched(), "another run").unwrap_err();
        assert!(refused.ends_with("belongs to something else"), "{refused}");
        let mut next = run_in(root.path());
        assert!(adopt(&mut next, &directory, watched(), "t").unwrap().is_maker);
        let gathered = gather(&next).unwrap();
        let contents: Vec<_> = gathered.contents().map(|(file, bytes)| (file.name.as_str(), bytes)).collect();
        assert_eq!(contents, [("a.weir", &b"abc"[..])]);
        drop(next);
        assert!(!directory.exists() && elsewhere.exists());
    }

    #[test]
    fn a_directory_of_another_owner_is_refused() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(TOKEN), "other").unwrap();
        let refused = begin(&mut Run::default(), root.path(), watch(root.path()), "t").unwrap_err();
        assert!(refused.ends_with("exists and belongs to something else"), "{refused}");
        let missing = root.path().join("no/such");
        std::fs::write(root.path().join(TOKEN), "t").unwrap();
        let refused = begin(&mut Run::default(), root.path(), watch(&missing), "t");
        // It is inside the directory of the run, which the command has made, so it must exist.
        assert!(refused.unwrap_err().ends_with("no such directory; make it on every host"));
    }

    #[test]
    fn files_that_were_there_before_are_not_sent() {
        let root = tempfile::tempdir().unwrap();
        let stats = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(TOKEN), "t").unwrap();
        std::fs::write(stats.path().join("old.weir"), "old").unwrap();
        let mut run = run_in(root.path());
        let begun = begin(&mut run, root.path(), watch(stats.path()), "t").unwrap();
        assert!(!begun.shares_stats);
        std::fs::write(stats.path().join("b.weir"), "bb").unwrap();
        std::fs::write(stats.path().join("a.weir"), "abc").unwrap();
        let gathered = gather(&run).unwrap();
        let contents: Vec<_> = gathered.contents().map(|(file, bytes)| (file.name.as_str(), bytes)).collect();
        assert_eq!(contents, [("a.weir", &b"abc"[..]), ("b.weir", b"bb")]);
    }
}
