//! `weir doctor --hosts`: checks the hosts of a job and every path from one to another, each direction alone.
//!
//! A helper on each host opens the sockets of an endpoint. In every round each host tries one other host, so the checks of
//! N hosts take N - 1 rounds. A path is judged by what its other end has received, so one that works in one direction only
//! is found. Of a range of ports, each path tries several (`hosts/ports.rs`).

mod ports;
mod table;

use super::{Finding, Level};
use crate::hosts::{own_greeting, start};
use ports::Ports;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use weir_engine::config::Settings;
use weir_mpi::hosts::Hosts;
use weir_mpi::provider_file;
use weir_mpi::remote::{Answer, Greeting, Helper, Opened, Request};
use weir_output::Failure;
use weir_output::quantity::bytes;

/// Time that a helper has for an answer.
const LIMIT: Duration = Duration::from_secs(20);
/// Datagrams of a trial. One of them may be lost.
const DATAGRAMS: u32 = 3;
/// Length of the smallest datagrams that are tried, with headers. Unit: bytes.
const SMALL_BYTES: usize = 128;
/// A path that carries less is not usable. Source: RFC 8200, section 5. Unit: bytes.
const LEAST_MTU: usize = 1280;
/// Endpoints use no larger MTU. Unit: bytes.
const LARGEST_MTU: usize = 9000;

/// A host, as its helper describes it.
#[derive(Debug, Serialize)]
struct HostResult {
    name: String,
    /// The version of weir; `None`: not reached.
    version: Option<String>,
    formats: Option<[u64; 3]>,
    address: Option<String>,
    interface: Option<String>,
    mtu_bytes: Option<usize>,
    socket_buffer_bytes: Option<usize>,
}

/// A path from one host to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct PathResult {
    from: String,
    to: String,
    /// Datagrams that have arrived, of those that were sent.
    datagrams_arrived: u32,
    datagrams_sent: u32,
    /// Why the sender's kernel has refused to send.
    udp_error: Option<String>,
    /// Why no connection came about.
    tcp_error: Option<String>,
    /// Shortest time until an answer comes to a sleeping process. Needs both directions.
    round_trip_ns: Option<u64>,
    /// The largest packet that arrives in one piece, with headers.
    path_mtu_bytes: Option<usize>,
    /// Ports of `to` that were tried, if there is a range.
    ports_tried: Vec<u16>,
    /// Those of them where no datagram arrives.
    ports_without_udp: Vec<u16>,
    /// Those of them that no connection reaches.
    ports_without_tcp: Vec<u16>,
}

#[derive(Serialize)]
struct Record<'a> {
    schema: &'static str,
    usable: bool,
    /// The ports to try of each host, if there is a range.
    ports: Option<&'a Ports>,
    hosts: &'a [HostResult],
    paths: &'a [PathResult],
    findings: &'a [Finding],
}

/// A host whose sockets are open.
struct Ready {
    helper: Helper,
    opened: Opened,
}

/// Checks the hosts of a file. Returns the exit status.
///
/// # Errors
/// [`Failure`]: the file is wrong, or the settings are.
pub fn run(file: &Path, remote_shell: &str, as_json: bool) -> Result<u8, Failure> {
    let hosts = Hosts::read(file)?;
    let settings = Settings::from_environment()?;
    let ports = settings.ports.as_ref().map(Ports::of);
    let mut findings = Vec::new();
    let (mut results, mut ready) = (Vec::new(), Vec::new());
    let own = own_greeting();
    for (name, started) in hosts.names().zip(start(hosts.names(), remote_shell)?) {
        let opened = started.map(|(mut helper, greeting)| {
            let opened = open(&mut helper, &settings, ports.as_ref());
            findings.extend(different_version(name, &greeting, &own));
            findings.extend(no_provider(&mut helper));
            (helper, greeting, opened)
        });
        match opened {
            Err(error) => {
                let advice = format!("`{remote_shell} {name} true` must work without a password");
                findings.push(Finding::fail("reached", error, advice));
                results.push(describe(name, None, None));
            }
            Ok((_, greeting, Err(error))) => {
                findings.push(Finding::fail(
                    "sockets",
                    error,
                    "set FI_WEIR_NET or FI_WEIR_PORTS, or the network",
                ));
                results.push(describe(name, Some(&greeting), None));
            }
            Ok((helper, greeting, Ok(opened))) => {
                findings.extend(small_buffer(name, &opened, settings.socket_buffer_bytes as usize));
                results.push(describe(name, Some(&greeting), Some(&opened)));
                ready.push(Ready { helper, opened });
            }
        }
    }
    findings.extend(same_host(&ready));
    findings.extend(other_link(&settings));
    let paths = try_all(&mut ready).map_err(Failure::Host)?;
    findings.extend(paths.iter().flat_map(|path| judge(path, &ready)));
    findings.extend(ports.iter().map(|ports| ports.finding(&paths)));
    let usable = findings.iter().all(|finding| finding.level < Level::Fail);
    if as_json {
        let schema = "weir-doctor-hosts-1";
        let ports = ports.as_ref();
        let record = Record { schema, usable, ports, hosts: &results, paths: &paths, findings: &findings };
        weir_output::write::write_json(&record, "-")?;
    } else {
        println!("{}", table::render(&results, &paths));
        for finding in &findings {
            println!("{}", finding.text());
        }
        println!(
            "\n{}",
            if usable { "every host reaches every other one." } else { "see the lines with FAIL." }
        );
    }
    Ok(u8::from(!usable))
}

fn open(helper: &mut Helper, settings: &Settings, ports: Option<&Ports>) -> Result<Opened, String> {
    let request = Request::Open {
        key: key(),
        net: settings.net.clone(),
        ports: ports.map(|ports| (ports.first, ports.last)),
        further_ports: ports.map_or_else(Vec::new, |ports| ports.chosen.clone()),
        buffer_bytes: settings.socket_buffer_bytes as usize,
    };
    match helper.ask(&request, LIMIT)? {
        Answer::Opened(opened) => Ok(opened),
        other => Err(format!("{}: unexpected answer of the helper: {other:?}", helper.host())),
    }
}

/// The key of all trials of this process.
fn key() -> [u8; 16] {
    use std::hash::BuildHasher;
    use std::sync::OnceLock;
    static KEY: OnceLock<[u8; 16]> = OnceLock::new();
    // The keys of the standard library's hash tables are random.
    *KEY.get_or_init(|| {
        let halves = [1, 2].map(|half: u64| std::hash::RandomState::new().hash_one(half).to_le_bytes());
        std::array::from_fn(|at| halves[at / 8][at % 8])
    })
}

fn describe(name: &str, greeting: Option<&Greeting>, opened: Option<&Opened>) -> HostResult {
    HostResult {
        name: name.to_owned(),
        version: greeting.map(|greeting| greeting.version.clone()),
        formats: greeting.map(|greeting| greeting.formats),
        address: opened.map(|opened| opened.place.ip().to_string()),
        interface: opened.map(|opened| opened.interface.clone()),
        mtu_bytes: opened.and_then(|opened| opened.mtu_bytes),
        socket_buffer_bytes: opened.map(|opened| opened.buffer_bytes),
    }
}

fn different_version(name: &str, greeting: &Greeting, own: &Greeting) -> Option<Finding> {
    let [address, packet, counters] = greeting.formats;
    let seen = format!(
        "{name} has weir {} (formats: address {address}, packet {packet}, counters {counters}); this host has weir {} ({:?})",
        greeting.version, own.version, own.formats
    );
    ((&greeting.version, greeting.formats) != (&own.version, own.formats))
        .then(|| Finding::fail("version", seen, "install one version of weir on all hosts"))
}

/// The plug-in that a run would use.
fn no_provider(helper: &mut Helper) -> Option<Finding> {
    let provider = provider_file::find_for_this_command().ok();
    let seen = match helper.ask(&Request::FindProvider { provider }, LIMIT) {
        Ok(Answer::Tried(error)) => format!("{}: {}", helper.host(), error?),
        Ok(other) => format!("{}: unexpected answer of the helper: {other:?}", helper.host()),
        Err(error) => error,
    };
    Some(Finding::fail("provider", seen, "install weir at the same place on all hosts"))
}

/// The ranks would not use what is checked.
fn other_link(settings: &Settings) -> Option<Finding> {
    if let Some(provider) = settings.links.core_provider() {
        let seen = format!("FI_WEIR_LINK asks for the core provider {provider}, and UDP is what is checked");
        let advice = "a run over it shows whether the provider connects; its ports are its own settings";
        return Some(Finding::warn("link", seen, advice));
    }
    (!settings.links.has_network(true)).then(|| {
        let seen = "FI_WEIR_LINK has no network, so ranks of different hosts do not reach each other";
        Finding::fail("link", seen, "leave FI_WEIR_LINK out, or set FI_WEIR_LINK=shm,udp")
    })
}

fn small_buffer(name: &str, opened: &Opened, wanted: usize) -> Option<Finding> {
    (opened.buffer_bytes < wanted).then(|| {
        let seen = format!(
            "{name}: the kernel gives a socket {} instead of {}: fewer packets can be under way",
            bytes(opened.buffer_bytes as u64),
            bytes(wanted as u64)
        );
        Finding::warn("buffer", seen, format!("on {name}: sudo sysctl -w net.core.rmem_max={wanted}"))
    })
}

/// Hosts of the file that have one address.
fn same_host(ready: &[Ready]) -> Option<Finding> {
    let same = |(number, one): (usize, &Ready)| {
        let other = ready[..number].iter().find(|other| other.opened.place.ip() == one.opened.place.ip())?;
        Some((other.helper.host().to_owned(), one.helper.host().to_owned()))
    };
    ready.iter().enumerate().find_map(same).map(|(one, other)| {
        let seen =
            format!("{one} and {other} have one address: they are one host, or FI_WEIR_NET chooses wrongly");
        Finding::warn("address", seen, "name each host once in the file, or set FI_WEIR_NET")
    })
}

/// Tries all paths. In round r, each host tries the one r places behind it.
fn try_all(ready: &mut [Ready]) -> Result<Vec<PathResult>, String> {
    let count = ready.len();
    let mut paths = Vec::new();
    for distance in 1..count {
        let mut round: Vec<PathResult> = (0..count)
            .map(|from| PathResult {
                from: ready[from].helper.host().to_owned(),
                to: ready[(from + distance) % count].helper.host().to_owned(),
                datagrams_sent: DATAGRAMS,
                ..PathResult::default()
            })
            .collect();
        try_round(ready, distance, &mut round)?;
        paths.extend(round);
    }
    let order = |name: &str| ready.iter().position(|it| it.helper.host() == name);
    paths.sort_by_key(|path| (order(&path.from), order(&path.to)));
    Ok(paths)
}

/// Asks all hosts at once. `request` gets the number of the host; hosts without a request are left out.
fn ask_all(
    ready: &mut [Ready],
    request: impl Fn(usize) -> Option<Request>,
) -> Result<Vec<Option<Answer>>, String> {
    let requests: Vec<_> = (0..ready.len()).map(request).collect();
    for (host, request) in ready.iter_mut().zip(&requests) {
        if let Some(request) = request {
            host.helper.request(request)?;
        }
    }
    let answers = ready.iter_mut().zip(&requests).map(|(host, request)| match request {
        Some(_) => host.helper.answer(LIMIT).map(Some),
        None => Ok(None),
    });
    answers.collect()
}

fn try_round(ready: &mut [Ready], distance: usize, round: &mut [PathResult]) -> Result<(), String> {
    let count = ready.len();
    let places: Vec<_> = ready.iter().map(|it| it.opened.place).collect();
    let place = |from: usize| places[(from + distance) % count];
    let connected = ask_all(ready, |from| Some(Request::Connect { to: place(from) }))?;
    for (path, answer) in round.iter_mut().zip(connected) {
        if let Some(Answer::Tried(error)) = answer {
            path.tcp_error = error;
        }
    }
    let mut trials = Trials { distance, next: (distance as u64) << 32 };
    let small = vec![Some(SMALL_BYTES - ready[0].opened.header_bytes); count];
    let arrived = trials.send(ready, &places, &small, Some(round))?;
    for (path, arrived) in round.iter_mut().zip(&arrived) {
        path.datagrams_arrived = *arrived;
    }
    let trial = trials.next(1 << 16);
    let round_trips =
        ask_all(ready, |from| (arrived[from] > 0).then(|| Request::RoundTrip { to: place(from), trial }))?;
    for (path, answer) in round.iter_mut().zip(round_trips) {
        if let Some(Answer::RoundTrip(shortest)) = answer {
            path.round_trip_ns = shortest;
        }
    }
    ports::try_round(ready, &mut trials, round)?;
    find_mtu(ready, &places, &mut trials, round)
}

/// Finds the MTU of every path of a round by halving what is not known.
fn find_mtu(
    ready: &mut [Ready],
    places: &[std::net::SocketAddr],
    trials: &mut Trials,
    round: &mut [PathResult],
) -> Result<(), String> {
    // What arrives, and what is tried next. Unit: bytes with headers.
    let mut known: Vec<Option<(usize, usize)>> = (0..ready.len())
        .map(|from| {
            let mtu = ready[from].opened.mtu_bytes.unwrap_or(1500).clamp(SMALL_BYTES, LARGEST_MTU);
            (round[from].datagrams_arrived > 0).then_some((SMALL_BYTES, mtu))
        })
        .collect();
    let mut try_next: Vec<Option<usize>> = known.iter().map(|it| it.map(|(_, most)| most)).collect();
    while try_next.iter().any(Option::is_some) {
        let headers = ready[0].opened.header_bytes;
        let lengths: Vec<_> = try_next.iter().map(|mtu| mtu.map(|mtu| mtu - headers)).collect();
        let arrived = trials.send(ready, places, &lengths, None)?;
        for (from, mtu) in try_next.iter_mut().enumerate() {
            let (Some(tried), Some((least, most))) = (*mtu, known[from].as_mut()) else { continue };
            if arrived[from] > 0 {
                *least = tried
            } else {
                *most = tried - 1
            }
            *mtu = (*least < *most).then(|| (*least + *most).div_ceil(2));
        }
    }
    for (path, known) in round.iter_mut().zip(known) {
        path.path_mtu_bytes = known.map(|(least, _)| least);
    }
    Ok(())
}

/// The numbers of trials of a round.
struct Trials {
    distance: usize,
    next: u64,
}

impl Trials {
    fn next(&mut self, count: u64) -> u64 {
        self.next += count;
        self.next - count
    }

    /// Every host with a length sends datagrams to its host of the round. Returns how many have arrived from each. An error of
    /// a sender's kernel goes to `errors`.
    fn send(
        &mut self,
        ready: &mut [Ready],
        places: &[std::net::SocketAddr],
        lengths: &[Option<usize>],
        errors: Option<&mut [PathResult]>,
    ) -> Result<Vec<u32>, String> {
        let (count, distance) = (ready.len(), self.distance);
        let trial = self.next(1);
        let to = |from: usize| (from + distance) % count;
        let sent = ask_all(ready, |from| {
            let bytes = lengths[from]?;
            Some(Request::Send { to: places[to(from)], trial, bytes, count: DATAGRAMS })
        })?;
        if let Some(paths) = errors {
            for (path, answer) in paths.iter_mut().zip(sent) {
                if let Some(Answer::Tried(error)) = answer {
                    path.udp_error = error;
                }
            }
        }
        let from = |to: usize| (to + count - distance) % count;
        let seen =
            ask_all(ready, |to| lengths[from(to)].map(|_| Request::Seen { trial, datagrams: DATAGRAMS }))?;
        let arrived = (0..count).map(|from| match &seen[to(from)] {
            Some(Answer::Seen(datagrams, _)) => *datagrams,
            _ => 0,
        });
        Ok(arrived.collect())
    }
}

/// What is wrong with a path.
fn judge(path: &PathResult, ready: &[Ready]) -> Vec<Finding> {
    let PathResult { from, to, datagrams_arrived, datagrams_sent, .. } = path;
    let mut findings = Vec::new();
    let place = |name: &str| {
        let host = ready.iter().find(|it| it.helper.host() == name);
        host.map_or_else(String::new, |it| it.opened.place.to_string())
    };
    let way = format!("{from} ({}) to {to} ({})", place(from), place(to));
    if let Some(error) = &path.udp_error {
        let advice = "set FI_WEIR_NET to the network that all hosts share, for example to 10.0.0.0/8";
        findings.push(Finding::fail("UDP", format!("{way}: {error}"), advice));
    } else if *datagrams_arrived == 0 && !ports::names_udp(path) {
        let advice = "set FI_WEIR_NET to the network that all hosts share, or FI_WEIR_PORTS=20100-21100, and open these \
                      ports for UDP";
        findings.push(Finding::fail("UDP", format!("{way}: no datagram arrives"), advice));
    } else if *datagrams_arrived > 0 && datagrams_arrived < datagrams_sent {
        let seen = format!("{way}: {datagrams_arrived} of {datagrams_sent} datagrams arrive");
        findings.push(Finding::warn(
            "UDP",
            seen,
            "find out where the network loses packets; weir sends them again",
        ));
    }
    if let Some(error) = path.tcp_error.as_ref().filter(|_| !ports::names_tcp(path)) {
        let advice = "open the ports of FI_WEIR_PORTS for TCP too: otherwise a rank that computes for longer than \
                      FI_WEIR_PEER_TIMEOUT_S is lost";
        findings.push(Finding::fail("TCP", format!("{way}: {error}"), advice));
    }
    let mtu_of = |name: &str| ready.iter().find(|it| it.helper.host() == name)?.opened.mtu_bytes;
    findings.extend(ports::judge(path));
    match (path.path_mtu_bytes, mtu_of(from)) {
        (Some(mtu), _) if mtu < LEAST_MTU => {
            let seen = format!("{way}: packets of more than {mtu} B do not arrive; weir needs {LEAST_MTU} B");
            findings.push(Finding::fail("path MTU", seen, "enlarge the MTU of the network between them"));
        }
        (Some(mtu), Some(own)) if mtu < own.min(LARGEST_MTU) => {
            let seen =
                format!("{way}: packets of more than {mtu} B do not arrive, the interface takes {own} B");
            let advice = format!("set the MTU of {from} to {mtu}: weir finds it out, but only after losses");
            findings.push(Finding::warn("path MTU", seen, advice));
        }
        _ => {}
    }
    findings
}
