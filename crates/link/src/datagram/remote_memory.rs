//! Access to the memory of peers over a network that has it ([`RemoteMemory`]). The link protects packets and nothing else: the
//! bytes of a copy are whatever the network makes of them. So only peers of paths without protection have it.

use super::link::DatagramLink;
use super::network::{DatagramNetwork, NetworkMemory};
use crate::memory::UserMemory;
use crate::{
    CopyStatus, LocalHandle, MemoryAttributes, PeerAccess, Protection, Registration, RemoteCopy, RemoteMemory,
};
use weir_proto::{CopyFault, Peer};

impl<N: DatagramNetwork> DatagramLink<N> {
    fn memory(&mut self) -> Result<&mut dyn NetworkMemory<N::Place>, CopyFault> {
        self.shared.network.memory().ok_or(CopyFault::Forbidden)
    }

    /// The place of `peer`, if nothing protects the path to it.
    fn unprotected_place(&self, peer: Peer) -> Option<N::Place> {
        let path = self.paths.get(self.id_of(peer)? as usize)?.as_deref()?;
        let protection = self.address.protection_with(&path.io.address);
        (protection == Protection::Off).then_some(path.io.place)
    }

    /// Ends all copies with the peer of a path.
    pub(super) fn forget_copies(&mut self, id: u32) {
        let Some(place) = self.path(id).map(|path| path.io.place) else { return };
        if let Some(memory) = self.shared.network.memory() {
            memory.forget(place);
        }
    }
}

impl<N: DatagramNetwork> RemoteMemory for DatagramLink<N> {
    fn attributes(&mut self, peer: Peer) -> Option<MemoryAttributes> {
        self.unprotected_place(peer)?;
        Some(self.shared.network.memory()?.attributes())
    }

    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        Ok(Registration { domain, ..self.memory()?.register(memory, access)? })
    }

    fn deregister(&mut self, registration: &Registration) {
        if let Some(memory) = self.shared.network.memory() {
            memory.deregister(registration);
        }
    }

    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        let place = self.unprotected_place(copy.peer).ok_or(CopyFault::Forbidden)?;
        self.memory()?.start(place, copy, memory, handle)
    }

    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        self.shared.network.memory()?.next_result()
    }

    fn must_poll(&mut self) -> bool {
        self.shared.network.memory().is_some_and(|memory| memory.must_poll())
    }
}
