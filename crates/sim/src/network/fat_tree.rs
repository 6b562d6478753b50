//! A fat tree of switches (k-ary n-tree) with deterministic routing, for the models of InfiniBand and switched
//! Ethernet.
//!
//! Source: Petrini, Vanneschi, "k-ary n-trees: high performance networks for massively parallel
//! architectures", 1997. The destination determines the way up (D-mod-k: Zahavi et al. 2010). So all packets
//! of a pair take one route and stay in order.
//!
//! With arity 8 and one level the tree is one switch with 8 hosts. With two levels it has 64 hosts on 8
//! leaves under 8 spines.

/// A tree of switches. Each has `arity` ports down and, except at the top, as many ports up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Ports down of a switch (`k`).
    pub arity: u32,
    /// Levels of switches (`n`).
    pub levels: u32,
}

/// The other end of a port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A host.
    Host(u32),
    /// A switch.
    Switch(u32),
}

impl FatTree {
    /// The smallest tree of this arity that has room for `hosts` hosts. The arity is at least 2.
    pub fn for_hosts(arity: u32, hosts: u32) -> FatTree {
        assert!(arity >= 2, "arity is {arity}, but must be at least 2");
        let levels = (1..).find(|&levels| u64::from(arity).pow(levels) >= u64::from(hosts)).expect("grows");
        FatTree { arity, levels }
    }

    /// Number of hosts: `arity ^ levels`.
    pub fn hosts(&self) -> u32 {
        self.arity.pow(self.levels)
    }

    /// Number of switches in one level.
    fn row(&self) -> u32 {
        self.arity.pow(self.levels - 1)
    }

    /// Number of switches. They are numbered level by level from the leaves on.
    pub fn switches(&self) -> u32 {
        self.levels * self.row()
    }

    /// Number of ports of a switch. Ports down come first, then ports up.
    pub fn ports(&self) -> u32 {
        2 * self.arity
    }

    /// The leaf switch of a host.
    pub fn leaf(&self, host: u32) -> u32 {
        host / self.arity
    }

    /// `number` with its digit `digit` (base `arity`) replaced.
    fn with_digit(&self, number: u32, digit: u32, value: u32) -> u32 {
        let power = self.arity.pow(digit);
        number - number / power % self.arity * power + value * power
    }

    fn digit(&self, number: u32, digit: u32) -> u32 {
        number / self.arity.pow(digit) % self.arity
    }

    /// The other end of a port; `None` for ports up of the top level.
    pub fn end(&self, switch: u32, port: u32) -> Option<End> {
        let (level, place) = (switch / self.row(), switch % self.row());
        if port < self.arity {
            return Some(match level {
                0 => End::Host(place * self.arity + port),
                _ => End::Switch((level - 1) * self.row() + self.with_digit(place, level - 1, port)),
            });
        }
        let above = || (level + 1) * self.row() + self.with_digit(place, level, port - self.arity);
        (level + 1 < self.levels).then(|| End::Switch(above()))
    }

    /// The port by which a packet for host `to` leaves `switch`: down if the host is below the switch.
    pub fn port(&self, switch: u32, to: u32) -> u32 {
        let (level, place) = (switch / self.row(), switch % self.row());
        let power = self.arity.pow(level);
        if place / power != self.leaf(to) / power {
            return self.arity + self.digit(to, level);
        }
        match level {
            0 => to % self.arity,
            _ => self.digit(self.leaf(to), level - 1),
        }
    }

    /// Number of links between two hosts, with the links to the hosts; 0 from a host to itself.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        if from == to {
            return 0;
        }
        let (from, to) = (self.leaf(from), self.leaf(to));
        let up = (0..self.levels).find(|&l| from / self.arity.pow(l) == to / self.arity.pow(l));
        2 * up.expect("the top level is above all hosts") + 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_reach_their_destination_in_the_shortest_distance() {
        for tree in [(8, 1), (4, 2), (2, 4), (3, 3)].map(|(arity, levels)| FatTree { arity, levels }) {
            for from in 0..tree.hosts() {
                for to in (0..tree.hosts()).filter(|&to| to != from) {
                    let (mut at, mut links) = (End::Switch(tree.leaf(from)), 1);
                    while let End::Switch(switch) = at {
                        at = tree.end(switch, tree.port(switch, to)).expect("a route stays in the tree");
                        links += 1;
                    }
                    assert_eq!((at, links), (End::Host(to), tree.distance(from, to)), "{tree:?}");
                }
            }
        }
    }

    #[test]
    fn every_link_has_one_source() {
        let tree = FatTree { arity: 3, levels: 3 };
        let ends: Vec<_> = (0..tree.switches())
            .flat_map(|switch| (0..tree.ports()).map(move |port| tree.end(switch, port)))
            .flatten()
            .collect();
        for host in 0..tree.hosts() {
            assert_eq!(ends.iter().filter(|&&end| end == End::Host(host)).count(), 1);
        }
        for switch in 0..tree.switches() {
            let links = ends.iter().filter(|&&end| end == End::Switch(switch)).count() as u32;
            let level = switch / tree.row();
            // Links from above, and from below. Leaves have hosts below, and the top has nothing above.
            let expected = tree.arity * (u32::from(level > 0) + u32::from(level + 1 < tree.levels));
            assert_eq!(links, expected, "switch {switch}");
        }
    }

    #[test]
    fn for_hosts_returns_the_smallest_tree() {
        assert_eq!(FatTree::for_hosts(8, 8).levels, 1);
        assert_eq!(FatTree::for_hosts(8, 9).levels, 2);
        assert_eq!(FatTree::for_hosts(12, 1024).levels, 3);
    }
}
