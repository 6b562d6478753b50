//! The price lists of a processor and of a NIC. [`Cost`] is the time that each step of a rank and its library takes.
//! [`NicCost`] is the time that the processor of a NIC takes for a packet, for memory of its host, or for a vector.

use crate::Picoseconds;

/// Prices of the steps of a rank and its library, in picoseconds of the rank's own processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// A call of the program that begins a send.
    pub send_call_ps: Picoseconds,
    /// A call that posts a receive.
    pub receive_call_ps: Picoseconds,
    /// Handing one data packet to the network (programmed I/O: the processor writes it).
    pub packet_send_ps: Picoseconds,
    /// The same for one KiB of its payload, in addition.
    pub send_ps_per_kib: Picoseconds,
    /// Retrieving one data packet from the mailbox and handling it.
    pub packet_receive_ps: Picoseconds,
    /// Sending an explicit credit packet.
    pub credit_send_ps: Picoseconds,
    /// Retrieving and handling an explicit credit packet.
    pub credit_receive_ps: Picoseconds,
    /// Finding the receive of a message, or the message of a receive; once per message.
    pub match_ps: Picoseconds,
    /// Copying one KiB into the program's buffer, from a slot or from an unexpected buffer.
    pub copy_ps_per_kib: Picoseconds,
    /// Copying one KiB of an unexpected message from slots to an unexpected buffer.
    pub unexpected_copy_ps_per_kib: Picoseconds,
    /// Combining one KiB of a vector with another, in an offloaded machine.
    pub combine_ps_per_kib: Picoseconds,
    /// Setting up a remote get.
    pub get_ps: Picoseconds,
    /// Time between two polls of a waiting processor. 0: the processor sees an arrival at once.
    pub poll_ps: Picoseconds,
    /// Mean of the random extra time of each call that begins a send or posts a receive. The distribution is
    /// exponential, see [`crate::jitter`]. 0: no extra time.
    pub call_jitter_ps: Picoseconds,
}

impl Cost {
    /// All prices are 0: for protocol checks, and for networks that price everything themselves.
    pub const FREE: Cost = Cost {
        send_call_ps: 0,
        receive_call_ps: 0,
        packet_send_ps: 0,
        send_ps_per_kib: 0,
        packet_receive_ps: 0,
        credit_send_ps: 0,
        credit_receive_ps: 0,
        match_ps: 0,
        copy_ps_per_kib: 0,
        unexpected_copy_ps_per_kib: 0,
        combine_ps_per_kib: 0,
        get_ps: 0,
        poll_ps: 0,
        call_jitter_ps: 0,
    };

    /// The prices of a processor that takes `percent` percent of the time for everything.
    pub fn times(&self, percent: u32) -> Cost {
        let times = |ps: Picoseconds| ps * u64::from(percent) / 100;
        Cost {
            send_call_ps: times(self.send_call_ps),
            receive_call_ps: times(self.receive_call_ps),
            packet_send_ps: times(self.packet_send_ps),
            send_ps_per_kib: times(self.send_ps_per_kib),
            packet_receive_ps: times(self.packet_receive_ps),
            credit_send_ps: times(self.credit_send_ps),
            credit_receive_ps: times(self.credit_receive_ps),
            match_ps: times(self.match_ps),
            copy_ps_per_kib: times(self.copy_ps_per_kib),
            unexpected_copy_ps_per_kib: times(self.unexpected_copy_ps_per_kib),
            combine_ps_per_kib: times(self.combine_ps_per_kib),
            get_ps: times(self.get_ps),
            poll_ps: times(self.poll_ps),
            call_jitter_ps: times(self.call_jitter_ps),
        }
    }

    /// The time when a processor that has waited since `free_at` sees an arrival at `at`: at its next poll, not before
    /// `free_at`.
    #[inline]
    pub fn seen_ps(&self, free_at: Picoseconds, at: Picoseconds) -> Picoseconds {
        let Some(waited) = at.checked_sub(free_at) else { return free_at };
        if self.poll_ps == 0 { at } else { free_at + waited.div_ceil(self.poll_ps) * self.poll_ps }
    }

    /// Price of handing a data packet with `bytes` bytes of payload to the network.
    #[inline]
    pub fn packet_send_ps(&self, bytes: u64) -> Picoseconds {
        self.packet_send_ps + self.send_ps_per_kib.saturating_mul(bytes) / 1024
    }

    /// Price of a copy of `bytes` bytes into the program's buffer.
    pub fn copy_ps(&self, bytes: u64) -> Picoseconds {
        self.copy_ps_per_kib.saturating_mul(bytes) / 1024
    }

    /// Price of combining `bytes` bytes.
    pub fn combine_ps(&self, bytes: u64) -> Picoseconds {
        self.combine_ps_per_kib.saturating_mul(bytes) / 1024
    }

    /// Price of a copy of `bytes` bytes into an unexpected buffer.
    pub fn unexpected_copy_ps(&self, bytes: u64) -> Picoseconds {
        self.unexpected_copy_ps_per_kib.saturating_mul(bytes) / 1024
    }
}

/// Prices of the processor of a NIC, which all ranks of a host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicCost {
    /// Sending one packet.
    pub packet_send_ps: Picoseconds,
    /// Sending one KiB of payload, in addition, in each packet or copy.
    pub send_ps_per_kib: Picoseconds,
    /// Receiving one packet.
    pub packet_receive_ps: Picoseconds,
    /// Replacing the header of a packet and sending it again, to another rank.
    pub copy_send_ps: Picoseconds,
    /// Ending a remote get of a rank of this host.
    pub get_ps: Picoseconds,
    /// Taking one packet of a rank from the memory of the host, before it is sent.
    pub host_read_ps: Picoseconds,
    /// Putting one packet, or the end of an operation, into the memory of the host.
    pub host_write_ps: Picoseconds,
    /// Changing one word of the memory of the host.
    pub word_ps: Picoseconds,
    /// Copying one KiB between a packet and memory of an offloaded machine.
    pub copy_ps_per_kib: Picoseconds,
    /// Combining one KiB of a vector of integers with another.
    pub combine_ps_per_kib: Picoseconds,
    /// The same of floats. A processor without floating-point unit needs longer.
    pub float_combine_ps_per_kib: Picoseconds,
}

/// What an offloaded machine has done with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryWork {
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Bytes of integers that were combined with others.
    pub combined_bytes: u64,
    /// Bytes of floats that were combined with others.
    pub combined_float_bytes: u64,
    /// Words of registered memory that were changed or read.
    pub words: u64,
}

impl NicCost {
    /// All prices are 0.
    pub const FREE: NicCost = NicCost {
        packet_send_ps: 0,
        send_ps_per_kib: 0,
        packet_receive_ps: 0,
        copy_send_ps: 0,
        get_ps: 0,
        host_read_ps: 0,
        host_write_ps: 0,
        word_ps: 0,
        copy_ps_per_kib: 0,
        combine_ps_per_kib: 0,
        float_combine_ps_per_kib: 0,
    };

    /// Price of sending `bytes` bytes of payload.
    pub fn send_bytes_ps(&self, bytes: u64) -> Picoseconds {
        self.send_ps_per_kib.saturating_mul(bytes) / 1024
    }

    /// Price of this work.
    pub fn memory_ps(&self, work: MemoryWork) -> Picoseconds {
        let MemoryWork { copied_bytes, combined_bytes, combined_float_bytes, words } = work;
        let of = |ps_per_kib: Picoseconds, bytes: u64| ps_per_kib.saturating_mul(bytes) / 1024;
        of(self.copy_ps_per_kib, copied_bytes)
            + of(self.combine_ps_per_kib, combined_bytes)
            + of(self.float_combine_ps_per_kib, combined_float_bytes)
            + self.word_ps.saturating_mul(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polling_processor_sees_an_arrival_at_its_next_poll() {
        let polls = Cost { poll_ps: 100, ..Cost::FREE };
        for (at, seen) in [(0, 1000), (1000, 1000), (1001, 1100), (1100, 1100), (1101, 1200)] {
            assert_eq!(polls.seen_ps(1000, at), seen);
            assert_eq!(Cost::FREE.seen_ps(1000, at), at.max(1000));
        }
        assert_eq!(polls.times(250).poll_ps, 250, "a slow processor polls seldom");
    }

    #[test]
    fn integers_floats_copies_and_words_have_prices_of_their_own() {
        let cost = NicCost {
            copy_ps_per_kib: 10,
            combine_ps_per_kib: 2048,
            float_combine_ps_per_kib: 7168,
            word_ps: 300,
            ..NicCost::FREE
        };
        let work = MemoryWork { copied_bytes: 2048, combined_bytes: 8, combined_float_bytes: 16, words: 3 };
        assert_eq!(cost.memory_ps(work), 20 + 16 + 112 + 900);
        assert_eq!(NicCost::FREE.memory_ps(work), 0);
    }
}
