//! Counts the instructions of a message for `weir bench overhead`. One call runs this command under callgrind for one
//! scheme, size, direction and side, and parses the number that callgrind prints.

use super::workload::{RECEIVER_FUNCTION, SENDER_FUNCTION, Traffic};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_mpi::job::{self, CaptureError, Output};
use weir_mpi::program;
use weir_output::Failure;

/// Message sizes. Unit: bytes.
pub const SIZES: [u32; 2] = [8, 2048];
/// Counted messages in a run. Credits return every few messages, so this is many periods.
const MESSAGES: u64 = 4000;

/// The side of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Posts the send, reads credits.
    Sender,
    /// Posts the receive, takes the message, returns credits.
    Receiver,
}

impl Side {
    /// Both sides.
    pub const ALL: [Side; 2] = [Side::Sender, Side::Receiver];

    fn function(self) -> &'static str {
        match self {
            Side::Sender => SENDER_FUNCTION,
            Side::Receiver => RECEIVER_FUNCTION,
        }
    }
}

/// Instructions of one message of a size, at both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Count {
    /// Message size.
    pub bytes: u32,
    /// The direction of the messages.
    pub traffic: Traffic,
    /// Instructions of the sender.
    pub sender: f64,
    /// Instructions of the receiver.
    pub receiver: f64,
}

impl Count {
    /// Instructions of both sides.
    pub fn both(&self) -> f64 {
        self.sender + self.receiver
    }
}

/// Runs callgrind on this command.
#[derive(Clone, Debug)]
pub struct Counter {
    valgrind: PathBuf,
    weir: PathBuf,
    /// Directory of valgrind's profiles.
    scratch: PathBuf,
    limit: Duration,
}

impl Counter {
    /// Finds valgrind.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn find(scratch: &Path, limit: Duration) -> Result<Counter, String> {
        let path = std::env::var_os("PATH");
        let valgrind = program::find("valgrind", path.as_deref(), &[]).map_err(|_| {
            String::from("instructions are not counted: valgrind is not in PATH (apt-get install valgrind)")
        })?;
        let weir = std::env::current_exe().map_err(|error| format!("the path of this command: {error}"))?;
        Ok(Counter { valgrind, weir, scratch: scratch.to_owned(), limit })
    }

    /// Instructions of a message of `bytes` bytes at one side with the scheme `flow`.
    ///
    /// # Errors
    /// Outer: a signal ended this command. Inner: one line why there is no number.
    pub fn count(
        &self,
        flow: &str,
        bytes: u32,
        traffic: Traffic,
        side: Side,
    ) -> Result<Result<f64, String>, Failure> {
        let mut command = Command::new(&self.valgrind);
        command.args(["--tool=callgrind", "--collect-atstart=no"]);
        command.arg(format!("--toggle-collect=*{}*", side.function()));
        command.arg(format!("--callgrind-out-file={}", self.scratch.join("callgrind").display()));
        command.arg(&self.weir).arg("bench-instructions");
        command.args([
            "--traffic",
            traffic.word(),
            "--bytes",
            &bytes.to_string(),
            "--messages",
            &MESSAGES.to_string(),
        ]);
        command.env("FI_WEIR_FLOW", flow);
        match job::capture(command, self.limit) {
            Ok(output) => Ok(instructions(&output).map(|all| all as f64 / MESSAGES as f64)),
            Err(CaptureError::Interrupted(signal)) => Err(Failure::Interrupted(signal)),
            Err(CaptureError::System(error)) => Ok(Err(format!("{}: {error}", self.valgrind.display()))),
        }
    }
}

/// Parses the number of instructions that callgrind has collected.
fn instructions(output: &Output) -> Result<u64, String> {
    let said = || {
        let last = output.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
        last.unwrap_or("nothing").to_owned()
    };
    if !output.success() {
        return Err(format!("the counted run failed: {}", said()));
    }
    let collected = output.stderr.lines().find_map(|line| {
        let number = line.split_once("Collected")?.1.trim().strip_prefix(':')?.trim();
        number.parse::<u64>().ok()
    });
    match collected {
        None => Err(format!("callgrind printed no number: {}", said())),
        Some(0) => Err(String::from(
            "callgrind counted nothing, because this weir has no symbols; use one that is not stripped",
        )),
        Some(all) => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mpi::job::End;

    fn output(code: &str, stderr: &str) -> Output {
        let status = Command::new("/bin/sh").args(["-c", &format!("exit {code}")]).status().unwrap();
        Output { end: End::Exited(status), stdout: String::new(), stderr: stderr.into() }
    }

    #[test]
    fn the_callgrind_count_is_parsed() {
        let text =
            "==7== Events    : Ir\n==7== Collected : 2524512\n==7== \n==7== I   refs:      2,524,512\n";
        assert_eq!(instructions(&output("0", text)), Ok(2_524_512));
        let none = instructions(&output("0", &text.replace("2524512", "0"))).unwrap_err();
        assert!(none.contains("not stripped"), "{none}");
        assert_eq!(
            instructions(&output("0", "==7== hello\n")),
            Err(String::from("callgrind printed no number: ==7== hello"))
        );
        assert_eq!(
            instructions(&output("1", "weir: no mailbox\n")),
            Err(String::from("the counted run failed: weir: no mailbox"))
        );
    }
}
