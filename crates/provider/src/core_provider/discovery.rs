//! Finds a core provider by name ([`find`]), and chooses among the networks that it has.
//!
//! `fi_getinfo` hides providers that `FI_PROVIDER` does not name, and that is usually weir alone. With a flag that
//! libfabric's own layered providers use (`OFI_GETINFO_HIDDEN`, since 1.10) it answers for all. So the second look-up has it.
//! A layered provider (`tcp;ofi_rxm`) looks up its own parts without the flag when it is opened. So it must be visible.
//! An answer counts only if its name is exactly the one of the setting: with a flag, the order of answers differs.
//!
//! Intel MPI's core has its providers in files beside it, and loads none of them while `FI_PROVIDER_PATH` names weir's
//! directory. The third look-up asks such a file itself.

use std::ffi::{CStr, CString};
use std::net::IpAddr;
use std::path::PathBuf;
use std::ptr::null_mut;

use weir_link::ofi::{CoreAccess, CoreError, CoreName, NameFormat};
use weir_link::udp::chosen_address;

use super::library::{Infos, Source};
use crate::core_library;
use crate::ffi::{
    FiInfo, address_format, av_type, caps, ep_type, mode, mr_mode, progress, resource_mgmt, threading,
};
use crate::version::NAME;

/// The version of the interface that this crate uses: the oldest core that is supported. The same structures serve
/// later ones.
const USED_VERSION: u32 = crate::ffi::version(1, 17);
/// `OFI_GETINFO_HIDDEN` of libfabric's sources: also providers that `FI_PROVIDER` does not name.
const HIDDEN: u64 = 1 << 60;
/// Modes that this crate keeps to: contexts of 64 bytes for every operation, and completions that cost a receive.
const MODE: u64 = mode::CONTEXT | mode::CONTEXT2 | mode::RX_CQ_DATA;
/// Reads and writes of the memory of peers, and by peers.
const MEMORY: u64 = caps::RMA | caps::READ | caps::WRITE | caps::REMOTE_READ | caps::REMOTE_WRITE;
/// What this crate does for registered memory. Keys of several words (`FI_MR_RAW`) are not among it.
const MR_MODE: i32 =
    mr_mode::LOCAL | mr_mode::VIRT_ADDR | mr_mode::ALLOCATED | mr_mode::PROV_KEY | mr_mode::ENDPOINT;

/// A network of a core provider.
pub struct Found {
    /// Who has answered.
    pub source: Source,
    /// The answer.
    pub info: Infos,
    /// The version of the interface.
    pub api_version: u32,
    /// The format of its names.
    pub format: NameFormat,
    /// What it has of what was wanted.
    pub access: CoreAccess,
}

/// Finds the provider of this name, and the network that `net` names, or else the most sensible one. With `access` if the
/// provider has it.
///
/// # Errors
/// [`CoreError`].
pub fn find(provider: &str, net: Option<&str>, access: CoreAccess) -> Result<Found, CoreError> {
    if access != CoreAccess::Packets
        && let Ok(found) = find_with(provider, net, access)
    {
        return Ok(found);
    }
    find_with(provider, net, CoreAccess::Packets)
}

fn find_with(provider: &str, net: Option<&str>, access: CoreAccess) -> Result<Found, CoreError> {
    let no_library = || CoreError::NoLibrary { provider: provider.to_owned() };
    let core_version = core_library::version().ok_or_else(no_library)?;
    let api_version = USED_VERSION.min(core_version);
    let caps = caps::MSG
        | match access {
            CoreAccess::Packets => 0,
            CoreAccess::Memory => MEMORY,
            CoreAccess::Large => caps::TAGGED, // their receives are told from others by that
        };
    let hints = Hints::new(Some(provider), caps).ok_or_else(no_library)?;
    let core = [(Source::Core, 0), (Source::Core, HIDDEN)];
    let beside = plug_in_files(provider).into_iter().filter_map(|file| Source::plug_in(&file));
    let mut advice = String::new();
    for (source, flags) in core.into_iter().chain(beside.map(|source| (source, 0))) {
        let Some(infos) = source.look_up(api_version, flags, &hints.0) else { continue };
        let named = list(&infos).filter(|info| {
            // The core writes the names of its answers.
            matches!(source, Source::PlugIn(_)) || provider_name(info).is_some_and(|name| name == provider)
        });
        let networks: Vec<Network> = named.map(Network::of).collect();
        if networks.is_empty() {
            continue;
        }
        if flags == HIDDEN && provider.contains(';') {
            advice = format!(
                " while FI_PROVIDER hides its parts: set FI_PROVIDER={},{}, as weir run does",
                NAME.to_string_lossy(),
                provider.replace(';', ",")
            );
            continue;
        }
        let chosen = choose(&networks, net).map_err(|networks| CoreError::NoSuchNet {
            value: net.unwrap_or_default().to_owned(),
            provider: provider.to_owned(),
            networks,
        })?;
        // SAFETY: it is in `infos`, which lives until the end of this round.
        let info = unsafe { Infos::copy(chosen.info) }.ok_or_else(no_library)?;
        return Ok(Found { source, info, api_version, format: chosen.format, access });
    }
    Err(CoreError::NoProvider {
        provider: provider.to_owned(),
        version: format!("{}.{}", core_version >> 16, core_version & 0xffff),
        advice,
        others: others(api_version),
    })
}

/// Hints with their strings.
struct Hints(Infos);

impl Hints {
    fn new(provider: Option<&str>, caps: u64) -> Option<Hints> {
        let hints = Infos::empty()?;
        let name = provider.map(CString::new).transpose().ok()?;
        // SAFETY: the core has made the hints whole, with all substructures. The string is freed with them.
        unsafe {
            let info = &mut *hints.first();
            info.caps = caps;
            info.mode = MODE;
            (*info.ep_attr).ep_type = ep_type::RDM;
            let domain = &mut *info.domain_attr;
            (domain.threading, domain.resource_mgmt) = (threading::DOMAIN, resource_mgmt::ENABLED);
            (domain.control_progress, domain.data_progress) = (progress::MANUAL, progress::MANUAL);
            (domain.av_type, domain.mr_mode) = (av_type::UNSPEC, MR_MODE);
            (*info.fabric_attr).prov_name = name.map_or(null_mut(), |name| libc::strdup(name.as_ptr()));
        }
        Some(Hints(hints))
    }
}

/// All answers of a list.
fn list(infos: &Infos) -> impl Iterator<Item = &FiInfo> {
    // SAFETY: each answer is whole and names the next one. The list lives as long as the references.
    let next = |info: *mut FiInfo| unsafe { info.as_ref() };
    std::iter::successors(next(infos.first()), move |info| next(info.next))
}

fn text<'a>(text: *const std::ffi::c_char) -> Option<&'a CStr> {
    // SAFETY: a string of an answer of the core, which ends with NUL and lives as long as the answer.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

fn provider_name(info: &FiInfo) -> Option<String> {
    // SAFETY: answers have their substructures.
    let name = unsafe { text((*info.fabric_attr).prov_name) }?;
    Some(name.to_string_lossy().into_owned())
}

/// One answer.
struct Network<'list> {
    info: &'list FiInfo,
    format: NameFormat,
    /// Name of the domain, usually that of an adapter.
    domain: String,
    address: Option<IpAddr>,
}

impl Network<'_> {
    fn of(info: &FiInfo) -> Network<'_> {
        let of_sockets =
            [address_format::SOCKADDR, address_format::SOCKADDR_IN, address_format::SOCKADDR_IN6];
        let format =
            if of_sockets.contains(&info.addr_format) { NameFormat::Socket } else { NameFormat::Other };
        // SAFETY: answers have their substructures; the address has the length that stands beside it.
        let (domain, source) = unsafe {
            let domain = text((*info.domain_attr).name);
            let has_source = !info.src_addr.is_null();
            let source =
                has_source.then(|| std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen));
            (domain, source)
        };
        let name = source.map(|bytes| CoreName { format, bytes: bytes.to_vec() });
        Network {
            info,
            format,
            domain: domain.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            address: name.and_then(|name| name.ip()),
        }
    }
}

/// The network that `net` names. Otherwise that of the interface that a socket would have, or the first.
///
/// # Errors
/// What there is: no network has this name.
fn choose<'networks, 'list>(
    networks: &'networks [Network<'list>],
    net: Option<&str>,
) -> Result<&'networks Network<'list>, String> {
    let of_socket = networks.iter().any(|network| network.address.is_some());
    let address = if of_socket { chosen_address(net).ok() } else { None };
    let fits = |network: &&Network<'_>| {
        (address.is_some() && network.address == address) || net.is_some_and(|net| network.domain == net)
    };
    let first = if net.is_none() { networks.first() } else { None };
    networks.iter().find(fits).or(first).ok_or_else(|| {
        let mut names: Vec<String> = networks
            .iter()
            .map(|network| match network.address {
                Some(address) => format!("{} {address}", network.domain),
                None => network.domain.clone(),
            })
            .collect();
        names.sort();
        names.dedup();
        names.join(", ")
    })
}

/// The names of all providers with such endpoints, for a message.
fn others(api_version: u32) -> String {
    let mut names = Vec::new();
    let weir = NAME.to_string_lossy();
    for flags in [0, HIDDEN] {
        let hints = Hints::new(None, caps::MSG);
        let infos = hints.and_then(|hints| Source::Core.look_up(api_version, flags, &hints.0));
        for name in infos.iter().flat_map(list).filter_map(provider_name) {
            if !name.contains(&*weir) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() { String::from("none") } else { names.join(", ") }
}

/// Files beside the core that may contain the provider: only one without a utility provider, which would ask the core.
fn plug_in_files(provider: &str) -> Vec<PathBuf> {
    let Some(core) = core_library::path() else { return Vec::new() };
    let Some(directory) = core.parent() else { return Vec::new() };
    let file = format!("lib{provider}-fi.so");
    let places = ["", "prov", "libfabric"].map(|place| directory.join(place).join(&file));
    if provider.contains(';') {
        Vec::new()
    } else {
        places.into_iter().filter(|file| file.is_file()).collect()
    }
}
