//! Packets that adapters of the InfiniBand model have to send and have not fetched from memory yet.
//!
//! A host has a source for each of its ranks, and one for the adapter itself. The sources send in turn,
//! packet by packet.

use std::collections::VecDeque;

use super::{NEVER, PacketKind};
use crate::Picoseconds;

/// Packets for one host, back to back. Packet `next` can be fetched from `ready_at` on, the others follow at
/// their spacing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub kind: PacketKind,
    pub to: u32,
    pub next: u32,
    pub count: u32,
    pub packet_bytes: u32,
    pub last_bytes: u32,
    pub ready_at: Picoseconds,
    pub spacing_ps: Picoseconds,
}

/// The packets of one source. The first entry is separate, because every fetch reads it.
#[derive(Clone, Debug, Default)]
struct Source {
    first: Option<Outgoing>,
    behind: VecDeque<Outgoing>,
}

/// A packet that an adapter has fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetched {
    pub kind: PacketKind,
    pub index: u32,
    /// Whether it is the last packet of its train or answer.
    pub last: bool,
    pub to: u32,
    pub bytes: u32,
}

/// The sources of all hosts.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    /// Number of sources of a host.
    count: u32,
    sources: Vec<Source>,
    /// By source: when its first packet can be fetched; [`NEVER`]: there is none.
    ready_at: Vec<Picoseconds>,
    /// By host: number of trains in its sources.
    outgoing: Vec<u32>,
    /// By host: the source that sends next.
    next_sources: Vec<u32>,
}

impl Sources {
    /// `count` sources for each of `hosts` hosts, without packets.
    pub fn new(hosts: u32, count: u32) -> Sources {
        let all = (hosts * count) as usize;
        Sources {
            count,
            sources: vec![Source::default(); all],
            ready_at: vec![NEVER; all],
            outgoing: vec![0; hosts as usize],
            next_sources: vec![0; hosts as usize],
        }
    }

    /// Adds packets to a source.
    pub fn add(&mut self, host: u32, place: u32, outgoing: Outgoing) {
        let index = (host * self.count + place) as usize;
        self.outgoing[host as usize] += 1;
        let Source { first, behind } = &mut self.sources[index];
        if first.is_some() {
            behind.push_back(outgoing);
        } else {
            self.ready_at[index] = outgoing.ready_at;
            *first = Some(outgoing);
        }
    }

    /// Whether a host has packets to send, now or later.
    #[inline]
    pub fn has_any(&self, host: u32) -> bool {
        self.outgoing[host as usize] > 0
    }

    /// The next packet of a host, or else the time at which there may be one.
    pub fn fetch(&mut self, now: Picoseconds, host: u32) -> Result<Fetched, Option<Picoseconds>> {
        let turn = self.next_sources[host as usize];
        let mut earliest = NEVER;
        for place in (turn..self.count).chain(0..turn) {
            let index = (host * self.count + place) as usize;
            let ready_at = self.ready_at[index];
            if ready_at > now {
                earliest = earliest.min(ready_at);
                continue;
            }
            self.next_sources[host as usize] = if place + 1 == self.count { 0 } else { place + 1 };
            let Source { first, behind } = &mut self.sources[index];
            let outgoing = first.as_mut().expect("it is ready");
            let Outgoing { kind, to, next, count, packet_bytes, last_bytes, .. } = *outgoing;
            let last = next + 1 == count;
            outgoing.next += 1;
            outgoing.ready_at += outgoing.spacing_ps;
            if last {
                *first = behind.pop_front();
                self.outgoing[host as usize] -= 1;
            }
            self.ready_at[index] = first.map_or(NEVER, |first| first.ready_at);
            let bytes = if last { last_bytes } else { packet_bytes };
            return Ok(Fetched { kind, index: next, last, to, bytes });
        }
        Err((earliest != NEVER).then_some(earliest))
    }
}
