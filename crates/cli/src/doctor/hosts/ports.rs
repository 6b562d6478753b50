//! The ports of a range (`FI_WEIR_PORTS`): a rank can get each of them, so each path is tried at several ([`Ports`]), from
//! the same port of the other host. So a firewall that passes a part of the range is found.
//!
//! A port that another process has is not tried at that host.

use super::{DATAGRAMS, Finding, PathResult, Ready, SMALL_BYTES, Trials, ask_all};
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use weir_mpi::remote::{Answer, Request};
use weir_output::quantity::count;

/// Most ports of a range that are tried, besides the one that the host has opened first.
const MOST: u32 = 15;

/// The ports of a range that are tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Ports {
    /// The first one of the range.
    pub(super) first: u16,
    /// The last one.
    pub(super) last: u16,
    /// What is tried: all, or [`MOST`] at equal distances, with the first and the last one.
    pub(super) chosen: Vec<u16>,
}

impl Ports {
    /// Of a range.
    pub(super) fn of(range: &RangeInclusive<u16>) -> Ports {
        let (first, last) = (*range.start(), *range.end());
        let most = MOST.min(Ports { first, last, chosen: Vec::new() }.count());
        let distance = u32::from(last - first);
        let nth = |nth: u32| first + (nth * distance).checked_div(most - 1).unwrap_or(0) as u16;
        Ports { first, last, chosen: (0..most).map(nth).collect() }
    }

    /// Ports of the range.
    fn count(&self) -> u32 {
        u32::from(self.last - self.first) + 1
    }

    /// How many of them the paths have tried.
    pub(super) fn finding(&self, paths: &[PathResult]) -> Finding {
        let tried: BTreeSet<u16> = paths.iter().flat_map(|path| path.ports_tried.iter().copied()).collect();
        let busy: Vec<u16> = self.chosen.iter().copied().filter(|port| !tried.contains(port)).collect();
        let (tried, all) = (count(tried.len() as u64), count(u64::from(self.count())));
        let mut seen = format!("{tried} of the {all} ports from {} to {} were tried", self.first, self.last);
        if !busy.is_empty() && !paths.is_empty() {
            seen += &format!("; not {}, which other processes have", list(&busy));
        }
        Finding::ok("ports", seen)
    }
}

/// Tries the ports of a round. The port of the first trials counts too.
pub(super) fn try_round(
    ready: &mut [Ready],
    trials: &mut Trials,
    round: &mut [PathResult],
) -> Result<(), String> {
    let (hosts, distance) = (ready.len(), trials.distance);
    // Of the host that each one tries.
    let to: Vec<Vec<SocketAddr>> = (0..hosts)
        .map(|from| {
            let opened = &ready[(from + distance) % hosts].opened;
            opened.further_ports.iter().map(|&port| SocketAddr::new(opened.place.ip(), port)).collect()
        })
        .collect();
    if to.iter().all(Vec::is_empty) {
        return Ok(());
    }
    let bytes = SMALL_BYTES - ready[0].opened.header_bytes;
    let trial = trials.next(u64::from(MOST));
    ask_all(ready, |from| Some(Request::SendEach { to: to[from].clone(), trial, bytes, count: DATAGRAMS }))?;
    let seen = ask_all(ready, |host| {
        let ports = ready_ports(&to[(host + hosts - distance) % hosts]);
        Some(Request::SeenEach { ports, trial, datagrams: DATAGRAMS })
    })?;
    let connected = ask_all(ready, |from| Some(Request::ConnectEach { to: to[from].clone() }))?;
    for (from, (path, connected)) in round.iter_mut().zip(connected).enumerate() {
        let (Some(Answer::SeenEach(seen)), Some(Answer::TriedEach(errors))) =
            (&seen[(from + distance) % hosts], connected)
        else {
            continue;
        };
        let ports = ready_ports(&to[from]);
        let first = ready[(from + distance) % hosts].opened.place.port();
        let without = |is_without: &dyn Fn(usize) -> bool, first_is_without: bool| {
            let further = (0..ports.len()).filter(|&nth| is_without(nth)).map(|nth| ports[nth]);
            further.chain(first_is_without.then_some(first)).collect::<BTreeSet<u16>>().into_iter().collect()
        };
        path.ports_without_udp =
            without(&|nth| seen.get(nth).is_none_or(|&arrived| arrived == 0), path.datagrams_arrived == 0);
        path.ports_without_tcp =
            without(&|nth| errors.get(nth).is_none_or(Option::is_some), path.tcp_error.is_some());
        path.ports_tried =
            ports.iter().copied().chain([first]).collect::<BTreeSet<u16>>().into_iter().collect();
    }
    Ok(())
}

fn ready_ports(places: &[SocketAddr]) -> Vec<u16> {
    places.iter().map(SocketAddr::port).collect()
}

/// Whether [`judge`] says where datagrams do not arrive: at some ports, and not at all.
pub(super) fn names_udp(path: &PathResult) -> bool {
    is_part(&path.ports_without_udp, path)
}

/// The same of connections.
pub(super) fn names_tcp(path: &PathResult) -> bool {
    is_part(&path.ports_without_tcp, path)
}

fn is_part(without: &[u16], path: &PathResult) -> bool {
    !without.is_empty() && without.len() < path.ports_tried.len()
}

/// Ports that a path does not reach, if it reaches others.
pub(super) fn judge(path: &PathResult) -> Vec<Finding> {
    let of = |what: &str, without: &[u16]| {
        let (from, to) = (&path.from, &path.to);
        let (blocked, tried) = (count(without.len() as u64), count(path.ports_tried.len() as u64));
        let seen = format!("{from} to {to}: {what} at {blocked} of {tried} ports: {}", list(without));
        let advice = "open all ports of FI_WEIR_PORTS for UDP and TCP, or set it to a range that is open";
        Finding::fail("ports", seen, advice)
    };
    let udp = names_udp(path).then(|| of("no datagram arrives", &path.ports_without_udp));
    let tcp = names_tcp(path).then(|| of("no TCP connection", &path.ports_without_tcp));
    udp.into_iter().chain(tcp).collect()
}

/// `20100, 20167`.
fn list(ports: &[u16]) -> String {
    ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_short_range_is_tried_whole_and_a_long_one_from_end_to_end() {
        let chosen = |range| Ports::of(&range).chosen;
        assert_eq!(chosen(7..=7), [7]);
        assert_eq!(chosen(20100..=20103), [20100, 20101, 20102, 20103]);
        for range in [20100..=20114, 20100..=20115, 20100..=21100, 1..=u16::MAX] {
            let chosen = chosen(range.clone());
            assert_eq!((chosen.len(), chosen[0], chosen[14]), (15, *range.start(), *range.end()));
            assert!(chosen.is_sorted_by(|one, other| one < other), "{chosen:?}");
        }
    }

    #[test]
    fn a_path_that_reaches_a_part_of_the_ports_names_the_others() {
        let path = PathResult {
            from: "h1".into(),
            to: "h2".into(),
            ports_tried: vec![5, 6, 7],
            ports_without_udp: vec![5, 7],
            ports_without_tcp: vec![5, 6, 7],
            ..PathResult::default()
        };
        let findings = judge(&path);
        assert_eq!(
            (findings.len(), findings[0].level),
            (1, Level::Fail),
            "no connection at all has a line of its own"
        );
        assert_eq!(findings[0].seen, "h1 to h2: no datagram arrives at 2 of 3 ports: 5, 7");
        assert!(judge(&PathResult { ports_tried: vec![5, 6], ..PathResult::default() }).is_empty());
        let ports = Ports::of(&(5..=8));
        assert_eq!(
            ports.finding(&[path]).seen,
            "3 of the 4 ports from 5 to 8 were tried; not 8, which other processes have"
        );
    }
}
