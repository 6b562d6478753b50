//! What a command and its helper on another host say to each other.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What a helper says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The version of weir.
    pub version: String,
    /// The versions of what endpoints of different hosts exchange: addresses, packets, datagrams.
    pub formats: [u64; 3],
    /// The name of the host, as it calls itself.
    pub host: String,
}

/// What a command wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Make the directory of a run, with the plug-in inside; and those of counters and traces, unless they exist.
    Begin {
        /// The directory of the run.
        run: PathBuf,
        /// The directory of the counters.
        stats: PathBuf,
        /// The directory of the traces.
        traces: Option<PathBuf>,
        /// The directory of the mailboxes.
        shm: PathBuf,
        /// The plug-in, unless this host has it elsewhere.
        provider: PathBuf,
        /// The content of a file [`TOKEN`] in directories that this host shares with the command's.
        token: String,
    },
    /// Take over the directory of a run from a helper that was killed. Without a file [`TOKEN`] with this content there, it is
    /// not the directory of this run.
    Adopt {
        /// The directory of the run.
        run: PathBuf,
        /// The directory of the counters.
        stats: PathBuf,
        /// The directory of the traces.
        traces: Option<PathBuf>,
        /// The directory of the mailboxes.
        shm: PathBuf,
        /// The token of the run.
        token: String,
    },
    /// After the program's end: remove stale mailboxes, and send the files of this run.
    Gather,
    /// While a program runs: send the counters in a directory.
    Look {
        /// The directory of the counters.
        stats: PathBuf,
    },
    /// Open the sockets of an endpoint for trials.
    Open {
        /// Key of the trials.
        key: [u8; 16],
        /// The interface, its address or subnet.
        net: Option<String>,
        /// First and last port.
        ports: Option<(u16, u16)>,
        /// Further ports for trials, if they are free.
        further_ports: Vec<u16>,
        /// The buffer to ask for. Unit: bytes.
        buffer_bytes: usize,
    },
    /// Look for the plug-in that a run would use.
    FindProvider {
        /// Where it is on the host of the command, if it is there.
        provider: Option<PathBuf>,
    },
    /// Connect over TCP.
    Connect {
        /// The sockets of another host.
        to: SocketAddr,
    },
    /// Send datagrams that no host may cut.
    Send {
        /// The sockets of another host.
        to: SocketAddr,
        /// Number of the trial.
        trial: u64,
        /// Length of each. Unit: bytes.
        bytes: usize,
        /// How many.
        count: u32,
    },
    /// Tell what has arrived of a trial, as soon as `datagrams` have, at the latest after a while.
    Seen {
        /// Number of the trial.
        trial: u64,
        /// Datagrams that are expected.
        datagrams: u32,
    },
    /// Send datagrams to several ports of a host, from the same port if it is open here.
    SendEach {
        /// The sockets of the host.
        to: Vec<SocketAddr>,
        /// Number of the trial of the first. Those behind it have the next numbers.
        trial: u64,
        /// Length of each datagram. Unit: bytes.
        bytes: usize,
        /// How many to each.
        count: u32,
    },
    /// Tell what has arrived of the trials of [`Request::SendEach`], as soon as `datagrams` of each have, at the latest after a
    /// while.
    SeenEach {
        /// The ports.
        ports: Vec<u16>,
        /// Number of the trial of the first.
        trial: u64,
        /// Datagrams that are expected of each.
        datagrams: u32,
    },
    /// Connect over TCP to several ports at the same time.
    ConnectEach {
        /// The sockets.
        to: Vec<SocketAddr>,
    },
    /// Measure the round trip.
    RoundTrip {
        /// The sockets of another host.
        to: SocketAddr,
        /// The first number of several trials.
        trial: u64,
    },
}

/// Name of the file by which hosts find out that they share a directory.
pub const TOKEN: &str = "weir-token";

/// What a helper answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Its first words.
    Greeting(Greeting),
    /// The directories are there.
    Begun(Begun),
    /// Files. Their bytes follow, in this order.
    Files(Gathered),
    /// The sockets of trials are open.
    Opened(Opened),
    /// The error of [`Request::Connect`] or [`Request::Send`], if there was one.
    Tried(Option<String>),
    /// What has arrived: datagrams, and the length of the largest. Unit: bytes.
    Seen(u32, usize),
    /// The errors of [`Request::SendEach`] or [`Request::ConnectEach`], in their order.
    TriedEach(Vec<Option<String>>),
    /// Datagrams that have arrived, in the order of the ports.
    SeenEach(Vec<u32>),
    /// The shortest round trip. `None`: no answer. Unit: ns.
    RoundTrip(Option<u64>),
    /// It could not do it; a line for the user.
    Failed(String),
}

/// The sockets of trials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Address and port, for UDP and TCP.
    pub place: SocketAddr,
    /// Name of the interface.
    pub interface: String,
    /// Its MTU, if it tells. Unit: bytes.
    pub mtu_bytes: Option<usize>,
    /// The receive buffer that the kernel has granted, as `setsockopt` counts it. Unit: bytes.
    pub buffer_bytes: usize,
    /// The headers of IP and UDP. Unit: bytes.
    pub header_bytes: usize,
    /// The further ports that are open too.
    pub further_ports: Vec<u16>,
}

/// The directories are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// The directory of the counters is that of the command.
    pub shares_stats: bool,
    /// The directory of the traces is that of the command.
    pub shares_traces: bool,
    /// The helper has made the directory of the run, and removes it.
    pub is_maker: bool,
}

/// A directory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// That of the counters.
    Stats,
    /// That of the traces.
    Traces,
}

/// The files of a host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gathered {
    /// The files.
    pub files: Vec<GatheredFile>,
    /// Those of the processes in the counters that run.
    pub living: Vec<u64>,
    /// The time of this host. Unit: ns since 1970.
    pub now_ns: u64,
    /// Stale mailboxes that were removed.
    pub removed: usize,
    /// Processes of the run that still use a mailbox.
    pub in_use: Vec<u32>,
    /// The content of the files, one after the other.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatheredFile {
    /// Its directory.
    pub place: Place,
    /// Its name, without directories.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

impl Gathered {
    /// Each file with its content.
    pub fn contents(&self) -> impl Iterator<Item = (&GatheredFile, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.files.iter().map(move |file| {
            let (content, behind) = rest.split_at((file.bytes as usize).min(rest.len()));
            rest = behind;
            (file, content)
        })
    }
}
