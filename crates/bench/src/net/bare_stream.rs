//! Streams over bare UDP between two pretended hosts: two threads that do what no protocol can leave out (`bare_end.rs`), in
//! the pattern of `measure stream`. The sender sends windows of messages, and the receiver answers each window.
//!
//! ```text
//! sender     8 B: each message gets the words that a receiver matches it by; 64 messages are one datagram
//! sender     window   -> as many datagrams a call as the kernel takes
//! receiver            <- one byte, when every message of the window is at its place
//! ```
//! Messages of more than a datagram have no words: each lands at its place in the window, which is one piece of memory.

use super::bare;
use super::bare_end::End;
use super::hosts::Hosts;
use std::time::Duration;
use weir_output::Failure;

/// Messages of a window. Source: `WINDOW` of tests/mpi/measure.c.
const WINDOW: usize = 64;
/// Fewest messages of a window. Source: `LEAST_WINDOW` there.
const LEAST_WINDOW: usize = 4;
/// Most bytes of a window of more messages. Source: `WINDOW_BYTES` there.
const WINDOW_BYTES: usize = 4 << 20;
/// What a receiver matches a message by: tag and communicator (8 B), and length (4 B). Unit: bytes.
const WORDS_BYTES: usize = 12;
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
        small(hosts, bytes, messages, time)
    } else {
        large(hosts, bytes * messages, time)
    }?;
    Ok(messages as f64 * 1e6 / windows_us)
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
            let (mut end, mut window) = (End::new(socket, [1, 0])?, vec![0; window_bytes]);
            while window[0] != bare::END {
                end.receive(&mut window)?;
                end.send(&window[..1])?;
            }
            Ok(())
        },
        |socket| {
            let (mut end, mut window) = (End::new(socket, [0, 1])?, vec![0; window_bytes]);
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
fn small(hosts: &Hosts, bytes: usize, messages: usize, time: Duration) -> Result<f64, Failure> {
    let joined_bytes = messages * (WORDS_BYTES + bytes);
    bare::between(
        hosts,
        |socket| {
            let (mut end, mut joined) = (End::new(socket, [1, 0])?, vec![0; joined_bytes]);
            let mut window = vec![0; messages * bytes];
            while window[0] != bare::END {
                end.receive(&mut joined)?;
                let is_whole = take_apart(&joined, &mut window, bytes);
                is_whole
                    .ok_or_else(|| Failure::Measurement(String::from("a message of bare UDP is wrong")))?;
                end.send(&[0])?;
            }
            Ok(())
        },
        |socket| {
            let mut end = End::new(socket, [0, 1])?;
            let (mut joined, mut window) = (Vec::with_capacity(joined_bytes), vec![0; messages * bytes]);
            let mut answer = [0];
            bare::median_us(time, |is_last| {
                window[0] = if is_last { bare::END } else { bare::MORE };
                join(&window, &mut joined, bytes);
                end.send(&joined)?;
                end.receive(&mut answer)
            })
        },
    )
}

/// Puts words before each message of a window. The tag is its number.
fn join(window: &[u8], joined: &mut Vec<u8>, bytes: usize) {
    joined.clear();
    for (tag, message) in (0u64..).zip(window.chunks_exact(bytes)) {
        joined.extend_from_slice(&tag.to_le_bytes());
        joined.extend_from_slice(&(bytes as u32).to_le_bytes());
        joined.extend_from_slice(message);
    }
}

/// Copies each message to the place that its tag says. `None`: there is no such place, or a message has another length.
fn take_apart(joined: &[u8], window: &mut [u8], bytes: usize) -> Option<()> {
    let mut rest = joined;
    while !rest.is_empty() {
        let (tag, behind) = rest.split_first_chunk()?;
        let (length, behind) = behind.split_first_chunk()?;
        let (tag, length) = (u64::from_le_bytes(*tag), u32::from_le_bytes(*length) as usize);
        let message = behind.get(..length).filter(|message| message.len() == bytes)?;
        window.chunks_exact_mut(bytes).nth(usize::try_from(tag).ok()?)?.copy_from_slice(message);
        rest = &behind[length..];
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_measuring_program() {
        assert_eq!([8, 2048, 64 << 10, 1 << 20, 8 << 20].map(window), [64, 64, 64, 4, 4]);
    }

    #[test]
    fn joined_messages_land_at_their_places() {
        let window: Vec<u8> = (0..32).collect();
        let (mut joined, mut other) = (Vec::new(), vec![0; 32]);
        join(&window, &mut joined, 8);
        assert_eq!(joined.len(), 4 * 20);
        assert_eq!((take_apart(&joined, &mut other, 8), other), (Some(()), window));
        assert_eq!(take_apart(&joined[..30], &mut [0; 32], 8), None, "cut off");
        assert_eq!(take_apart(&joined, &mut [0; 16], 8), None, "no place for the third");
    }
}
