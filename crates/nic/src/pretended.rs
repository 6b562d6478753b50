//! Pretended hosts for tests and benchmarks: network namespaces of this process, on one switch, with their services in
//! threads. The kernel removes all of it when the values are dropped, also if the process is killed.
//!
//! ```text
//! switch   bridge br0 with the ports v1, v2, ...      hosts   eth0 with 10.98.0.1, 10.98.0.2, ...
//! ```

use crate::programs::AttachError;
use crate::service::Service;
pub use crate::switch::{ALL, BACK_PORT, DROP_PORT, PASS_PORT};
use crate::switch::{Pass, Switch};
use crate::{Membership, NicError, Secret, control};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// The interface of each host.
pub const INTERFACE: &str = "eth0";

/// A network namespace. It ends with the value.
#[derive(Debug)]
struct Space(File);

impl Space {
    /// A new one, made by a thread that ends.
    fn new() -> io::Result<Space> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        made.join().expect("the thread does not panic").map(Space)
    }

    /// Runs a shell script in it.
    fn script(&self, script: &str) -> io::Result<()> {
        let space = format!("--net=/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        let output = Command::new("nsenter").arg(space).args(["sh", "-ec", script]).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Runs a function in it, in a thread of its own.
    fn perform<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter();
                function()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn enter(&self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).expect("the namespace is ours");
    }
}

/// Hosts on a switch.
pub struct Network {
    // Programs and services end before their namespaces.
    services: Vec<JoinHandle<io::Result<()>>>,
    passes: Vec<Pass>,
    fast: Option<Switch>,
    hosts: Vec<Space>,
    switch: Space,
}

impl Network {
    /// Makes `count` hosts without programs.
    ///
    /// # Errors
    /// What `ip` says, or why this machine has no network namespaces.
    pub fn new(count: usize) -> io::Result<Network> {
        let switch = Space::new()?;
        switch.script(
            "ip link set lo up; ip link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0; \
             ip link set br0 up",
        )?;
        let mut network =
            Network { services: Vec::new(), passes: Vec::new(), fast: None, hosts: Vec::new(), switch };
        for number in 1..=count {
            let host = Space::new()?;
            let space = format!("/proc/{}/fd/{}", std::process::id(), host.0.as_raw_fd());
            network.switch.script(&format!(
                "ip link add v{number} type veth peer name {INTERFACE} netns {space}; \
                 ip link set v{number} master br0 up"
            ))?;
            host.script(&format!(
                "ip link set lo up; ip link set {INTERFACE} address 02:77:65:69:72:{number:02x}; \
                 ip addr add {}/24 dev {INTERFACE}; ip link set {INTERFACE} up",
                address(number - 1)
            ))?;
            network.hosts.push(host);
        }
        Ok(network)
    }

    fn ports(&self) -> Vec<String> {
        (1..=self.hosts.len()).map(|number| format!("v{number}")).collect()
    }

    /// Replaces the bridge by programs, which cost much less: so a measurement is that of the hosts. Losses are not possible
    /// then. `alone`: no other programs will be attached to hosts.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn use_fast_switch(&mut self, alone: bool) -> Result<(), AttachError> {
        self.fast = Some(self.switch.perform(|| Switch::attach(&self.ports()))?);
        for host in self.hosts.iter().filter(|_| alone) {
            self.passes.push(host.perform(|| Pass::attach(INTERFACE))?);
        }
        Ok(())
    }

    /// A network whose programs do the least that a kernel program can do for a word, a barrier of all hosts and a multi-send to
    /// all others, by frames for [`ALL`] and for ports [`BACK_PORT`] and [`PASS_PORT`]. So what they take is the limit of the
    /// real ones.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn use_least_programs(&mut self) -> Result<(), AttachError> {
        let members = self.hosts.len() as u32;
        let mut switch = self.switch.perform(|| Switch::attach(&self.ports()))?;
        switch.copy(members)?;
        self.fast = Some(switch);
        for host in &self.hosts {
            self.passes.push(host.perform(|| Pass::attach_least(INTERFACE))?);
            let route = format!("ip neigh add {ALL} lladdr 02:77:65:69:72:ff dev {INTERFACE} nud permanent");
            let failed = |why: io::Error| AttachError::Kernel {
                what: "the address of all hosts",
                why: why.to_string(),
            };
            host.script(&route).map_err(failed)?;
        }
        Ok(())
    }

    /// Attaches the kernel programs at all hosts.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(&mut self, port: u16) -> Result<(), AttachError> {
        if self.fast.is_none() {
            let passes: Result<_, AttachError> =
                self.switch.perform(|| self.ports().iter().map(|port| Pass::attach(port)).collect());
            self.passes = passes?;
        }
        for host in &self.hosts {
            let (tell, told) = channel();
            let space = Space(
                host.0
                    .try_clone()
                    .map_err(|why| AttachError::Kernel { what: "dup", why: why.to_string() })?,
            );
            self.services.push(std::thread::spawn(move || {
                space.enter();
                match Service::attach(INTERFACE, port) {
                    Ok(service) => {
                        let _ = tell.send(Ok(()));
                        service.run()
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        Ok(())
                    }
                }
            }));
            told.recv().expect("the service says how it went")?;
        }
        Ok(())
    }

    /// Detaches all programs.
    pub fn detach(&mut self) {
        for host in 0..self.hosts.len() {
            // An error: it has not been attached.
            let _ = self.at(host, || control::ask(INTERFACE, control::Command::Detach));
        }
        for service in self.services.drain(..) {
            let _ = service.join();
        }
        self.passes.clear();
    }

    /// Runs a function on a host, counted from 0.
    pub fn at<T: Send>(&self, host: usize, function: impl FnOnce() -> T + Send) -> T {
        self.hosts[host].perform(function)
    }

    /// The calling thread is on a host from here on.
    pub fn enter(&self, host: usize) {
        self.hosts[host].enter();
    }

    /// A member on a host.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn join(&self, host: usize, secret: &Secret) -> Result<Membership, NicError> {
        self.at(host, || Membership::join(INTERFACE, secret))
    }

    /// The switch loses this share of the frames that come from hosts. 0: none.
    ///
    /// # Errors
    /// What `nft` says.
    pub fn lose(&self, per_mille: u32) -> io::Result<()> {
        let ports = self.ports();
        let begin = "nft 'add table netdev loss; delete table netdev loss'";
        if per_mille == 0 {
            return self.switch.script(begin);
        }
        self.switch.script(&format!(
            "{begin}; nft 'add table netdev loss; add chain netdev loss in {{ type filter hook ingress devices = {{ {} }} \
             priority 0; policy accept; }}; add rule netdev loss in udp dport != 0 numgen random mod 1000 < {per_mille} drop'",
            ports.join(", ")
        ))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.detach();
    }
}

/// The address of a host, counted from 0.
pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 98, 0, host as u8 + 1)
}
