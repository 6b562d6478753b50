//! The reasons why an endpoint machine or an offloaded machine refuses a command of the program; most are bounds that
//! would be exceeded.

/// The reason why a posted command is refused. Nothing has changed then, and the command can be posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The driver holds as many operations as it can ([`crate::OperationDriver::can_hold`]).
    Operations,
    /// As many entries as allowed wait for credit at the peer ([`crate::Config::max_backlog`]).
    Backlog,
    /// As many remote reads and writes with the peer, atomics with it, or operations of the group as allowed are outstanding
    /// ([`crate::MAX_REMOTE_OPERATIONS`]).
    RemoteOperations,
    /// As many groups as allowed exist ([`crate::offload::group::MAX_GROUPS`]), or one with this number.
    Groups,
    /// An injected message does not fit into the bounce buffers ([`crate::Config::bounce_bytes`]).
    BounceBuffers,
    /// The driver acts early, and what the packet causes depends on the time ([`crate::LinkDriver::acts_early`]).
    Early,
}
