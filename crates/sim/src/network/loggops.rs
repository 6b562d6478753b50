//! LogGOPS: latency, overhead, gap and gap per byte; one NIC for each process, no contention in the network.
//!
//! Source: Hoefler, Schneider, Lumsdaine, "LogGOPSim: simulating large-scale applications in the LogGOPS
//! model", 2010. The overhead `o` of the model is a price of the processor, see [`Parameters::cost`]; `O` is
//! 0 here. As in LogGOPSim, a receiving processor is busy while the bytes arrive: `o + (s - 1) G`.

use weir_proto::Geometry;

use super::ideal::WHOLE_MESSAGES;
use super::{Hold, Injection, Network, Output, Outputs, TrainPart};
use crate::cost::Cost;
use crate::{Picoseconds, TIME_LIMIT};

/// The parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// `L`.
    pub latency_ps: Picoseconds,
    /// `o`.
    pub overhead_ps: Picoseconds,
    /// `g`.
    pub gap_ps: Picoseconds,
    /// `G`, per byte.
    pub gap_byte_ps: Picoseconds,
    /// `S`: longest eager message. Unit: bytes.
    pub eager_bytes: u64,
}

impl Parameters {
    /// The defaults of LogGOPSim.
    pub const DEFAULT: Parameters = Parameters {
        latency_ps: 2_500_000,
        overhead_ps: 1_500_000,
        gap_ps: 1_000_000,
        gap_byte_ps: 6_000,
        eager_bytes: 65_535,
    };

    /// The prices of the processor in this model.
    pub fn cost(&self) -> Cost {
        Cost {
            send_call_ps: self.overhead_ps,
            // With the copy of s bytes the sum is o + (s - 1) G.
            match_ps: self.overhead_ps - self.gap_byte_ps,
            copy_ps_per_kib: self.gap_byte_ps * 1024,
            ..Cost::FREE
        }
    }
}

/// The network.
#[derive(Clone, Debug)]
pub struct LogGops {
    parameters: Parameters,
    /// The time when the NIC of a process can take the next message, in each direction.
    outwards: Vec<Picoseconds>,
    inwards: Vec<Picoseconds>,
    messages: u64,
}

impl LogGops {
    /// A network of `ranks` processes.
    pub fn new(parameters: Parameters, ranks: u32) -> LogGops {
        let idle = vec![0; ranks as usize];
        LogGops { parameters, outwards: idle.clone(), inwards: idle, messages: 0 }
    }
}

impl Network for LogGops {
    type Event = ();

    fn geometry(&self) -> Geometry {
        WHOLE_MESSAGES
    }

    fn send_from(&self, from: u32) -> Picoseconds {
        self.outwards[from as usize]
    }

    fn inject(&mut self, now: Picoseconds, injection: Injection, outputs: &mut Outputs<()>) -> Hold {
        let Parameters { latency_ps, overhead_ps, gap_ps, gap_byte_ps, .. } = self.parameters;
        let Injection { train, from, to, first, payload_bytes, .. } = injection;
        self.messages += 1;
        let bytes_ps = super::bytes_ps(payload_bytes.saturating_sub(1), gap_byte_ps);
        // The processor spent the overhead before now. In the model the message starts with it.
        let start = (now - overhead_ps.min(now)).max(self.outwards[from as usize]);
        self.outwards[from as usize] = (start + gap_ps + bytes_ps).min(TIME_LIMIT);
        let inwards = &mut self.inwards[to as usize];
        let arrival = (start + overhead_ps + latency_ps).max(*inwards);
        *inwards = (arrival + gap_ps + bytes_ps).min(TIME_LIMIT);
        let part = TrainPart { train, to, first, count: 1, spacing_ps: 0 };
        outputs.push(arrival, Output::Arrived(part));
        Hold::Until(now)
    }

    fn get(&mut self, now: Picoseconds, to: u32, _: u32, bytes: u64, number: u32, outputs: &mut Outputs<()>) {
        let Parameters { latency_ps, gap_byte_ps, .. } = self.parameters;
        let done = now + 2 * latency_ps + super::bytes_ps(bytes, gap_byte_ps);
        outputs.push(done, Output::GetDone { to, number });
    }

    fn handle(&mut self, _: Picoseconds, (): (), _: &mut Outputs<()>) {}

    fn one_way_ps(&self, _from: u32, _to: u32) -> Picoseconds {
        self.parameters.latency_ps
    }

    fn packet_hops(&self) -> u64 {
        self.messages
    }
}
