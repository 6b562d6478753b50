//! The transports that a comparison runs under one MPICH: weir, MPICH's shared memory, providers of libfabric, UCX. It
//! also has their names, their headings, and how a job selects them. `contender.rs` adds other MPIs.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;
use weir_mpi::launch::JobTransport;

/// A transport under MPICH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// weir.
    Weir,
    /// MPICH's own shared memory.
    MpichShm,
    /// libfabric's shm provider.
    OfiShm,
    /// libfabric's tcp provider, over the loopback interface.
    OfiTcp,
    /// UCX, with the transports that it selects within a node.
    Ucx,
}

impl Transport {
    /// Its name on the command line and in records.
    pub fn word(self) -> &'static str {
        match self {
            Transport::Weir => "weir",
            Transport::MpichShm => "mpich-shm",
            Transport::OfiShm => "ofi-shm",
            Transport::OfiTcp => "ofi-tcp",
            Transport::Ucx => "ucx",
        }
    }

    /// Heading of its column.
    pub fn heading(self) -> &'static str {
        match self {
            Transport::Weir => "weir",
            Transport::MpichShm => "MPICH's own\nshared memory",
            Transport::OfiShm => "libfabric\nshm",
            Transport::OfiTcp => "libfabric\ntcp",
            Transport::Ucx => "UCX",
        }
    }

    /// The same transport, as a job uses it. `provider`: directory of weir's plug-in.
    pub fn job_transport(self, provider: &Path) -> JobTransport<'_> {
        match self {
            Transport::Weir => JobTransport::Weir(provider),
            Transport::MpichShm => JobTransport::OwnSharedMemory,
            Transport::OfiShm => JobTransport::Libfabric("shm"),
            Transport::OfiTcp => JobTransport::Libfabric("tcp"),
            Transport::Ucx => JobTransport::Ucx,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_command_line_and_records() {
        for transport in Transport::value_variants() {
            assert_eq!(transport.to_possible_value().unwrap().get_name(), transport.word());
            assert_eq!(serde_json::to_value(transport).unwrap(), transport.word());
        }
    }
}
