//! The cases of `weir bench flood` (senders, messages, message length, kind of send) and their names on the command
//! line. Also parses the line in which the flood program prints its result.

use crate::result_line::ResultLine;
use serde::Serialize;
use std::str::FromStr;
use weir_output::quantity::{count, exact_bytes};

/// The kind of send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `MPI_Send`.
    Blocking,
    /// `MPI_Isend`, completed at the end.
    Nonblocking,
}

impl Mode {
    const ALL: [Mode; 2] = [Mode::Blocking, Mode::Nonblocking];

    /// Its name for the program and on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Blocking => "blocking",
            Mode::Nonblocking => "nonblocking",
        }
    }
}

/// The order in which the receiver takes the messages of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Drain {
    /// As they were sent.
    Ordered,
    /// Each message has another tag, and the last tag is received first.
    Reversed,
    /// From any source.
    Anybody,
}

impl Drain {
    const ALL: [Drain; 3] = [Drain::Ordered, Drain::Reversed, Drain::Anybody];

    /// Its name for the program, and on the command line unless it is the standard one.
    fn word(self) -> &'static str {
        match self {
            Drain::Ordered => "late",
            Drain::Reversed => "reversed",
            Drain::Anybody => "anybody",
        }
    }
}

/// One flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Number of senders.
    pub senders: u32,
    /// Messages of each sender.
    pub messages: u64,
    /// Bytes of each message.
    pub bytes: u64,
    /// The kind of send.
    pub mode: Mode,
    /// The order of the receives.
    pub drain: Drain,
}

impl Case {
    /// Its name on the command line.
    pub fn word(&self) -> String {
        let Case { senders, messages, bytes, mode, drain } = self;
        let drain = if *drain == Drain::Ordered { String::new() } else { format!("-{}", drain.word()) };
        format!("{senders}x{messages}x{bytes}-{}{drain}", mode.word())
    }

    /// Its description in tables.
    pub fn describe(&self) -> String {
        let senders =
            if self.senders == 1 { String::from("1 sender") } else { format!("{} senders", self.senders) };
        let mode = match self.mode {
            Mode::Blocking => "blocking",
            Mode::Nonblocking => "non-blocking",
        };
        let drain = match self.drain {
            Drain::Ordered => "",
            Drain::Reversed => ", received in reverse order of tags",
            Drain::Anybody => ", received from anybody",
        };
        let (messages, bytes) = (count(self.messages), exact_bytes(self.bytes));
        format!("{senders} x {messages} messages of {bytes}, {mode} sends{drain}")
    }

    /// Arguments of the program. The receiver receives late.
    pub fn arguments(&self) -> Vec<String> {
        let numbers = [u64::from(self.senders), self.messages, self.bytes].map(|number| number.to_string());
        numbers.into_iter().chain([self.mode.word(), self.drain.word()].map(String::from)).collect()
    }

    /// Payload of all messages. Some rank must hold it until the receiver takes it.
    pub fn payload_bytes(&self) -> u64 {
        u64::from(self.senders).saturating_mul(self.messages).saturating_mul(self.bytes)
    }
}

/// A case on the command line. Without a mode it selects both. Without a drain it selects the ordered one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseArgument {
    /// The selected cases.
    pub cases: Vec<Case>,
}

impl FromStr for CaseArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<CaseArgument, String> {
        let mut words = text.split('-');
        let numbers = words.next().unwrap_or_default();
        let (mut modes, mut drain, mut known) = (Mode::ALL.to_vec(), Drain::Ordered, true);
        for word in words {
            if let Some(mode) = Mode::ALL.into_iter().find(|mode| mode.word() == word) {
                modes = vec![mode];
            } else if let Some(named) = Drain::ALL.into_iter().find(|drain| drain.word() == word) {
                drain = named;
            } else {
                known = false;
            }
        }
        let parsed: Vec<Option<u64>> = numbers.split('x').map(|number| number.parse().ok()).collect();
        match parsed.as_slice() {
            &[Some(senders @ 1..=1023), Some(messages @ 1..=100_000_000), Some(bytes @ 0..=0x4000_0000)]
                if known =>
            {
                let senders = senders as u32;
                let cases = modes.into_iter().map(|mode| Case { senders, messages, bytes, mode, drain });
                Ok(CaseArgument { cases: cases.collect() })
            }
            _ => Err(String::from(
                "a case is SENDERSxMESSAGESxBYTES, for example 3x100000x2048, optionally followed by -blocking or -nonblocking, \
                 and by -reversed or -anybody",
            )),
        }
    }
}

/// The cases of weir's targets.
pub fn standard_cases() -> Vec<Case> {
    cases_of(&[
        (1, 100_000, 2048),
        (1, 1_000_000, 2048),
        (3, 100_000, 8),
        (3, 100_000, 2048),
        (3, 100_000, 16384),
    ])
}

/// Small cases, to check that everything works. They stay within the budget.
pub fn quick_cases() -> Vec<Case> {
    cases_of(&[(1, 2000, 2048), (3, 1000, 8), (3, 1000, 2048), (3, 1000, 16384)])
}

/// Floods with far more envelopes than a receiver keeps, and one with long messages, in every order of receives.
pub fn envelope_cases() -> Vec<Case> {
    use Mode::{Blocking, Nonblocking};
    let floods = [(1, 10_000_000, 8, Blocking), (3, 3_333_333, 8, Blocking), (1, 1526, 65536, Nonblocking)];
    let orders = |(senders, messages, bytes, mode)| {
        Drain::ALL.map(|drain| Case { senders, messages, bytes, mode, drain })
    };
    floods.into_iter().flat_map(orders).collect()
}

/// The case of the figure: large enough that a receiver without a bound needs hundreds of MB.
pub fn figure_case(quick: bool) -> Case {
    let messages = if quick { 1000 } else { 100_000 };
    Case { senders: 3, messages, bytes: 2048, mode: Mode::Blocking, drain: Drain::Ordered }
}

fn cases_of(numbers: &[(u32, u64, u64)]) -> Vec<Case> {
    let both = |&(senders, messages, bytes): &(u32, u64, u64)| {
        Mode::ALL.map(|mode| Case { senders, messages, bytes, mode, drain: Drain::Ordered })
    };
    numbers.iter().flat_map(both).collect()
}

/// The result of one run of the program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// From the first message to the last one received.
    pub seconds: f64,
    /// The most by which the receiver's RssAnon + RssShmem grew after MPI_Init.
    pub growth_bytes: u64,
    /// The growth of all ranks together when all messages were sent and none was received.
    pub node_growth_bytes: u64,
    /// Messages that were sent before the receiver posted a receive for one.
    pub unexpected_messages: u64,
}

impl Sample {
    /// Reads the program's line `flood key=value ...`. The program checks every byte and fails on a
    /// mismatch.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn parse(output: &str) -> Result<Sample, String> {
        let line = ResultLine::find(output, "flood")?;
        // Memory may also shrink. That counts as no growth.
        let kibibytes =
            |key: &str| line.number(key).map(|number| (number.max(0.0) as u64).saturating_mul(1024));
        let count = |key: &str| line.number(key).map(|number| number.max(0.0) as u64);
        Ok(Sample {
            // The program prints ms. At least half a ms, since times are divided.
            seconds: line.number("total_s")?.max(0.000_5),
            growth_bytes: kibibytes("peak_growth_kib")?,
            node_growth_bytes: kibibytes("all_waited_growth_kib")?,
            unexpected_messages: count("senders")?.saturating_mul(count("messages")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_round_trip() {
        for case in standard_cases().into_iter().chain(quick_cases()).chain(envelope_cases()) {
            assert_eq!(case.word().parse::<CaseArgument>().unwrap().cases, [case]);
        }
        let both = "3x100000x2048".parse::<CaseArgument>().unwrap().cases;
        assert_eq!(both.iter().map(|case| case.mode).collect::<Vec<_>>(), Mode::ALL);
        assert_eq!(both[1].describe(), "3 senders x 100,000 messages of 2 KiB, non-blocking sends");
        assert_eq!(both[0].payload_bytes(), 614_400_000);
        let reversed = "1x5x8-blocking-reversed".parse::<CaseArgument>().unwrap().cases[0];
        assert_eq!(reversed.arguments(), ["1", "5", "8", "blocking", "reversed"]);
        for wrong in ["", "3x5", "0x1x1", "1x0x1", "1x1x1x1", "1x1x1-often", "axbxc", "1x1x99999999999"] {
            assert!(wrong.parse::<CaseArgument>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_standard_cases_include_the_targets() {
        let words: Vec<_> = standard_cases().iter().map(Case::word).collect();
        assert_eq!(words.len(), 10);
        assert!(words.contains(&String::from("1x1000000x2048-blocking")));
        assert!(words.contains(&String::from("3x100000x16384-nonblocking")));
    }

    const LINE: &str = "flood senders=3 messages=1000 bytes=8 sends=blocking pattern=late start_kib=9000 \
        waited_growth_kib=400 peak_growth_kib=480 end_growth_kib=20 all_start_kib=36000 all_waited_growth_kib=900 \
        all_end_growth_kib=50 wait_s=0.300 drain_s=0.112 total_s=0.412";

    #[test]
    fn the_result_is_read() {
        let sample = Sample {
            seconds: 0.412,
            growth_bytes: 480 << 10,
            node_growth_bytes: 900 << 10,
            unexpected_messages: 3000,
        };
        assert_eq!(Sample::parse(&format!("libfabric says hello\n{LINE} more=x\n")), Ok(sample));
        let shrunk = LINE.replace("peak_growth_kib=480", "peak_growth_kib=-4");
        assert_eq!(Sample::parse(&shrunk).unwrap().growth_bytes, 0);
        let quick = LINE.replace("0.412", "0.000");
        assert_eq!(Sample::parse(&quick).unwrap().seconds, 0.000_5);
    }

    #[test]
    fn an_invalid_flood_result_is_rejected() {
        let refusal = |line: &str| Sample::parse(line).unwrap_err();
        assert_eq!(refusal("hello"), "it printed no result");
        assert_eq!(refusal(&LINE.replace("total_s=0.412", "")), "its result has no total_s");
        assert_eq!(refusal(&LINE.replace("0.412", "nan")), "its result has total_s=nan, which is no number");
        // The name of one key ends with the name of another.
        assert_eq!(
            refusal(&LINE.replace(" peak_growth_kib=480", " all_peak_growth_kib=480")),
            "its result has no peak_growth_kib"
        );
    }
}
