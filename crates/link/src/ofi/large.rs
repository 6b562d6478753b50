//! Large messages of a core provider as those of the network ([`LargeMessages`]).

use super::core_endpoint::Sent;
use super::network::OfiNetwork;
use super::place::OfiPlace;
use crate::datagram::network::LargeMessages;

impl LargeMessages<OfiPlace> for OfiNetwork {
    fn longest(&self) -> usize {
        self.longest_large
    }

    fn begin(&mut self) -> usize {
        self.endpoint.large().map_or(0, |core| core.begin())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8])) {
        if let Some(core) = self.endpoint.large() {
            core.receive(take);
        }
    }

    fn send(&mut self, to: OfiPlace, write: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let target = self.target(to);
        let address = target.address.filter(|_| !target.has_failed);
        let sent = match (address, self.endpoint.large()) {
            (Some(address), Some(core)) => core.send(address, write),
            _ => Sent::Failed,
        };
        sent != Sent::Busy
    }
}
