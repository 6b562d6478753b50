//! The limits of weir between hosts ([`Limits`]): what threads reach over bare sockets, without any protocol of their
//! own.

use super::hosts::Hosts;
use super::{bare, bare_bulk, bare_incast, bare_stream, bare_tcp_incast};
use crate::compare::measure::{BANDWIDTH_BYTES, EXCHANGE_BYTES, Measure, Quantity, SMALL_BYTES};
use crate::statistics::Spread;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_output::Failure;

/// Messages of bare UDP. The second is the largest below an MTU of 1500 that is a round number; the kernel sends the
/// third in two fragments. Unit: bytes.
const SMALL: [usize; 3] = [8, 1400, 2048];
/// Those with the link's cipher, the second in two datagrams. Unit: bytes.
const ENCRYPTED: [usize; 2] = [8, 2048];
/// Messages of many datagrams (`bare_bulk.rs`). Unit: bytes.
const BULK: [usize; 2] = [64 << 10, 1 << 20];
/// Streams of bare UDP (`bare_stream.rs`).
const STREAMS: [Measure; 4] = [
    Measure { what: Quantity::MessagesPerS, at: SMALL_BYTES },
    Measure { what: Quantity::BytesPerS, at: EXCHANGE_BYTES },
    Measure { what: Quantity::BytesPerS, at: BANDWIDTH_BYTES[0] },
    Measure { what: Quantity::BytesPerS, at: BANDWIDTH_BYTES[1] },
];

/// What bare messages travel over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// UDP, in as few datagrams as possible.
    Udp,
    /// UDP, with the datagrams and the cipher of weir.
    UdpInParts,
    /// TCP.
    Tcp,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Bare {
    /// See [`Over`].
    pub over: Over,
    /// What is measured.
    #[serde(flatten)]
    pub measure: Measure,
}

impl Bare {
    /// Over UDP.
    pub const fn udp(measure: Measure) -> Bare {
        Bare { over: Over::Udp, measure }
    }
}

fn half_round_trip(bytes: u64) -> Bare {
    Bare::udp(Measure { what: Quantity::HalfRoundTripUs, at: bytes })
}

/// A limit in the record of a run.
#[derive(Serialize)]
pub struct BareRow {
    #[serde(flatten)]
    bare: Bare,
    #[serde(flatten)]
    spread: Spread,
}

/// The rows of these quantities.
pub fn rows(spreads: &BTreeMap<Bare, Spread>, whats: &[Quantity]) -> Vec<BareRow> {
    let chosen = spreads.iter().filter(|(bare, _)| whats.contains(&bare.measure.what));
    chosen.map(|(&bare, &spread)| BareRow { bare, spread }).collect()
}

/// Attempts at a measurement in which something is lost.
const ATTEMPTS: u32 = 3;

/// The first result of several attempts without a loss, or the last one.
fn tried<T>(measure: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
    (1..ATTEMPTS)
        .map(|_| measure())
        .find(|result| !matches!(result, Err(Failure::Measurement(_))))
        .unwrap_or_else(&measure)
}

/// The values of all rounds.
#[derive(Default)]
pub struct Limits {
    /// In the order of the rounds.
    pub values: BTreeMap<Bare, Vec<f64>>,
    /// Measurements without a result, and why.
    pub failures: Vec<String>,
}

impl Limits {
    /// Measures a round. `incasts`: by senders. Bare messages are not sent again, so what loses one is measured again. The last
    /// loss costs this round's value, and not the results of all others.
    ///
    /// # Errors
    /// [`Failure`]: a system call.
    pub fn measure(
        &mut self,
        hosts: &Hosts,
        incasts: &[usize],
        round: u32,
        time: Duration,
    ) -> Result<(), Failure> {
        let half_round_trip = |bytes: &usize| half_round_trip(*bytes as u64);
        let small = tried(|| bare::half_round_trips(hosts, &SMALL, time));
        self.note(round, &SMALL.each_ref().map(half_round_trip), small)?;
        let bulk = BULK.map(|bytes| (bytes, Over::Udp));
        for (bytes, over) in ENCRYPTED.map(|bytes| (bytes, Over::UdpInParts)).into_iter().chain(bulk) {
            let encrypted = tried(|| bare_bulk::half_round_trip(hosts, bytes, time));
            let bare = Bare { over, ..half_round_trip(&bytes) };
            self.note(round, &[bare], encrypted.map(|us| vec![us]))?;
        }
        for stream in STREAMS {
            let per_s = tried(|| bare_stream::messages_per_s(hosts, stream.at as usize, time));
            let unit = if stream.what == Quantity::BytesPerS { stream.at as f64 } else { 1.0 };
            self.note(round, &[Bare::udp(stream)], per_s.map(|per_s| vec![per_s * unit]))?;
        }
        let in_parts = Bare { over: Over::UdpInParts, measure: STREAMS[0] };
        let per_s = tried(|| bare_stream::messages_per_s_in_parts(hosts, SMALL_BYTES as usize, time));
        self.note(round, &[in_parts], per_s.map(|per_s| vec![per_s]))?;
        for &senders in incasts {
            let measure = Measure { what: Quantity::IncastPerS, at: senders as u64 };
            let per_s = tried(|| bare_incast::messages_per_s(hosts, senders, time));
            self.note(round, &[Bare::udp(measure)], per_s.map(|per_s| vec![per_s]))?;
            let per_s = tried(|| bare_tcp_incast::messages_per_s(hosts, senders, time));
            self.note(round, &[Bare { over: Over::Tcp, measure }], per_s.map(|per_s| vec![per_s]))?;
        }
        Ok(())
    }

    fn note(
        &mut self,
        round: u32,
        measures: &[Bare],
        values: Result<Vec<f64>, Failure>,
    ) -> Result<(), Failure> {
        match values {
            Ok(values) => {
                for (&measure, value) in measures.iter().zip(values) {
                    self.values.entry(measure).or_default().push(value);
                }
            }
            Err(Failure::Measurement(why)) => {
                self.failures.push(format!("A limit has no value in round {round}: {why}."));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// The spread of each limit.
    pub fn spreads(&self) -> BTreeMap<Bare, Spread> {
        self.values.iter().filter_map(|(&bare, samples)| Some((bare, Spread::of(samples)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_bare_udp_costs_one_value_and_is_named() {
        let mut limits = Limits::default();
        let measures = [8, 1400].map(half_round_trip);
        limits.note(1, &measures, Ok(vec![5.0, 6.0])).unwrap();
        let lost = Failure::Measurement(String::from("a message was lost"));
        limits.note(2, &measures, Err(lost)).unwrap();
        assert_eq!(limits.values, BTreeMap::from([(measures[0], vec![5.0]), (measures[1], vec![6.0])]));
        assert_eq!(limits.failures, ["A limit has no value in round 2: a message was lost."]);
        assert!(limits.note(3, &measures, Err(Failure::Usage(String::from("wrong")))).is_err());
    }

    #[test]
    fn what_loses_something_is_measured_again_and_other_failures_are_not() {
        let attempts = std::cell::Cell::new(0);
        let lost = || Err::<f64, _>(Failure::Measurement(String::from("a message was lost")));
        let result = |fails: u32, failure: &dyn Fn() -> Result<f64, Failure>| {
            attempts.set(0);
            let result = tried(|| {
                attempts.set(attempts.get() + 1);
                if attempts.get() <= fails { failure() } else { Ok(5.0) }
            });
            (result.ok(), attempts.get())
        };
        assert_eq!(result(0, &lost), (Some(5.0), 1));
        assert_eq!(result(2, &lost), (Some(5.0), 3));
        assert_eq!(result(3, &lost), (None, 3));
        assert_eq!(result(1, &|| Err(Failure::Usage(String::from("wrong")))), (None, 1));
    }

    #[test]
    fn a_row_of_the_record_names_what_messages_travelled_over() {
        let measure = Measure { what: Quantity::IncastPerS, at: 7 };
        let values = [Over::Udp, Over::Tcp].map(|over| (Bare { over, measure }, vec![2.0, 4.0, 3.0]));
        let limits = Limits { values: values.into(), failures: Vec::new() };
        let rows = rows(&limits.spreads(), &[Quantity::IncastPerS]);
        let text = serde_json::to_string(&rows[1]).unwrap();
        assert_eq!(text, r#"{"over":"tcp","what":"incast_per_s","at":7,"min":2.0,"median":3.0,"max":4.0}"#);
        assert!(super::rows(&limits.spreads(), &[Quantity::MessagesPerS]).is_empty());
    }
}
