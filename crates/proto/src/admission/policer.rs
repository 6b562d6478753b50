//! Policer: whether a message may pass at once, or what has to be avoided. The thresholds are numbers that somebody has
//! measured for this machine and link. Source: Luo et al., Algorithm 1.

use super::Steps;
use super::mutant::{Broken, Mutant};

/// Thresholds of congestion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// CCT, by size in bytes: from so many active tasks on, throughput of blocking communication falls.
    pub tasks: Steps<u32>,
    /// NRCT, by size in bytes: so many outstanding messages of the node give the highest throughput.
    pub node_messages: Steps<u32>,
    /// CRCT, by number of active tasks, then by size in bytes: the same for the messages of each task.
    pub task_messages: Steps<Steps<u32>>,
}

/// What the node knows when a task wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tasks with outstanding or waiting messages, and the one that asks.
    pub active_tasks: u32,
    /// Outstanding messages of the node.
    pub node_messages: u32,
    /// Outstanding messages of the task.
    pub own_messages: u32,
}

/// What the policer says about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No congestion: it passes at once.
    Inject,
    /// Too many messages are outstanding.
    AvoidRate,
    /// Too many tasks are active, and perhaps too many messages outstanding.
    AvoidBoth,
}

impl Thresholds {
    /// Algorithm 1.
    pub fn advise(&self, load: Load, bytes: u32) -> Advice {
        self.advise_as(load, bytes, Broken::default())
    }

    pub(super) fn advise_as(&self, load: Load, bytes: u32, broken: Broken) -> Advice {
        let Load { active_tasks, node_messages, own_messages } = load;
        if active_tasks >= *self.tasks.at(bytes) {
            return Advice::AvoidBoth;
        }
        let node_has_room =
            node_messages < *self.node_messages.at(bytes) || broken.has(Mutant::NodeMessagesDoNotCount);
        let task_has_room = own_messages < *self.task_messages.at(active_tasks).at(bytes);
        if node_has_room && task_has_room { Advice::Inject } else { Advice::AvoidRate }
    }
}
