//! Capabilities, permitted flags and limits of the provider that several files need.

use crate::ffi::{caps, flags};

/// All capabilities.
pub const CAPS: u64 = PRIMARY | MODIFIERS | SECONDARY;
/// The capabilities of a program that requests none. Without atomics: MPICH and Intel MPI request all that they see here.
/// Without collectives: no MPI calls them.
pub const DEFAULT_CAPS: u64 = CAPS & !(caps::ATOMIC | caps::COLLECTIVE);
/// The same if a core provider with layers carries the packets. The program sees its layers too, since they would not find
/// each other otherwise, and MPICH 5 chooses the provider with the most capabilities: with atomics that is weir.
pub const DEFAULT_CAPS_OVER_LAYERS: u64 = DEFAULT_CAPS | caps::ATOMIC;
/// Capabilities that a program must request, unless it requests none at all.
pub const PRIMARY: u64 = COMMUNICATION | caps::DIRECTED_RECV;
/// Directions. Requesting none means all that apply.
pub const MODIFIERS: u64 = MESSAGE_MODIFIERS | REMOTE_MODIFIERS;
/// Directions of messages.
pub const MESSAGE_MODIFIERS: u64 = caps::SEND | caps::RECV;
/// Directions of remote accesses.
pub const REMOTE_MODIFIERS: u64 = caps::READ | caps::WRITE | caps::REMOTE_READ | caps::REMOTE_WRITE;
/// Capabilities that a program gets without a request, except [`caps::SOURCE`], which costs a look-up.
pub const SECONDARY: u64 = caps::MULTI_RECV | caps::SOURCE | DOMAIN_CAPS;
/// Capabilities of a domain.
pub const DOMAIN_CAPS: u64 = caps::LOCAL_COMM | caps::REMOTE_COMM;

/// Kinds of communication.
pub const COMMUNICATION: u64 = caps::MSG | caps::TAGGED | caps::RMA | caps::ATOMIC | caps::COLLECTIVE;
/// Capabilities of the transmit side.
pub const TX_CAPS: u64 = COMMUNICATION | caps::SEND | caps::READ | caps::WRITE | DOMAIN_CAPS;
/// Capabilities of the receive side.
pub const RX_CAPS: u64 = COMMUNICATION
    | caps::RECV
    | caps::REMOTE_READ
    | caps::REMOTE_WRITE
    | caps::DIRECTED_RECV
    | caps::MULTI_RECV
    | caps::SOURCE
    | DOMAIN_CAPS;

/// Default flags of transmit operations.
pub const TX_FLAGS: u64 = flags::COMPLETION
    | flags::INJECT
    | flags::INJECT_COMPLETE
    | flags::TRANSMIT_COMPLETE
    | flags::DELIVERY_COMPLETE
    | flags::MATCH_COMPLETE;
/// Default flags of receive operations.
pub const RX_FLAGS: u64 = flags::COMPLETION | flags::MULTI_RECV;
/// Flags of the calls `fi_sendmsg`, `fi_tsendmsg`, `fi_readmsg` and `fi_writemsg`. `FI_MORE` is only a hint.
pub const SEND_CALL_FLAGS: u64 = TX_FLAGS | flags::REMOTE_CQ_DATA | flags::MORE;
/// Flags of the calls `fi_atomicmsg`, `fi_fetch_atomicmsg` and `fi_compare_atomicmsg`. Atomics have no completion data.
pub const ATOMIC_CALL_FLAGS: u64 = TX_FLAGS | flags::MORE;
/// Flags of collective calls. `FI_SEND` and `FI_RECV` are those of broadcasts in older programs; the root decides.
pub const COLLECTIVE_CALL_FLAGS: u64 =
    TX_FLAGS & !flags::INJECT | flags::MORE | flags::SEND | flags::RECV | flags::COLLECTIVE;
/// Flags of the calls `fi_recvmsg` and `fi_trecvmsg`.
pub const RECEIVE_CALL_FLAGS: u64 = RX_FLAGS | flags::PEEK | flags::CLAIM | flags::DISCARD | flags::MORE;
/// Flags of sends whose completion promises that the message does not depend on the sender any more.
pub const DELIVERED_FLAGS: u64 = flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE;

/// Pieces of a scattered buffer.
pub const IOV_LIMIT: usize = 32;
/// Pieces of remote memory in one operation.
pub const RMA_IOV_LIMIT: usize = 1;
