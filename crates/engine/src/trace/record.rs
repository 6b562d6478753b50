//! The records of a trace and their encoding.
//!
//! Numbers have seven bits a byte (LEB128), and each record starts with its length. A process that is killed leaves at
//! most one torn record, the last, which a reader skips.
//!
//! A sample lists only the pairs that have changed since the sample before, so that idle peers cost nothing. If a
//! sample is removed, the next one must get its pairs: see [`downsample`].

use std::collections::BTreeMap;
use weir_proto::Counters;

/// One peer at the time of a sample. A value that the scheme does not have is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairSample {
    /// Credits that we have at the peer; `None` if we do not send to it.
    pub credits: Option<u32>,
    /// Slots that it has granted to us, modulo 2^32.
    pub granted_total: Option<u32>,
    /// Slots that we have filled there, modulo 2^32.
    pub spent_total: Option<u32>,
    /// Slots of our mailbox that the peer owns: see [`weir_proto::flow::ReceiverView::current`].
    pub current: Option<u32>,
    /// Its quota in our mailbox.
    pub quota_slots: Option<u32>,
    /// Slots retrieved from it and not granted again.
    pub retrieved: Option<u32>,
    /// Slots that it wants beyond those that it owns: see [`weir_proto::flow::LoanView`].
    pub demand: Option<u32>,
    /// Of the slots that it owns, credits for which it has told no use.
    pub idle: Option<u32>,
    /// Messages and packets that wait to be sent to it.
    pub backlog: u32,
    /// Total time in which something waited for its credit. Unit: ns.
    pub stalled_ns: u64,
    /// The smoothed round trip of the path to it over a network; 0: none was measured, or there is no such path. Unit: us.
    pub round_trip_us: u32,
    /// Bundles of packets that were sent again on that path.
    pub sent_again: u32,
}

/// Memory and queues of an endpoint at the time of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Shared memory of the mailbox. Unit: bytes.
    pub mailbox_bytes: u64,
    /// Memory of the state for peers. Unit: bytes.
    pub peer_state_bytes: u64,
    /// Unexpected messages.
    pub unexpected_messages: u64,
    /// Their payload. Unit: bytes.
    pub unexpected_bytes: u64,
    /// Messages and packets that wait to be sent, over all peers.
    pub backlog: u64,
    /// Private and shared memory of the process (RssAnon + RssShmem); 0 if not known. Unit: bytes.
    pub process_bytes: u64,
    /// Slots of the mailbox that any sender can be lent; 0 without credits on demand.
    pub free_slots: u64,
    /// Senders that wait for free slots; 0 without credits on demand.
    pub waiting_senders: u64,
}

/// One sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time since the endpoint was opened. Unit: ns.
    pub at_ns: u64,
    /// Memory and queues of the endpoint.
    pub gauges: Gauges,
    /// Totals; `stalled_ns` includes stalls that are not over.
    pub counters: Counters,
    /// Peers that have changed, by number.
    pub pairs: BTreeMap<u32, PairSample>,
}

/// A record of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all records are samples")]
pub(super) enum Record {
    /// From here on, peer `number` is the endpoint `identity`.
    Peer { number: u32, identity: u64 },
    /// A sample.
    Sample(Sample),
}

const PEER: u64 = 0;
const SAMPLE: u64 = 1;
const GAUGES: usize = 8;
/// Longest record: 4096 peers and the other fields. Unit: bytes.
const MAX_RECORD_BYTES: u64 = 1 << 19;

impl Gauges {
    fn values(&self) -> [u64; GAUGES] {
        [
            self.mailbox_bytes,
            self.peer_state_bytes,
            self.unexpected_messages,
            self.unexpected_bytes,
            self.backlog,
            self.process_bytes,
            self.free_slots,
            self.waiting_senders,
        ]
    }

    fn from_values(values: [u64; GAUGES]) -> Gauges {
        let [mailbox_bytes, peer_state_bytes, unexpected_messages, unexpected_bytes, ..] = values;
        let [.., backlog, process_bytes, free_slots, waiting_senders] = values;
        Gauges {
            mailbox_bytes,
            peer_state_bytes,
            unexpected_messages,
            unexpected_bytes,
            backlog,
            process_bytes,
            free_slots,
            waiting_senders,
        }
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_all(bytes: &mut Vec<u8>, numbers: impl IntoIterator<Item = u64>) {
    numbers.into_iter().for_each(|number| put(bytes, number));
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Encodes `None` as 0 and all numbers one higher.
fn put_optional(bytes: &mut Vec<u8>, number: Option<u32>) {
    put(bytes, number.map_or(0, |number| u64::from(number) + 1));
}

fn take_optional(bytes: &mut &[u8]) -> Option<Option<u32>> {
    match take(bytes)? {
        0 => Some(None),
        number => Some(Some(u32::try_from(number - 1).ok()?)),
    }
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(bytes)?).ok()
}

impl Record {
    /// Appends the record to `bytes`.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let mut content = Vec::new();
        match self {
            Record::Peer { number, identity } => {
                put_all(&mut content, [PEER, u64::from(*number), *identity]);
            }
            Record::Sample(sample) => {
                put(&mut content, SAMPLE);
                put(&mut content, sample.at_ns);
                put_all(&mut content, sample.gauges.values());
                put_all(&mut content, sample.counters.values());
                put(&mut content, sample.pairs.len() as u64);
                for (number, pair) in &sample.pairs {
                    put(&mut content, u64::from(*number));
                    let PairSample { credits, granted_total, spent_total, .. } = *pair;
                    let PairSample { current, quota_slots, retrieved, .. } = *pair;
                    let of_grants = [current, quota_slots, retrieved, pair.demand, pair.idle];
                    for number in [credits, granted_total, spent_total].into_iter().chain(of_grants) {
                        put_optional(&mut content, number);
                    }
                    put(&mut content, u64::from(pair.backlog));
                    put(&mut content, pair.stalled_ns);
                    put_all(&mut content, [pair.round_trip_us, pair.sent_again].map(u64::from));
                }
            }
        }
        put(bytes, content.len() as u64);
        bytes.extend_from_slice(&content);
    }

    /// Takes the next record from `bytes`. `None`: there is no further whole record, or it is malformed; `bytes` is
    /// then unchanged.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Record> {
        let mut rest = *bytes;
        let length = take(&mut rest).filter(|length| *length <= MAX_RECORD_BYTES)?;
        let (mut content, rest) = rest.split_at_checked(length as usize)?;
        let record = Record::content(&mut content)?;
        if !content.is_empty() {
            return None;
        }
        *bytes = rest;
        Some(record)
    }

    fn content(bytes: &mut &[u8]) -> Option<Record> {
        match take(bytes)? {
            PEER => Some(Record::Peer { number: take_u32(bytes)?, identity: take(bytes)? }),
            SAMPLE => {
                let at_ns = take(bytes)?;
                let mut gauges = [0; GAUGES];
                for value in &mut gauges {
                    *value = take(bytes)?;
                }
                let mut counters = [0; Counters::NAMES.len()];
                for value in &mut counters {
                    *value = take(bytes)?;
                }
                let mut pairs = BTreeMap::new();
                for _ in 0..take(bytes)? {
                    let number = take_u32(bytes)?;
                    let pair = PairSample {
                        credits: take_optional(bytes)?,
                        granted_total: take_optional(bytes)?,
                        spent_total: take_optional(bytes)?,
                        current: take_optional(bytes)?,
                        quota_slots: take_optional(bytes)?,
                        retrieved: take_optional(bytes)?,
                        demand: take_optional(bytes)?,
                        idle: take_optional(bytes)?,
                        backlog: take_u32(bytes)?,
                        stalled_ns: take(bytes)?,
                        round_trip_us: take_u32(bytes)?,
                        sent_again: take_u32(bytes)?,
                    };
                    pairs.insert(number, pair);
                }
                let gauges = Gauges::from_values(gauges);
                let counters = Counters::from_values(counters);
                Some(Record::Sample(Sample { at_ns, gauges, counters, pairs }))
            }
            _ => None,
        }
    }
}

/// Removes every second sample except the last. The next sample gets the pairs of a removed one, unless it has later
/// values of them.
pub(super) fn downsample(records: Vec<Record>) -> Vec<Record> {
    let samples = records.iter().filter(|record| matches!(record, Record::Sample(_))).count();
    let mut kept = Vec::with_capacity(records.len() / 2 + 1);
    let mut number = 0;
    let mut omitted = BTreeMap::new();
    for record in records {
        let Record::Sample(mut sample) = record else {
            kept.push(record);
            continue;
        };
        number += 1;
        omitted.append(&mut sample.pairs);
        if number % 2 == 0 || number == samples {
            sample.pairs = std::mem::take(&mut omitted);
            kept.push(Record::Sample(sample));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ns: u64, pairs: &[(u32, u32)]) -> Record {
        let pair = |credits| PairSample { credits: Some(credits), ..PairSample::default() };
        let pairs = pairs.iter().map(|&(peer, credits)| (peer, pair(credits))).collect();
        Record::Sample(Sample { at_ns, pairs, ..Sample::default() })
    }

    #[test]
    fn records_survive_encoding_and_a_torn_one_is_skipped() {
        let mut counters = [0; Counters::NAMES.len()];
        counters[3] = u64::MAX;
        let pair = PairSample {
            credits: Some(0),
            granted_total: Some(u32::MAX),
            spent_total: None,
            current: Some(127),
            quota_slots: Some(128),
            retrieved: Some(1),
            demand: Some(129),
            idle: Some(0),
            backlog: 65536,
            stalled_ns: u64::MAX,
            round_trip_us: 300,
            sent_again: u32::MAX,
        };
        let full = Record::Sample(Sample {
            at_ns: 1 << 40,
            gauges: Gauges::from_values([1, 2, 3, 4, 5, u64::MAX, 6, 7]),
            counters: Counters::from_values(counters),
            pairs: [(0, pair), (4095, PairSample::default())].into(),
        });
        let records = [Record::Peer { number: 7, identity: u64::MAX }, full, sample(0, &[])];
        let mut bytes = Vec::new();
        for record in &records {
            record.encode(&mut bytes);
        }
        let all = |mut bytes: &[u8]| std::iter::from_fn(|| Record::decode(&mut bytes)).collect::<Vec<_>>();
        assert_eq!(all(&bytes), records);
        assert_eq!(all(&bytes[..bytes.len() - 1]), records[..2]);
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        let nonsense: [&[u8]; 7] = [
            &[],
            &[5, 0],
            &[1, 9],                                                          // an unknown kind
            &[3, 0, 0, 0, 0][..3],                                            // shorter than its length
            &[4, 0, 0, 0, 0],                                                 // longer than its content
            &[0x80; 12],                                                      // a number without end
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0], // a number of more than 64 bits
        ];
        for mut bytes in nonsense {
            let before = bytes;
            assert_eq!(Record::decode(&mut bytes), None, "{before:?}");
            assert_eq!(bytes, before);
        }
    }

    #[test]
    fn downsampling_keeps_every_second_sample_and_all_pair_changes() {
        let peer = Record::Peer { number: 1, identity: 5 };
        let records = vec![
            sample(10, &[(0, 3), (1, 9)]),
            peer.clone(),
            sample(20, &[(0, 2)]),
            sample(30, &[(1, 8)]),
            sample(40, &[]),
            sample(50, &[(0, 1)]),
        ];
        let thinned = [peer, sample(20, &[(0, 2), (1, 9)]), sample(40, &[(1, 8)]), sample(50, &[(0, 1)])];
        assert_eq!(downsample(records), thinned);
    }
}
