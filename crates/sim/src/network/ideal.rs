//! The ideal network: a latency and a bandwidth between any two ranks, no contention. For questions about protocols and for speed.

use weir_proto::Geometry;

use super::{Hold, Injection, Network, Output, Outputs, Segment};
use crate::Picoseconds;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ideal {
    /// From the processor of one rank to the mailbox of another.
    pub latency_ps: Picoseconds,
    /// Time of a byte on the wire. Unit: ps per byte; 0: none.
    pub byte_ps: Picoseconds,
    /// What a slot holds.
    pub geometry: Geometry,
    packets: u64,
}

impl Ideal {
    /// A network with these parameters whose packets carry whole messages.
    pub fn new(latency_ps: Picoseconds, byte_ps: Picoseconds) -> Ideal {
        Ideal::with_geometry(latency_ps, byte_ps, WHOLE_MESSAGES)
    }

    /// The same with another geometry.
    pub fn with_geometry(latency_ps: Picoseconds, byte_ps: Picoseconds, geometry: Geometry) -> Ideal {
        Ideal { latency_ps, byte_ps, geometry, packets: 0 }
    }
}

/// A packet is a message: slots that hold the longest one that travels whole.
pub const WHOLE_MESSAGES: Geometry = Geometry {
    slot_bytes: weir_proto::MAX_EAGER_BYTES as u32,
    max_packet_slots: 1,
    eager_header_bytes: 0,
    more_header_bytes: 0,
    remote_header_bytes: 0,
    piggyback_bytes: 0,
};

impl Network for Ideal {
    type Event = ();

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn holds(&self) -> bool {
        false
    }

    #[inline]
    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<()>) -> Hold {
        let Injection { train, to, packets, payload_bytes, spacing_ps, .. } = injection;
        self.packets += u64::from(packets);
        let packet_ps = payload_bytes / u64::from(packets) * self.byte_ps;
        let spacing_ps = spacing_ps.max(packet_ps);
        let segment = Segment { train, to, first: 0, count: packets, spacing_ps };
        outputs.push(now + self.latency_ps + packet_ps, Output::Arrived(segment));
        Hold::Until(now + injection.spacing_ps * u64::from(packets))
    }

    fn get(
        &mut self,
        now: Picoseconds,
        to: u32,
        _from: u32,
        bytes: u64,
        number: u32,
        outputs: &mut Outputs<()>,
    ) {
        let done = now + 2 * self.latency_ps + super::bytes_ps(bytes, self.byte_ps);
        outputs.push(done, Output::GetDone { to, number });
    }

    fn handle(&mut self, _: Picoseconds, (): (), _: &mut Outputs<()>) {}

    fn one_way_ps(&self, _from: u32, _to: u32) -> Picoseconds {
        self.latency_ps
    }

    fn packet_hops(&self) -> u64 {
        self.packets
    }
}
