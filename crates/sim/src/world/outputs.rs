//! Turns the outputs of the network into events of the world. Parts of trains stay in a table, because events must be
//! small.

use super::{Event, World};
use crate::network::{Network, Output, Reminder, ScheduledOutput, TrainPart};

impl<N: Network> World<N> {
    /// Schedules what the network has announced. Most calls find nothing.
    #[inline(always)]
    pub(super) fn take_outputs(&mut self) {
        if !self.outputs.reminders().is_empty() {
            self.schedule_reminders();
        }
        if self.outputs.count() > 0 {
            self.schedule_outputs();
        }
    }

    fn schedule_reminders(&mut self) {
        for &Reminder { at, sequence, event } in self.outputs.reminders() {
            self.queue.push(at, sequence, Event::Network(event));
        }
        self.outputs.clear_reminders();
    }

    fn schedule_outputs(&mut self) {
        let mut scheduled = self.outputs.take(0, std::mem::take(&mut self.scheduled));
        for ScheduledOutput { at, sequence, output } in scheduled.drain(..) {
            let event = match output {
                Output::Arrived(part) | Output::Marked(part) => self.arrival(part),
                Output::Dropped(part) => Event::Dropped(part.train),
                Output::PathEnded { from, to } => Event::PathEnded { from, to },
                Output::Released { rank } => Event::Released(rank),
                Output::GetDone { to, number } if self.hosts.has_nics() => Event::GetAtNic { to, number },
                Output::GetDone { to, number } => Event::GetDone { to, number },
            };
            self.queue.push(at, sequence, event);
        }
        self.scheduled = scheduled;
    }

    /// The event of an arrival.
    #[inline]
    fn arrival(&mut self, part: TrainPart) -> Event<N::Event> {
        if part.count == 1 && self.has_plain_arrivals {
            return Event::Arrived { train: part.train, to: part.to };
        }
        let index = self.note_part(part);
        if self.hosts.has_nics() { Event::AtNic(index) } else { Event::PartArrived(index) }
    }

    /// Stores a part for an event.
    pub(super) fn note_part(&mut self, part: TrainPart) -> u32 {
        let index = self.free_parts.pop().unwrap_or_else(|| {
            self.parts.push(part);
            self.parts.len() as u32 - 1
        });
        self.parts[index as usize] = part;
        index
    }

    /// The part of an event, whose index becomes free.
    pub(super) fn take_part(&mut self, index: u32) -> TrainPart {
        self.free_parts.push(index);
        self.parts[index as usize]
    }
}
