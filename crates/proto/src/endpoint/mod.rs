//! The endpoint machine: this file routes events to the parts that decide.
//!
//! It knows peers as numbers, requests as the driver's handles, and payload as offsets. It does not know pointers,
//! clocks, or the layout of a slot. Addresses of memory pass through it unread.
//!
//! The machine has three parts, which own all state: [`paths::Paths`] (peers, credits, backlogs),
//! [`payloads::Payloads`] (what peers can name) and [`matching::Matching`] (receives and messages). [`state::Endpoint`]
//! holds them.
//!
//! A file uses only files of lower layers (`tools/file_circles.py`). From bottom to top:
//! ```text
//! values      refusal, leases, origin, path, backlog, acks, compulsory, bounce, hold_mutant, hold_queue, pending, budget,
//!             peer_entry, compact_entry, peers, inbound, multi_receive, holders
//! parts       payloads, paths, matching
//! paths       held_answers, transmit, credits, lane_lease, busy_link, rnr, receiver_memory
//! machine     state
//! messages    sending, copies, receiving, asking, announced, posting, loss, remote, outgoing, arrivals, fast_path;
//!             view, undelivered, canonical
//! router      this file
//! ```
//!
//! Worked exchange, 4 credits, an 8 B message to a new peer:
//! ```text
//! handle(Posted(Send { request 0, to 1, 8 bytes }))   driver.hold(0), driver.connect(1)
//! handle(Connected { peer 1, 4 slots })               driver.transmit(Eager, 8 bytes), driver.complete(0, Done)
//! at the peer: handle(Arrived { Eager })              driver.deliver_packet(3, 8 bytes), driver.retire()
//! ```

mod acks;
mod announced;
mod arrivals;
mod asking;
mod backlog;
mod bounce;
pub mod budget;
mod busy_link;
#[cfg(feature = "explore")]
pub mod canonical;
mod compact_entry;
mod compulsory;
mod copies;
mod credits;
mod fast_path;
mod held_answers;
mod hold_mutant;
mod hold_queue;
mod holders;
mod inbound;
mod lane_lease;
mod leases;
mod loss;
mod matching;
mod multi_receive;
#[cfg(feature = "explore")]
mod origin;
mod outgoing;
mod path;
mod paths;
mod payloads;
mod peer_entry;
mod peers;
mod pending;
mod posting;
mod receiver_memory;
mod receiving;
mod refusal;
mod remote;
mod rnr;
mod sending;
mod state;
#[cfg(test)]
mod tests;
mod transmit;
mod undelivered;
mod view;

use crate::driver::Driver;
use crate::event::{Command, Event};
use crate::flow;
use crate::timers::{Purpose, Timer};
pub use hold_mutant::HoldMutant;
pub use paths::Scratch;
pub use refusal::Refusal;
pub use state::Endpoint;
pub use undelivered::Undelivered;
pub use view::PairView;

impl Endpoint {
    /// Handles one event: calls `driver` for each thing to be done, in order. The common events are inlined into the
    /// caller, so that a driver that acts at once needs no list of actions.
    ///
    /// # Errors
    /// [`Refusal`]: a posted send, receive, read or write exceeds a bound, or a driver that acts early passes a packet
    /// too early. Then nothing has changed. No other event is refused.
    #[inline(always)]
    pub fn handle<D: Driver>(&mut self, event: Event<'_>, driver: D) -> Result<(), Refusal> {
        match event {
            Event::Posted(Command::Send(send)) => self.send(send, driver),
            Event::Posted(Command::Receive(receive)) => self.receive(receive, driver),
            Event::Arrived { from, packet } => self.arrived(from, packet, driver),
            event => self.handle_uncommon(event, driver),
        }
    }

    #[inline(never)]
    fn handle_uncommon<D: Driver>(&mut self, event: Event<'_>, mut driver: D) -> Result<(), Refusal> {
        let driver = &mut driver;
        let Endpoint { paths, payloads, .. } = self;
        match event {
            Event::Posted(command) => self.command(command, driver)?,
            Event::Arrived { .. } => unreachable!("arrivals are common events"),
            Event::PathGeometry { peer, geometry } => paths.set_geometry(peer, geometry),
            Event::Connected { peer, quota_slots, start_slots, credit_slots, epoch } => {
                let sender = flow::Sender::new(paths.config.scheme, quota_slots, start_slots);
                paths.connected(peer, sender, credit_slots, epoch, payloads, driver);
            }
            Event::DetachRequested { peer } => {
                paths.flush_acks_to(peer, payloads, driver);
                paths.detach(peer, payloads, driver);
            }
            Event::Attached { peer, quota_slots, start_slots, epoch } => {
                paths.attached(peer, (quota_slots, start_slots), epoch, payloads, driver);
            }
            Event::Room { peer, slots } => {
                if let Some(fault) = paths.room_answered(peer, slots, payloads, driver) {
                    self.lose(peer, fault, driver);
                }
            }
            Event::CopyDone { transfer, result } => self.copy_done(transfer, result, driver),
            Event::CreditsDue { peer } => {
                if !paths.pool.breaks(flow::Mutant::CreditsDueAreIgnored) {
                    paths.return_credits(peer, driver);
                }
            }
            Event::LinkReady { peer } => paths.link_ready(peer, payloads, driver),
            Event::Lost { peer, fault } => self.lose(peer, fault, driver),
            Event::TimerExpired(Timer { peer, purpose: Purpose::Rnr }) => paths.retry(peer, driver),
            Event::Outgoing(outgoing) => self.send_outgoing(outgoing, driver),
            Event::PostedCopies(multi_send) => self.send_copies(multi_send, driver)?,
            Event::Idle => {
                paths.flush_acks(payloads, driver);
                if let Some(peer) = paths.pool.next_deferred() {
                    paths.return_credits(peer, driver);
                }
            }
        }
        self.paths.send_return_requests(&mut self.payloads, driver);
        Ok(())
    }

    fn command<D: Driver>(&mut self, command: Command, driver: &mut D) -> Result<(), Refusal> {
        match command {
            Command::Send(_) | Command::Receive(_) => unreachable!("sends and receives are common events"),
            Command::Peek { request, pattern, then } => self.peek(request, &pattern, then, driver),
            Command::ReceiveClaimed { request, message, capacity_bytes } => {
                self.receive_claimed(request, message, capacity_bytes, driver);
            }
            Command::DiscardClaimed { request, message } => self.discard(request, message, driver),
            Command::Cancel { request } => self.matching.cancel(request, driver),
            Command::Read(read) => self.read(read, driver)?,
            Command::Write(write) => self.write(write, driver)?,
            Command::RegisterMemory { key, bytes, readable, writable } => {
                self.payloads.register(key, bytes, readable, writable);
            }
            Command::DeregisterMemory { key } => self.payloads.deregister(key),
            Command::Close => self.close(driver),
        }
        if self.matching.holders.exist() {
            self.resume_holders(driver);
        }
        Ok(())
    }
}
