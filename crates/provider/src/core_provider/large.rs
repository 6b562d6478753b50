//! Large messages ([`CoreLarge`]): tagged ones, which only receives with the same tag take, in memory of their own
//! (`large_messages`).
//!
//! ```text
//! begin     fi_trecv for each receive
//! send      the message is written into the memory of a free send; fi_tsend, now or when the core takes it
//! ```

use weir_link::ofi::{CoreAddress, CoreLarge, LARGE_RECEIVES, LARGE_SENDS_PER_PEER, Sent};

use super::endpoint::OpenEndpoint;

impl CoreLarge for OpenEndpoint {
    fn longest(&self) -> usize {
        self.large.as_ref().map_or(0, |large| large.longest)
    }

    fn begin(&mut self) -> usize {
        if let Some(large) = &mut self.large
            && !std::mem::replace(&mut large.has_begun, true)
        {
            self.work_large();
        }
        self.large.as_ref().map_or(0, |large| LARGE_RECEIVES - large.to_post.len())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&mut [u8])) {
        let Some(large) = &mut self.large else { return };
        while let Some((index, bytes)) = large.arrived.pop_front() {
            // SAFETY: the receive is complete, so the core does not use its memory until it is posted again.
            take(unsafe { std::slice::from_raw_parts_mut(large.place(index), bytes.min(large.longest)) });
            large.to_post.push(index);
        }
        self.work_large();
    }

    fn send(&mut self, to: CoreAddress, write: &mut dyn FnMut(&mut [u8]) -> usize) -> Sent {
        if self.endpoint.is_none() {
            return Sent::Failed;
        }
        let Some(large) = &mut self.large else { return Sent::Failed };
        let to_peer = large.targets.iter().filter(|target| **target == Some(to)).count();
        if to_peer >= LARGE_SENDS_PER_PEER {
            return Sent::Busy;
        }
        let Some(send) = large.free.pop() else { return Sent::Busy };
        // SAFETY: the memory of a free send is not used by the core.
        let room =
            unsafe { std::slice::from_raw_parts_mut(large.place(LARGE_RECEIVES + send), large.longest) };
        let bytes = write(room);
        large.targets[send] = Some(to);
        large.unsent.push_back((send, bytes));
        self.work_large();
        Sent::Taken
    }
}
