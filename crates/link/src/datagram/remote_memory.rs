//! Access to the memory of peers ([`RemoteMemory`]), over a network that has it.
//!
//! | protection of the path | copies |
//! |---|---|
//! | none | by the network itself, if it can: their bytes are whatever it makes of them |
//! | any | beside packets ([`super::contents`]), if they are read; packets carry what is written |
//!
//! An endpoint without protection registers its memory with the network, so peers with protection have packets.

use super::link::DatagramLink;
use super::network::{DatagramNetwork, NetworkMemory};
use crate::memory::UserMemory;
use crate::{
    CopyStatus, LocalHandle, MemoryAttributes, PeerAccess, Protection, Registration, RemoteCopy, RemoteMemory,
};
use weir_proto::{CopyFault, Peer};

impl<N: DatagramNetwork> DatagramLink<N> {
    /// The memory of the network, if this endpoint wants no protection.
    fn memory(&mut self) -> Option<&mut dyn NetworkMemory<N::Place>> {
        let is_open = self.address.protection_with(&self.address) == Protection::Off;
        if is_open { self.shared.network.memory() } else { None }
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
        self.contents.forget(id);
    }
}

impl<N: DatagramNetwork> RemoteMemory for DatagramLink<N> {
    fn attributes(&mut self, peer: Peer) -> Option<MemoryAttributes> {
        let is_unprotected = self.unprotected_place(peer).is_some();
        match self.memory().filter(|_| is_unprotected) {
            Some(network) => Some(network.attributes()),
            None => self.contents_attributes(peer),
        }
    }

    fn register(
        &mut self,
        domain: u32,
        memory: &UserMemory,
        access: PeerAccess,
    ) -> Result<Registration, CopyFault> {
        let registration = match self.memory() {
            Some(network) => network.register(memory, access)?,
            None => self.register_contents(memory, access)?,
        };
        Ok(Registration { domain, ..registration })
    }

    fn deregister(&mut self, registration: &Registration) {
        match (self.memory(), registration.handle) {
            (Some(network), _) => network.deregister(registration),
            (None, Some(handle)) => self.deregister_contents(handle),
            (None, None) => {}
        }
    }

    fn start(
        &mut self,
        copy: &RemoteCopy,
        memory: &UserMemory,
        handle: Option<LocalHandle>,
    ) -> Result<CopyStatus, CopyFault> {
        if let Some(place) = self.unprotected_place(copy.peer)
            && let Some(network) = self.memory()
        {
            return network.start(place, copy, memory, handle);
        }
        self.start_contents(copy, memory)
    }

    fn next_result(&mut self) -> Option<(u64, Result<(), CopyFault>)> {
        match self.memory() {
            Some(network) => network.next_result(),
            None => self.next_contents_result(),
        }
    }

    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.contents.has_moved)
    }

    fn must_poll(&mut self) -> bool {
        let now = self.shared.network.now();
        self.contents.must_poll(now) || self.memory().is_some_and(|network| network.must_poll())
    }
}
