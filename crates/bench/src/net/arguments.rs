//! The options of `weir bench net`, and what they choose ([`NetArguments`]).

use super::admission::AdmissionOptions;
use super::{flood, targets};
use crate::compare::Group;
use crate::compare::measure::{Job, Plan};
use crate::contender::{Contender, HostTransport, OtherMpi, WeirVariant};
use crate::options::{MpichOption, OutputOptions};
use crate::transport::Transport;
use clap::Args;
use std::collections::BTreeSet;
use std::path::PathBuf;
use weir_output::Failure;

/// Contenders without `--only`.
const DEFAULT: [Contender; 10] = [
    Contender::Mpich(Transport::Weir),
    Contender::Mpich(Transport::OfiTcp),
    Contender::MpichBetweenHosts(HostTransport::OfiRxd),
    Contender::Mpich(Transport::Ucx),
    Contender::OtherMpi(OtherMpi::OpenMpi),
    Contender::OtherMpi(OtherMpi::IntelMpi),
    Contender::Weir(WeirVariant::OfiTcp),
    Contender::Weir(WeirVariant::Authenticate),
    Contender::Weir(WeirVariant::Unprotected),
    Contender::Weir(WeirVariant::CollectivesAcross),
];
/// Hosts of collectives and incast without `--ranks`.
const HOSTS: [u32; 3] = [2, 4, 8];
/// Further hosts of incast without `--ranks`.
const INCAST_HOSTS: u32 = 16;
/// Groups of `weir bench` that have a meaning between hosts.
const GROUPS: [Group; 6] =
    [Group::Latency, Group::Bandwidth, Group::Rate, Group::Collectives, Group::Incast, Group::Flood];

/// Options of `weir bench net`.
#[derive(Args, Debug)]
#[command(after_help = "\
Hosts are network namespaces on a bridge inside this machine, one rank on each, in collectives --host-ranks. With as many cores as hosts, each host has \
a core. The tables show the median of the rounds, the least and the greatest value, and the ratio to weir's median. Bare \
UDP is two threads that send and receive, and nothing else; for large messages and streams they also encrypt, and copy. \
A bare incast, over UDP and plain TCP, has a thread on each host. Then come weir's targets. A target is reached or missed only if all combinations of samples agree.

ofi-rxd is libfabric's layer of reliable datagrams over its udp provider (udp;ofi_rxd). weir-collectives-across is weir \
with collective operations that meet in node groups (FI_WEIR_COLLECTIVES_ACROSS=1).

In the flood, three hosts send more to one than it may keep, and it does not receive before the last message is there. The \
growth of its memory after MPI_Init is compared with weir's bound inside a host. A transport that does not end a flood or \
an incast is a result.

All of it takes some 20 minutes on an idle machine, and some eight with --quick. A progress bar shows the time that is left.

It needs root, iproute2 and util-linux, for losses also nftables (nft), an MPICH with libfabric, UCX and mpicc (pip install \
mpich), and a C compiler. weir's settings come from the environment (see `weir settings`).

--admission compares the values of FI_WEIR_ADMIT instead, by traffic that can congest the network, with several ranks on \
each host. --port-rate makes the bridge a switch with slow ports and finite queues, which drop what they cannot hold.

Exit status:
  0      weir measured everything; others may fail
  1      weir failed, or something is missing
  2      a wrong option or setting

Examples:
  weir bench net --quick
  weir bench net --measure latency,rate --loss 1,10 --repeat 5
  weir bench net --measure incast --ranks 8 --only weir,ofi-tcp --json net.json
  weir bench net --measure flood --repeat 3
  weir bench net --measure collectives --ranks 2 --host-ranks 4 --only weir,weir-collectives-across
  weir bench net --page net.html
  weir bench net --admission --quick
  weir bench net --admission=auto --per-host 4 --sizes 65536 --port-rate 200
  weir bench net --admission=token --traffic incast --per-host 8 --port-rate 500 --page admission.html")]
pub struct NetArguments {
    /// Measure only these: latency, bandwidth, rate, collectives, incast, flood.
    #[arg(long, value_name = "MEASURE", value_delimiter = ',')]
    measure: Vec<Group>,
    /// Hosts of collectives and incast [default: 2,4,8, for incast also 16].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Ranks on each host in collectives. With more than one, targets are not judged.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) host_ranks: u32,
    /// Losses for which latency, bandwidth and rate are measured again; 0: none [default: 10 if nft is installed].
    /// Unit: frames of a thousand.
    #[arg(long, value_name = "PER_MILLE", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=500))]
    loss: Vec<u32>,
    /// Only these contenders, which may also be weir-ofi-tcp-unprotected [default: weir, ofi-tcp, ofi-rxd, ucx, open-mpi,
    /// intel-mpi; weir-collectives-across in collectives; weir-ofi-tcp, weir-authenticate and weir-unprotected where they
    /// have targets].
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    only: Vec<Contender>,
    /// Number of rounds; 5, or 2 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) repeat: Option<u32>,
    /// Short measurements: 2 rounds, 0.05 s for a value.
    #[arg(long)]
    pub(super) quick: bool,
    /// Limit of one job, after which it is ended and reported as timed out. Unit: seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) timeout: u64,
    #[command(flatten)]
    pub(super) admission: Box<AdmissionOptions>,
    /// Write a page with figures and all numbers.
    #[arg(long, value_name = "FILE")]
    pub(super) page: Option<PathBuf>,
    #[command(flatten)]
    pub(super) mpich: MpichOption,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

impl NetArguments {
    fn groups(&self) -> Result<Vec<Group>, Failure> {
        let chosen = if self.measure.is_empty() { GROUPS.to_vec() } else { self.measure.clone() };
        match chosen.iter().find(|group| !GROUPS.contains(group)) {
            Some(group) => Err(Failure::Usage(format!(
                "--measure {}: allowed are latency, bandwidth, rate, collectives, incast, flood",
                format!("{group:?}").to_lowercase()
            ))),
            None => Ok(chosen),
        }
    }

    /// The jobs of a round without losses.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let ranks = if self.ranks.is_empty() { &HOSTS[..] } else { &self.ranks };
        let groups = self.groups()?;
        let mut plan = Plan::new(&groups, ranks, self.quick).with_flood(flood::case(self.quick));
        if self.ranks.is_empty() && groups.contains(&Group::Incast) {
            plan.jobs.push(Job { group: Group::Incast, ranks: INCAST_HOSTS });
        }
        Ok(plan)
    }

    /// The losses to measure with, and why there are none.
    pub(super) fn losses(&self, can_lose: bool) -> Result<(Vec<u32>, Option<String>), Failure> {
        const NO_NFT: &str = "nft (nftables) is not in PATH";
        let chosen = BTreeSet::from_iter(self.loss.iter().copied().filter(|&loss| loss > 0));
        match (self.loss.is_empty(), can_lose) {
            (true, true) => Ok((vec![targets::LOSS_PER_MILLE], None)),
            (true, false) => Ok((Vec::new(), Some(format!("Losses are not measured: {NO_NFT}.")))),
            (false, false) if !chosen.is_empty() => {
                Err(Failure::Measurement(format!("--loss needs nftables: {NO_NFT}")))
            }
            (false, _) => Ok((chosen.into_iter().collect(), None)),
        }
    }

    /// Whether a contender runs this job. Variants of weir that nobody has named run where they have targets.
    pub(super) fn takes_part(&self, contender: Contender, job: Job, loss: u32) -> bool {
        let is_latency_or_bandwidth = matches!(job.group, Group::Latency | Group::Bandwidth);
        match contender {
            _ if !self.only.is_empty() => true,
            Contender::Weir(WeirVariant::Unprotected | WeirVariant::Authenticate) => {
                loss == 0 && is_latency_or_bandwidth
            }
            Contender::Weir(WeirVariant::CollectivesAcross) => job.group == Group::Collectives,
            Contender::Weir(_) => loss == 0 && job.group != Group::Collectives && job.ranks <= HOSTS[2],
            _ => true,
        }
    }

    /// The contenders.
    pub(super) fn contenders(&self) -> Result<Vec<Contender>, Failure> {
        let chosen = if self.only.is_empty() { DEFAULT.to_vec() } else { self.only.clone() };
        let inside = [Contender::Mpich(Transport::MpichShm), Contender::Mpich(Transport::OfiShm)];
        match chosen.iter().find(|contender| inside.contains(contender)) {
            Some(contender) => {
                Err(Failure::Usage(format!("--only {}: it does not leave a host", contender.word())))
            }
            None => Ok(chosen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: NetArguments,
    }

    fn arguments(words: &str) -> NetArguments {
        let words = std::iter::once("net").chain(words.split_whitespace());
        Command::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn groups_and_contenders_inside_a_host_are_refused() {
        assert_eq!(arguments("").groups().unwrap(), GROUPS);
        assert_eq!(arguments("").contenders().unwrap(), DEFAULT);
        let refusal = arguments("--measure memory").groups().unwrap_err();
        assert!(matches!(&refusal, Failure::Usage(text) if text.contains("--measure memory")), "{refusal}");
        let refusal = arguments("--only weir,mpich-shm").contenders().unwrap_err();
        assert_eq!(refusal.to_string(), "--only mpich-shm: it does not leave a host");
        assert!(Command::try_parse_from(["net", "--loss", "501"]).is_err());
    }

    #[test]
    fn the_default_has_15_senders_and_a_loss_where_the_host_can_lose() {
        let plan = arguments("").plan().unwrap();
        let incasts = plan.jobs.iter().filter(|job| job.group == Group::Incast).map(|job| job.ranks);
        assert_eq!(incasts.collect::<Vec<_>>(), [2, 4, 8, 16]);
        assert_eq!(arguments("--ranks 4").plan().unwrap().max_ranks(), 4);
        assert_eq!(arguments("--measure latency").plan().unwrap().max_ranks(), 2);
        assert_eq!(arguments("--measure flood --ranks 2").plan().unwrap().max_ranks(), 4, "three senders");
        assert_eq!(arguments("").losses(true).unwrap(), (vec![10], None));
        let (none, why) = arguments("").losses(false).unwrap();
        assert!(none.is_empty() && why.unwrap().contains("nft (nftables) is not in PATH"));
        assert_eq!(arguments("--loss 0").losses(false).unwrap(), (vec![], None));
        assert_eq!(arguments("--loss 20,0,1").losses(true).unwrap(), (vec![1, 20], None));
        assert!(arguments("--loss 20").losses(false).is_err());
    }

    #[test]
    fn variants_that_nobody_has_named_run_where_they_have_targets() {
        let variants = [WeirVariant::OfiTcp, WeirVariant::Unprotected, WeirVariant::CollectivesAcross];
        let [over_tcp, unprotected, across] = variants.map(Contender::Weir);
        let takes_part = |words: &str, contender, group, ranks, loss| {
            arguments(words).takes_part(contender, Job { group, ranks }, loss)
        };
        assert!(takes_part("", unprotected, Group::Bandwidth, 2, 0));
        assert!(
            !takes_part("", unprotected, Group::Rate, 2, 0) && !takes_part("", over_tcp, Group::Rate, 2, 10)
        );
        assert!(
            takes_part("", over_tcp, Group::Flood, 4, 0)
                && takes_part("", over_tcp, Group::Incast, 8, 0)
                && !takes_part("", over_tcp, Group::Incast, 16, 0)
        );
        assert!(
            takes_part("", across, Group::Collectives, 8, 0) && !takes_part("", across, Group::Latency, 2, 0)
        );
        assert!(takes_part("--only weir-unprotected", unprotected, Group::Rate, 2, 10));
        assert!(takes_part("", Contender::Mpich(Transport::Ucx), Group::Collectives, 8, 0));
    }
}
