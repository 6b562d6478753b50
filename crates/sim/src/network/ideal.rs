//! The ideal network: the same latency and bandwidth between any two ranks, no contention. It serves questions about
//! protocols and about the speed of the simulator. [`WHOLE_MESSAGES`] is the geometry of networks whose packets are
//! messages.
//!
//! Packets of a pair of ranks keep their order: a short packet does not overtake a longer one that left earlier.

use weir_proto::Geometry;

use super::{Hold, Injection, Network, Output, Outputs, TrainPart};
use crate::Picoseconds;

/// The network with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Ideal {
    /// Time from the processor of one rank to the mailbox of another.
    pub latency_ps: Picoseconds,
    /// Time of a byte on the wire. Unit: ps per byte. 0: bytes take no time.
    pub byte_ps: Picoseconds,
    /// Slots and headers of a packet.
    pub geometry: Geometry,
    packets: u64,
    /// By sender: receivers to which a train travels that a shorter one could overtake, and the arrival of
    /// its last packet. Empty if bytes take no time.
    on_the_wire: Vec<Vec<(u32, Picoseconds)>>,
}

impl Ideal {
    /// A network with these parameters whose packets carry whole messages.
    pub fn new(latency_ps: Picoseconds, byte_ps: Picoseconds) -> Ideal {
        Ideal::with_geometry(latency_ps, byte_ps, WHOLE_MESSAGES)
    }

    /// The same with another geometry.
    pub fn with_geometry(latency_ps: Picoseconds, byte_ps: Picoseconds, geometry: Geometry) -> Ideal {
        Ideal { latency_ps, byte_ps, geometry, packets: 0, on_the_wire: Vec::new() }
    }

    /// Arrival of the first packet of a train that would arrive at `at`, and whose last packet arrives
    /// `last_ps` later. It is not earlier than the arrival of earlier packets of the pair.
    fn in_order(
        &mut self,
        now: Picoseconds,
        at: Picoseconds,
        last_ps: Picoseconds,
        pair: (u32, u32),
    ) -> Picoseconds {
        let (from, to) = pair;
        if self.on_the_wire.len() <= from as usize {
            self.on_the_wire.resize_with(from as usize + 1, Vec::new);
        }
        let trains = &mut self.on_the_wire[from as usize];
        // A packet that leaves now or later arrives at least one latency from now.
        trains.retain(|(_, last_at)| *last_at > now + self.latency_ps);
        let Some((_, last_at)) = trains.iter_mut().find(|(other, _)| *other == to) else {
            trains.push((to, at + last_ps));
            return at;
        };
        let at = at.max(*last_at);
        *last_at = at + last_ps;
        at
    }
}

/// A packet is a whole message: a slot holds the longest eager message.
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
        let Injection { train, from, to, first, packets, payload_bytes, spacing_ps } = injection;
        self.packets += u64::from(packets);
        let packet_ps = payload_bytes / u64::from(packets) * self.byte_ps;
        let spacing_ps = spacing_ps.max(packet_ps);
        let part = TrainPart { train, to, first, count: packets, spacing_ps };
        let mut at = now + self.latency_ps + packet_ps;
        if self.byte_ps > 0 {
            at = self.in_order(now, at, u64::from(packets - 1) * spacing_ps, (from, to));
        }
        outputs.push(at, Output::Arrived(part));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::TrainId;

    #[test]
    fn a_short_train_does_not_overtake_a_long_one_of_its_pair() {
        let mut ideal = Ideal::new(1000, 10);
        let mut outputs = Outputs::default();
        let mut inject = |now, train, to, packets, payload_bytes| {
            let train = TrainId(train);
            let injection = Injection { train, from: 0, to, first: 0, packets, payload_bytes, spacing_ps: 1 };
            ideal.inject(now, injection, &mut outputs);
        };
        inject(0, 0, 1, 2, 200); // packets of 1000 ps each, at 2000 and 3000 ps
        inject(2, 1, 2, 1, 0); // another pair
        inject(2, 2, 1, 1, 0); // would arrive at 1002 ps
        inject(2100, 3, 1, 1, 0); // the wire is empty again
        let arrivals: Vec<_> = outputs.take(0, Vec::new()).iter().map(|output| output.at).collect();
        assert_eq!(arrivals, [2000, 1002, 3000, 3100]);
    }
}
