//! What the endpoint counts, for the report of `weir run`.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Totals since the endpoint was made. Plain numbers; the machine adds, drivers read.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64),+ }
        impl Counters {
            /// Names of the counters, in the order of [`Counters::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];
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
    /// Their bytes.
    bytes_sent,
    /// Messages received into a buffer of the program.
    messages_received,
    /// Their bytes.
    bytes_received,
    /// Remote reads and writes begun.
    remote_operations,
    /// Their bytes.
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
    /// Peers that were told to give back credits.
    return_requests_sent,
    /// Credits given back because a peer told us to. Unit: slots.
    credits_given_back,
    /// Time in which some message waited for credit, summed over peers. Unit: ns.
    stalled_ns,
    /// How often a peer's queue began to wait for credit.
    stalls,
    /// Messages that were pulled instead of sent whole.
    rendezvous_sent,
    /// Copies between processes without the mailbox.
    cross_memory_copies,
    /// Their bytes.
    cross_memory_bytes,
    /// The most unexpected messages at a time.
    peak_unexpected_messages,
    /// The most unexpected payload kept at a time. Unit: bytes.
    peak_unexpected_bytes,
    /// Packets that were refused as malformed.
    malformed_packets,
    /// Peers lost.
    peers_lost,
}
