//! The memory of peers over a core provider ([`NetworkMemory`]). Copies are in `copies`; here are their ends and the ends of
//! peers.

use super::copies::Ended;
use super::network::OfiNetwork;
use super::place::OfiPlace;
use crate::datagram::network::NetworkMemory;
use crate::memory::UserMemory;
use crate::{CopyStatus, LocalHandle, MemoryAttributes, PeerAccess, Registration, RemoteCopy};
use std::time::{Duration, Instant};
use weir_proto::{CopyFault, RemoteAddress};

/// Bound on the copies under way with one peer.
const COPIES_PER_PEER: u32 = 8;
/// The time in which the core must end copies with a lost peer.
const END_TIME: Duration = Duration::from_millis(200);

impl OfiNetwork {
    /// Ends the copies that `forgets`. If the core does not, its endpoint is closed, and with it every peer is lost: the memory
    /// of the copies goes back to the program.
    fn forget_copies(&mut self, forgets: impl Fn(OfiPlace) -> bool) {
        let OfiNetwork { endpoint, copies, .. } = self;
        let Some(core) = endpoint.memory() else { return };
        let mut begun = None;
        while copies.forget(&forgets, core) {
            if begun.get_or_insert_with(Instant::now).elapsed() > END_TIME {
                core.close();
                copies.core_has_closed();
                copies.forget(&forgets, core);
                self.is_closed = true;
                return;
            }
            core.progress();
        }
    }
}

impl NetworkMemory<OfiPlace> for OfiNetwork {
    fn attributes(&self) -> MemoryAttributes {
        MemoryAttributes { domain: 0, registers: true, copies_per_peer: COPIES_PER_PEER, needs_owner: false }
    }

    /// Memory without rights for peers is only registered if the core asks for that.
    fn register(&mut self, memory: &UserMemory, access: PeerAccess) -> Result<Registration, CopyFault> {
        let core = self.endpoint.memory().ok_or(CopyFault::Forbidden)?;
        if access == PeerAccess::default() && !core.registers_own() {
            return Ok(Registration { domain: 0, handle: None, remote: RemoteAddress::NONE });
        }
        let (handle, remote) = core.register(memory, access).ok_or(CopyFault::BadAddress)?;
        Ok(Registration { domain: 0, handle: Some(handle), remote })
    }

    fn deregister(&mut self, registration: &Registration) {
        if let Some(core) = self.endpoint.memory()
            && let Some(handle) = registration.handle
        {
            core.deregister(handle);
        }
    }

    fn start(
        &mut self,
        place: OfiPlace,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        let target = self.target(place);
        let peer = target.address.filter(|_| !target.has_failed).ok_or(CopyFault::BadAddress)?;
        if copy.remote.key == 0 {
            return Err(CopyFault::BadAddress); // the peer's core has not registered it
        }
        let OfiNetwork { endpoint, copies, .. } = self;
        let core = endpoint.memory().ok_or(CopyFault::Forbidden)?;
        copies.start((place, peer), copy, memory, handle, core);
        Ok(CopyStatus::Pending)
    }

    /// A copy that the core has not made says that nothing reaches the peer any more, as a message does that was not delivered.
    /// Meanwhile packets carry it.
    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        let OfiNetwork { endpoint, copies, .. } = self;
        let Ended { context, place, result } = copies.next_ended(endpoint.memory()?)?;
        match result {
            Ok(bytes) => {
                self.traffic.copies += 1;
                self.traffic.copied_bytes += bytes;
            }
            Err(_) => self.note_failure(place),
        }
        Some((context, result.map(drop)))
    }

    /// Where the core has no descriptor, the network's deadline ends a sleep.
    fn must_poll(&self) -> bool {
        self.copies.must_poll()
    }

    fn forget(&mut self, place: OfiPlace) {
        self.forget_copies(|other| other == place);
    }

    fn forget_all(&mut self) {
        self.forget_copies(|_| true);
    }
}
