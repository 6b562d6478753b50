//! Prints one line on standard error when an endpoint cannot exchange messages with a peer: no link reaches it, it has
//! another version, or another scheme, or nothing that is sent to it over a network is answered.
//!
//! The caller gets [`weir_proto::PeerFault::Unreachable`], which is a number. The line names what differs, and says what
//! to change. It appears once for the ranks of a job on a node, because it is most often so for many of them and many peers.

use crate::shm::{Report, is_first_to_report};
use crate::{Address, LinkKind, SchemeName};
use std::io::{self, Write};
use std::sync::Once;

/// Reports that the endpoint at `own` cannot reach the one at `peer`.
pub(crate) fn report(own: &Address, peer: &Address) {
    static REPORTED: Once = Once::new();
    print_once(&REPORTED, Report::Unreachable, || text(own, peer));
}

/// A peer that has never answered over a network.
pub(crate) struct Silence<'link> {
    pub own: &'link Address,
    pub peer: &'link Address,
    pub kind: LinkKind,
    /// Our interface, if the network knows it.
    pub interface: Option<&'link str>,
    pub silent_ns: u64,
}

/// Reports a peer that has never answered.
pub(crate) fn report_silence(silence: &Silence<'_>) {
    static REPORTED: Once = Once::new();
    print_once(&REPORTED, Report::Silence, || silent(silence));
}

/// Reports that this rank and a peer use different schemes.
pub(crate) fn report_other_scheme(ours: SchemeName, theirs: SchemeName) {
    static REPORTED: Once = Once::new();
    print_once(&REPORTED, Report::OtherScheme, || other_scheme(ours, theirs));
}

/// Prints `text` unless this process, or another one of this job on this node, has reported `what`.
pub(crate) fn print_once(reported: &Once, what: Report, text: impl FnOnce() -> String) {
    reported.call_once(|| {
        if !is_first_to_report(what) {
            return;
        }
        // In one piece, because many ranks share the terminal. A closed standard error is no reason to fail.
        let _ = io::stderr().write_all(format!("weir: {}\n", text()).as_bytes());
    });
}

fn other_scheme(ours: SchemeName, theirs: SchemeName) -> String {
    format!(
        "cannot connect: FI_WEIR_FLOW of this rank is {ours}, of a peer {theirs}; set the same scheme for all ranks"
    )
}

fn silent(silence: &Silence<'_>) -> String {
    let Silence { own, peer, kind, interface, silent_ns } = silence;
    let interface = interface.map(|name| format!(" (interface {name})")).unwrap_or_default();
    let seconds = *silent_ns as f64 / 1e9;
    let (own, peer, advice) = match own.place().zip(peer.place()).filter(|_| *kind == LinkKind::Udp) {
        Some((own, peer)) => (
            format!("UDP {own}{interface}"),
            format!("UDP {peer}"),
            "a firewall may drop UDP: open the ports of FI_WEIR_PORTS for UDP and TCP on all hosts; or the hosts have \
             several networks: set FI_WEIR_NET to one that all of them have",
        ),
        None => (
            format!("{own}{interface}"),
            peer.to_string(),
            "set FI_WEIR_NET to a network that all hosts have, and look for a firewall between them",
        ),
    };
    format!(
        "cannot connect: nothing has come from {peer} to {own} for {seconds:.1} s; {advice}; \
         weir doctor --hosts FILE tries the ways between the hosts"
    )
}

fn text(own: &Address, peer: &Address) -> String {
    let has = |address: &Address, kind| address.part(kind).is_some();
    let has_udp = |address: &Address| has(address, LinkKind::Udp);
    let has_ofi = |address: &Address| has(address, LinkKind::Ofi);
    let advice = if !peer.is_of_this_version() {
        "run one version of weir on all ranks"
    } else if has_ofi(own) || has_ofi(peer) {
        "set FI_WEIR_LINK to the same core provider on all ranks, and FI_WEIR_NET to a network that all hosts have"
    } else if has_udp(own) && has_udp(peer) {
        "set FI_WEIR_NET to the network that all hosts have in common"
    } else {
        "set FI_WEIR_LINK=shm,udp on all ranks, or run all of them on one host, as one user, with one /dev/shm and one \
         FI_WEIR_SHM_DIR"
    };
    format!("cannot connect: no link reaches the endpoint {peer} from {own}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_both_endpoints_and_where_they_meet_others() {
        let address = |identity, place| {
            Address::new(identity, [9; 16]).with_part(LinkKind::SharedMemory, &[place; 2]).expect("room")
        };
        assert_eq!(
            text(&address(1, 0xaa), &address(2, 0xbb)),
            "cannot connect: no link reaches the endpoint 0000000000000002 (shared memory bbbb) \
             from 0000000000000001 (shared memory aaaa); \
             set FI_WEIR_LINK=shm,udp on all ranks, or run all of them on one host, as one user, with one /dev/shm and one \
             FI_WEIR_SHM_DIR"
        );
        let with_udp = |address: Address, octet| {
            address.with_part(LinkKind::Udp, &[4, 10, 0, 0, octet, 0, 9]).expect("room")
        };
        let (own, peer) = (with_udp(address(1, 0xaa), 1), with_udp(address(2, 0xbb), 2));
        assert_eq!(
            text(&own, &peer),
            "cannot connect: no link reaches the endpoint 0000000000000002 (shared memory bbbb, UDP 10.0.0.2:9) \
             from 0000000000000001 (shared memory aaaa, UDP 10.0.0.1:9); \
             set FI_WEIR_NET to the network that all hosts have in common"
        );
        let peer = address(2, 0xbb).with_part(LinkKind::Ofi, &[10, 0, 0, 2, 0, 9, 0, 8]).expect("room");
        assert_eq!(
            text(&own, &peer),
            "cannot connect: no link reaches the endpoint 0000000000000002 (shared memory bbbb, ofi 0a00000200090008) \
             from 0000000000000001 (shared memory aaaa, UDP 10.0.0.1:9); \
             set FI_WEIR_LINK to the same core provider on all ranks, and FI_WEIR_NET to a network that all hosts have"
        );
        for version_at in [0, 2] {
            let mut other = address(2, 0xbb);
            other.0[version_at] += 1;
            assert!(text(&address(1, 0xaa), &other).ends_with("run one version of weir on all ranks"));
        }
    }

    #[test]
    fn the_message_about_silence_names_both_ends_and_what_to_look_at() {
        let address = |kind, octet| {
            let part = [4, 10, 0, 0, octet, 0x4e, 0x84];
            Address::new(octet.into(), [9; 16]).with_part(kind, &part).expect("room")
        };
        let said = |kind, interface| {
            let (own, peer) = (&address(kind, 1), &address(kind, 2));
            silent(&Silence { own, peer, kind, interface, silent_ns: 2_060_000_000 })
        };
        assert_eq!(
            said(LinkKind::Udp, Some("eth0")),
            "cannot connect: nothing has come from UDP 10.0.0.2:20100 to UDP 10.0.0.1:20100 (interface eth0) for 2.1 s; \
             a firewall may drop UDP: open the ports of FI_WEIR_PORTS for UDP and TCP on all hosts; \
             or the hosts have several networks: set FI_WEIR_NET to one that all of them have; \
             weir doctor --hosts FILE tries the ways between the hosts"
        );
        assert_eq!(
            said(LinkKind::Ofi, None),
            "cannot connect: nothing has come from 0000000000000002 (ofi 040a0000024e84) to 0000000000000001 \
             (ofi 040a0000014e84) for 2.1 s; \
             set FI_WEIR_NET to a network that all hosts have, and look for a firewall between them; \
             weir doctor --hosts FILE tries the ways between the hosts"
        );
    }

    #[test]
    fn the_message_about_schemes_names_both() {
        assert_eq!(
            other_scheme(SchemeName::new("static"), SchemeName::new("static-connection")),
            "cannot connect: FI_WEIR_FLOW of this rank is static, of a peer static-connection; \
             set the same scheme for all ranks"
        );
    }
}
