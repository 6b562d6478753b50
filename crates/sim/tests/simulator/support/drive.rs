//! Drives a network model without a world, for tests of network models.

use weir_sim::network::{Injection, Network, Output, Outputs, Reminder, ScheduledOutput, TrainId};
use weir_sim::queue::Queue;

/// Calls `begin`, handles the events of the network, and returns the outputs in order of time with `begin`'s result.
pub fn drive<N: Network, R>(
    network: &mut N,
    begin: impl FnOnce(&mut N, &mut Outputs<N::Event>) -> R,
) -> (R, Vec<(u64, Output)>) {
    let (mut queue, mut outputs) = (Queue::new(), Outputs::default());
    let result = begin(network, &mut outputs);
    let mut announced = Vec::new();
    loop {
        for &Reminder { at, sequence, event } in outputs.reminders() {
            queue.push(at, sequence, event);
        }
        outputs.clear_reminders();
        let scheduled = outputs.take(0, Vec::new()).into_iter();
        announced.extend(scheduled.map(|ScheduledOutput { at, output, .. }| (at, output)));
        let Some((now, sequence, event)) = queue.pop() else { break };
        outputs.begin(now, sequence);
        network.handle(now, event, &mut outputs);
    }
    announced.sort_by_key(|&(at, _)| at);
    (result, announced)
}

/// A packet that leaves its processor at once.
pub fn packet(train: u32, from: u32, to: u32, payload_bytes: u64) -> Injection {
    Injection { train: TrainId(train), from, to, first: 0, packets: 1, payload_bytes, spacing_ps: 0 }
}
