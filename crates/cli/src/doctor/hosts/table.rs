//! The tables of `weir doctor --hosts`: the hosts, and the paths between them.

use super::{HostResult, PathResult};
use comfy_table::Cell;
use weir_output::quantity::{bytes, time_ns};
use weir_output::table;

/// What is not known.
const NOTHING: &str = "-";

/// Both tables.
pub(super) fn render(hosts: &[HostResult], paths: &[PathResult]) -> String {
    let mut of_hosts = table::plain();
    of_hosts.set_header(["host", "weir", "address", "interface", "MTU", "socket buffer"]);
    let text = |value: &Option<String>| Cell::new(value.as_deref().unwrap_or(NOTHING));
    for host in hosts {
        of_hosts.add_row([
            Cell::new(&host.name),
            text(&host.version),
            text(&host.address),
            text(&host.interface),
            packet_bytes(host.mtu_bytes),
            table::right(host.socket_buffer_bytes.map_or(NOTHING.into(), |size| bytes(size as u64))),
        ]);
    }
    let mut of_paths = table::plain();
    let has_ports = paths.iter().any(|path| !path.ports_tried.is_empty());
    let ports = has_ports.then_some("ports");
    of_paths.set_header(["from", "to", "UDP", "TCP", "round trip", "path MTU"].into_iter().chain(ports));
    for path in paths {
        let cells = [
            Cell::new(&path.from),
            Cell::new(&path.to),
            Cell::new(format!("{} of {}", path.datagrams_arrived, path.datagrams_sent)),
            Cell::new(if path.tcp_error.is_none() { "ok" } else { "FAIL" }),
            table::right(path.round_trip_ns.map_or(NOTHING.into(), |ns| time_ns(ns as f64))),
            packet_bytes(path.path_mtu_bytes),
        ];
        of_paths.add_row(cells.into_iter().chain(has_ports.then(|| ports_of(path))));
    }
    format!("{}\n\n{}\n", table::text(&of_hosts), table::text(&of_paths))
}

fn packet_bytes(size: Option<usize>) -> Cell {
    table::right(size.map_or(NOTHING.into(), |size| format!("{size} B")))
}

/// Ports that datagrams and connections reach, of those that were tried.
fn ports_of(path: &PathResult) -> Cell {
    let reached =
        |port: &&u16| !path.ports_without_udp.contains(port) && !path.ports_without_tcp.contains(port);
    let reached = path.ports_tried.iter().filter(reached).count();
    Cell::new(format!("{reached} of {}", path.ports_tried.len()))
}
