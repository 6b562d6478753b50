//! The settings of a test world.

use weir_proto::{Config, DataRegion, Endpoint, Geometry, Scheme};

/// Settings of all endpoints of a world.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub endpoints: u32,
    pub scheme: Scheme,
    pub geometry: Geometry,
    pub quota_slots: u32,
    /// Starting credits. Fewer than the quota only in schemes that grant more later. With dynamic credits those of the
    /// region.
    pub start_slots: u32,
    pub credit_slots: u32,
    /// With dynamic credits `quota_slots` is the size of a lane.
    pub region: DataRegion,
    pub eager_bytes: u64,
    pub cross_memory: bool,
    /// The kernel forbids copies.
    pub copies_forbidden: bool,
    /// Number of lanes of a mailbox. More senders take turns.
    pub max_lanes: usize,
    pub budget_bytes: u64,
    pub bounce_bytes: u64,
    /// `u64::MAX`: no limit.
    pub envelope_bytes: u64,
    /// Endpoints know the number of endpoints.
    pub planned: bool,
    /// Endpoints that sometimes defer credits, one bit each.
    pub deferring: u32,
    /// Endpoints of a second node, one bit each.
    pub second_node: u32,
    /// Endpoints can read memory of the other node.
    pub nodes_read: bool,
    /// The geometry of paths between the nodes.
    pub far_geometry: Geometry,
    /// Longer messages are announced to peers that can read the sender's memory. `u32::MAX`: no other limit than
    /// `eager_bytes`.
    pub readable_eager_bytes: u32,
}

impl Plan {
    pub fn config(&self) -> Config {
        Config {
            scheme: self.scheme,
            geometry: self.geometry,
            credit_slots: self.credit_slots,
            region: self.region,
            eager_bytes: self.eager_bytes,
            cross_memory: self.cross_memory,
            remote_inline_bytes: 64,
            max_backlog: u32::MAX,
            max_unexpected: 1 << 20,
            unexpected_budget_bytes: self.budget_bytes,
            bounce_bytes: self.bounce_bytes,
            envelope_budget_bytes: self.envelope_bytes,
            planned_peers: if self.planned { self.endpoints } else { 0 },
            planned_quota_slots: self.quota_slots,
        }
    }

    /// An endpoint of the world.
    pub(super) fn endpoint(&self) -> Endpoint {
        let mut endpoint = Endpoint::new(self.config());
        if self.second_node != 0 {
            endpoint.expect_geometry(&self.far_geometry);
        }
        endpoint.announce_to_readers_beyond(self.readable_eager_bytes);
        endpoint
    }

    fn are_apart(&self, one: u32, other: u32) -> bool {
        let node = |rank| self.second_node >> rank & 1;
        node(one) != node(other)
    }

    /// The geometry of the path between two endpoints, in both directions.
    pub fn path_geometry(&self, one: u32, other: u32) -> Geometry {
        if self.are_apart(one, other) { self.far_geometry } else { self.geometry }
    }

    /// Whether `reader` can read memory of `owner`.
    pub fn may_read(&self, owner: u32, reader: u32) -> bool {
        self.cross_memory && (self.nodes_read || !self.are_apart(owner, reader))
    }
}
