//! What holds packets back before a network ([`Admission`]), as `FI_WEIR_ADMIT` names it.

use weir_link::datagram::SendGate;
use weir_link::shm::node_segment::NodeHandle;

/// What holds packets back before a network (`FI_WEIR_ADMIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing.
    Off,
    /// A minimum delay between the packets of an endpoint.
    Rate,
    /// A bound for the datagrams of a node and job that no peer has acknowledged.
    Token,
}

impl Admission {
    /// The names.
    pub(super) const WORDS: [(&str, Admission); 3] =
        [("off", Admission::Off), ("rate", Admission::Rate), ("token", Admission::Token)];

    /// The name.
    pub(super) fn word(self) -> &'static str {
        Admission::WORDS.iter().find(|(_, admission)| *admission == self).map_or("", |(word, _)| word)
    }
}

impl super::Settings {
    /// The gate of an endpoint with a network. Endpoints of one job that have joined the same node segment share their
    /// tokens. `None`: all packets pass.
    pub fn send_gate(&self, node: Option<&NodeHandle>) -> Option<SendGate> {
        match self.admission {
            Admission::Off => None,
            Admission::Rate => Some(SendGate::with_delay(self.admission_delay_ns.into())),
            Admission::Token => Some(SendGate::with_tokens(self.admission_tokens, node)),
        }
    }
}
