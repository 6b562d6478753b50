//! The switch between the hosts: a port for each host, with a finite queue.
//!
//! A message that an adapter has served reaches the port towards its host. The port sends one after the other, each as
//! long as an adapter without congestion. A message that does not fit into the queue is lost, and the adapter of
//! its sender sends it again after a timeout, which doubles with each loss of the message. It stays outstanding, and holds its
//! tokens. Later messages of its pair wait at the receiver.
//!
//! ```text
//! adapter: queue --half of the latency--> port: queue --half of the latency--> mailbox, acknowledgement
//!    ^                                      | full
//!    +----- timeout, then again ------------+
//! ```
//! No rank has a congestion window: with few messages for each pair there is nothing that it could reduce.

use std::collections::{HashMap, VecDeque};

use super::{Event, Manycore, Outputs, Parameters, arrived};
use crate::Picoseconds;

/// The timeout of a message that is lost again and again doubles so often.
const MOST_DOUBLINGS: u32 = 6;

/// Parameters of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// What the queue of a port holds, with the message on the link. Unit: bytes.
    pub queue_bytes: u32,
    /// From the first loss of a message until its adapter has it again.
    pub resend_ps: Picoseconds,
}

/// The ports of the switch, and what has not arrived in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    /// By host: the time when its port has sent everything.
    free_at: Vec<Picoseconds>,
    /// Posts of each pair that its receiver has not got, in order.
    undelivered: HashMap<(u32, u32), VecDeque<u32>>,
    /// Messages that did not fit.
    pub losses: u64,
}

impl Ports {
    pub fn new(hosts: u32) -> Ports {
        Ports { free_at: vec![0; hosts as usize], ..Ports::default() }
    }

    /// A rank has handed over a message.
    pub fn note_post(&mut self, pair: (u32, u32), post: u32) {
        self.undelivered.entry(pair).or_default().push_back(post);
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.undelivered.is_empty()
    }
}

impl Manycore {
    /// A message reaches the port towards its host.
    pub(super) fn reaches(&mut self, now: Picoseconds, index: u32, outputs: &mut Outputs<Event>) {
        let Parameters { message_ps, byte_ps, latency_ps, switch, .. } = self.parameters;
        let (Some(switch), Some(ports)) = (switch, &mut self.ports) else { return };
        let message = &mut self.messages[index as usize];
        let to = self.posts[message.posts[0] as usize].injection.to;
        let free_at = &mut ports.free_at[(to / self.parameters.ranks_per_node) as usize];
        let queued_ps = free_at.saturating_sub(now);
        let message_ps = message_ps + crate::network::bytes_ps(message.bytes, byte_ps);
        if queued_ps > 0 && queued_ps + message_ps > u64::from(switch.queue_bytes) * byte_ps {
            ports.losses += 1;
            let doublings = message.losses.min(MOST_DOUBLINGS);
            message.losses += 1;
            return outputs.remind(now + (switch.resend_ps << doublings), Event::Resent(index));
        }
        *free_at = now + queued_ps + message_ps;
        outputs.remind(*free_at + latency_ps.div_ceil(2), Event::Completed(index));
    }

    /// The adapter has a lost message again.
    pub(super) fn resent(&mut self, now: Picoseconds, index: u32, outputs: &mut Outputs<Event>) {
        let host = self.host(self.messages[index as usize].injector);
        self.adapters[host as usize].queue.push_back(index);
        self.start(now, host, outputs);
    }

    /// A post has reached its receiver, which takes those of a pair in order.
    pub(super) fn deliver(&mut self, now: Picoseconds, post: u32, outputs: &mut Outputs<Event>) {
        self.posts[post as usize].has_arrived = true;
        let injection = self.posts[post as usize].injection;
        let pair = (injection.from, injection.to);
        loop {
            let Some(undelivered) = self.ports.as_mut().and_then(|ports| ports.undelivered.get_mut(&pair))
            else {
                return;
            };
            match undelivered.front() {
                Some(&first) if self.posts[first as usize].has_arrived => {
                    undelivered.pop_front();
                    outputs.push(now, arrived(&self.posts[first as usize].injection));
                    self.release(now, first, outputs);
                }
                Some(_) => return,
                None => {
                    self.ports.as_mut().expect("checked above").undelivered.remove(&pair);
                    return;
                }
            }
        }
    }
}
