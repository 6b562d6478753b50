//! PMI-1, by which a rank reaches the launcher of MPICH or Intel MPI: lines of text over a socket that the launcher
//! has left open (`PMI_FD`). Only what an all-gather needs. Source: `simple` wire protocol of MPICH,
//! `src/pmi/src/pmi_v1.c`.
//!
//! ```text
//! ->  cmd=init pmi_version=1 pmi_subversion=1        <-  cmd=response_to_init ... rc=0
//! ->  cmd=get_my_kvsname                             <-  cmd=my_kvsname kvsname=kvs_7_0
//! ->  cmd=put kvsname=kvs_7_0 key=weir-0-1 value=..  <-  cmd=put_result rc=0
//! ->  cmd=barrier_in                                 <-  cmd=barrier_out
//! ->  cmd=get kvsname=kvs_7_0 key=weir-0-0           <-  cmd=get_result rc=0 value=..
//! ->  cmd=finalize                                   <-  cmd=finalize_ack
//! ```
//! A process has one such socket, which ends with `finalize`. So one endpoint of a process can use it, and a program
//! that starts the MPI itself cannot: it gives a call.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::exchange::ExchangeError;

/// The socket is used up. A process has one.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A process's side.
pub(crate) struct PmiClient {
    stream: BufReader<UnixStream>,
    /// The name of the job's table at the server.
    table: String,
}

fn failed(what: impl std::fmt::Display) -> ExchangeError {
    ExchangeError::Pmi(what.to_string())
}

impl PmiClient {
    /// Connects to the launcher of this process. `None`: it offers no PMI-1.
    ///
    /// - `patience`: bound for each answer.
    ///
    /// # Errors
    /// The socket was used before, or the server does not answer as it should.
    pub fn of_launcher(patience: Duration) -> Result<Option<PmiClient>, ExchangeError> {
        let Ok(number) = std::env::var("PMI_FD") else { return Ok(None) };
        let descriptor: RawFd = number
            .parse()
            .ok()
            .filter(|&number| number >= 0)
            .ok_or_else(|| failed(format!("PMI_FD={number}")))?;
        if IS_USED.swap(true, Ordering::Relaxed) {
            return Err(failed(
                "an endpoint of this process has used the launcher's socket before; give a call",
            ));
        }
        // SAFETY: the launcher has left this descriptor open for the process, as its variable says. Nobody here
        // closes it. If it is not open, the copy fails.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let copy =
            descriptor.try_clone_to_owned().map_err(|error| failed(format!("PMI_FD={number}: {error}")))?;
        PmiClient::over(UnixStream::from(copy), patience).map(Some)
    }

    fn over(stream: UnixStream, patience: Duration) -> Result<PmiClient, ExchangeError> {
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        let mut client = PmiClient { stream: BufReader::new(stream), table: String::new() };
        client.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let answer = client.ask("get_my_kvsname", "my_kvsname")?;
        client.table =
            field(&answer, "kvsname").ok_or_else(|| failed(format!("no name in {answer:?}")))?.to_owned();
        Ok(client)
    }

    /// Sends a command, and returns its answer.
    fn ask(&mut self, command: &str, answer_name: &str) -> Result<String, ExchangeError> {
        let line = format!("cmd={command}\n");
        let failed_here = |error: std::io::Error| failed(format!("{command}: {error}"));
        self.stream.get_mut().write_all(line.as_bytes()).map_err(failed_here)?;
        let mut answer = String::new();
        let bytes = self.stream.read_line(&mut answer).map_err(failed_here)?;
        if bytes == 0 {
            return Err(failed(format!("{command}: the launcher has closed the connection")));
        }
        let is_right = field(&answer, "cmd") == Some(answer_name);
        if !is_right || field(&answer, "rc").is_some_and(|code| code != "0") {
            return Err(failed(format!("{command}: {answer:?}")));
        }
        Ok(answer)
    }

    /// As [`crate::exchange::Rounds::all_gather`].
    pub fn all_gather(
        &mut self,
        round: u32,
        rank: u32,
        size: u32,
        block: &[u8],
    ) -> Result<Vec<u8>, ExchangeError> {
        let table = self.table.clone();
        let value = hex(block);
        self.ask(&format!("put kvsname={table} key=weir-{round}-{rank} value={value}"), "put_result")?;
        self.ask("barrier_in", "barrier_out")?;
        let mut all = Vec::with_capacity(size as usize * block.len());
        for other in 0..size {
            let answer = self.ask(&format!("get kvsname={table} key=weir-{round}-{other}"), "get_result")?;
            let value = field(&answer, "value").and_then(bytes_of);
            all.extend(value.ok_or(ExchangeError::Stranger { rank: other })?);
        }
        Ok(all)
    }

    /// Says that this process needs the launcher no more. Without it, the launcher takes the end of the process for a
    /// failure.
    pub fn end(mut self) {
        let _ = self.ask("finalize", "finalize_ack"); // nobody needs the answer
    }
}

/// The value of a field of a line.
fn field<'line>(line: &'line str, name: &str) -> Option<&'line str> {
    line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    text
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A launcher that gives these answers, one after the other, and returns the commands.
    fn launcher(answers: &'static [&'static str]) -> (UnixStream, std::thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let server = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs);
            let mut commands = Vec::new();
            for answer in answers {
                let mut command = String::new();
                lines.read_line(&mut command).expect("a command");
                commands.push(command.trim_end().to_owned());
                lines.get_mut().write_all(format!("{answer}\n").as_bytes()).expect("it reads");
            }
            commands
        });
        (ours, server)
    }

    #[test]
    fn an_all_gather_puts_meets_and_gets() {
        let (stream, server) = launcher(&[
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "cmd=my_kvsname kvsname=kvs_7",
            "cmd=put_result rc=0 msg=success",
            "cmd=barrier_out",
            "cmd=get_result rc=0 msg=success value=0aff",
            "cmd=get_result rc=0 msg=success value=0102",
            "cmd=finalize_ack",
        ]);
        let mut client = PmiClient::over(stream, LONG).expect("it answers");
        assert_eq!(client.all_gather(3, 1, 2, &[1, 2]).expect("two blocks"), [10, 255, 1, 2]);
        client.end();
        let commands = server.join().expect("no panic");
        let expected = [
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=get_my_kvsname",
            "cmd=put kvsname=kvs_7 key=weir-3-1 value=0102",
            "cmd=barrier_in",
            "cmd=get kvsname=kvs_7 key=weir-3-0",
            "cmd=get kvsname=kvs_7 key=weir-3-1",
            "cmd=finalize",
        ];
        assert_eq!(commands, expected);
    }

    #[test]
    fn a_server_that_fails_or_ends_is_an_error() {
        let open = |answers| {
            let (stream, server) = launcher(answers);
            let error = PmiClient::over(stream, LONG).err().expect("an error").to_string();
            server.join().expect("no panic");
            error
        };
        assert!(open(&["cmd=response_to_init rc=-1"]).contains("rc=-1"));
        assert!(open(&["cmd=nonsense"]).contains("nonsense"));
        assert!(open(&["cmd=response_to_init rc=0", "cmd=my_kvsname"]).contains("no name"));
        assert!(open(&["cmd=response_to_init rc=0"]).contains("get_my_kvsname"), "it has ended");
    }
}
