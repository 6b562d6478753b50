//! A test of an endpoint over UDP in a process without descriptors for a second socket. It lowers the limit of its process,
//! so it is alone in this file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use weir_link::datagram::network::{BATCH_BYTES, Batch, DatagramNetwork};
use weir_link::udp::{UdpNetwork, UdpOptions};

/// The least number of free descriptors with which it opens, and what it opened.
fn least(options: &UdpOptions, held: &mut Vec<File>) -> (usize, UdpNetwork) {
    held.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
    for free in 0..20 {
        if let Ok(network) = UdpNetwork::open(options) {
            return (free, network);
        }
        held.pop();
    }
    panic!("it does not open with 20 descriptors")
}

#[test]
fn an_endpoint_without_a_descriptor_for_a_second_socket_has_one_socket() {
    let options = UdpOptions { net: Some("127.0.0.1".into()), ..UdpOptions::default() };
    let mut peer = UdpNetwork::open(&options).expect("descriptors");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..limit }).expect("less than before");
    let mut held = Vec::new();
    let without = least(&UdpOptions { connects: false, ..options.clone() }, &mut held).0;
    let (with, mut network) = least(&options, &mut held);
    assert_eq!(with, without, "the second socket needs no more");
    drop(held);
    for _ in 0..1200 {
        assert_eq!(network.send(peer.local_address(), b"row", 3, false), 3);
        let mut batch = Batch { bytes: vec![0; BATCH_BYTES].into(), datagrams: Vec::new() };
        while batch.datagrams.is_empty() {
            peer.receive(&mut batch);
        }
        assert_eq!(batch.datagrams[0].from, network.local_address());
    }
    assert_eq!((network.partner(), network.traffic().connected), (None, 0));
}
