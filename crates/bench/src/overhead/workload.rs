//! `weir bench-instructions`: messages between two engines in one process, for callgrind, without libfabric and MPI.
//! [`Traffic`] says whether they go one way or back and forth.
//!
//! One thread calls both sides in turn, so that runs execute nearly the same instructions. The counted work of a side
//! is inside one function with a known name. Valgrind starts and stops counting at its entry and exit
//! (`--toggle-collect`). The first messages use other functions: they open the connection and warm the caches.

use clap::{Args, ValueEnum};
use serde::Serialize;
use std::hint::black_box;
use weir_engine::config::Settings;
use weir_engine::{Engine, Operation, Post, SendArguments};
use weir_link::memory::OwnedMemory;
use weir_output::Failure;
use weir_proto::{Pattern, Peer, SendLevel, Space};

/// Name of the sender's function for valgrind.
pub const SENDER_FUNCTION: &str = "counted_sender_side";
/// Name of the receiver's function for valgrind.
pub const RECEIVER_FUNCTION: &str = "counted_receiver_side";
/// Messages before counting.
const WARM_UP: u64 = 200;
/// Most calls for one message. A message that needs more is lost.
const MAX_ROUNDS: u32 = 100_000;

/// The direction of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Always from the first side to the second: credits return in credit packets.
    OneWay,
    /// Alternating: credits piggyback on messages.
    BackAndForth,
}

impl Traffic {
    /// Both.
    pub const ALL: [Traffic; 2] = [Traffic::OneWay, Traffic::BackAndForth];

    /// Its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Traffic::OneWay => "one-way",
            Traffic::BackAndForth => "back-and-forth",
        }
    }

    /// Its description in tables.
    pub fn describe(self) -> &'static str {
        match self {
            Traffic::OneWay => "one way",
            Traffic::BackAndForth => "back and forth",
        }
    }
}

/// Options of the helper process. The scheme and everything else are settings.
#[derive(Args, Debug)]
pub struct WorkloadArguments {
    /// Message size.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    bytes: u32,
    /// Counted messages.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// The direction of the messages.
    #[arg(long)]
    traffic: Traffic,
}

/// Sends and receives the messages. Returns the exit status.
///
/// # Errors
/// [`Failure`], if there is no mailbox or messages do not arrive as they were sent.
pub fn run(arguments: &WorkloadArguments) -> Result<u8, Failure> {
    let settings = Settings::from_environment()?;
    let mut pair = Pair::open(&settings, arguments.bytes as usize)?;
    for number in 0..WARM_UP + arguments.messages {
        let (from, to) = pair.sender_and_receiver(arguments.traffic, number);
        if number < WARM_UP {
            one_message(from, to, sender_side, receiver_side)?;
        } else {
            one_message(from, to, counted_sender_side, counted_receiver_side)?;
        }
    }
    pair.check_and_close()?;
    Ok(0)
}

/// The step of a side.
#[derive(Clone, Copy)]
enum Call {
    /// Post the receive or the send, then make progress.
    Begin,
    /// Make progress.
    Continue,
}

#[inline(never)]
fn counted_sender_side(end: &mut Side, call: Call) {
    sender_side(end, call);
}

/// Returns whether the message has arrived.
#[inline(never)]
fn counted_receiver_side(end: &mut Side, call: Call) -> bool {
    receiver_side(end, call)
}

#[inline]
fn sender_side(end: &mut Side, call: Call) {
    if let Call::Begin = call {
        let (space, level, memory) = (Space::Tagged, SendLevel::Buffered, end.from.view());
        let to = end.other;
        let arguments = SendArguments { to, space, tag: 0, data: Some(0), level, memory, inject: true };
        // The previous message was received, so there is room.
        end.engine.send(Post::default(), arguments).expect("taken");
    }
    end.engine.progress();
    while let Some(completion) = end.engine.next_completion() {
        end.sent += u64::from(completion.operation == Operation::Send);
    }
}

#[inline]
fn receiver_side(end: &mut Side, call: Call) -> bool {
    if let Call::Begin = call {
        let pattern = Pattern { space: Space::Tagged, from: None, tag: 0, ignore: 0 };
        end.engine.receive(Post::default(), pattern, end.into.view(), None).expect("taken");
    }
    end.engine.progress();
    let mut received = false;
    while let Some(completion) = end.engine.next_completion() {
        received |= completion.operation == Operation::Receive;
        // Sends of this side from when it was the sender.
        end.sent += u64::from(completion.operation == Operation::Send);
    }
    received
}

fn one_message(
    from: &mut Side,
    to: &mut Side,
    send: fn(&mut Side, Call),
    receive: fn(&mut Side, Call) -> bool,
) -> Result<(), Failure> {
    // Opaque, so that the compiler keeps the two functions.
    let (send, receive) = (black_box(send), black_box(receive));
    // The receive is posted first, as for most messages of programs.
    let mut received = receive(to, Call::Begin);
    send(from, Call::Begin);
    for _ in 0..MAX_ROUNDS {
        received = received || receive(to, Call::Continue);
        if received {
            return Ok(());
        }
        send(from, Call::Continue);
    }
    Err(lost(String::from("a message did not arrive")))
}

/// One engine with its buffers.
struct Side {
    engine: Engine,
    other: Peer,
    from: OwnedMemory,
    into: OwnedMemory,
    /// Sends that have completed.
    sent: u64,
}

struct Pair {
    ends: [Side; 2],
    bytes: usize,
}

impl Pair {
    fn open(settings: &Settings, bytes: usize) -> Result<Pair, Failure> {
        let open = || {
            let opened = Engine::open(settings, 2, false);
            opened.map_err(|error| lost(error.to_string()))
        };
        let (mut first, mut second) = (open()?, open()?);
        let (to_second, to_first) = (first.peer(&second.address()), second.peer(&first.address()));
        let end = |engine, other| {
            let (from, into) = (OwnedMemory::new(bytes), OwnedMemory::new(bytes));
            from.view().write(0, &expected(bytes));
            Side { engine, other, from, into, sent: 0 }
        };
        Ok(Pair { ends: [end(first, to_second), end(second, to_first)], bytes })
    }

    /// Sender and receiver of message `number`.
    fn sender_and_receiver(&mut self, traffic: Traffic, number: u64) -> (&mut Side, &mut Side) {
        let [first, second] = &mut self.ends;
        match traffic {
            Traffic::BackAndForth if number % 2 == 1 => (second, first),
            Traffic::OneWay | Traffic::BackAndForth => (first, second),
        }
    }

    /// The received buffer must equal the sent one.
    fn check_and_close(mut self) -> Result<(), Failure> {
        for end in &mut self.ends {
            let mut content = vec![0; self.bytes];
            end.into.view().read(0, &mut content);
            if end.engine.counters().messages_received > 0 && content != expected(self.bytes) {
                return Err(lost(String::from("a received message differs from the sent one")));
            }
        }
        for end in &mut self.ends {
            end.engine.close();
        }
        Ok(())
    }
}

/// The payload of every message.
fn expected(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8 + 1).collect()
}

fn lost(what: String) -> Failure {
    Failure::System { what: "bench-instructions".into(), source: std::io::Error::other(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let directory = tempfile::tempdir().unwrap();
        let settings = |flow: &str| {
            let (flow, place) = (flow.to_owned(), directory.path().to_string_lossy().into_owned());
            Settings::from_lookup(|variable| match variable {
                "FI_WEIR_FLOW" => Some(flow.clone()),
                "FI_WEIR_SHM_DIR" => Some(place.clone()),
                // With so few slots a 2 KB message needs several calls.
                "FI_WEIR_MAILBOX_SLOTS" => Some(String::from("32")),
                _ => None,
            })
            .unwrap()
        };
        for flow in ["unlimited", "static"] {
            for (bytes, traffic) in [0, 8, 2048].into_iter().flat_map(|b| Traffic::ALL.map(|t| (b, t))) {
                let mut pair = Pair::open(&settings(flow), bytes).unwrap();
                for number in 0..50 {
                    let (from, to) = pair.sender_and_receiver(traffic, number);
                    one_message(from, to, counted_sender_side, counted_receiver_side).unwrap();
                }
                let received = |pair: &Pair| {
                    [0, 1].map(|index: usize| pair.ends[index].engine.counters().messages_received)
                };
                let shares = if traffic == Traffic::OneWay { [0, 50] } else { [25, 25] };
                assert_eq!(received(&pair), shares);
                let sent: u64 = pair.ends.iter().map(|end| end.sent).sum();
                assert!(sent >= 48, "{sent} sends have completed");
                // Only schemes with credits return any.
                let returned: u64 = pair
                    .ends
                    .iter()
                    .map(|end| end.engine.counters())
                    .map(|counters| counters.explicit_credits_sent + counters.piggybacked_credits_sent)
                    .sum();
                assert_eq!(returned > 0, flow == "static", "{flow}, {bytes} B, {traffic:?}");
                pair.check_and_close().unwrap();
            }
        }
    }

    #[test]
    fn corrupted_bytes_are_detected() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_string_lossy().into_owned();
        let settings =
            Settings::from_lookup(|variable| (variable == "FI_WEIR_SHM_DIR").then(|| place.clone())).unwrap();
        let mut pair = Pair::open(&settings, 8).unwrap();
        let (from, to) = pair.sender_and_receiver(Traffic::OneWay, 0);
        one_message(from, to, sender_side, receiver_side).unwrap();
        to.into.view().write(3, &[0]);
        assert!(pair.check_and_close().unwrap_err().to_string().contains("differs from"));
    }
}
