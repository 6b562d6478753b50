//! A filter of a socket: the kernel drops datagrams without the verification tag of the endpoint. They take no room in the
//! socket's buffer, wake nobody and cost no look. To wake an endpoint for each of them costs more than all its checks.
//!
//! ```text
//! datagram with the tag             arrives
//! another one, or a shorter one     dropped, counted in `dropped`
//! several that were joined (GRO)    the first one decides: the endpoint looks at the tag of each
//! ```
//! It is a classic BPF program of four instructions, which needs no privilege. Source: Linux,
//! `Documentation/networking/filter.rst`. Without it everything works, and strangers cost more.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Length of the header of UDP, with which the filter's bytes begin.
const UDP_HEADER_BYTES: u32 = 8;
/// Where `SO_MEMINFO` has the number of datagrams that the socket has dropped. Source: `linux/sock_diag.h`.
const MEMORY_WORDS: usize = 9;
const DROPS: usize = 8;
/// What a program returns to keep all bytes of a datagram.
const WHOLE: u32 = u32::MAX;

/// Lets through only datagrams whose little-endian number at byte `at` is `number`.
///
/// # Errors
/// Those of the kernel. The socket is as before.
pub(super) fn attach(socket: &UdpSocket, at: usize, number: u32) -> io::Result<()> {
    let instruction = |code: u32, equal, other, operand| libc::sock_filter {
        code: code as u16,
        jt: equal,
        jf: other,
        k: operand,
    };
    let mut program = [
        // A load behind the end drops the datagram. It reads a big-endian number.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, UDP_HEADER_BYTES + at as u32),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number.swap_bytes()),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, WHOLE),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (value, length) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: `value` points to a `sock_fprog` of this length, whose program is alive. The kernel copies both.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Datagrams that the kernel has dropped at this socket, by the filter or for lack of room. 0 if it does not say.
pub(super) fn dropped(socket: &UdpSocket) -> u64 {
    let mut words = [0_u32; MEMORY_WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `words`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if status == 0 { words[DROPS].into() } else { 0 }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn only_datagrams_with_the_number_arrive_and_all_others_are_counted() {
        for loopback in ["127.0.0.1", "::1"] {
            let [receiver, sender] = [0; 2].map(|_| UdpSocket::bind((loopback, 0)).expect("a loopback"));
            receiver.set_nonblocking(true).expect("an option");
            attach(&receiver, 2, 0x0403_0201).expect("a filter");
            let to = receiver.local_addr().expect("bound");
            let others: [&[u8]; 5] =
                [b"", b"ab", b"ab\x01\x02\x03", b"ab\x04\x03\x02\x01", b"\x01\x02\x03\x04ab"];
            for bytes in others.into_iter().chain([&b"ab\x01\x02\x03\x04"[..], b"cd\x01\x02\x03\x04rest"]) {
                assert_eq!(sender.send_to(bytes, to).expect("sent"), bytes.len());
            }
            let mut buffer = [0; 16];
            let mut arrived = || receiver.recv(&mut buffer).ok().map(|bytes| buffer[..bytes].to_vec());
            assert_eq!(arrived(), Some(b"ab\x01\x02\x03\x04".to_vec()));
            assert_eq!(arrived(), Some(b"cd\x01\x02\x03\x04rest".to_vec()));
            assert_eq!((arrived(), dropped(&receiver)), (None, others.len() as u64));
            attach(&receiver, 2, 0x0605_0403).expect("another one instead");
            sender.send_to(b"ab\x03\x04\x05\x06", to).expect("sent");
            sender.send_to(b"ab\x01\x02\x03\x04", to).expect("sent");
            assert_eq!((arrived().map(|bytes| bytes[2]), arrived()), (Some(3), None));
        }
    }
}
