//! The contenders of a comparison: transports under MPICH, and other MPIs without weir.

use super::transport::Transport;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// MPIs that are compared as they are, without weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherMpi {
    /// Open MPI with its default transport.
    OpenMpi,
    /// Intel MPI with its default transport.
    IntelMpi,
}

/// A contender: an MPI with a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Contender {
    /// A transport under MPICH.
    Mpich(Transport),
    /// Another MPI.
    OtherMpi(OtherMpi),
}

impl Contender {
    /// All contenders.
    pub fn all() -> Vec<Contender> {
        let mpich = Transport::value_variants().iter().map(|&transport| Contender::Mpich(transport));
        mpich.chain(OtherMpi::value_variants().iter().map(|&foreign| Contender::OtherMpi(foreign))).collect()
    }

    /// Its name on the command line and in records.
    pub fn word(self) -> &'static str {
        match self {
            Contender::Mpich(transport) => transport.word(),
            Contender::OtherMpi(OtherMpi::OpenMpi) => "open-mpi",
            Contender::OtherMpi(OtherMpi::IntelMpi) => "intel-mpi",
        }
    }

    /// Its heading in tables.
    pub fn heading(self) -> String {
        match self {
            Contender::Mpich(transport) => transport.heading().replace('\n', " "),
            Contender::OtherMpi(OtherMpi::OpenMpi) => String::from("Open MPI"),
            Contender::OtherMpi(OtherMpi::IntelMpi) => String::from("Intel MPI"),
        }
    }

    /// Whether it is one of MPICH's other transports.
    pub fn is_mpich_builtin(self) -> bool {
        matches!(self, Contender::Mpich(transport) if transport != Transport::Weir)
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Contender, String> {
        let all = Contender::all();
        let words = || all.iter().map(|contender| contender.word()).collect::<Vec<_>>().join(", ");
        let found = all.iter().copied().find(|contender| contender.word() == text);
        found.ok_or_else(|| format!("possible values: {}", words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_round_trip() {
        for contender in Contender::all() {
            assert_eq!(contender.word().parse(), Ok(contender));
            assert_eq!(serde_json::to_value(contender).unwrap(), contender.word());
        }
        assert!("tcp".parse::<Contender>().unwrap_err().contains("ofi-tcp"));
        let own: Vec<_> =
            Contender::all().into_iter().filter(|c| c.is_mpich_builtin()).map(Contender::word).collect();
        assert_eq!(own, ["mpich-shm", "ofi-shm", "ofi-tcp", "ucx"]);
    }
}
