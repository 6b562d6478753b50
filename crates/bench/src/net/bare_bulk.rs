//! Encrypted messages, also large ones, over bare UDP between two pretended hosts: the half round trip of two threads that do what
//! no protocol can leave out (`bare_end.rs`). The echo sends its message as soon as that of the asker is whole.

use super::bare;
use super::bare_end::End;
use super::bare_socket::{Socket, Waiting};
use super::hosts::Hosts;
use std::time::Duration;
use weir_output::Failure;

/// Half a round trip of messages of `bytes` bytes, measured for `time`: the median. Unit: us.
///
/// # Errors
/// [`Failure`]: a socket could not be opened, or something was lost.
pub fn half_round_trip(hosts: &Hosts, bytes: usize, time: Duration) -> Result<f64, Failure> {
    bare::between(
        hosts,
        |socket| {
            let (mut end, mut message) =
                (End::new(Socket::new(socket, Waiting::Spin)?, [1, 0]), vec![0; bytes]);
            loop {
                end.receive(&mut message)?;
                end.send(&message)?;
                if message[0] == bare::END {
                    return Ok(());
                }
            }
        },
        |socket| {
            let (mut end, mut message) =
                (End::new(Socket::new(socket, Waiting::Spin)?, [0, 1]), vec![0; bytes]);
            let us = bare::median_us(time, |is_last| {
                message[0] = if is_last { bare::END } else { bare::MORE };
                end.send(&message)?;
                end.receive(&mut message)
            })?;
            Ok(us / 2.0)
        },
    )
}
