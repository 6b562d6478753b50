//! Streams over bare UDP between two pretended hosts: two threads that do what no protocol can leave out (`bare_end.rs`), in
//! the pattern of `measure stream`. The sender sends windows of messages, and the receiver answers each window.
//!
//! ```text
//! sender     8 B: each message gets the words that a receiver matches it by; 64 messages are one datagram
//! sender     8 B in parts: each message gets a header as long as weir's; the first leaves alone, the others together
//! sender     window   -> as many datagrams a call as the kernel takes
//! receiver            <- one byte, when every message of the window is at its place
//! ```
//! In parts, the receiver also says how much has arrived before it answers: weir's windows of 8 B are as many datagrams
//! of these lengths, in as many calls. Messages of more than a datagram have no words: each lands at its place in the
//! window, which is one piece of memory.

use super::bare;
use super::bare_end::End;
use super::bare_socket::{Socket, Waiting};
use super::hosts::Hosts;
use std::time::Duration;
use weir_output::Failure;
use weir_proto::wire::EAGER_HEADER_BYTES;

/// Messages of a window. Source: `WINDOW` of tests/mpi/measure.c.
const WINDOW: usize = 64;
/// Fewest messages of a window. Source: `LEAST_WINDOW` there.
const LEAST_WINDOW: usize = 4;
/// Most bytes of a window of more messages. Source: `WINDOW_BYTES` there.
const WINDOW_BYTES: usize = 4 << 20;
/// What a receiver matches a message by: tag and communicator (8 B), and length (4 B). Unit: bytes.
const WORDS_BYTES: usize = 12;
/// Length of the answer of a window in `measure stream`: an int. Unit: bytes.
const ANSWER_BYTES: usize = 4;
/// Messages that share datagrams. Unit: bytes.
const MOST_SMALL_BYTES: usize = 64;

/// Messages a second, in windows of as many messages of `bytes` bytes as in `measure stream`, measured for `time`: by the median
/// of the windows.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or something was lost.
pub fn messages_per_s(hosts: &Hosts, bytes: usize, time: Duration) -> Result<f64, Failure> {
    let messages = window(bytes);
    let windows_us = if bytes <= MOST_SMALL_BYTES {
        small(hosts, bytes, messages, &Coalescing::WHOLE, time)
    } else {
        large(hosts, bytes * messages, time)
    }?;
    Ok(messages as f64 * 1e6 / windows_us)
}

/// As [`messages_per_s`], for messages that share datagrams, and with the datagrams of weir.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or something was lost.
pub fn messages_per_s_in_parts(hosts: &Hosts, bytes: usize, time: Duration) -> Result<f64, Failure> {
    let messages = window(bytes);
    Ok(messages as f64 * 1e6 / small(hosts, bytes, messages, &Coalescing::PARTS, time)?)
}

/// How messages share datagrams.
struct Coalescing {
    /// Bytes before each message, which begin with its words.
    header_bytes: usize,
    /// Messages that leave before all others.
    first: usize,
    /// Length of the answer.
    answer_bytes: usize,
    /// The receiver counts datagrams beside its answer.
    counts: bool,
}

impl Coalescing {
    const WHOLE: Coalescing =
        Coalescing { header_bytes: WORDS_BYTES, first: 0, answer_bytes: 1, counts: false };
    const PARTS: Coalescing = Coalescing {
        header_bytes: EAGER_HEADER_BYTES,
        first: 1,
        answer_bytes: EAGER_HEADER_BYTES + ANSWER_BYTES,
        counts: true,
    };
}

/// Messages of a window.
fn window(bytes: usize) -> usize {
    (WINDOW_BYTES / bytes).clamp(LEAST_WINDOW, WINDOW)
}

/// The time of a window that is one piece of memory. Unit: us.
fn large(hosts: &Hosts, window_bytes: usize, time: Duration) -> Result<f64, Failure> {
    bare::between(
        hosts,
        |socket| {
            let (mut end, mut window) =
                (End::new(Socket::new(socket, Waiting::Spin)?, [1, 0]), vec![0; window_bytes]);
            while window[0] != bare::END {
                end.receive(&mut window)?;
                end.send(&window[..1])?;
            }
            Ok(())
        },
        |socket| {
            let (mut end, mut window) =
                (End::new(Socket::new(socket, Waiting::Spin)?, [0, 1]), vec![0; window_bytes]);
            let mut answer = [0];
            bare::median_us(time, |is_last| {
                window[0] = if is_last { bare::END } else { bare::MORE };
                end.send(&window)?;
                end.receive(&mut answer)
            })
        },
    )
}

/// The time of a window of messages that share datagrams. Unit: us.
fn small(
    hosts: &Hosts,
    bytes: usize,
    messages: usize,
    coalescing: &Coalescing,
    time: Duration,
) -> Result<f64, Failure> {
    let joined_bytes = messages * (coalescing.header_bytes + bytes);
    let first_bytes = coalescing.first * (coalescing.header_bytes + bytes);
    bare::between(
        hosts,
        |socket| {
            let mut end = End::new(Socket::new(socket, Waiting::Spin)?, [1, 0]);
            let (mut joined, mut window) = (vec![0; joined_bytes], vec![0; messages * bytes]);
            let answer = vec![0; coalescing.answer_bytes];
            while window[0] != bare::END {
                end.receive(&mut joined)?;
                let is_whole = take_apart(&joined, &mut window, bytes, coalescing.header_bytes);
                is_whole
                    .ok_or_else(|| Failure::Measurement(String::from("a message of bare UDP is wrong")))?;
                if coalescing.counts {
                    end.count()?;
                }
                end.send(&answer)?;
            }
            Ok(())
        },
        |socket| {
            let mut end = End::new(Socket::new(socket, Waiting::Spin)?, [0, 1]);
            let (mut joined, mut window) = (Vec::with_capacity(joined_bytes), vec![0; messages * bytes]);
            let mut answer = vec![0; coalescing.answer_bytes];
            bare::median_us(time, |is_last| {
                window[0] = if is_last { bare::END } else { bare::MORE };
                join(&window, &mut joined, bytes, coalescing.header_bytes);
                let (first, others) = joined.split_at(first_bytes);
                end.send(first)?;
                end.send(others)?;
                end.receive(&mut answer)
            })
        },
    )
}

/// Puts a header before each message of a window, which begins with its words. The tag is its number.
fn join(window: &[u8], joined: &mut Vec<u8>, bytes: usize, header_bytes: usize) {
    joined.clear();
    for (tag, message) in (0u64..).zip(window.chunks_exact(bytes)) {
        let begin = joined.len();
        joined.extend_from_slice(&tag.to_le_bytes());
        joined.extend_from_slice(&(bytes as u32).to_le_bytes());
        joined.resize(begin + header_bytes, 0);
        joined.extend_from_slice(message);
    }
}

/// Copies each message to the place that its tag says. `None`: there is no such place, or a message has another length.
fn take_apart(joined: &[u8], window: &mut [u8], bytes: usize, header_bytes: usize) -> Option<()> {
    let mut rest = joined;
    while !rest.is_empty() {
        let (header, behind) = rest.split_at_checked(header_bytes)?;
        let (tag, words) = header.split_first_chunk()?;
        let (length, _) = words.split_first_chunk()?;
        let (tag, length) = (u64::from_le_bytes(*tag), u32::from_le_bytes(*length) as usize);
        let message = behind.get(..length).filter(|message| message.len() == bytes)?;
        window.chunks_exact_mut(bytes).nth(usize::try_from(tag).ok()?)?.copy_from_slice(message);
        rest = &behind[length..];
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::bare_socket::{DATAGRAM_BYTES, PAYLOAD_BYTES};
    use super::*;

    #[test]
    fn windows_are_those_of_the_measuring_program() {
        assert_eq!([8, 2048, 64 << 10, 1 << 20, 8 << 20].map(window), [64, 64, 64, 4, 4]);
    }

    #[test]
    fn joined_messages_land_at_their_places() {
        let window: Vec<u8> = (0..32).collect();
        for header_bytes in [WORDS_BYTES, EAGER_HEADER_BYTES] {
            let (mut joined, mut other) = (Vec::new(), vec![0; 32]);
            let message_bytes = header_bytes + 8;
            join(&window, &mut joined, 8, header_bytes);
            assert_eq!(joined.len(), 4 * message_bytes);
            let apart = |joined: &[u8], window: &mut [u8]| take_apart(joined, window, 8, header_bytes);
            assert_eq!((apart(&joined, &mut other), &other), (Some(()), &window));
            assert_eq!(apart(&joined[..message_bytes + 10], &mut [0; 32]), None, "cut off");
            assert_eq!(apart(&joined, &mut [0; 16]), None, "no place for the third");
        }
    }

    #[test]
    fn a_window_in_parts_has_the_datagrams_of_weir() {
        // Seen with strace under `measure stream 0.05 8` over weir.
        let Coalescing { header_bytes, first, answer_bytes, .. } = Coalescing::PARTS;
        let datagrams = |payload_bytes: usize| {
            payload_bytes + payload_bytes.div_ceil(PAYLOAD_BYTES) * (DATAGRAM_BYTES - PAYLOAD_BYTES)
        };
        let message_bytes = header_bytes + 8;
        assert_eq!(datagrams(first * message_bytes), 104);
        assert_eq!(datagrams((window(8) - first) * message_bytes), 3672);
        assert_eq!(datagrams(answer_bytes), 100);
    }
}
