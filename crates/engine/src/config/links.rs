//! The links that an endpoint opens ([`LinkChoice`]), as `FI_WEIR_LINK` names them.

/// What stands before the name of a core provider.
const OFI: &str = "ofi:";
/// What stands before another link that comes beside shared memory.
const WITH_SHARED_MEMORY: &str = "shm,";

/// The links that an endpoint opens (`FI_WEIR_LINK`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory, and UDP if the job has ranks on other nodes, as far as the launcher says.
    Auto,
    /// Shared memory alone.
    SharedMemory,
    /// UDP to all other endpoints.
    Udp,
    /// Shared memory to endpoints of this node, UDP to others.
    Both,
    /// A core provider of libfabric to all other endpoints.
    Ofi(String),
    /// Shared memory to endpoints of this node, a core provider of libfabric to others.
    SharedMemoryAndOfi(String),
}

impl LinkChoice {
    /// The choice with this name. `None`: there is none.
    pub(super) fn parse(value: &str) -> Option<LinkChoice> {
        let (rest, is_beside) = match value.strip_prefix(WITH_SHARED_MEMORY) {
            Some(rest) => (rest, true),
            None => (value, false),
        };
        match (rest.strip_prefix(OFI).map(core_provider), is_beside) {
            (Some(provider), false) => return provider.map(LinkChoice::Ofi),
            (Some(provider), true) => return provider.map(LinkChoice::SharedMemoryAndOfi),
            (None, _) => {}
        }
        match value {
            "auto" => Some(LinkChoice::Auto),
            "shm" => Some(LinkChoice::SharedMemory),
            "udp" => Some(LinkChoice::Udp),
            "shm,udp" => Some(LinkChoice::Both),
            _ => None,
        }
    }

    /// The name.
    pub(super) fn word(&self) -> String {
        match self {
            LinkChoice::Auto => String::from("auto"),
            LinkChoice::SharedMemory => String::from("shm"),
            LinkChoice::Udp => String::from("udp"),
            LinkChoice::Both => String::from("shm,udp"),
            LinkChoice::Ofi(provider) => format!("{OFI}{provider}"),
            LinkChoice::SharedMemoryAndOfi(provider) => format!("{WITH_SHARED_MEMORY}{OFI}{provider}"),
        }
    }

    /// Whether an endpoint has a network. `spans_nodes`: its job may have ranks on other nodes.
    pub fn has_network(&self, spans_nodes: bool) -> bool {
        match self {
            LinkChoice::Auto => spans_nodes,
            LinkChoice::SharedMemory => false,
            LinkChoice::Udp | LinkChoice::Both => true,
            LinkChoice::Ofi(_) | LinkChoice::SharedMemoryAndOfi(_) => true,
        }
    }

    /// Whether other endpoints of the node are reached over the network too.
    pub fn is_network_alone(&self) -> bool {
        matches!(self, LinkChoice::Udp | LinkChoice::Ofi(_))
    }

    /// The layers of the core provider, as `FI_PROVIDER` would name them. `None`: it has none, or there is no core provider.
    pub fn core_layers(&self) -> Option<String> {
        let provider = self.core_provider().filter(|provider| provider.contains(';'))?;
        Some(provider.replace(';', ","))
    }

    /// The core provider of the network. `None`: the network is UDP, or there is none.
    pub fn core_provider(&self) -> Option<&str> {
        match self {
            LinkChoice::Ofi(provider) | LinkChoice::SharedMemoryAndOfi(provider) => Some(provider),
            _ => None,
        }
    }
}

/// A name of a core provider with its utility providers, such as `verbs;ofi_rxm`, unless it is weir itself.
fn core_provider(name: &str) -> Option<String> {
    let is_name = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let is_weir = |part: &str| part.to_ascii_lowercase().trim_start_matches("ofi_") == "weir";
    (name.split(';').all(is_name) && !name.split(';').any(is_weir)).then(|| String::from(name))
}
