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
}

impl Case {
    /// Its name on the command line.
    pub fn word(&self) -> String {
        format!("{}x{}x{}-{}", self.senders, self.messages, self.bytes, self.mode.word())
    }

    /// Its description in tables.
    pub fn describe(&self) -> String {
        let senders =
            if self.senders == 1 { String::from("1 sender") } else { format!("{} senders", self.senders) };
        let mode = match self.mode {
            Mode::Blocking => "blocking",
            Mode::Nonblocking => "non-blocking",
        };
        format!("{senders} x {} messages of {}, {mode} sends", count(self.messages), exact_bytes(self.bytes))
    }

    /// Arguments of the program. The receiver receives late.
    pub fn arguments(&self) -> Vec<String> {
        let numbers = [u64::from(self.senders), self.messages, self.bytes].map(|number| number.to_string());
        numbers.into_iter().chain([self.mode.word(), "late"].map(String::from)).collect()
    }

    /// Payload of all messages. Some rank must hold it until the receiver takes it.
    pub fn payload_bytes(&self) -> u64 {
        u64::from(self.senders).saturating_mul(self.messages).saturating_mul(self.bytes)
    }
}

/// A case on the command line. Without a mode it selects both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseArgument {
    /// The selected cases.
    pub cases: Vec<Case>,
}

impl FromStr for CaseArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<CaseArgument, String> {
        let (numbers, modes) = match text.split_once('-') {
            None => (text, Mode::ALL.to_vec()),
            Some((numbers, word)) => (numbers, Mode::ALL.into_iter().filter(|m| m.word() == word).collect()),
        };
        let parsed: Vec<Option<u64>> = numbers.split('x').map(|number| number.parse().ok()).collect();
        match parsed.as_slice() {
            &[Some(senders @ 1..=1023), Some(messages @ 1..=100_000_000), Some(bytes @ 0..=0x4000_0000)]
                if !modes.is_empty() =>
            {
                let senders = senders as u32;
                let cases = modes.into_iter().map(|mode| Case { senders, messages, bytes, mode });
                Ok(CaseArgument { cases: cases.collect() })
            }
            _ => Err(String::from(
                "a case is SENDERSxMESSAGESxBYTES, for example 3x100000x2048, optionally followed by -blocking or -nonblocking",
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

/// The case of the figure: large enough that a receiver without a bound needs hundreds of MB.
pub fn figure_case(quick: bool) -> Case {
    let messages = if quick { 1000 } else { 100_000 };
    Case { senders: 3, messages, bytes: 2048, mode: Mode::Blocking }
}

fn cases_of(numbers: &[(u32, u64, u64)]) -> Vec<Case> {
    let both = |&(senders, messages, bytes): &(u32, u64, u64)| {
        Mode::ALL.map(|mode| Case { senders, messages, bytes, mode })
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
        for case in standard_cases().into_iter().chain(quick_cases()) {
            assert_eq!(case.word().parse::<CaseArgument>().unwrap().cases, [case]);
        }
        let both = "3x100000x2048".parse::<CaseArgument>().unwrap().cases;
        assert_eq!(both.iter().map(|case| case.mode).collect::<Vec<_>>(), Mode::ALL);
        assert_eq!(both[1].describe(), "3 senders x 100,000 messages of 2 KiB, non-blocking sends");
        assert_eq!(both[0].payload_bytes(), 614_400_000);
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
