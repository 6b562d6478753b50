//! The registry of networks: the one place that lists them.
//!
//! A network file states its kind (`kind = "extoll"`). A kind has a name, the keys of `[network]` with their ranges and
//! meanings, a constructor, and a page of documentation. Plans, `weir sim`, `weir calibrate` and the reference pages ask
//! the registry, so a new network needs a module beside this one, with a line in `registry!`.
//!
//! ```text
//! Model::parse(text)        reads a file: kind, keys, prices; checks each value
//! model.info()              name, keys, places of ranks, page
//! model.build(shape, run)   makes the network for a world and passes it to `run`
//! ```

#[macro_use]
mod keys;
mod extoll;
mod file;
mod ideal;
mod infiniband;
mod loggops;
mod manycore;
mod switched;

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use weir_proto::Geometry;

pub use extoll::{ExtollKeys, ExtollWires};
pub use file::{COSTS, CostKeys, FileError, Model, NIC, NicKeys, replace};
pub use ideal::IdealKeys;
pub use infiniband::InfinibandKeys;
pub use keys::{Nanoseconds, TIME};
pub use loggops::LoggopsKeys;
pub use manycore::ManycoreKeys;
pub use switched::SwitchedKeys;

use super::Network;
use super::mesh::Mesh;
use crate::cost::Cost;
use crate::keys::KeyInfo;

/// The facts about a kind of network that plans and the documentation use.
#[derive(Clone, Copy, Debug)]
pub struct NetworkInfo {
    /// Name, as files state it.
    pub name: &'static str,
    /// The network that it models, in one sentence.
    pub about: &'static str,
    /// The page that describes it, below `docs`.
    pub page: &'static str,
    /// The keys of `[network]`.
    pub keys: &'static [KeyInfo],
    /// The places of ranks.
    pub nodes: Nodes,
    /// Slots of mailboxes; `None`: a packet is a whole message.
    pub geometry: Option<Geometry>,
    /// Whether its links send lost and damaged packets again.
    pub repairs: bool,
    /// Whether the file has `[cost]`. If not, the keys of `[network]` say what processors cost.
    pub has_cost: bool,
    /// Whether the price of a receive call is an assumption of its own, and not part of a fitted price.
    pub assumes_receive_call: bool,
}

/// The places of a network's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// There are no nodes: all ranks are at the same distance.
    None,
    /// The plan states a mesh of nodes, and the ranks of each.
    Mesh,
    /// The file states the number of nodes, the plan the ranks of each.
    Hosts,
}

/// The part of a network that a world decides. The plan states it, not the file of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of ranks.
    pub ranks: u32,
    /// The mesh of nodes.
    pub mesh: Mesh,
    /// Ranks of a node.
    pub ranks_per_node: u32,
    /// Slots of a mailbox; `None`: as many as needed.
    pub mailbox_slots: Option<u32>,
}

/// The keys of `[network]` of one kind, with their values.
pub trait NetworkKeys: Copy + fmt::Debug + DeserializeOwned {
    /// The network that they describe.
    type Network: Network;

    /// The entry of the registry.
    const INFO: NetworkInfo;

    /// Checks the range of each value, and values against each other.
    ///
    /// # Errors
    /// The name of a key, and what is wrong with its value.
    fn check(&self) -> Result<(), (&'static str, String)>;

    /// Number of nodes, if the file states it ([`Nodes::Hosts`]).
    fn hosts(&self) -> Option<u32> {
        None
    }

    /// Prices of processors, if the model itself has them.
    fn cost(&self) -> Option<Cost> {
        None
    }

    /// Makes the network for a world.
    fn network(&self, shape: Shape) -> Self::Network;
}

/// Something that a caller does with a network of any kind.
pub trait WithNetwork {
    /// Its result.
    type Output;

    /// Does it.
    fn call<N: Network>(self, network: N) -> Self::Output;
}

/// Lists the kinds of networks, each with the structure of its keys.
macro_rules! registry {
    ($($kind:ident: $keys:ty,)*) => {
        /// The kinds of networks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Kind {
            $(#[doc = concat!("[`", stringify!($keys), "`]")] $kind,)*
        }

        impl Kind {
            /// Its entry of the registry.
            pub const fn info(self) -> &'static NetworkInfo {
                match self { $(Kind::$kind => &<$keys>::INFO,)* }
            }
        }

        /// All kinds of networks.
        pub const NETWORKS: &[NetworkInfo] = &[$(<$keys>::INFO,)*];

        /// The keys of a network file, of any kind.
        #[derive(Clone, Copy, Debug)]
        pub enum AnyKeys {
            $(#[doc = concat!("Those of [`Kind::", stringify!($kind), "`].")] $kind($keys),)*
        }

        impl AnyKeys {
            fn read(kind: Kind, file: &file::Text<'_>) -> Result<(AnyKeys, Cost), FileError> {
                match kind {
                    $(Kind::$kind => file.read::<$keys>().map(|(keys, cost)| (AnyKeys::$kind(keys), cost)),)*
                }
            }

            fn kind(&self) -> Kind {
                match self { $(AnyKeys::$kind(_) => Kind::$kind,)* }
            }

            fn hosts(&self) -> Option<u32> {
                match self { $(AnyKeys::$kind(keys) => keys.hosts(),)* }
            }

            fn build<W: WithNetwork>(&self, shape: Shape, with: W) -> W::Output {
                match self { $(AnyKeys::$kind(keys) => with.call(keys.network(shape)),)* }
            }
        }

        $(
            impl From<$keys> for AnyKeys {
                fn from(keys: $keys) -> AnyKeys {
                    AnyKeys::$kind(keys)
                }
            }

            impl TryFrom<AnyKeys> for $keys {
                type Error = Kind;

                fn try_from(any: AnyKeys) -> Result<$keys, Kind> {
                    match any {
                        AnyKeys::$kind(keys) => Ok(keys),
                        #[allow(unreachable_patterns, reason = "a registry of one network has no other")]
                        other => Err(other.kind()),
                    }
                }
            }
        )*
    };
}

registry! {
    Extoll: ExtollKeys,
    Ideal: IdealKeys,
    Infiniband: InfinibandKeys,
    Loggops: LoggopsKeys,
    Manycore: ManycoreKeys,
    Switched: SwitchedKeys,
}

/// The names of the networks that `allows` allows, for messages: `extoll and infiniband`.
pub fn names_of(allows: impl Fn(&NetworkInfo) -> bool) -> String {
    let names: Vec<&str> = NETWORKS.iter().filter(|info| allows(info)).map(|info| info.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests;
