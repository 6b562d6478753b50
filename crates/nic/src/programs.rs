//! The kernel programs, loaded and attached. They end with the value, also if its process is killed: the kernel detaches
//! a program whose link nobody has open any more.

use crate::Domain;
use crate::format::{COUNTERS, MAX_DOMAINS, MAX_VECTOR_WORDS, REPLY_SLOTS, WORDS, slot};
use aya::maps::{Array, ArrayOfMaps, DevMap, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, Pod};
use std::fmt::Display;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

/// The compiled programs of `weir nic attach`. `None`: there was no clang when this was built.
#[cfg(kernel_programs)]
const OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nic.bpf.o")));
/// As above.
#[cfg(not(kernel_programs))]
const OBJECT: Option<&[u8]> = None;

/// Flag of an array that processes can map. Source: `BPF_F_MMAPABLE` of `include/uapi/linux/bpf.h`.
const MAPPABLE: u32 = 1 << 10;
/// Kind of map: an array. Source: the same file.
const ARRAY: u32 = 2;
/// Length of the array of a domain: its words, and its reply slots. Unit: 64-bit words.
const ARRAY_WORDS: u32 = WORDS as u32 + slot::WORDS as u32 * REPLY_SLOTS;
/// Numbers of copies for which there is a map.
const COPIES: [u32; 10] = [1, 2, 3, 4, 7, 8, 15, 16, 31, 32];

/// Why programs cannot be attached. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// They were not built.
    #[error(
        "this weir was built without kernel programs, since clang was not found; install clang and build again"
    )]
    NotBuilt,
    /// The interface has no IPv4 address, or does not exist.
    #[error("{0} has no IPv4 address; allowed are interfaces with one: `ip -4 address` lists them")]
    NoAddress(String),
    /// The user must not.
    #[error("kernel programs need root (or CAP_BPF with CAP_NET_ADMIN)")]
    NotPermitted,
    /// The driver of the interface cannot run programs.
    #[error("the driver of {interface} does not run XDP programs itself: {why}")]
    Driver {
        /// The interface.
        interface: String,
        /// What the kernel says.
        why: String,
    },
    /// Somebody else has attached a program.
    #[error("{0} has a program already: `ip link show {0}` names it")]
    Occupied(String),
    /// The kernel would not detach them when this process ends.
    #[error("this kernel keeps programs attached when their process ends; Linux 5.9 or newer does not")]
    OldKernel,
    /// Somebody serves the interface.
    #[error("the kernel programs are attached to {0} already; `weir nic status` shows them")]
    Attached(String),
    /// The kernel refuses.
    #[error("{what}: {why}")]
    Kernel {
        /// What was refused.
        what: &'static str,
        /// What the kernel says.
        why: String,
    },
}

/// For `map_err`: the kernel refuses `what`. The text of an error with its sources, without the verifier's log.
pub(crate) fn kernel<E: std::error::Error>(what: &'static str) -> impl FnOnce(E) -> AttachError {
    move |error| AttachError::Kernel { what, why: chain(&error) }
}

fn chain(error: &dyn std::error::Error) -> String {
    let first = |error: &dyn Display| error.to_string().lines().next().unwrap_or_default().to_owned();
    let mut text = first(&error);
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&first(&cause));
        source = cause.source();
    }
    text
}

/// See the head of this file.
pub struct Programs {
    loaded: Ebpf,
    /// Detaches when it is dropped.
    _link: FdLink,
    /// In the place of the words of domains that have ended.
    blank: Array<MapData, u64>,
    slots: [bool; MAX_DOMAINS as usize],
}

/// The words of a new domain.
#[derive(Debug)]
pub struct Slot {
    number: u32,
    domain: u64,
    /// Processes map it.
    pub file: OwnedFd,
}

/// Loads an object into the kernel, with values of constants, and without attaching its programs.
///
/// # Errors
/// [`AttachError::NotBuilt`], [`AttachError::NotPermitted`], [`AttachError::Kernel`].
pub(crate) fn load(object: Option<&[u8]>, constants: Option<(Ipv4Addr, u16)>) -> Result<Ebpf, AttachError> {
    let object = object.ok_or(AttachError::NotBuilt)?;
    if !rustix::process::geteuid().is_root() {
        return Err(AttachError::NotPermitted);
    }
    let (address, port) = constants.unwrap_or((Ipv4Addr::UNSPECIFIED, 0));
    let address = u32::from_ne_bytes(address.octets());
    let mut loader = EbpfLoader::new();
    if constants.is_some() {
        loader.override_global("weir_address", &address, true).override_global("weir_port", &port, true);
    }
    loader.load(object).map_err(kernel("loading the kernel programs"))
}

/// The number of an interface.
///
/// # Errors
/// [`AttachError::NoAddress`]: there is none.
pub(crate) fn number_of(interface: &str) -> Result<u32, AttachError> {
    let family = rustix::net::AddressFamily::INET;
    let socket =
        rustix::net::socket(family, rustix::net::SocketType::DGRAM, None).map_err(kernel("socket"))?;
    let number = rustix::net::netdevice::name_to_index(socket, interface);
    number.map_err(|_| AttachError::NoAddress(interface.to_owned()))
}

/// Loads one of the programs, and attaches it to an interface if one is given.
pub(crate) fn start(
    loaded: &mut Ebpf,
    name: &'static str,
    interface: Option<&str>,
) -> Result<Option<FdLink>, AttachError> {
    let program = loaded.program_mut(name).expect("the source in xdp/ has this program");
    let program: &mut Xdp = program.try_into().map_err(kernel(name))?;
    program.load().map_err(kernel(name))?;
    let Some(interface) = interface else { return Ok(None) };
    let link = program.attach(interface, XdpMode::Driver).map_err(|error| refusal(interface, &error))?;
    let link = program.take_link(link).map_err(kernel(name))?;
    // Another kind of link would not end with this process.
    FdLink::try_from(link).map(Some).map_err(|_| AttachError::OldKernel)
}

/// Why the kernel does not attach a program.
fn refusal(interface: &str, error: &ProgramError) -> AttachError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = source {
        if let Some(system) = cause.downcast_ref::<io::Error>() {
            match system.kind() {
                io::ErrorKind::ResourceBusy | io::ErrorKind::AlreadyExists => {
                    return AttachError::Occupied(interface.to_owned());
                }
                _ => break,
            }
        }
        source = cause.source();
    }
    AttachError::Driver { interface: interface.to_owned(), why: chain(error) }
}

impl Programs {
    /// Loads the programs and attaches them to an interface with this address.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(interface: &str, address: Ipv4Addr, port: u16) -> Result<Programs, AttachError> {
        let index = number_of(interface)?;
        let mut loaded = load(OBJECT, Some((address, port)))?;
        start(&mut loaded, "weir_release", None)?;
        let program: &Xdp = loaded
            .program("weir_release")
            .expect("it was just loaded")
            .try_into()
            .map_err(kernel("release"))?;
        let release = program.fd().map_err(kernel("release"))?.try_clone().map_err(kernel("release"))?;
        for count in COPIES {
            let map = loaded.map_mut(&format!("copies_{count}")).expect("the source in xdp/ has this map");
            let mut copies = DevMap::try_from(map).map_err(kernel("the map of copies"))?;
            for at in 0..count {
                copies.set(at, index, Some(&release), 0).map_err(kernel("the map of copies"))?;
            }
        }
        let link = start(&mut loaded, "weir_nic", Some(interface))?.expect("it was attached");
        let blank = Array::create(ARRAY_WORDS, MAPPABLE).map_err(kernel("words"))?;
        Ok(Programs { loaded, _link: link, blank, slots: [false; MAX_DOMAINS as usize] })
    }

    fn map<'a, M: TryFrom<&'a mut Map, Error = MapError>>(&'a mut self, name: &str) -> Result<M, MapError> {
        M::try_from(self.loaded.map_mut(name).expect("the source in xdp/ has this map"))
    }

    /// Admits a domain, whose words are 0. `None`: all slots are in use.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn admit(&mut self, domain: &Domain) -> Result<Option<Slot>, MapError> {
        let Some(number) = self.slots.iter().position(|used| !used) else { return Ok(None) };
        let object = aya_obj::Map::new_from_params(ARRAY, 4, 8, ARRAY_WORDS, MAPPABLE);
        let array = MapData::create(object, "weir_words", None)?;
        let file = array.fd().as_fd().try_clone_to_owned().map_err(MapError::IoError)?;
        let array = Array::<MapData, u64>::try_from(Map::Array(array))?;
        let slot = Slot { number: number as u32, domain: domain.name, file };
        self.map::<ArrayOfMaps<_, Array<MapData, u64>>>("words")?.set(slot.number, &array, 0)?;
        let value = [domain.key[0], domain.key[1], u64::from(slot.number)];
        self.map::<HashMap<_, u64, [u64; 3]>>("domains")?.insert(domain.name, value, 0)?;
        let place = place_near(domain.name);
        let mut near: Array<_, [u64; 4]> = self.map("near_domains")?;
        // The place of another domain that has the same lowest bits stays with that one. Programs may read while we write, so the
        // name comes last.
        if near.get(&place, 0)?[0] == 0 {
            near.set(place, [0, value[0], value[1], value[2]], 0)?;
            near.set(place, [domain.name, value[0], value[1], value[2]], 0)?;
        }
        self.slots[number] = true;
        Ok(Some(slot))
    }

    /// Ends a domain. Packets of it are those of strangers from here on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn dismiss(&mut self, slot: Slot) -> Result<(), MapError> {
        let place = place_near(slot.domain);
        let mut near: Array<_, [u64; 4]> = self.map("near_domains")?;
        let [name, k0, k1, number] = near.get(&place, 0)?;
        if name == slot.domain {
            // Only the name: a program that has just found it may still read the key.
            near.set(place, [0, k0, k1, number], 0)?;
        }
        self.map::<HashMap<_, u64, [u64; 3]>>("domains")?.remove(&slot.domain)?;
        let blank = &self.blank;
        let words = self.loaded.map_mut("words").expect("the source in xdp/ has this map");
        ArrayOfMaps::<_, Array<MapData, u64>>::try_from(words)?.set(slot.number, blank, 0)?;
        // The kernel has waited for programs that run, so none of them still knows the domain.
        remove_all(self.map::<HashMap<_, [u64; 2], [u64; 17]>>("askers")?, slot.domain)?;
        remove_all(self.map::<HashMap<_, [u64; 2], [u64; 4]>>("members")?, slot.domain)?;
        remove_all(self.map::<HashMap<_, [u64; 2], [u64; 1 + MAX_VECTOR_WORDS]>>("vectors")?, slot.domain)?;
        self.slots[slot.number as usize] = false;
        Ok(())
    }

    /// The counters, in the order of [`COUNTERS`], of all processors.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn counters(&mut self) -> Result<[u64; COUNTERS.len()], MapError> {
        let map: PerCpuArray<_, u64> = self.map("counters")?;
        let mut counters = [0; COUNTERS.len()];
        for (number, counter) in (0..).zip(&mut counters) {
            *counter = map.get(&number, 0)?.iter().sum();
        }
        Ok(counters)
    }
}

/// The place of a domain among those that are found without a hash.
fn place_near(name: u64) -> u32 {
    (name % u64::from(MAX_DOMAINS)) as u32
}

/// Removes the entries of a domain, whose name is the first word of the key.
fn remove_all<V: Pod>(mut map: HashMap<&mut MapData, [u64; 2], V>, domain: u64) -> Result<(), MapError> {
    let keys = map.keys().filter(|key| key.as_ref().is_ok_and(|key| key[0] == domain));
    let keys: Vec<[u64; 2]> = keys.collect::<Result<_, _>>()?;
    for key in keys {
        match map.remove(&key) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// A build goes on without programs that clang refuses, so this test fails then.
    #[test]
    fn where_there_is_clang_there_are_programs() {
        let clang = std::env::var("WEIR_CLANG").unwrap_or_else(|_| String::from("clang"));
        let targets = Command::new(clang).arg("-print-targets").output();
        let has_clang = targets.is_ok_and(|targets| String::from_utf8_lossy(&targets.stdout).contains("bpf"));
        assert_eq!(cfg!(kernel_programs), has_clang, "the build's warnings say what clang refuses");
    }
}
