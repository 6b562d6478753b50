//! The flood of `weir bench net`: several hosts send to one that does not receive for a while, more than its bound. The
//! program is that of `weir bench flood`, which measures the growth of the receiver, and checks every byte.
//!
//! The growth is judged by the bound of a receiver inside a host ([`ReceiverBound`] without datagrams), with the envelopes
//! of this flood, as far as there are any. Memory of the kernel is not part of it.

use crate::flood::{Case, Drain, Mode};
use serde::Serialize;
use weir_engine::config::{ReceiverBound, Settings};
use weir_link::shm;
use weir_output::Failure;
use weir_output::quantity::bytes;
use weir_proto::ENVELOPE_BYTES;

/// Bytes of a message. No contender announces it.
const MESSAGE_BYTES: u64 = 16 << 10;

/// The flood. With the default settings its payload is more than twice the bound, with --quick more than the bound.
pub fn case(quick: bool) -> Case {
    let messages = if quick { 1000 } else { 3000 };
    Case { senders: 3, messages, bytes: MESSAGE_BYTES, mode: Mode::Blocking, drain: Drain::Ordered }
}

/// What the receiver may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FloodBound {
    /// Payload of the flood. Unit: bytes.
    pub payload_bytes: u64,
    /// The bound of a receiver inside a host. Unit: bytes.
    pub bound_bytes: u64,
    /// What a receiver may keep in addition for datagrams that it has not read. Unit: bytes.
    pub datagram_bytes: u64,
}

impl FloodBound {
    /// The bound of a flood with these settings. `None`: a scheme without credits, which has no bound.
    ///
    /// # Errors
    /// As for [`Settings::receiver_bound`].
    pub fn new(case: &Case, settings: &Settings) -> Result<Option<FloodBound>, Failure> {
        let space = shm::file_system_space(&settings.shm_dir);
        let bound = settings.receiver_bound(case.senders + 1, true, space, shm::has_unlimited_memory)?;
        Ok(bound.map(|bound| FloodBound::of(case, &bound)))
    }

    fn of(case: &Case, bound: &ReceiverBound) -> FloodBound {
        let envelopes = (u64::from(case.senders) * case.messages).saturating_mul(ENVELOPE_BYTES);
        let envelopes = bound.envelopes.map_or(envelopes, |most| most.min(envelopes));
        let inside = ReceiverBound { envelopes: Some(envelopes), datagrams: 0, ..*bound };
        FloodBound {
            payload_bytes: case.payload_bytes(),
            bound_bytes: inside.bounded(),
            datagram_bytes: bound.datagrams,
        }
    }

    /// A line about it.
    pub fn note(&self, case: &Case) -> String {
        format!(
            "Flood: {}, {} in all. weir's receiver may grow by {} inside a host; across hosts by {} more, for datagrams.",
            case.describe(),
            bytes(self.payload_bytes),
            bytes(self.bound_bytes),
            bytes(self.datagram_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_has_the_envelopes_of_the_flood_and_no_datagrams() {
        let bound = ReceiverBound {
            mailbox: 1,
            payload: 10,
            envelopes: Some(1 << 30),
            peers: 100,
            spare: 1000,
            datagrams: 77,
        };
        let case = case(true);
        let of = |bound| FloodBound::of(&case, &bound);
        let expected = 1111 + 3000 * ENVELOPE_BYTES;
        assert_eq!((of(bound).bound_bytes, of(bound).datagram_bytes), (expected, 77));
        assert_eq!(of(ReceiverBound { envelopes: Some(5), ..bound }).bound_bytes, 1116);
        assert_eq!(of(ReceiverBound { envelopes: None, ..bound }).bound_bytes, expected, "no limit");
    }

    #[test]
    fn the_payload_is_more_than_the_bound_of_the_default_settings() {
        for (quick, times) in [(true, 1), (false, 2)] {
            let case = case(quick);
            let bound = FloodBound::new(&case, &Settings::default()).unwrap().unwrap();
            assert!(bound.payload_bytes > times * bound.bound_bytes, "{bound:?}");
        }
    }
}
