//! What the host's processor spends: numbers with units, nothing else.

use crate::Picoseconds;

/// Prices of what a rank and its library do. All in picoseconds of the rank's own processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// A call of the program that begins a send.
    pub send_call_ps: Picoseconds,
    /// A call that posts a receive.
    pub receive_call_ps: Picoseconds,
    /// Handing one data packet to the network (programmed I/O: the processor writes it).
    pub packet_send_ps: Picoseconds,
    /// Taking one data packet out of the mailbox and dealing with it.
    pub packet_receive_ps: Picoseconds,
    /// Sending an explicit credit packet.
    pub credit_send_ps: Picoseconds,
    /// Taking and dealing with one.
    pub credit_receive_ps: Picoseconds,
    /// Finding the receive of a message, or the message of a receive; once per message.
    pub match_ps: Picoseconds,
    /// Copying one KiB into the program's buffer, from a slot or from where it was kept.
    pub copy_ps_per_kib: Picoseconds,
    /// Copying one KiB of an unexpected message from slots to where it is kept.
    pub unexpected_copy_ps_per_kib: Picoseconds,
    /// Setting up a remote get.
    pub get_ps: Picoseconds,
    /// From one look of a waiting processor at its mailbox to the next, if the first found nothing; 0: it sees at once what comes.
    pub poll_ps: Picoseconds,
    /// Mean of the random extra time of each call that begins a send or posts a receive, exponentially distributed
    /// ([`crate::jitter`]); 0: none.
    pub call_jitter_ps: Picoseconds,
}

impl Cost {
    /// Nothing costs anything: for checks of the protocol and for networks that price everything themselves.
    pub const FREE: Cost = Cost {
        send_call_ps: 0,
        receive_call_ps: 0,
        packet_send_ps: 0,
        packet_receive_ps: 0,
        credit_send_ps: 0,
        credit_receive_ps: 0,
        match_ps: 0,
        copy_ps_per_kib: 0,
        unexpected_copy_ps_per_kib: 0,
        get_ps: 0,
        poll_ps: 0,
        call_jitter_ps: 0,
    };

    /// The same work on a processor that takes `percent` percent of the time.
    pub fn times(&self, percent: u32) -> Cost {
        let times = |ps: Picoseconds| ps * u64::from(percent) / 100;
        Cost {
            send_call_ps: times(self.send_call_ps),
            receive_call_ps: times(self.receive_call_ps),
            packet_send_ps: times(self.packet_send_ps),
            packet_receive_ps: times(self.packet_receive_ps),
            credit_send_ps: times(self.credit_send_ps),
            credit_receive_ps: times(self.credit_receive_ps),
            match_ps: times(self.match_ps),
            copy_ps_per_kib: times(self.copy_ps_per_kib),
            unexpected_copy_ps_per_kib: times(self.unexpected_copy_ps_per_kib),
            get_ps: times(self.get_ps),
            poll_ps: times(self.poll_ps),
            call_jitter_ps: times(self.call_jitter_ps),
        }
    }

    /// When a processor that has waited since `free_at` sees what comes at `at`: when it looks next, and not before `free_at`.
    #[inline]
    pub fn seen_ps(&self, free_at: Picoseconds, at: Picoseconds) -> Picoseconds {
        let Some(waited) = at.checked_sub(free_at) else { return free_at };
        if self.poll_ps == 0 { at } else { free_at + waited.div_ceil(self.poll_ps) * self.poll_ps }
    }

    /// Copying `bytes` bytes into the program's buffer.
    pub fn copy_ps(&self, bytes: u64) -> Picoseconds {
        self.copy_ps_per_kib.saturating_mul(bytes) / 1024
    }

    /// Keeping `bytes` bytes.
    pub fn unexpected_copy_ps(&self, bytes: u64) -> Picoseconds {
        self.unexpected_copy_ps_per_kib.saturating_mul(bytes) / 1024
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
}
