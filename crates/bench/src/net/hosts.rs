//! Pretended hosts ([`Hosts`]): namespaces of this machine with their own network, host name, processes, IPC, `/dev/shm`
//! and temporary files. All hang on one bridge, where the launchers of MPIs run as on a login node.
//!
//! ```text
//! login    br0 10.99.0.254    runs mpiexec
//! h1       eth0 10.99.0.1     first rank      the agent takes the place of ssh: it enters the namespaces of a host
//! h2       eth0 10.99.0.2     second rank
//! ```
//! Nothing is added to the machine's own network. The namespaces end with this command, also if it is killed: the processes
//! that hold them die with their parent.

use crate::launcher::Launcher;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use serde::Serialize;
use std::ops::Sub;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_mpi::find::Kind;
use weir_mpi::program;
use weir_output::Failure;

const NETWORK: &str = "10.99.0";
const LOGIN: &str = "login";
/// Programs that this needs.
const TOOLS: [&str; 7] = ["ip", "unshare", "nsenter", "setpriv", "taskset", "mount", "hostname"];
/// Time for the kernel to make the namespaces of a host.
const LIMIT: Duration = Duration::from_secs(20);

/// A process that holds namespaces.
#[derive(Debug)]
struct Holder {
    child: Child,
    /// The process inside.
    pid: i32,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Hosts {
    folder: PathBuf,
    login: Holder,
    hosts: Vec<Holder>,
}

/// What is missing for pretended hosts, in one line.
pub fn missing(is_root: bool, has: impl Fn(&str) -> bool) -> Option<String> {
    let lacking: Vec<_> = TOOLS.into_iter().filter(|tool| !has(tool)).collect();
    let tools = (!lacking.is_empty()).then(|| format!("{} (util-linux, iproute2)", lacking.join(", ")));
    let root = (!is_root).then(|| String::from("root, to make network namespaces"));
    let all: Vec<_> = root.into_iter().chain(tools).collect();
    (!all.is_empty())
        .then(|| format!("weir bench net makes hosts of namespaces and needs {}", all.join(", and ")))
}

fn is_in_path(tool: &str) -> bool {
    program::find(tool, std::env::var_os("PATH").as_deref(), &[]).is_ok()
}

impl Hosts {
    /// Makes `count` hosts. `folder`: for files of the hosts. `cores`: host number n runs on core n of these, if there are as
    /// many.
    ///
    /// # Errors
    /// [`Failure::Measurement`]: what is missing, or the message of the program that failed.
    pub fn make(count: u32, folder: &Path, cores: &[usize]) -> Result<Hosts, Failure> {
        if let Some(missing) = missing(nix::unistd::geteuid().is_root(), is_in_path) {
            return Err(Failure::Measurement(missing));
        }
        let names: Vec<String> = (1..=count).map(|number| format!("h{number}")).collect();
        let shared = folder.join("tmp");
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(Failure::system(path.display().to_string()))
        };
        std::fs::create_dir_all(&shared).map_err(Failure::system(shared.display().to_string()))?;
        let mut known = format!("127.0.0.1 localhost\n{NETWORK}.254 {LOGIN}\n");
        for (number, name) in (1..).zip(&names) {
            known += &format!("{NETWORK}.{number} {name}\n");
            let core = cores.get(number - 1).filter(|_| cores.len() >= names.len());
            write(&format!("{name}.core"), &core.map_or_else(|| all_of(cores), usize::to_string))?;
        }
        write("hosts", &known)?;
        let agent = write("agent", &agent(folder)).map(|()| folder.join("agent"))?;
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))
            .map_err(Failure::system(agent.display().to_string()))?;

        let login = hold(&["-n", "-u", "-m"])?;
        let mut hosts = Hosts { folder: folder.to_owned(), login, hosts: Vec::new() };
        hosts.settle(LOGIN, &hosts.login)?;
        let bridge = format!(
            "ip link add br0 type bridge stp_state 0 forward_delay 0; ip link set br0 up; ip addr add {NETWORK}.254/24 dev br0"
        );
        run(enter(&hosts.login, true), &bridge)?;
        for (number, name) in (1..).zip(&names) {
            let holder = hold(&["-n", "-u", "-i", "-m", "-p", "-f", "--mount-proc", "--kill-child=KILL"])?;
            let pid = holder.pid;
            hosts.hosts.push(holder);
            let holder = hosts.hosts.last().expect("pushed just now");
            hosts.settle(name, holder)?;
            run(enter(holder, false), "mount -t tmpfs tmpfs /dev/shm")?;
            let link = format!(
                "ip link add v{number} type veth peer name eth0 netns /proc/{pid}/ns/net; ip link set v{number} master br0 up"
            );
            run(enter(&hosts.login, true), &link)?;
            let address = format!("ip addr add {NETWORK}.{number}/24 dev eth0; ip link set eth0 up");
            run(enter(holder, false), &address)?;
        }
        Ok(hosts)
    }

    /// Names a host, and gives it files of its own.
    fn settle(&self, name: &str, holder: &Holder) -> Result<(), Failure> {
        let folder = self.folder.display();
        let pid = self.folder.join(format!("{name}.pid"));
        std::fs::write(&pid, holder.pid.to_string()).map_err(Failure::system(pid.display().to_string()))?;
        let script = format!(
            "hostname {name}; mount --bind {folder}/hosts /etc/hosts; mount -t tmpfs tmpfs {folder}/tmp; ip link set lo up"
        );
        run(enter(holder, name == LOGIN), &script)
    }

    /// Number of hosts.
    pub fn count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// How an MPI of this kind starts `ranks` ranks, `per_host` on each of the first hosts.
    pub fn launcher(&self, kind: Kind, ranks: u32, per_host: u32) -> Launcher {
        let agent = self.folder.join("agent").display().to_string();
        let hosts = ranks.div_ceil(per_host).min(self.count());
        let names: Vec<String> = (1..=hosts).map(|number| format!("h{number}")).collect();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let by_name = ["-hosts".to_owned(), names.join(","), "-ppn".to_owned(), per_host.to_string()];
        let (arguments, variables) = match kind {
            Kind::Mpich => {
                let mut arguments = words("-launcher ssh -iface br0 -launcher-exec");
                arguments.push(agent);
                arguments.extend(by_name);
                (arguments, Vec::new())
            }
            Kind::Intel => {
                let variables = vec![
                    ("I_MPI_HYDRA_BOOTSTRAP", "ssh".to_owned()),
                    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", agent),
                    ("I_MPI_HYDRA_IFACE", "br0".to_owned()),
                ];
                (by_name.into(), variables)
            }
            Kind::OpenMpi => {
                let mut arguments = words("--bind-to none --prtemca plm ssh --prtemca oob_tcp_if_include");
                arguments.push(format!("{NETWORK}.0/24"));
                arguments.extend(words("--prtemca plm_ssh_agent"));
                arguments.push(agent);
                let slots: Vec<String> = names.iter().map(|name| format!("{name}:{per_host}")).collect();
                arguments.extend(["--host".to_owned(), slots.join(",")]);
                let temporary = self.folder.join("tmp").display().to_string();
                let variables = vec![
                    ("PRTE_MCA_prte_tmpdir_base", temporary),
                    ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
                    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
                ];
                (arguments, variables)
            }
        };
        let inside = ["nsenter", "-t", &self.login.pid.to_string(), "-n", "-u", "-m", "--"];
        Launcher { inside: inside.map(str::to_owned).into(), arguments, variables }
    }

    /// Address of a host, counted from 0.
    pub fn address(&self, host: usize) -> String {
        format!("{NETWORK}.{}", host + 1)
    }

    /// The calling thread uses the network of a host from now on.
    ///
    /// # Errors
    /// [`Failure::System`].
    pub fn join_network(&self, host: usize) -> Result<(), Failure> {
        let path = format!("/proc/{}/ns/net", self.hosts[host].pid);
        let joined = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .and_then(|space| setns(space, CloneFlags::CLONE_NEWNET));
        joined.map_err(|error| Failure::System { what: path, source: error.into() })
    }

    /// Whether hosts can drop datagrams here.
    pub fn can_lose() -> bool {
        is_in_path("nft")
    }

    /// Each host drops this share of the frames that arrive; 0: none.
    ///
    /// # Errors
    /// [`Failure::Measurement`].
    pub fn lose(&self, per_mille: u32) -> Result<(), Failure> {
        let rule = format!(
            "add table netdev loss; delete table netdev loss; add table netdev loss; add chain netdev loss in {{ type filter \
             hook ingress device eth0 priority 0; policy accept; }}; add rule netdev loss in numgen random mod 1000 < \
             {per_mille} drop"
        );
        let script = match per_mille {
            0 => String::from("nft delete table netdev loss 2>/dev/null || true"),
            _ => format!("nft '{rule}'"),
        };
        self.hosts.iter().try_for_each(|host| run(enter(host, false), &script))
    }

    /// Whether the ports of the bridge can be bounded here.
    pub fn can_bound() -> bool {
        is_in_path("tc")
    }

    /// Each port of the bridge passes so many Mbit/s towards its host, and queues so many KiB. `None`: no bound.
    ///
    /// # Errors
    /// [`Failure::Measurement`].
    pub fn bound_ports(&self, bound: Option<(u32, u32)>) -> Result<(), Failure> {
        (1..=self.count()).try_for_each(|number| {
            let script = match bound {
                Some((mbit, kib)) => {
                    format!(
                        "tc qdisc replace dev v{number} root tbf rate {mbit}mbit burst 32kb limit {kib}kb"
                    )
                }
                None => format!("tc qdisc del dev v{number} root"),
            };
            run(enter(&self.login, true), &script)
        })
    }

    /// Datagrams that the kernel has dropped so far: at sockets, at interfaces and ports of the bridge, and at its queues of
    /// what has arrived. Frames of other protocols count too.
    ///
    /// # Errors
    /// [`Failure::System`]: a counter cannot be read.
    pub fn dropped(&self) -> Result<u64, Failure> {
        let read = |path: String| std::fs::read_to_string(&path).map_err(Failure::system(path));
        let mut dropped = dropped_at_queues(&read(String::from("/proc/net/softnet_stat"))?);
        for Holder { pid, .. } in self.hosts.iter().chain([&self.login]) {
            dropped += dropped_at_sockets(&read(format!("/proc/{pid}/net/snmp"))?);
            dropped += dropped_at_interfaces(&read(format!("/proc/{pid}/net/dev"))?);
        }
        Ok(dropped)
    }

    /// Segments of TCP that the hosts have sent so far, whoever's they are.
    ///
    /// # Errors
    /// [`Failure::System`]: a counter cannot be read.
    pub fn tcp_segments(&self) -> Result<TcpSegments, Failure> {
        self.hosts.iter().try_fold(TcpSegments::default(), |sum, Holder { pid, .. }| {
            let path = format!("/proc/{pid}/net/snmp");
            let text = std::fs::read_to_string(&path).map_err(Failure::system(path))?;
            Ok(TcpSegments {
                sent: sum.sent + of_protocol(&text, "Tcp:", &["OutSegs"]),
                sent_again: sum.sent_again + of_protocol(&text, "Tcp:", &["RetransSegs"]),
            })
        })
    }

    /// Ends all processes on the hosts, such as ranks of a job that was ended.
    pub fn clear(&self) {
        for host in &self.hosts {
            // All but the process that holds the namespace and the one that calls.
            let _ = run(enter(host, false), "kill -9 -1");
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for holder in self.hosts.iter_mut().chain([&mut self.login]) {
            let _ = holder.child.kill(); // its child dies with it
            let _ = holder.child.wait();
        }
    }
}

/// Segments of TCP that hosts have sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpSegments {
    /// All of them.
    pub sent: u64,
    /// Those that were sent again.
    pub sent_again: u64,
}

impl Sub for TcpSegments {
    type Output = TcpSegments;

    fn sub(self, earlier: TcpSegments) -> TcpSegments {
        let TcpSegments { sent, sent_again } = earlier;
        TcpSegments { sent: self.sent - sent, sent_again: self.sent_again - sent_again }
    }
}

/// From `/proc/net/softnet_stat`: a line of hexadecimal numbers for each core.
fn dropped_at_queues(text: &str) -> u64 {
    let second = |line: &str| line.split_ascii_whitespace().nth(1).map(|word| u64::from_str_radix(word, 16));
    text.lines().filter_map(second).flatten().sum()
}

/// From `/proc/PID/net/snmp`, which has a line of names and one of numbers for each protocol: the sum of those with these names.
fn of_protocol(text: &str, protocol: &str, wanted: &[&str]) -> u64 {
    let mut lines =
        text.lines().filter_map(|line| line.strip_prefix(protocol)).map(str::split_ascii_whitespace);
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let chosen = names.zip(numbers).filter(|(name, _)| wanted.contains(name));
    chosen.filter_map(|(_, number)| number.parse::<u64>().ok()).sum()
}

fn dropped_at_sockets(text: &str) -> u64 {
    of_protocol(text, "Udp:", &["RcvbufErrors", "InCsumErrors", "MemErrors"])
}

/// From `/proc/PID/net/dev`: for each interface bytes, packets, errors and drops of receiving, and eight numbers later of
/// sending.
fn dropped_at_interfaces(text: &str) -> u64 {
    let numbers = text.lines().filter_map(|line| line.split_once(':')).map(|(_, numbers)| numbers);
    let drops = |numbers: &str| {
        let all: Vec<u64> = numbers.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        [2, 3, 10, 11].into_iter().filter_map(|place| all.get(place)).sum::<u64>()
    };
    numbers.map(drops).sum()
}

fn all_of(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Takes the place of ssh: `[options] HOST COMMAND...`.
fn agent(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"#!/bin/sh
while [ $# -gt 0 ]; do case $1 in -[bceFiIJLlmoOpQRSW]) shift 2;; -*) shift;; *) break;; esac; done
host=${{1#*@}}; shift
exec env -u LD_PRELOAD taskset -c "$(cat {folder}/"$host".core)" \
    nsenter -t "$(cat {folder}/"$host".pid)" -n -u -i -m -p -- /bin/sh -c "cd {folder}/tmp; $*"
"#
    )
}

/// Starts a process in namespaces of its own.
fn hold(flags: &[&str]) -> Result<Holder, Failure> {
    let failed = |why: &str| Failure::Measurement(format!("cannot make the namespaces of a host: {why}"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]).args(flags);
    command.args(["--propagation", "private", "--", "sleep", "infinity"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Failure::system("setpriv"))?;
    let outer = child.id() as i32;
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if child.try_wait().is_ok_and(|ended| ended.is_some()) {
            let mut said = String::new();
            if let Some(mut errors) = child.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut errors, &mut said);
            }
            return Err(failed(said.trim()));
        }
        let inner = if flags.contains(&"-f") {
            let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
            children.ok().and_then(|children| children.split_whitespace().next()?.parse().ok())
        } else {
            Some(outer)
        };
        let runs = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
        };
        if let Some(pid) = inner.filter(runs) {
            return Ok(Holder { child, pid });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(failed("it takes too long"))
}

/// A command that enters the namespaces of a host, or of the login node.
fn enter(holder: &Holder, is_login: bool) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &holder.pid.to_string(), "-n", "-u", "-m"]);
    if !is_login {
        command.args(["-i", "-p"]);
    }
    command.arg("--");
    command
}

/// Runs a shell script there.
fn run(mut inside: Command, script: &str) -> Result<(), Failure> {
    let output = inside.args(["sh", "-ec", script]).stdin(Stdio::null()).output();
    let output = output.map_err(Failure::system("nsenter"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next().unwrap_or("it printed nothing");
    Err(Failure::Measurement(format!("on a pretended host, `{script}` failed: {line}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing(true, |_| true), None);
        let text = missing(false, |tool| tool != "ip").expect("something is missing");
        assert_eq!(
            text,
            "weir bench net makes hosts of namespaces and needs root, to make network namespaces, and ip (util-linux, iproute2)"
        );
    }

    #[test]
    fn drops_of_the_kernel_are_counted() {
        assert_eq!(dropped_at_queues("00ff 00000002 0000 0000\n0001 00000010 0000 0000\n"), 18);
        let sockets = "Ip: Forwarding InDiscards\nIp: 1 40\n\
            Udp: InDatagrams NoPorts InErrors RcvbufErrors SndbufErrors InCsumErrors\nUdp: 9 8 7 3 50 1\n\
            UdpLite: RcvbufErrors\nUdpLite: 60\n";
        assert_eq!(dropped_at_sockets(sockets), 4);
        let tcp = "Tcp: MaxConn InSegs OutSegs RetransSegs\nTcp: -1 9 70 3\n";
        assert_eq!(["OutSegs", "RetransSegs"].map(|name| of_protocol(tcp, "Tcp:", &[name])), [70, 3]);
        let interfaces = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\n    \
            lo: 1 2 0 0 0 0 0 0 1 2 0 0 0 0 0 0\n  eth0: 7 8 1 2 0 0 0 0 7 8 4 8 0 0 0 0\n";
        assert_eq!(dropped_at_interfaces(interfaces), 15);
        assert_eq!(dropped_at_sockets("") + dropped_at_queues("") + dropped_at_interfaces(""), 0);
    }

    #[test]
    fn hosts_have_a_network_between_them_and_end_with_it() {
        if missing(nix::unistd::geteuid().is_root(), is_in_path).is_some() {
            return; // the refusal is tested above
        }
        let folder = tempfile::tempdir().unwrap();
        let hosts = match Hosts::make(2, folder.path(), &[0]) {
            Ok(hosts) => hosts,
            // A container without the right to make namespaces.
            Err(Failure::Measurement(why)) if why.contains("not permitted") => return,
            Err(failure) => panic!("{failure}"),
        };
        let pids: Vec<i32> = hosts.hosts.iter().map(|host| host.pid).collect();
        let bare = super::super::bare::half_round_trips(&hosts, &[8], Duration::from_millis(20)).unwrap();
        assert!(bare[0] > 0.0 && bare[0] < 1e6, "{bare:?} us");
        let time = Duration::from_millis(20);
        for per_s in [
            super::super::bare_stream::messages_per_s_in_parts(&hosts, 8, time),
            super::super::bare_incast::messages_per_s(&hosts, 1, time),
            super::super::bare_tcp_incast::messages_per_s(&hosts, 1, time),
        ] {
            let per_s = per_s.unwrap();
            assert!(per_s > 0.0 && per_s < 1e9, "{per_s} messages/s");
        }
        let launcher = hosts.launcher(Kind::Mpich, 6, 3);
        assert_eq!(launcher.arguments[6..], ["-hosts", "h1,h2", "-ppn", "3"].map(str::to_owned)[..]);
        if Hosts::can_bound() {
            hosts.bound_ports(Some((100, 64))).unwrap();
            hosts.bound_ports(None).unwrap();
        }
        drop(hosts);
        for pid in pids {
            let begun = Instant::now();
            while Path::new(&format!("/proc/{pid}")).exists() {
                assert!(begun.elapsed() < LIMIT, "process {pid} lives");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}
