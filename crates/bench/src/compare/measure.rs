//! The measures of `weir bench`: groups, quantities and units, the jobs that yield them, and the parser of a job's
//! output.

use super::super::flood::{self, Case, Drain, Mode};
use super::super::program::{FLOOD, MEASURE, Source};
use super::super::statistics::fairness;
use crate::result_line::ResultLine;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use weir_output::quantity::{self, bytes, exact_bytes, three_digits, time_ns};

/// Message sizes of half round trips. Unit: bytes.
pub const LATENCY_BYTES: [u64; 4] = [SMALL_BYTES, EXCHANGE_BYTES, 64 << 10, LARGE_BYTES];
/// Message sizes of streams. Unit: bytes.
pub const BANDWIDTH_BYTES: [u64; 2] = [64 << 10, LARGE_BYTES];
/// The smallest message, for the message rate. Unit: bytes.
pub const SMALL_BYTES: u64 = 8;
/// The largest message. Unit: bytes.
pub const LARGE_BYTES: u64 = 1 << 20;
/// Messages of all-to-all, incast and flood. Unit: bytes.
pub const EXCHANGE_BYTES: u64 = 2048;

/// A group of measures, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Group {
    /// Half a round trip of 8 B, 2 KiB, 64 KiB and 1 MiB between two ranks.
    Latency,
    /// A stream of 64 KiB and of 1 MiB messages from one rank to another.
    Bandwidth,
    /// Rate of 8 B messages from one rank to another, a window of 64 at a time.
    Rate,
    /// Barrier, all-reduce of 8 B and all-to-all of 2 KiB, by ranks.
    Collectives,
    /// All ranks but one send 2 KiB messages to that one: rate compared with one sender, fairness.
    Incast,
    /// A small flood of unexpected messages: time, growth of the receiver.
    Flood,
    /// Memory of a rank after all-to-alls, by ranks.
    Memory,
}

/// A measured quantity with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Half a round trip, by message size.
    HalfRoundTripUs,
    /// Stream, by message size.
    BytesPerS,
    /// Stream of small messages, by message size.
    MessagesPerS,
    /// Barrier, by ranks.
    BarrierUs,
    /// All-reduce of 8 B, by ranks.
    AllreduceUs,
    /// All-to-all of 2 KiB, by ranks.
    AlltoallUs,
    /// Incast, by senders: all messages together.
    IncastPerS,
    /// Incast, by senders: the rate divided by that of one sender in the same round.
    IncastShare,
    /// Incast, by senders: Jain's index of the messages of each sender when the first had finished.
    IncastFairness,
    /// Incast between hosts, by senders: bundles that were sent again, as a share of all datagrams.
    IncastSentAgain,
    /// Incast between hosts, by senders: those of them that have not arrived twice, as a share of all datagrams.
    IncastLost,
    /// Flood, by senders: from the first message to the last one received.
    FloodS,
    /// Flood, by senders: growth of the receiver's memory.
    FloodGrowthBytes,
    /// Memory of a rank, by ranks: the mean over the ranks.
    RankBytes,
}

impl Quantity {
    /// Title in tables and charts.
    pub fn title(self) -> &'static str {
        match self {
            Quantity::HalfRoundTripUs => "Half round trip",
            Quantity::BytesPerS => "Bandwidth",
            Quantity::MessagesPerS => "Message rate",
            Quantity::BarrierUs => "Barrier",
            Quantity::AllreduceUs => "All-reduce of 8 B",
            Quantity::AlltoallUs => "All-to-all of 2 KiB",
            Quantity::IncastPerS => "Incast of 2 KiB: rate",
            Quantity::IncastShare => "Incast: rate over one to one",
            Quantity::IncastFairness => "Incast: Jain's fairness index",
            Quantity::IncastSentAgain => "Incast: sent again",
            Quantity::IncastLost => "Incast: lost",
            Quantity::FloodS => "Flood: time",
            Quantity::FloodGrowthBytes => "Flood: growth of the receiver",
            Quantity::RankBytes => "Memory of a rank after all-to-alls",
        }
    }

    /// A value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Quantity::HalfRoundTripUs
            | Quantity::BarrierUs
            | Quantity::AllreduceUs
            | Quantity::AlltoallUs => time_ns(value * 1e3),
            Quantity::BytesPerS => format!("{} GB/s", three_digits(value / 1e9)),
            Quantity::MessagesPerS | Quantity::IncastPerS => quantity::rate(value),
            Quantity::IncastShare => three_digits(value),
            Quantity::IncastFairness => format!("{value:.3}"),
            Quantity::IncastSentAgain | Quantity::IncastLost => percent(value),
            Quantity::FloodS => time_ns(value * 1e9),
            Quantity::FloodGrowthBytes | Quantity::RankBytes => bytes(value as u64),
        }
    }

    /// The parameter of its values: message size, ranks or senders.
    pub fn place(self, at: u64) -> String {
        match self {
            Quantity::HalfRoundTripUs | Quantity::BytesPerS | Quantity::MessagesPerS => exact_bytes(at),
            Quantity::BarrierUs | Quantity::AllreduceUs | Quantity::AlltoallUs | Quantity::RankBytes => {
                format!("{at} ranks")
            }
            Quantity::IncastPerS
            | Quantity::IncastShare
            | Quantity::IncastFairness
            | Quantity::IncastSentAgain
            | Quantity::IncastLost => format!("{at} to 1"),
            Quantity::FloodS | Quantity::FloodGrowthBytes => format!("{at} senders"),
        }
    }

    /// Whether tables compare it with weir. Ratios are not compared, and growth is not, since it may be 0.
    pub fn is_compared(self) -> bool {
        !matches!(
            self,
            Quantity::IncastShare
                | Quantity::IncastFairness
                | Quantity::IncastSentAgain
                | Quantity::IncastLost
                | Quantity::FloodGrowthBytes
        )
    }

    /// Whether it is shown in percent.
    pub fn is_percentage(self) -> bool {
        matches!(self, Quantity::IncastSentAgain | Quantity::IncastLost)
    }

    /// Its group.
    pub fn group(self) -> Group {
        match self {
            Quantity::HalfRoundTripUs => Group::Latency,
            Quantity::BytesPerS => Group::Bandwidth,
            Quantity::MessagesPerS => Group::Rate,
            Quantity::BarrierUs | Quantity::AllreduceUs | Quantity::AlltoallUs => Group::Collectives,
            Quantity::IncastPerS
            | Quantity::IncastShare
            | Quantity::IncastFairness
            | Quantity::IncastSentAgain
            | Quantity::IncastLost => Group::Incast,
            Quantity::FloodS | Quantity::FloodGrowthBytes => Group::Flood,
            Quantity::RankBytes => Group::Memory,
        }
    }
}

/// A share in percent. `0 %` is nothing at all.
fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => String::from("0 %"),
        percent if percent < 0.001 => String::from("below 0.001 %"),
        percent if percent < 0.1 => format!("{percent:.3} %"),
        percent => format!("{} %", three_digits(percent)),
    }
}

/// A quantity at one parameter: one row of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Measure {
    /// The quantity.
    pub what: Quantity,
    /// Message size, ranks or senders.
    pub at: u64,
}

impl Measure {
    /// `half round trip, 8 B`.
    pub fn describe(self) -> String {
        format!("{}, {}", self.what.title(), self.what.place(self.at))
    }
}

/// One measured value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Its measure.
    #[serde(flatten)]
    pub measure: Measure,
    /// The value, in the unit of [`Measure::what`].
    pub value: f64,
}

/// The result of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The values.
    pub values: Vec<Value>,
    /// Incast: messages of each sender that had arrived when the first sender had finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_sender: Vec<u64>,
}

/// One job: an MPI program that measures one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    /// The group of its measures.
    pub group: Group,
    /// Number of ranks.
    pub ranks: u32,
}

impl Job {
    /// Its name in records: `collectives-8`.
    pub fn word(self) -> String {
        let value = self.group.to_possible_value();
        let group = value.as_ref().map_or("", |value| value.get_name());
        format!("{group}-{}", self.ranks)
    }
}

/// All jobs of a round and their parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The jobs, in their order.
    pub jobs: Vec<Job>,
    /// Time for each value. Unit: s.
    seconds: f64,
    flood: Case,
}

impl Plan {
    /// `groups`: the selected ones; empty: all. `ranks`: the numbers of ranks for groups that have them as parameter.
    pub fn new(groups: &[Group], ranks: &[u32], quick: bool) -> Plan {
        let messages = if quick { 1000 } else { 10_000 };
        let (mode, drain) = (Mode::Blocking, Drain::Ordered);
        let flood = Case { senders: 3, messages, bytes: EXCHANGE_BYTES, mode, drain };
        let mut jobs = Vec::new();
        for &group in Group::value_variants() {
            if !groups.is_empty() && !groups.contains(&group) {
                continue;
            }
            let mut of_group: Vec<u32> = match group {
                Group::Latency | Group::Bandwidth | Group::Rate => vec![2],
                Group::Flood => vec![flood.senders + 1],
                Group::Collectives | Group::Memory => ranks.to_vec(),
                // One sender is the baseline of the other incasts.
                Group::Incast => ranks.iter().copied().chain([2]).collect(),
            };
            of_group.sort_unstable();
            of_group.dedup();
            jobs.extend(of_group.into_iter().map(|ranks| Job { group, ranks }));
        }
        Plan { jobs, seconds: if quick { 0.05 } else { 0.2 }, flood }
    }

    /// The same with another flood, of as many senders.
    pub fn with_flood(self, flood: Case) -> Plan {
        assert_eq!(flood.senders, self.flood.senders, "jobs have this number of ranks");
        Plan { flood, ..self }
    }

    /// Whether it has a job of this group.
    pub fn has(&self, group: Group) -> bool {
        self.jobs.iter().any(|job| job.group == group)
    }

    /// Everything that determines the results, for the key of a run.
    pub fn describe(&self) -> String {
        let jobs = self.jobs.iter().map(|job| format!("{}: {:?}", job.word(), self.arguments(*job).1));
        jobs.collect::<Vec<_>>().join("; ")
    }

    /// A description of the flood.
    pub fn flood(&self) -> String {
        self.flood.describe()
    }

    /// The largest number of ranks of a job.
    pub fn max_ranks(&self) -> u32 {
        self.jobs.iter().map(|job| job.ranks).max().unwrap_or(2)
    }

    /// The program of a job, and its arguments.
    pub fn arguments(&self, job: Job) -> (Source, Vec<String>) {
        let measure = |word: &str, sizes: &[u64]| {
            let sizes = sizes.iter().map(u64::to_string);
            let arguments = [word.to_owned(), self.seconds.to_string()].into_iter().chain(sizes);
            (MEASURE, arguments.collect())
        };
        match job.group {
            Group::Latency => measure("latency", &LATENCY_BYTES),
            Group::Bandwidth => measure("stream", &BANDWIDTH_BYTES),
            Group::Rate => measure("stream", &[SMALL_BYTES]),
            Group::Collectives => measure("collectives", &[EXCHANGE_BYTES]),
            Group::Incast => measure("incast", &[EXCHANGE_BYTES]),
            Group::Memory => measure("memory", &[EXCHANGE_BYTES]),
            Group::Flood => (FLOOD, self.flood.arguments()),
        }
    }

    /// Reads the output of a job.
    ///
    /// # Errors
    /// One line: what is missing or invalid.
    pub fn read(&self, job: Job, output: &str) -> Result<Sample, String> {
        let value = |what, at, value| Value { measure: Measure { what, at }, value };
        let (ranks, senders) = (u64::from(job.ranks), u64::from(job.ranks) - 1);
        let by_size = |word: &str, key: &str, what, sizes: &[u64]| {
            let of_size = |&bytes: &u64| {
                let wanted = |line: &ResultLine<'_>| line.number("bytes") == Ok(bytes as f64);
                let line = ResultLine::all(output, word).find(wanted);
                let line = line.ok_or_else(|| format!("it printed no result for {bytes} bytes"))?;
                Ok(value(what, bytes, line.positive(key)?))
            };
            sizes.iter().map(of_size).collect::<Result<Vec<_>, String>>()
        };
        let mut by_sender = Vec::new();
        let values = match job.group {
            Group::Latency => by_size("latency", "us", Quantity::HalfRoundTripUs, &LATENCY_BYTES)?,
            Group::Bandwidth => by_size("stream", "bytes_per_s", Quantity::BytesPerS, &BANDWIDTH_BYTES)?,
            Group::Rate => by_size("stream", "per_s", Quantity::MessagesPerS, &[SMALL_BYTES])?,
            Group::Collectives => {
                let words = [
                    ("barrier", Quantity::BarrierUs),
                    ("allreduce", Quantity::AllreduceUs),
                    ("alltoall", Quantity::AlltoallUs),
                ];
                let of_word =
                    |(word, what)| Ok(value(what, ranks, ResultLine::find(output, word)?.positive("us")?));
                words.into_iter().map(of_word).collect::<Result<_, String>>()?
            }
            Group::Incast => {
                let line = ResultLine::find(output, "incast")?;
                by_sender = counts(line.value("counts")?, senders)?;
                let fairness = fairness(&by_sender).ok_or("its result counts no message of any sender")?;
                let rate = value(Quantity::IncastPerS, senders, line.positive("per_s")?);
                // Fairness of one sender has no meaning.
                let fairness = (senders > 1).then(|| value(Quantity::IncastFairness, senders, fairness));
                std::iter::once(rate).chain(fairness).collect()
            }
            Group::Flood => {
                let flood = flood::Sample::parse(output)?;
                vec![
                    value(Quantity::FloodS, senders, flood.seconds),
                    value(Quantity::FloodGrowthBytes, senders, flood.growth_bytes as f64),
                ]
            }
            Group::Memory => {
                let mean_kib = ResultLine::find(output, "memory")?.positive("mean_kib")?;
                vec![value(Quantity::RankBytes, ranks, mean_kib * 1024.0)]
            }
        };
        Ok(Sample { values, by_sender })
    }
}

/// Parses `3,4,5`, one number for each sender.
fn counts(text: &str, senders: u64) -> Result<Vec<u64>, String> {
    let counts: Option<Vec<u64>> = text.split(',').map(|count| count.parse().ok()).collect();
    counts
        .filter(|counts| counts.len() as u64 == senders)
        .ok_or_else(|| format!("its result has counts={text}, for {senders} senders"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new(&[], &[2, 8], false)
    }

    fn read(group: Group, ranks: u32, output: &str) -> Result<Vec<(String, f64)>, String> {
        let sample = plan().read(Job { group, ranks }, output)?;
        Ok(sample.values.iter().map(|value| (value.measure.describe(), value.value)).collect())
    }

    #[test]
    fn a_round_has_a_job_for_each_group_and_number_of_ranks() {
        let words: Vec<_> = plan().jobs.iter().map(|job| job.word()).collect();
        assert_eq!(
            words.join(" "),
            "latency-2 bandwidth-2 rate-2 collectives-2 collectives-8 incast-2 incast-8 flood-4 memory-2 memory-8"
        );
        let only = Plan::new(&[Group::Incast], &[16, 8], true);
        assert_eq!(only.jobs.iter().map(|job| job.ranks).collect::<Vec<_>>(), [2, 8, 16]);
        assert_eq!(only.max_ranks(), 16);
        assert_ne!(only.describe(), Plan::new(&[Group::Incast], &[16, 8], false).describe());
        let (program, arguments) = plan().arguments(Job { group: Group::Rate, ranks: 2 });
        assert_eq!((program.name, arguments.join(" ").as_str()), ("measure", "stream 0.2 8"));
    }

    #[test]
    fn results_are_read() {
        let latency = "latency bytes=8 us=0.5\nlatency bytes=2048 us=1.5\nlatency bytes=65536 us=9\n\
                       latency bytes=1048576 us=99\n";
        let values = read(Group::Latency, 2, latency).unwrap();
        assert_eq!(values[1], ("Half round trip, 2 KiB".to_owned(), 1.5));
        let collectives = "barrier ranks=8 us=3\nallreduce ranks=8 us=4\nalltoall ranks=8 us=5\n";
        let values = read(Group::Collectives, 8, collectives).unwrap();
        assert_eq!(values[2], ("All-to-all of 2 KiB, 8 ranks".to_owned(), 5.0));
        let memory = read(Group::Memory, 8, "memory ranks=8 mean_kib=2\n").unwrap();
        assert_eq!(memory, [("Memory of a rank after all-to-alls, 8 ranks".to_owned(), 2048.0)]);
        let stream = "stream bytes=8 window=64 per_s=100.0 bytes_per_s=800.0\n";
        assert_eq!(read(Group::Rate, 2, stream).unwrap(), [("Message rate, 8 B".to_owned(), 100.0)]);
    }

    #[test]
    fn incast_results_include_fairness() {
        let line = "incast senders=3 bytes=2048 per_s=9 counts=1,2,3\n";
        let sample = plan().read(Job { group: Group::Incast, ranks: 4 }, line).unwrap();
        assert_eq!(sample.by_sender, [1, 2, 3]);
        assert!((sample.values[1].value - 36.0 / 42.0).abs() < 1e-12);
        let alone = read(Group::Incast, 2, "incast senders=1 per_s=9 counts=7\n").unwrap();
        assert_eq!(alone, [("Incast of 2 KiB: rate, 1 to 1".to_owned(), 9.0)]);
        let refusal = |line: &str| read(Group::Incast, 4, line).unwrap_err();
        assert_eq!(refusal(&line.replace("1,2,3", "1,2")), "its result has counts=1,2, for 3 senders");
        assert_eq!(refusal(&line.replace("1,2,3", "0,0,0")), "its result counts no message of any sender");
    }

    #[test]
    fn invalid_results_are_rejected() {
        let refusal = |group, output: &str| read(group, 2, output).unwrap_err();
        assert_eq!(refusal(Group::Latency, "latency bytes=8 us=1\n"), "it printed no result for 2048 bytes");
        assert_eq!(refusal(Group::Memory, ""), "it printed no result");
        let zero = "barrier ranks=2 us=0\nallreduce ranks=2 us=1\nalltoall ranks=2 us=1\n";
        assert_eq!(refusal(Group::Collectives, zero), "its result barrier has us=0, which is not above 0");
    }

    #[test]
    fn values_show_their_units() {
        let show = |what: Quantity, value| what.show(value);
        assert_eq!(show(Quantity::HalfRoundTripUs, 0.59), "590 ns");
        assert_eq!(show(Quantity::BytesPerS, 2.0e10), "20.0 GB/s");
        assert_eq!(show(Quantity::MessagesPerS, 6.2e6), "6.20 M/s");
        assert_eq!(show(Quantity::IncastFairness, 0.98), "0.980");
        assert_eq!(show(Quantity::FloodS, 0.412), "412 ms");
        let again = [0.0, 1e-6, 0.000_32, 0.0123].map(|share| show(Quantity::IncastSentAgain, share));
        assert_eq!(again, ["0 %", "below 0.001 %", "0.032 %", "1.23 %"]);
        assert_eq!(show(Quantity::RankBytes, 18.0 * 1024.0 * 1024.0), "18.0 MiB");
    }

    #[test]
    fn records_round_trip() {
        let measure = Measure { what: Quantity::IncastPerS, at: 7 };
        let sample = Sample { values: vec![Value { measure, value: 9.5 }], by_sender: vec![4, 5] };
        let text = serde_json::to_string(&sample).unwrap();
        assert_eq!(text, r#"{"values":[{"what":"incast_per_s","at":7,"value":9.5}],"by_sender":[4,5]}"#);
        assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample);
    }
}
