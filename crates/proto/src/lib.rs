//! The protocol of weir: state machines that decide, without I/O, clock or randomness.
//!
//! [`Endpoint`] is the main machine. It takes one [`Event`] and calls the [`Driver`] that it is generic over: the
//! engine, the simulator, the search of the proof or a test. The machine names payloads and does not carry them. It
//! knows that bytes 0..2048 of request 7 go to peer 3. It does not know what these bytes are or where they lie in
//! memory. Offloaded operations are machines beside it ([`Machine`], [`offload`]). The rules of flow control are in
//! [`flow`], and the bytes of packet headers in [`wire`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod action;
pub mod admission;
mod broken;
mod config;
mod counters;
mod driver;
mod endpoint;
mod event;
pub mod flow;
mod machine;
pub mod mailbox;
mod message;
pub mod offload;
mod packet;
pub mod reliability;
pub mod table;
mod time;
mod timers;
mod transfer;
pub mod wire;

pub use action::{Action, Destination, Direction, Envelope, MemoryCopy, Outcome, Source};
pub use config::{
    AttachPolicy, Config, DataRegion, ENVELOPE_BYTES, FAR_EAGER_BYTES, Growth, MAX_CREDIT_SLOTS,
    MAX_EAGER_BYTES, MAX_REMOTE_OPERATIONS, MAX_UNEXPECTED, NO_ENVELOPE_BUDGET, PEER_BYTES, Scheme,
};
pub use counters::{Counters, PACKET_KINDS};
pub use driver::{Driver, LinkBusy, LinkDriver, OperationDriver, PayloadDriver, Recorder, TimeDriver};
pub use endpoint::budget::{envelope_cost_bytes, unexpected_block_bytes, unexpected_cost_bytes};
#[cfg(feature = "explore")]
pub use endpoint::canonical;
pub use endpoint::{Endpoint, HoldMutant, PairView, Refusal, Scratch, Undelivered};
pub use event::{
    BufferId, Command, CopyFault, Event, MessageCopy, MessageId, MultiSendCommand, Outgoing, Pattern,
    PeekThen, Peer, PeerFault, ReceiveCommand, RemoteCommand, Request, SendCommand, SendLevel, Transfer,
};
pub use machine::{Machine, MachineDriver, MachineEvent, Memory, Operand, Payload};
pub use packet::{AnnouncementMarks, Body, Geometry, Marks, PackedData, Packet, RemoteAddress, Space};
pub use time::Instant;
pub use timers::{MachineTimer, Purpose, Timer, TimerKey, TimerQueue};
