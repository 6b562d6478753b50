//! Traffic without a protocol: measures what a network model costs by itself.
//!
//! Every rank sends trains to other ranks as fast as the network takes them. The receiver retrieves each packet at
//! once. There are no endpoints, programs or credits: only the network and the event queue work. `weir bench sim` and
//! tests of networks use this module.
//!
//! ```text
//! Send(3)       rank 3 injects train 17 for rank 8; its processor is busy for 3.7 us, or until the network releases it
//! Network(..)   an event of the network, such as one hop
//! Arrived       packets of the train stand in the mailbox of rank 8, which retrieves them
//! ```

use crate::Picoseconds;
use crate::network::{
    Hold, Injection, Network, Output, Outputs, Reminder, ScheduledOutput, TrainId, TrainPart,
};
use crate::queue::{Queue, Source};
use crate::trace::Trace;

/// The traffic of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Ranks.
    pub ranks: u32,
    /// Trains that each rank sends, to ranks at evenly spread distances. Fewer than `ranks`.
    pub trains: u32,
    /// Packets of a train.
    pub packets: u32,
    /// Payload of a packet. Unit: bytes.
    pub packet_bytes: u32,
    /// Time between two packets of a train that leave the processor.
    pub spacing_ps: Picoseconds,
}

/// Result of [`Traffic::run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficReport {
    /// Packets that arrived.
    pub packets: u64,
    /// Packets that were dropped.
    pub drops: u64,
    /// Packets that arrived with a mark.
    pub marks: u64,
    /// Packets that crossed a wire, summed over all wires.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// Arrival of the last packet.
    pub finished_at: Picoseconds,
    /// Hash of all arrivals in order.
    pub trace: u64,
}

enum Event<E> {
    Send(u32),
    Network(E),
    Arrived { to: u32, count: u32 },
}

impl<E: Copy> Copy for Event<E> {}

impl<E: Copy> Clone for Event<E> {
    fn clone(&self) -> Event<E> {
        *self
    }
}

impl Traffic {
    /// Runs the traffic over `network` until every packet has arrived.
    ///
    /// # Panics
    /// Panics unless there are fewer trains for each rank than ranks.
    pub fn run<N: Network>(&self, mut network: N) -> TrafficReport {
        let Traffic { ranks, trains, packets, packet_bytes, spacing_ps } = *self;
        assert!(trains >= 1 && trains < ranks, "{trains} trains to others among {ranks} ranks");
        let stride = (ranks - 1) / trains;
        let (mut queue, mut outputs) = (Queue::new(), Outputs::default());
        let mut scheduled = Vec::new();
        let (mut sent, mut carried, mut trace) =
            (vec![0; ranks as usize], TrafficReport::default(), Trace::default());
        (0..ranks).for_each(|rank| {
            outputs.act_as(Source::rank(rank));
            queue.push(0, outputs.draw(0), Event::Send(rank));
        });
        while let Some((now, sequence, event)) = queue.pop() {
            outputs.begin(now, sequence);
            match event {
                Event::Send(rank) | Event::Arrived { to: rank, .. } => {
                    outputs.act_as(Source::rank(rank));
                }
                Event::Network(_) => {} // the network acts as its element
            }
            carried.events += 1;
            match event {
                Event::Send(rank) if sent[rank as usize] == trains => {}
                Event::Send(rank) if network.send_from(rank) > now => {
                    let at = network.send_from(rank);
                    queue.push(at, outputs.draw(at), Event::Send(rank));
                }
                Event::Send(rank) => {
                    let number = sent[rank as usize];
                    sent[rank as usize] += 1;
                    let injection = Injection {
                        train: TrainId(rank * trains + number),
                        from: rank,
                        to: (rank + 1 + number * stride) % ranks,
                        first: 0,
                        packets,
                        payload_bytes: u64::from(packets) * u64::from(packet_bytes),
                        spacing_ps,
                    };
                    if let Hold::Until(free_at) = network.inject(now, injection, &mut outputs) {
                        queue.push(free_at, outputs.draw(free_at), Event::Send(rank));
                    }
                }
                Event::Network(event) => network.handle(now, event, &mut outputs),
                Event::Arrived { to, count } => {
                    carried.packets += u64::from(count);
                    carried.finished_at = now;
                    trace.note(now);
                    trace.note(u64::from(to) << 32 | u64::from(count));
                    (0..count).for_each(|_| network.retrieved(now, to, &mut outputs));
                }
            }
            for &Reminder { at, sequence, event } in outputs.reminders() {
                queue.push(at, sequence, Event::Network(event));
            }
            outputs.clear_reminders();
            if outputs.count() == 0 {
                continue;
            }
            scheduled = outputs.take(0, scheduled);
            for ScheduledOutput { at, sequence, output } in scheduled.drain(..) {
                let event = match output {
                    Output::Arrived(TrainPart { to, count, .. }) => Event::Arrived { to, count },
                    Output::Marked(TrainPart { to, count, .. }) => {
                        carried.marks += u64::from(count);
                        Event::Arrived { to, count }
                    }
                    Output::Dropped(TrainPart { count, .. }) => {
                        carried.drops += u64::from(count);
                        continue;
                    }
                    Output::Released { rank } => Event::Send(rank),
                    Output::GetDone { .. } | Output::PathEnded { .. } => {
                        unreachable!("this traffic has no gets, and no path of it is silent")
                    }
                };
                queue.push(at, sequence, event);
            }
        }
        TrafficReport { packet_hops: network.packet_hops(), trace: trace.hash(), ..carried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ideal::Ideal;
    use crate::network::infiniband::{InfiniBand, Parameters};
    use crate::network::loggops::{self, LogGops};
    use weir_proto::Geometry;

    #[test]
    fn every_packet_arrives_once() {
        let traffic = Traffic { ranks: 8, trains: 7, packets: 37, packet_bytes: 56, spacing_ps: 100_000 };
        let ideal = traffic.run(Ideal::with_geometry(1_000_000, 0, Geometry::EXTOLL));
        assert_eq!((ideal.packets, ideal.packet_hops), (8 * 7 * 37, 8 * 7 * 37));
        // The last train leaves behind six others, and its first packet travels for one latency.
        assert_eq!(ideal.finished_at, 6 * 37 * 100_000 + 1_000_000);
        let infiniband = traffic.run(InfiniBand::new(Parameters::CLUSTER_2003));
        assert_eq!((infiniband.packets, infiniband.packet_hops), (8 * 7 * 37, 4 * 8 * 7 * 37));
        let messages = Traffic { packets: 1, ..traffic };
        let loggops = messages.run(LogGops::new(loggops::Parameters::DEFAULT, 8));
        assert_eq!((loggops.packets, loggops.packet_hops), (8 * 7, 8 * 7));
    }
}
