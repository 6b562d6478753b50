//! The contenders of a comparison: transports under MPICH, weir with other settings of its network, and other MPIs without
//! weir.

use super::transport::Transport;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use weir_mpi::launch::JobTransport;

/// MPIs that are compared as they are, without weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherMpi {
    /// Open MPI with its default transport.
    OpenMpi,
    /// Intel MPI with its default transport.
    IntelMpi,
}

/// weir under MPICH with a setting that is not the default, for comparisons between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub enum WeirVariant {
    /// weir over libfabric's tcp provider instead of UDP.
    #[value(name = "weir-ofi-tcp")]
    #[serde(rename = "weir-ofi-tcp")]
    OfiTcp,
    /// The same without protection, so that the provider reads large messages and remote memory by itself.
    #[value(name = "weir-ofi-tcp-unprotected")]
    #[serde(rename = "weir-ofi-tcp-unprotected")]
    OfiTcpUnprotected,
    /// weir over UDP, whose datagrams are authenticated and not encrypted.
    #[value(name = "weir-authenticate")]
    #[serde(rename = "weir-authenticate")]
    Authenticate,
    /// weir over UDP without authentication.
    #[value(name = "weir-unprotected")]
    #[serde(rename = "weir-unprotected")]
    Unprotected,
    /// weir over UDP, whose collective operations meet in node groups, also across hosts.
    #[value(name = "weir-collectives-across")]
    #[serde(rename = "weir-collectives-across")]
    CollectivesAcross,
}

impl WeirVariant {
    /// The settings and their values.
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        const OFI_TCP: (&str, &str) = ("FI_WEIR_LINK", "shm,ofi:tcp");
        const OFF: (&str, &str) = ("FI_WEIR_PROTECTION", "off");
        match self {
            WeirVariant::OfiTcp => &[OFI_TCP],
            WeirVariant::OfiTcpUnprotected => &[OFI_TCP, OFF],
            WeirVariant::Authenticate => &[("FI_WEIR_PROTECTION", "authenticate")],
            WeirVariant::Unprotected => &[OFF],
            WeirVariant::CollectivesAcross => {
                &[("FI_WEIR_COLLECTIVES", "1"), ("FI_WEIR_COLLECTIVES_ACROSS", "1")]
            }
        }
    }

    /// Whether its ranks load the library for collective operations.
    pub fn loads_collectives(self) -> bool {
        self == WeirVariant::CollectivesAcross
    }
}

/// A transport under MPICH that is compared between hosts only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub enum HostTransport {
    /// libfabric's layer of reliable datagrams over its udp provider.
    #[value(name = "ofi-rxd")]
    #[serde(rename = "ofi-rxd")]
    OfiRxd,
}

impl HostTransport {
    /// The same transport, as a job uses it.
    pub fn job_transport(self) -> JobTransport<'static> {
        match self {
            HostTransport::OfiRxd => JobTransport::Libfabric("udp;ofi_rxd"),
        }
    }
}

/// A contender: an MPI with a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Contender {
    /// A transport under MPICH.
    Mpich(Transport),
    /// A transport under MPICH that is compared between hosts only.
    MpichBetweenHosts(HostTransport),
    /// weir with another setting.
    Weir(WeirVariant),
    /// Another MPI.
    OtherMpi(OtherMpi),
}

impl Contender {
    /// All that are compared if nobody chooses. Others are compared by name only.
    pub fn all() -> Vec<Contender> {
        let mpich = Transport::value_variants().iter().map(|&transport| Contender::Mpich(transport));
        mpich.chain(OtherMpi::value_variants().iter().map(|&foreign| Contender::OtherMpi(foreign))).collect()
    }

    /// All that have a name.
    pub fn named() -> Vec<Contender> {
        let variants = WeirVariant::value_variants().iter().map(|&variant| Contender::Weir(variant));
        let between_hosts = HostTransport::value_variants().iter().copied().map(Contender::MpichBetweenHosts);
        Contender::all().into_iter().chain(between_hosts).chain(variants).collect()
    }

    /// Its name on the command line and in records.
    pub fn word(self) -> &'static str {
        match self {
            Contender::Mpich(transport) => transport.word(),
            Contender::MpichBetweenHosts(HostTransport::OfiRxd) => "ofi-rxd",
            Contender::Weir(WeirVariant::OfiTcp) => "weir-ofi-tcp",
            Contender::Weir(WeirVariant::OfiTcpUnprotected) => "weir-ofi-tcp-unprotected",
            Contender::Weir(WeirVariant::Authenticate) => "weir-authenticate",
            Contender::Weir(WeirVariant::Unprotected) => "weir-unprotected",
            Contender::Weir(WeirVariant::CollectivesAcross) => "weir-collectives-across",
            Contender::OtherMpi(OtherMpi::OpenMpi) => "open-mpi",
            Contender::OtherMpi(OtherMpi::IntelMpi) => "intel-mpi",
        }
    }

    /// Its heading in tables.
    pub fn heading(self) -> String {
        match self {
            Contender::Mpich(transport) => transport.heading().replace('\n', " "),
            Contender::MpichBetweenHosts(HostTransport::OfiRxd) => String::from("libfabric udp;ofi_rxd"),
            Contender::Weir(WeirVariant::OfiTcp) => String::from("weir over ofi:tcp"),
            Contender::Weir(WeirVariant::OfiTcpUnprotected) => String::from("weir over ofi:tcp, unprotected"),
            Contender::Weir(WeirVariant::Authenticate) => String::from("weir, not encrypted"),
            Contender::Weir(WeirVariant::Unprotected) => String::from("weir, unprotected"),
            Contender::Weir(WeirVariant::CollectivesAcross) => String::from("weir, collectives across"),
            Contender::OtherMpi(OtherMpi::OpenMpi) => String::from("Open MPI"),
            Contender::OtherMpi(OtherMpi::IntelMpi) => String::from("Intel MPI"),
        }
    }

    /// Whether it is weir, with any settings.
    pub fn is_weir(self) -> bool {
        matches!(self, Contender::Mpich(Transport::Weir) | Contender::Weir(_))
    }

    /// Whether it is one of MPICH's other transports.
    pub fn is_mpich_builtin(self) -> bool {
        match self {
            Contender::Mpich(transport) => transport != Transport::Weir,
            Contender::MpichBetweenHosts(_) => true,
            Contender::Weir(_) | Contender::OtherMpi(_) => false,
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Contender, String> {
        let all = Contender::named();
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
        for contender in Contender::named() {
            assert_eq!(contender.word().parse(), Ok(contender));
            assert_eq!(serde_json::to_value(contender).unwrap(), contender.word());
        }
        assert!("tcp".parse::<Contender>().unwrap_err().contains("ofi-tcp"));
        let own: Vec<_> =
            Contender::all().into_iter().filter(|c| c.is_mpich_builtin()).map(Contender::word).collect();
        assert_eq!(own, ["mpich-shm", "ofi-shm", "ofi-tcp", "ucx"]);
    }
}
