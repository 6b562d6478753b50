//! The keys of a network of hosts with many ranks in network files, and the model that they describe.

use super::{Nanoseconds, NetworkInfo, NetworkKeys, Nodes, Shape, TIME};
use crate::keys::Value;
use crate::network::manycore::{Admission, Manycore, Parameters, Switch};

const MANY: Value = Value::Number { unit: "a whole number", least: 0 };
const ONE: Value = Value::Number { unit: "a whole number", least: 1 };

keys! {
    /// Keys of `[network]`.
    ManycoreKeys {
        hosts: u32 = Value::Words("hosts, 1 to 1048576"), "2", "Hosts.";
        latency_ns: Nanoseconds = TIME, "1000.0",
            "From the adapter to the mailbox of another host. Then the message is no more outstanding.";
        message_ns: Nanoseconds = TIME, "100.0", "Time of the adapter for a message without congestion.";
        byte_ns: Nanoseconds = TIME, "1.0", "The same for each of its bytes.";
        local_ns: Nanoseconds = TIME, "100.0", "From rank to rank within a host, beside `byte_ns` for each byte.";
        free_ranks: u32 = ONE, "16", "Ranks whose states the adapter can hold: so many inject without slowing it down.";
        rank_miss_permille: u32 = MANY, "2000",
            "Time to fetch the state of a rank, of the time of a message without congestion. Unit: thousandths.";
        free_messages: u32 = ONE, "32",
            "Messages whose states it can hold: so many are outstanding without slowing it down.";
        message_miss_permille: u32 = MANY, "5000",
            "Time to fetch the state of a message, of the time of a message without congestion. Unit: thousandths.";
        port_queue_bytes: u32 = MANY, "0",
            "Queue of each port of the switch between the hosts. What does not fit is lost and sent again; 0: no limit.";
        resend_ns: Nanoseconds = TIME, "0.0",
            "From a loss until the adapter has the message again. It doubles with each loss of the message, up to 64 times.";
        rate_delay_ns: u64 = MANY, "0", "Gate: rate control, the least time between two messages of a rank; 0: none.";
        tokens: u32 = MANY, "0", "Gate: tokens of a host; 0: no token control.";
        bytes_per_token: u32 = MANY, "0", "Gate: bytes of a message for each token; 0: one token for each message.";
        servers: u32 = MANY, "0", "Gate: ranks of a host that can serve others at a time; 0: no proxy.";
        combine_bytes: u32 = MANY, "0",
            "Gate: a server sends messages to one host together up to so many bytes; 0: each alone.";
        drains: u32 = MANY, "0", "Gate: 1: a server empties the queue of a rank before the next.";
        most_ranks: u32 = MANY, "0",
            "Gate: with fewer active ranks a message can pass at once (CCT); 0: all messages are controlled.";
        most_node_messages: u32 = MANY, "0", "Gate: and with fewer outstanding messages of the host (NRCT).";
        most_rank_messages: u32 = MANY, "0", "Gate: and with fewer of the rank (CRCT).";
        gate_ns: Nanoseconds = TIME, "0.0", "Gate: time of a rank for each message.";
        serve_ns: Nanoseconds = TIME, "0.0", "Gate: time of a server for each message that it takes from a queue.";
    }
}

impl NetworkKeys for ManycoreKeys {
    type Network = Manycore;

    const INFO: NetworkInfo = NetworkInfo {
        name: "manycore",
        about: "Hosts with many ranks and one adapter that congests, with congestion avoidance before it.",
        page: "explanation/fidelity/manycore.md",
        keys: ManycoreKeys::KEYS,
        nodes: Nodes::Hosts,
        geometry: None,
        repairs: false,
        has_cost: true,
        assumes_receive_call: false,
    };

    fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=crate::MAX_RANKS).contains(&self.hosts) {
            return Err(("hosts", format!("hosts is {}; allowed: 1 to {}", self.hosts, crate::MAX_RANKS)));
        }
        if self.port_queue_bytes > 0 {
            for (key, time) in [("byte_ns", self.byte_ns), ("resend_ns", self.resend_ns)] {
                if time.0 == 0 {
                    return Err((key, format!("{key} is 0; allowed with port_queue_bytes: more than 0")));
                }
            }
        }
        self.check_ranges()
    }

    fn hosts(&self) -> Option<u32> {
        Some(self.hosts)
    }

    fn network(&self, shape: Shape) -> Manycore {
        Manycore::new(self.parameters(shape.ranks_per_node), shape.ranks)
    }
}

impl ManycoreKeys {
    /// Whether a gate stands before each adapter.
    pub fn has_gate(&self) -> bool {
        self.rate_delay_ns > 0 || self.tokens > 0 || self.servers > 0
    }

    fn parameters(&self, ranks_per_node: u32) -> Parameters {
        Parameters {
            ranks_per_node,
            latency_ps: self.latency_ns.0,
            message_ps: self.message_ns.0,
            byte_ps: self.byte_ns.0,
            local_ps: self.local_ns.0,
            free_ranks: self.free_ranks,
            rank_miss_permille: self.rank_miss_permille,
            free_messages: self.free_messages,
            message_miss_permille: self.message_miss_permille,
            admission: Admission {
                delay_ns: self.rate_delay_ns,
                tokens: self.tokens,
                bytes_per_token: self.bytes_per_token,
                servers: self.servers,
                combine_bytes: self.combine_bytes,
                drains: self.drains,
                most_ranks: self.most_ranks,
                most_node_messages: self.most_node_messages,
                most_rank_messages: self.most_rank_messages,
                gate_ps: self.gate_ns.0,
                serve_ps: self.serve_ns.0,
            },
            switch: (self.port_queue_bytes > 0)
                .then_some(Switch { queue_bytes: self.port_queue_bytes, resend_ps: self.resend_ns.0 }),
        }
    }
}
