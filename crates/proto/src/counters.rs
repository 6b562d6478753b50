//! Counters of an endpoint machine: for the reports and traces of `weir run`, and for the simulator. Each has a name
//! and a meaning, which reports and the reference page show.
//!
//! Packets are counted by kind, except eager ones, which are the most common. Their number is the rest of
//! [`Counters::packets_sent`], so that a message of one packet needs no further count.

use crate::packet::Body;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),+ $(,)?) => {
        /// Totals since the endpoint was created. The machine adds, drivers read.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[doc = $doc])* pub $name: u64),+ }
        impl Counters {
            /// Names of the counters, in the order of [`Counters::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];
            /// The meaning of each counter, in the order of [`Counters::NAMES`]: its documentation, for the reference
            /// page.
            pub const MEANINGS: &'static [&'static str] = &[$(concat!($($doc),*)),+];
            /// The totals, in the order of [`Counters::NAMES`].
            pub fn values(&self) -> [u64; Counters::NAMES.len()] { [$(self.$name),+] }
            /// The counters with these totals.
            pub fn from_values(values: [u64; Counters::NAMES.len()]) -> Counters {
                let [$($name),+] = values;
                Counters { $($name),+ }
            }
        }
    };
}

counters! {
    /// Messages sent (two-sided), counted when posted.
    messages_sent,
    /// Payload of the messages sent. Unit: bytes.
    bytes_sent,
    /// Messages received into a buffer of the program.
    messages_received,
    /// Payload of the messages received. Unit: bytes.
    bytes_received,
    /// Remote reads and writes begun.
    remote_operations,
    /// Payload of remote reads and writes. Unit: bytes.
    remote_bytes,
    /// Packets sent, credit packets included.
    packets_sent,
    /// Packets retrieved, credit packets included.
    packets_received,
    /// Slots that the sent packets filled.
    slots_sent,
    /// Explicit credit packets sent.
    credit_packets_sent,
    /// Explicit credit packets retrieved.
    credit_packets_received,
    /// Credits returned in credit packets. Unit: slots.
    explicit_credits_sent,
    /// Credits returned piggybacked. Unit: slots.
    piggybacked_credits_sent,
    /// Compulsory return requests sent.
    return_requests_sent,
    /// Credits returned in compulsory return responses. Unit: slots.
    credits_given_back,
    /// Time in which a message waited for credit, summed over peers. Unit: ns.
    stalled_ns,
    /// Number of times that a peer's queue began to wait for credit.
    stalls,
    /// Number of times that a receiver had no buffer for a packet (hardware scheme: RNR NAK).
    rnr_naks,
    /// Number of packets that were sent again after the RNR timer.
    rnr_retries,
    /// Maximum of data slots that one sender owned here. Adaptive backlog raises them. With dynamic credits these are
    /// the starting credits, without quota that moved later.
    peak_quota_slots,
    /// Messages sent by rendezvous because they exceed the eager limit.
    rendezvous_sent,
    /// Messages sent by rendezvous because their receiver had no memory for unexpected payload.
    forced_rendezvous,
    /// Maximum of bytes in bounce buffers at a time.
    peak_bounce_bytes,
    /// Maximum cost of unexpected payload at a time, with overhead. Unit: bytes.
    peak_budget_used_bytes,
    /// Maximum cost of the envelopes of unexpected messages at a time; 0 without an envelope budget. Unit: bytes.
    peak_envelope_bytes,
    /// Messages that this endpoint announced while it held messages for their receiver.
    held_messages,
    /// Questions to holders and requests to announce messages again.
    holder_requests_sent,
    /// Copies between processes, without the mailbox.
    cross_memory_copies,
    /// Payload of copies between processes without the mailbox. Unit: bytes.
    cross_memory_bytes,
    /// Maximum of unexpected messages at a time.
    peak_unexpected_messages,
    /// Maximum of unexpected payload at a time. Unit: bytes.
    peak_unexpected_bytes,
    /// Packets that were rejected as malformed.
    malformed_packets,
    /// Peers lost.
    peers_lost,
    /// Lanes that this endpoint has returned to mailbox owners.
    lanes_returned,
    /// Packets sent that continue an eager message.
    more_packets_sent,
    /// Packets sent that announce a rendezvous.
    rendezvous_packets_sent,
    /// Packets sent that acknowledge a received, matched or written message.
    finished_packets_sent,
    /// Packets sent with requested payload.
    piece_packets_sent,
    /// Packets sent for remote reads, writes and atomics, without the payload of reads.
    remote_packets_sent,
    /// Packets sent for all other purposes: payload requests, questions to holders and their answers, compulsory returns,
    /// goodbye, detach.
    control_packets_sent,
}

/// Names of the kinds of [`Counters::packets_by_kind`].
pub const PACKET_KINDS: [&str; 8] =
    ["eager", "more", "rendezvous", "credit", "finished", "piece", "remote", "control"];

impl Counters {
    /// Counts a packet by its kind, except credit packets, which are counted with their credits.
    #[inline]
    pub(crate) fn count_kind(&mut self, body: &Body) {
        if let Some(count) = self.count_of_kind(body) {
            *count += 1;
        }
    }

    /// A counted packet of `slots` slots has not left. `Detach` and credit packets count by kind after they have left.
    #[cold]
    pub(crate) fn uncount(&mut self, body: &Body, slots: u32) {
        self.packets_sent -= 1;
        self.slots_sent -= u64::from(slots);
        if !body.is_free()
            && let Some(count) = self.count_of_kind(body)
        {
            *count -= 1;
        }
    }

    #[inline]
    fn count_of_kind(&mut self, body: &Body) -> Option<&mut u64> {
        Some(match body {
            Body::Eager { .. } | Body::Credit => return None,
            Body::More { .. } => &mut self.more_packets_sent,
            Body::Rendezvous { .. } => &mut self.rendezvous_packets_sent,
            Body::Finished { .. } => &mut self.finished_packets_sent,
            Body::Piece { .. } => &mut self.piece_packets_sent,
            Body::Write { .. }
            | Body::Read { .. }
            | Body::Locate { .. }
            | Body::Located { .. }
            | Body::Written { .. }
            | Body::Offloaded(_) => &mut self.remote_packets_sent,
            Body::Fetch { .. }
            | Body::Ask { .. }
            | Body::Offer { .. }
            | Body::EagerOffer { .. }
            | Body::NoMatch
            | Body::Resume { .. }
            | Body::Claimed { .. }
            | Body::Goodbye
            | Body::Detach
            | Body::ReturnRequest
            | Body::ReturnResponse { .. } => &mut self.control_packets_sent,
        })
    }

    /// Packets sent, by kind, in the order of [`PACKET_KINDS`]. Their sum is [`Counters::packets_sent`].
    pub fn packets_by_kind(&self) -> [u64; PACKET_KINDS.len()] {
        let others = [
            self.more_packets_sent,
            self.rendezvous_packets_sent,
            self.credit_packets_sent,
            self.finished_packets_sent,
            self.piece_packets_sent,
            self.remote_packets_sent,
            self.control_packets_sent,
        ];
        // Totals may come from a damaged file, which must not stop a report.
        let sum = others.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        let [more, rendezvous, credit, finished, piece, remote, control] = others;
        [self.packets_sent.saturating_sub(sum), more, rendezvous, credit, finished, piece, remote, control]
    }
}
