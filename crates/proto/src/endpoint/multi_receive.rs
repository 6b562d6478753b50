//! Multi-receive buffers: one buffer for several messages, filled in order.
//!
//! This file decides which range a message gets and when a buffer ends. It does not know messages or completions.

use alloc::vec::Vec;

/// The part of a buffer that a matching message gets.
pub(super) struct Reserved {
    /// Offset and bytes of its range. `None`: it does not fit, and the next receive may match it.
    pub range: Option<(u64, u64)>,
    /// No further message matches the buffer.
    pub closed: bool,
    /// The buffer has ended.
    pub ended: bool,
}

/// A message has left a buffer.
pub(super) struct Left {
    /// The buffer has ended.
    pub ended: bool,
    pub canceled: bool,
}

/// Multi-receive buffers, by the index in the posted receive.
#[derive(Clone, Debug, Default)]
pub(super) struct MultiBuffers {
    buffers: Vec<MultiBuffer>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct MultiBuffer {
    capacity_bytes: u64,
    min_free_bytes: u64,
    used_bytes: u64,
    /// Matched messages that have not completed.
    arriving: u32,
    /// No further message matches it. It is released when its matched messages have completed.
    closed: bool,
    canceled: bool,
}

impl MultiBuffers {
    /// Buffers that have not ended.
    pub(super) fn count(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    /// Adds a buffer. It is closed when fewer than `min_free_bytes` bytes are free. Returns its index.
    pub(super) fn add(&mut self, capacity_bytes: u64, min_free_bytes: u64) -> u32 {
        let buffer = MultiBuffer {
            capacity_bytes,
            min_free_bytes,
            used_bytes: 0,
            arriving: 0,
            closed: false,
            canceled: false,
        };
        match self.free.pop() {
            Some(index) => {
                self.buffers[index as usize] = buffer;
                index
            }
            None => {
                self.buffers.push(buffer);
                self.buffers.len() as u32 - 1
            }
        }
    }

    /// Reserves a range for a message of `length` bytes. The first message of a buffer is cut to its size.
    pub(super) fn reserve(&mut self, index: u32, length: u64) -> Reserved {
        let buffer = &mut self.buffers[index as usize];
        let free_bytes = buffer.capacity_bytes - buffer.used_bytes;
        let fits = length <= free_bytes || buffer.used_bytes == 0;
        let (offset, bytes) = (buffer.used_bytes, length.min(free_bytes));
        if fits {
            buffer.used_bytes += bytes;
            buffer.arriving += 1;
        }
        let full = buffer.capacity_bytes - buffer.used_bytes < buffer.min_free_bytes;
        let closed = !fits || full || buffer.used_bytes == buffer.capacity_bytes;
        let ended = closed && self.close(index);
        Reserved { range: fits.then_some((offset, bytes)), closed, ended }
    }

    /// A message of a buffer has ended.
    pub(super) fn leave(&mut self, index: u32) -> Left {
        let buffer = &mut self.buffers[index as usize];
        buffer.arriving -= 1;
        let (ended, canceled) = (buffer.closed && buffer.arriving == 0, buffer.canceled);
        if ended {
            self.free.push(index);
        }
        Left { ended, canceled }
    }

    /// No further message matches a buffer. Returns whether it has ended.
    pub(super) fn close(&mut self, index: u32) -> bool {
        let buffer = &mut self.buffers[index as usize];
        buffer.closed = true;
        let ended = buffer.arriving == 0;
        if ended {
            self.free.push(index);
        }
        ended
    }

    /// As [`MultiBuffers::close`], because the receive was canceled.
    pub(super) fn cancel(&mut self, index: u32) -> bool {
        self.buffers[index as usize].canceled = true;
        self.close(index)
    }
}
