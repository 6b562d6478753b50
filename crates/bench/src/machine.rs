//! The host that a benchmark runs on: processor, cores, kernel and load. Records and notes state them, because they
//! explain the numbers. Elsewhere in weir, a machine is a part of the protocol.

use serde::Serialize;

/// From this load on, other processes took part of the cores before the benchmark began. Unit: processes.
const BUSY_LOAD: f64 = 0.5;

/// A host.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Name of the processor, as the kernel reports it.
    pub processor: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Load before the benchmark began: processes that ran or waited for a core, mean over one minute.
    pub load: f64,
}

impl Machine {
    /// Reads the values of this host.
    pub fn of_this() -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            processor: processor.map_or_else(|| String::from("unknown"), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }

    /// Whether other processes used the host before the benchmark began.
    pub fn is_busy(&self) -> bool {
        self.load > BUSY_LOAD
    }

    /// The last lines below a table of times: what the host is, behind a warning if it was busy.
    pub fn footer(&self) -> String {
        let Machine { processor, cores, kernel, load } = self;
        let host = format!("{processor}, {cores} cores, Linux {kernel}.");
        match self.is_busy() {
            true => format!("The machine was not idle (load {load}): the times are not reliable.\n{host}"),
            false => host,
        }
    }
}
