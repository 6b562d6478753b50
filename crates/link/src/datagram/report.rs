//! What a link over datagrams has dropped before a path saw it ([`DatagramCounters`]), and the reports of the link:
//! its counts, and a peer that has never answered.

use super::link::DatagramLink;
use super::network::{DatagramNetwork, Traffic};
use crate::unreachable::{self, Silence};
use crate::{NetworkReport, PathReport};
use weir_proto::reliability::{PathCounters, PathFault};
use weir_proto::{Peer, PeerFault};

/// Counts of a link, for reports. All but the last are of datagrams that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// From places where no peer is, or from an endpoint with another scheme.
    pub foreign: u64,
    /// Their tag was wrong: changed on the way, or not from a member of the job.
    pub forged: u64,
    /// Too short, of another version, or with wrong flags.
    pub malformed: u64,
    /// Paths that an introduction has made, that never opened, and that were removed.
    pub unopened: u64,
}

impl<N: DatagramNetwork> DatagramLink<N> {
    /// The loss of the peer on this path, if the endpoint knows the peer. One that has never answered is reported on standard
    /// error too.
    pub(super) fn loss_on(&mut self, id: u32) -> Option<(Peer, PeerFault)> {
        let now = self.shared.network.now();
        let path = self.paths.get(id as usize)?.as_deref()?;
        let loss = path.peer.zip(path.fault())?;
        let is_silent = path.io.fault == Some(PathFault::Silent) && path.left.is_none();
        if is_silent && loss.1 == PeerFault::Unreachable {
            let silent_ns = path.machine.silent_since().map_or(0, |since| now.since_ns(since));
            let network = &self.shared.network;
            let (own, peer) = (&self.address, &path.io.address);
            let (kind, interface) = (network.kind(), network.interface());
            unreachable::report_silence(&Silence { own, peer, kind, interface, silent_ns });
        }
        Some(loss)
    }

    /// What is known of the path to a peer.
    pub(super) fn report_on(&self, peer: Peer) -> Option<PathReport> {
        let path = self.paths.get(self.id_of(peer)? as usize)?.as_deref()?;
        let sent_again = path.machine.counters().sent_again;
        Some(PathReport { round_trip_ns: path.machine.view().round_trip_ns, sent_again })
    }

    /// Whether the gate has refused the last packet to `peer`, which must come again.
    pub(super) fn is_refused_by_gate(&self, peer: Peer) -> bool {
        let path = self.id_of(peer).and_then(|id| self.paths.get(id as usize)?.as_deref());
        path.is_some_and(|path| path.io.refused_by_gate)
    }

    /// What it has done.
    pub fn report(&self) -> NetworkReport {
        let mut counts = self.removed;
        let mut report = NetworkReport::default();
        let most_bytes = self.options.reliability.datagram_bytes as usize;
        for path in self.paths.iter().flatten() {
            counts = counts.plus(&path.machine.counters());
            let view = path.machine.view();
            if view.is_open && !path.is_over() {
                report.open_paths += 1;
                report.narrow_paths += u64::from(path.io.largest_datagram < most_bytes);
                report.add_round_trip(view.round_trip_ns, view.round_trip_ns);
            }
        }
        let gate = self.shared.gate.as_ref().map(|gate| gate.counters()).unwrap_or_default();
        let proxy = self.shared.proxy.as_ref().map_or(self.shared.left_proxy, |proxy| proxy.counters());
        let DatagramCounters { foreign, forged, malformed, unopened } = self.counters();
        let (contents, contents_bytes) = self.contents.copied;
        let PathCounters { datagrams, bare, sent_again, sent_needlessly, timeouts, .. } = counts;
        let PathCounters { marked, repeated, stale, malformed: malformed_in_paths, .. } = counts;
        let Traffic {
            sent_bytes,
            connected,
            failed,
            busy,
            received,
            received_bytes,
            malformed: no_datagrams,
            dropped,
            looks,
            copies,
            copied_bytes,
            ..
        } = self.shared.network.traffic();
        NetworkReport {
            datagrams_sent: datagrams,
            bare_datagrams_sent: bare,
            connected_datagrams_sent: connected,
            bytes_sent: sent_bytes,
            datagrams_received: received + no_datagrams,
            bytes_received: received_bytes,
            sent_again,
            sent_needlessly,
            timeouts,
            marked,
            busy_calls: busy,
            refused_datagrams: failed,
            looks,
            dropped_repeated: repeated,
            dropped_stale: stale,
            dropped_malformed: malformed + malformed_in_paths + no_datagrams,
            dropped_foreign: foreign,
            dropped_forged: forged,
            gate_waits: gate.waits,
            gate_waited_ns: gate.waited_ns,
            gate_most_held: gate.most_held,
            gate_tokens: gate.step.map_or(0, |step| step.tokens.into()),
            gate_step_bytes: gate.step.map_or(0, |step| step.bytes.into()),
            gate_step_ranks: gate.step.map_or(0, |step| step.tasks.into()),
            proxy_queued: proxy.queued,
            proxy_sent_for_others: proxy.sent_for_others,
            proxy_without_room: proxy.without_room,
            copies: copies + contents,
            copied_bytes: copied_bytes + contents_bytes,
            unopened_paths: unopened,
            dropped_in_kernel: dropped,
            ..report
        }
    }
}
