//! The connection to the kernel of a silent peer. Whoever listens there may write anything, and end it in any way.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, OnceLock, PoisonError};
use weir_link::datagram::network::DatagramNetwork;
use weir_link::udp::{UdpNetwork, UdpOptions};
use weir_proto::reliability::Standing;

/// An endpoint's network, and the listener that it asks.
struct Sides {
    network: UdpNetwork,
    listener: TcpListener,
    place: SocketAddr,
}

fn sides() -> Option<&'static Mutex<Sides>> {
    static SIDES: OnceLock<Option<Mutex<Sides>>> = OnceLock::new();
    let open = || {
        let options = UdpOptions { net: Some("127.0.0.1".into()), ..UdpOptions::default() };
        let network = UdpNetwork::open(&options).ok()?;
        let listener = TcpListener::bind("127.0.0.1:0").ok()?;
        // Without free ports there is no connection, and nothing to wait for.
        listener.set_nonblocking(true).ok()?;
        let place = listener.local_addr().ok()?;
        Some(Mutex::new(Sides { network, listener, place }))
    };
    SIDES.get_or_init(open).as_ref()
}

/// What the listener writes.
pub fn bytes_of_a_listener(bytes: &[u8]) {
    let Some(sides) = sides() else { return };
    let mut sides = sides.lock().unwrap_or_else(PoisonError::into_inner);
    let Sides { network, listener, place } = &mut *sides;
    let _ = network.standing(*place);
    // The kernel completes a connection inside the host before `connect` returns.
    if let Ok((mut stream, _)) = listener.accept() {
        let _ = stream.set_nonblocking(true);
        let _ = stream.write(&bytes[..bytes.len().min(4096)]);
        for _ in 0..bytes.len() / 16 + 2 {
            assert_ne!(network.standing(*place), Standing::Ended, "it is open");
        }
        drop(stream);
        let _ = network.standing(*place);
    }
    network.heard(*place);
}
