//! Two processes with an endpoint each, on weir's engine without MPI and libfabric. `weir bench native` and `weir
//! tune` time messages between them.
//!
//! The second process is this command again, as a helper. The two exchange their addresses through a pipe. All further
//! communication, including the commands to the helper, uses weir itself. Each process is bound to a core of its own,
//! the first from its first measurement on. [`cache_line`] and [`copies`] time what messages are compared with.

pub mod cache_line;
pub mod copies;

use clap::Args;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_engine::config::Settings;
use weir_engine::{Completion, Engine, Operation, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_link::{ADDRESS_BYTES, Address, cores};
use weir_mpi::job;
use weir_output::Failure;
use weir_proto::{Outcome, Pattern, Peer, SendLevel, Space};

/// The helper's name on the command line.
pub const HELPER: &str = "native-peer";
/// Round trips before a measurement.
const WARM_UP: u64 = 20;
/// Longest silence of the other side, a hundred times longer than any measurement needs.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// Polls between two reads of the clock.
const POLLS_PER_CHECK: u32 = 1 << 16;

/// The traffic of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// One side sends and waits, the other answers.
    RoundTrips,
    /// Both sides send at the same time and then wait, as in an exchange of ghost cells.
    Exchanges,
}

impl Traffic {
    /// Messages in a round, one after the other.
    fn messages_per_round(self) -> u64 {
        match self {
            Traffic::RoundTrips => 2,
            Traffic::Exchanges => 1,
        }
    }
}

/// Length of a command to the helper: the traffic, bytes of a message, number of messages.
const COMMAND_BYTES: usize = 24;

/// Tags.
const COMMAND_TAG: u64 = 1;
const DATA_TAG: u64 = 2;

/// Options of the helper process. Its settings are in its environment, the first address comes by its standard input.
#[derive(Args, Debug)]
pub struct HelperArguments {
    /// The core to bind to.
    #[arg(long)]
    core: usize,
    /// The longest message.
    #[arg(long)]
    bytes: usize,
}

/// One side of the pair.
struct Side {
    engine: Engine,
    other: Peer,
    out: OwnedMemory,
    into: OwnedMemory,
    /// Completions that nobody has waited for yet: sends, receives.
    ended: [u32; 2],
}

/// A connected pair, seen from the first side.
pub struct Pair {
    side: Side,
    helper: Child,
    cores: [usize; 2],
}

/// The cores of the two sides.
///
/// # Errors
/// [`Failure`]: this process may use one core only.
fn two_cores() -> Result<[usize; 2], Failure> {
    match cores::allowed().map_err(Failure::system("the cores of this process"))?[..] {
        [first, second, ..] => Ok([first, second]),
        _ => Err(Failure::Measurement(String::from(
            "this process may use one core only; two are needed, one for each side",
        ))),
    }
}

impl Pair {
    /// Starts the helper and connects. `bytes`: the longest message.
    ///
    /// The calling thread must not be bound to a core, as a measurement of another pair does. An engine that is opened
    /// there takes the core for shared.
    ///
    /// # Errors
    /// [`Failure`]: no helper, no mailbox, or the two cannot reach each other.
    pub fn start(settings: &Settings, bytes: usize) -> Result<Pair, Failure> {
        let cores = two_cores()?;
        let executable = std::env::current_exe().map_err(Failure::system("the path of this command"))?;
        let mut helper = Command::new(executable)
            .args([HELPER, "--core", &cores[1].to_string(), "--bytes", &bytes.to_string()])
            .envs(settings.to_variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::system("the helper process"))?;
        let side = Pair::connect(settings, bytes, &mut helper);
        match side {
            Ok(side) => Ok(Pair { side, helper, cores }),
            Err(failure) => {
                // The helper may have ended already.
                let _ = helper.kill();
                let _ = helper.wait();
                Err(failure)
            }
        }
    }

    fn connect(settings: &Settings, bytes: usize, helper: &mut Child) -> Result<Side, Failure> {
        let engine = open(settings)?;
        let (mut to, from) = (helper.stdin.take().expect("piped"), helper.stdout.take().expect("piped"));
        writeln!(to, "{}", hex(&engine.address())).map_err(Failure::system("the helper's input"))?;
        let mut line = String::new();
        BufReader::new(from).read_line(&mut line).map_err(Failure::system("the helper's output"))?;
        Ok(Side::new(engine, &address(&line)?, bytes))
    }

    /// Half a round trip of messages of `bytes` bytes, or an exchange of one each way: mean of `count`. Binds the
    /// calling thread to the first core. Unit: nanoseconds.
    ///
    /// # Errors
    /// [`Failure`]: the helper has died or does not answer.
    pub fn time_ns(&mut self, traffic: Traffic, bytes: usize, count: u64) -> Result<f64, Failure> {
        let core = self.cores[0];
        cores::pin(core).map_err(Failure::system(format!("core {core}")))?;
        self.side.send_command(traffic, bytes as u64, count + WARM_UP)?;
        self.side.exchange(bytes, WARM_UP)?;
        let began = Instant::now();
        self.side.exchange(bytes, count)?;
        Ok(began.elapsed().as_nanos() as f64 / (traffic.messages_per_round() * count) as f64)
    }

    /// [`Pair::time_ns`] with as many messages as fit into about `time`. Unit: nanoseconds.
    ///
    /// # Errors
    /// As for [`Pair::time_ns`].
    pub fn time_ns_for(&mut self, traffic: Traffic, bytes: usize, time: Duration) -> Result<f64, Failure> {
        let first = self.time_ns(traffic, bytes, 10)?;
        let count = time.as_nanos() as f64 / (traffic.messages_per_round() as f64 * first);
        self.time_ns(traffic, bytes, (count as u64).clamp(10, 1_000_000))
    }

    /// The cores of the two sides.
    pub fn cores(&self) -> [usize; 2] {
        self.cores
    }

    /// Ends both sides.
    ///
    /// # Errors
    /// As for [`Pair::time_ns`], or if the helper reports a failure.
    pub fn end(mut self) -> Result<(), Failure> {
        self.side.send_command(Traffic::RoundTrips, 0, 0)?;
        self.side.engine.close();
        let status = self.helper.wait().map_err(Failure::system("the helper process"))?;
        match job::exit_code(status) {
            0 => Ok(()),
            code => Err(Failure::Measurement(format!("the helper process ended with status {code}"))),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // After `end` the helper is gone.
        let _ = self.helper.kill();
        let _ = self.helper.wait();
    }
}

/// Runs the second side. Returns the exit status.
///
/// # Errors
/// [`Failure`].
pub fn run_helper(arguments: &HelperArguments) -> Result<u8, Failure> {
    let settings = Settings::from_environment()?;
    let engine = open(&settings)?;
    cores::pin(arguments.core).map_err(Failure::system(format!("core {}", arguments.core)))?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::system("standard input"))?;
    println!("{}", hex(&engine.address()));
    let mut side = Side::new(engine, &address(&line)?, arguments.bytes);
    loop {
        match side.receive_command()? {
            (_, _, 0) => {
                side.engine.close();
                return Ok(0);
            }
            (Traffic::RoundTrips, bytes, count) => side.echo(bytes, count)?,
            (Traffic::Exchanges, bytes, count) => side.exchange(bytes, count)?,
        }
    }
}

fn open(settings: &Settings) -> Result<Engine, Failure> {
    Engine::open(settings, 2, false).map_err(|error| Failure::Measurement(error.to_string()))
}

fn hex(address: &Address) -> String {
    address.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn address(line: &str) -> Result<Address, Failure> {
    let digits = line.trim();
    let mut bytes = [0; ADDRESS_BYTES];
    let right = digits.len() == 2 * ADDRESS_BYTES && digits.is_ascii();
    for (index, byte) in bytes.iter_mut().enumerate().filter(|_| right) {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).map_err(|_| {
            Failure::Measurement(format!("the other side sent {digits}, which is not an address"))
        })?;
    }
    match right {
        true => Ok(Address(bytes)),
        false => Err(Failure::Measurement(format!("the other side sent {digits:?} instead of an address"))),
    }
}

impl Side {
    fn new(mut engine: Engine, other: &Address, bytes: usize) -> Side {
        let other = engine.peer(other);
        let room = bytes.max(COMMAND_BYTES);
        let (out, into) = (OwnedMemory::new(room), OwnedMemory::new(room));
        // Touched, so that no page fault is measured.
        out.view().write(0, &vec![1; room]);
        into.view().write(0, &vec![0; room]);
        Side { engine, other, out, into, ended: [0; 2] }
    }

    /// Tells the helper which messages follow.
    fn send_command(&mut self, traffic: Traffic, bytes: u64, count: u64) -> Result<(), Failure> {
        let command = [traffic as u64, bytes, count].map(u64::to_le_bytes).concat();
        self.out.view().write(0, &command);
        self.send(COMMAND_TAG, COMMAND_BYTES)?;
        self.out.view().write(0, &[1; COMMAND_BYTES]);
        Ok(())
    }

    fn receive_command(&mut self) -> Result<(Traffic, usize, u64), Failure> {
        self.post_receive(COMMAND_TAG, COMMAND_BYTES)?;
        self.wait_for(Operation::Receive)?;
        let mut command = [0; COMMAND_BYTES];
        self.into.view().read(0, &mut command);
        let number = |at: usize| u64::from_le_bytes(command[at..at + 8].try_into().expect("eight bytes"));
        let traffic =
            if number(0) == Traffic::Exchanges as u64 { Traffic::Exchanges } else { Traffic::RoundTrips };
        Ok((traffic, number(8) as usize, number(16)))
    }

    /// Sends a message and waits for one, `count` times: round trips if the other side echoes, else exchanges.
    fn exchange(&mut self, bytes: usize, count: u64) -> Result<(), Failure> {
        for _ in 0..count {
            self.post_receive(DATA_TAG, bytes)?;
            self.send(DATA_TAG, bytes)?;
            self.wait_for(Operation::Receive)?;
        }
        Ok(())
    }

    fn echo(&mut self, bytes: usize, count: u64) -> Result<(), Failure> {
        self.post_receive(DATA_TAG, bytes)?;
        for number in 1..=count {
            self.wait_for(Operation::Receive)?;
            if number < count {
                self.post_receive(DATA_TAG, bytes)?;
            }
            self.send(DATA_TAG, bytes)?;
        }
        Ok(())
    }

    fn post_receive(&mut self, tag: u64, bytes: usize) -> Result<(), Failure> {
        let pattern = Pattern { space: Space::Tagged, from: None, tag, ignore: 0 };
        let posted = self.engine.receive(Post::default(), pattern, self.into.part(0, bytes), None);
        posted.map_err(|error| Failure::Measurement(error.to_string()))
    }

    /// Sends a message and waits until the buffer can be reused.
    fn send(&mut self, tag: u64, bytes: usize) -> Result<(), Failure> {
        let (space, level) = (Space::Tagged, SendLevel::Buffered);
        let (memory, to) = (self.out.part(0, bytes), self.other);
        let arguments = SendArguments { to, space, tag, data: None, level, memory, inject: false };
        let sent = self.engine.send(Post::default(), arguments);
        sent.map_err(|error| Failure::Measurement(error.to_string()))?;
        self.wait_for(Operation::Send)
    }

    /// Makes progress until an operation of this kind has ended. Operations of the other kind may end meanwhile.
    fn wait_for(&mut self, operation: Operation) -> Result<(), Failure> {
        let wanted = usize::from(operation == Operation::Receive);
        let (mut began, mut polls) = (None, 0u32);
        while self.ended[wanted] == 0 {
            while let Some(ended) = self.engine.next_completion() {
                check(&ended)?;
                self.ended[usize::from(ended.operation == Operation::Receive)] += 1;
            }
            if self.ended[wanted] > 0 {
                break;
            }
            self.engine.progress();
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_CHECK)
                && began.get_or_insert_with(Instant::now).elapsed() > PEER_TIMEOUT
            {
                let what = format!("the other side has not answered for {} s", PEER_TIMEOUT.as_secs());
                return Err(Failure::Measurement(what));
            }
        }
        self.ended[wanted] -= 1;
        Ok(())
    }
}

fn check(ended: &Completion) -> Result<(), Failure> {
    match ended.outcome {
        Outcome::Done | Outcome::Received { .. } => Ok(()),
        outcome => Err(Failure::Measurement(format!("a message failed: {outcome:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cross_a_pipe() {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index as u8).wrapping_mul(7));
        assert_eq!(address(&format!("{}\n", hex(&Address(bytes)))).unwrap(), Address(bytes));
        for wrong in ["", "12", &"zz".repeat(ADDRESS_BYTES), &"00".repeat(ADDRESS_BYTES + 1)] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
