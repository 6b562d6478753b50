//! The network interfaces, and which of their addresses an endpoint has ([`choose`]).
//!
//! Peers on different hosts must choose addresses that reach each other. Bridges of container tools have the same
//! addresses on many hosts and lead nowhere, so they come after all others.

use super::options::UdpError;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The beginnings of names of interfaces inside one host.
const INSIDE_A_HOST: [&str; 12] = [
    "docker",
    "br-",
    "virbr",
    "veth",
    "vnet",
    "cni",
    "cali",
    "flannel",
    "lxc",
    "lxdbr",
    "podman",
    "tailscale",
];

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    pub address: IpAddr,
    /// Length of the prefix of its subnet. Unit: bits.
    pub prefix: u8,
    /// The zone of an IPv6 address that is valid on one link only.
    pub scope: u32,
    /// It can carry datagrams now.
    pub is_up: bool,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interface { name, address, prefix, is_up, .. } = self;
        write!(f, "{name} {address}/{prefix}{}", if *is_up { "" } else { " (down)" })
    }
}

impl Interface {
    fn is_link_local(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }

    /// Where the kernel takes a socket with this address.
    pub(super) fn place(&self) -> SocketAddr {
        match self.address {
            IpAddr::V4(_) => SocketAddr::new(self.address, 0),
            IpAddr::V6(address) => SocketAddrV6::new(address, 0, 0, self.scope).into(),
        }
    }

    /// Other addresses of the subnet, beginning with the next ones.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = IpAddr> {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        let count = 1 << (bits - u32::from(self.prefix)).min(3);
        let address = self.address;
        (1..count).map(move |nth: u32| match address {
            IpAddr::V4(address) => Ipv4Addr::from(u32::from(address) ^ nth).into(),
            IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) ^ u128::from(nth)).into(),
        })
    }
}

/// All addresses of all interfaces.
///
/// # Errors
/// [`UdpError::Interfaces`].
pub(super) fn all() -> Result<Vec<Interface>, UdpError> {
    let listed = getifaddrs().map_err(|error| UdpError::Interfaces(error.into()))?;
    let interfaces = listed.filter_map(|listed| {
        let up = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        let address = listed.address?;
        let (address, scope) = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => (IpAddr::V4(v4.ip()), 0),
            (_, Some(v6)) => (IpAddr::V6(v6.ip()), v6.scope_id()),
            _ => return None,
        };
        let mask = listed.netmask;
        let prefix = match address {
            IpAddr::V4(_) => mask?.as_sockaddr_in().map(|mask| u32::from(mask.ip()).count_ones()),
            IpAddr::V6(_) => mask?.as_sockaddr_in6().map(|mask| u128::from(mask.ip()).count_ones()),
        };
        Some(Interface {
            name: listed.interface_name,
            address,
            prefix: prefix? as u8,
            scope,
            is_up: listed.flags.contains(up),
        })
    });
    Ok(interfaces.collect())
}

/// A subnet, or one address.
struct Subnet {
    address: IpAddr,
    prefix: u32,
}

impl Subnet {
    fn parse(text: &str) -> Option<Subnet> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address.parse::<IpAddr>().ok()?, prefix.parse().ok()?),
            None => (text.parse::<IpAddr>().ok()?, 128),
        };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = if text.contains('/') { prefix } else { bits };
        (prefix <= bits).then_some(Subnet { address, prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (difference, bits) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u128::from(u32::from(own) ^ u32::from(other)), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own) ^ u128::from(other), 128),
            _ => return false,
        };
        difference.checked_shr(bits - self.prefix).unwrap_or(0) == 0
    }
}

/// The address that an endpoint has for `net`, the value of `FI_WEIR_NET`.
///
/// # Errors
/// As for opening a socket.
pub fn chosen_address(net: Option<&str>) -> Result<IpAddr, UdpError> {
    choose(&all()?, net).map(|interface| interface.address)
}

/// The address of an endpoint: one that fits `net`, or else the most sensible one.
///
/// # Errors
/// [`UdpError::NoSuchNet`] and [`UdpError::NoInterface`].
pub(super) fn choose<'list>(
    list: &'list [Interface],
    net: Option<&str>,
) -> Result<&'list Interface, UdpError> {
    let subnet = net.and_then(Subnet::parse);
    let fits = |interface: &&Interface| match (net, &subnet) {
        (_, Some(subnet)) => subnet.contains(interface.address),
        (Some(name), None) => interface.name == name,
        (None, None) => !interface.is_link_local(),
    };
    // The first of the best: `min_by_key` returns the first of equals.
    let chosen = list.iter().filter(|interface| interface.is_up).filter(fits).min_by_key(|interface| {
        let is_inside = INSIDE_A_HOST.iter().any(|name| interface.name.starts_with(name));
        (interface.address.is_loopback(), is_inside, interface.is_link_local(), interface.address.is_ipv6())
    });
    chosen.ok_or_else(|| {
        let named: Vec<String> = list.iter().map(ToString::to_string).collect();
        let interfaces = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        match net {
            Some(value) => UdpError::NoSuchNet { value: value.to_owned(), interfaces },
            None => UdpError::NoInterface { interfaces },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let (address, prefix) = address.split_once('/').expect("a prefix");
        let address = address.parse().expect("an address");
        let prefix = prefix.parse().expect("a number");
        Interface { name: name.to_owned(), address, prefix, scope: 0, is_up: true }
    }

    fn host() -> Vec<Interface> {
        let down = Interface { is_up: false, ..interface("eth0", "10.9.9.9/24") };
        vec![
            interface("lo", "127.0.0.1/8"),
            down,
            interface("docker0", "172.17.0.1/16"),
            interface("eth1", "fe80::1/64"),
            interface("eth1", "2001:db8::7/64"),
            interface("eth1", "10.1.2.3/24"),
            interface("ib0", "10.2.2.3/16"),
            interface("lo", "::1/128"),
        ]
    }

    fn chosen(list: &[Interface], net: Option<&str>) -> String {
        choose(list, net).map_or_else(|error| error.to_string(), |chosen| chosen.address.to_string())
    }

    #[test]
    fn without_a_setting_bridges_come_late_and_loopback_last() {
        let mut list = host();
        for expected in ["10.1.2.3", "10.2.2.3", "2001:db8::7", "172.17.0.1", "127.0.0.1", "::1"] {
            assert_eq!(chosen(&list, None), expected);
            list.retain(|interface| interface.address.to_string() != expected);
        }
        assert_eq!(
            chosen(&list, None),
            "no network interface is up; FI_WEIR_NET takes the name, address or subnet of one. There are: \
             eth0 10.9.9.9/24 (down), eth1 fe80::1/64"
        );
    }

    #[test]
    fn the_setting_is_a_name_an_address_or_a_subnet() {
        let list = host();
        for (net, expected) in [
            ("eth1", "10.1.2.3"),
            ("ib0", "10.2.2.3"),
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("10.2.0.0/16", "10.2.2.3"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("172.17.0.1", "172.17.0.1"),
            ("2001:db8::/32", "2001:db8::7"),
            ("fe80::/10", "fe80::1"),
            ("::1", "::1"),
            ("0.0.0.0/0", "10.1.2.3"),
            ("::/0", "2001:db8::7"),
        ] {
            assert_eq!(chosen(&list, Some(net)), expected, "{net}");
        }
        for wrong in ["eth0", "eth", "10.9.0.0/16", "10.2.2.3/33", "10.2.2", "::/129", "", "/8"] {
            let error = chosen(&list, Some(wrong));
            let begin =
                format!("FI_WEIR_NET={wrong}: no interface that is up has this name, address or subnet. ");
            assert!(error.starts_with(&begin) && error.contains("ib0 10.2.2.3/16"), "{error}");
        }
    }

    #[test]
    fn neighbours_are_other_addresses_of_the_subnet() {
        let of =
            |text: &str| interface("eth0", text).neighbours().map(|address| address.to_string()).collect();
        let of = |text: &str| -> Vec<String> { of(text) };
        assert_eq!(of("10.0.0.1/30"), ["10.0.0.0", "10.0.0.3", "10.0.0.2"]);
        assert_eq!(of("10.0.0.1/32"), [""; 0]);
        assert_eq!(of("fd00::1/64")[..2], ["fd00::", "fd00::3"]);
    }

    #[test]
    fn this_host_has_loopback() {
        let list = all().expect("a list");
        assert!(list.iter().any(|interface| interface.address.is_loopback()), "{list:?}");
    }
}
