//! The canonical form of a sender, for exhaustive exploration.

use super::{Bundle, NOTHING, QUESTION, Record, Sender};
use crate::reliability::canonical::Row;

impl Sender {
    /// Appends what decides about the future.
    pub(in crate::reliability) fn canonical(&self, row: &mut Row<'_>) {
        let Sender {
            bundles,
            records,
            lost: _, // the bundles say it
            first,
            unsent,
            end,
            next_number,
            scan,
            largest,
            largest_of_bundles,
            handled,
            reorder_numbers,
            is_lossless: _,
            marks,
            oldest_since,
            timeout_from,
            timeouts_in_a_row,
            probe_from,
            is_probed,
            probe,
            loss_at,
            congestion,
            mtu,
            round_trip,
            delay,
            counts: _,
        } = self;
        for number in [first, unsent, end, next_number, scan, largest, largest_of_bundles, handled] {
            row.push(*number);
        }
        for position in *first..*end {
            let Bundle { number, bytes, state, delay_doublings } =
                bundles[position as usize & (bundles.len() - 1)];
            row.push(number);
            row.push(bytes);
            row.push(state as u64);
            row.push(delay_doublings);
        }
        for number in *scan.min(largest)..*next_number {
            let Record { sent_at, position } = records[number as usize & (records.len() - 1)];
            // A position before `first` has arrived, whichever it is.
            let is_over = position < *first;
            row.push(if is_over { 0 } else { position });
            row.time(sent_at);
            debug_assert!(is_over || position < *end || [NOTHING, QUESTION].contains(&position));
        }
        // Numbers before the latest that may still be reported, and their bundles.
        for distance in 1..=64 {
            let number = largest - distance;
            let is_known = handled >> (distance - 1) & 1 == 1 || number >= *scan.min(largest);
            if !is_known && number >= self.oldest_record() {
                let position = records[number as usize & (records.len() - 1)].position;
                row.push(if position < *first { 0 } else { position });
            }
        }
        row.push(*reorder_numbers);
        row.push(*marks);
        row.push((*timeouts_in_a_row).min(super::losses::COLLAPSE_TIMEOUTS));
        row.push(*is_probed);
        if self.is_outstanding() {
            row.time(*oldest_since);
            row.time(*timeout_from);
            row.time(*probe_from);
        }
        row.push(probe.is_some());
        if let Some(probe) = probe {
            probe.canonical(row);
        }
        row.maybe_time(*loss_at);
        congestion.canonical(row);
        mtu.canonical(row);
        round_trip.canonical(row);
        delay.canonical(*first, row);
    }
}
