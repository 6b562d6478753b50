//! A mesh of nodes for the EXTOLL model: coordinates and dimension-order routing. [`PackedRouting`] routes with fewer
//! operations, on coordinates packed into one number.

/// A mesh of up to three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Number of nodes along x, y and z; 1 for an unused dimension.
    pub size: [u32; 3],
}

/// Number of links of a node, by direction: -x, +x, -y, +y, -z, +z.
pub const DIRECTIONS: u32 = 6;

impl Mesh {
    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.size.iter().product()
    }

    /// The coordinates of a node.
    pub fn coordinates(&self, node: u32) -> [u32; 3] {
        let [x, y, _] = self.size;
        [node % x, node / x % y, node / (x * y)]
    }

    /// The node at these coordinates.
    pub fn node(&self, at: [u32; 3]) -> u32 {
        (at[2] * self.size[1] + at[1]) * self.size[0] + at[0]
    }

    /// The direction in which a packet for `to` leaves `node`: first along x, then y, then z. `None` if it is
    /// there.
    #[inline]
    pub fn direction(&self, node: u32, to: u32) -> Option<u32> {
        let (here, there) = (self.coordinates(node), self.coordinates(to));
        (0..3).find(|&d| here[d] != there[d]).map(|d| 2 * d as u32 + u32::from(there[d] > here[d]))
    }

    /// The neighbour in a direction, if there is one.
    pub fn neighbour(&self, node: u32, direction: u32) -> Option<u32> {
        let mut at = self.coordinates(node);
        let dimension = (direction / 2) as usize;
        if direction.is_multiple_of(2) {
            at[dimension] = at[dimension].checked_sub(1)?;
        } else {
            at[dimension] += 1;
            if at[dimension] == self.size[dimension] {
                return None;
            }
        }
        Some(self.node(at))
    }

    /// Number of links between two nodes.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let (here, there) = (self.coordinates(from), self.coordinates(to));
        (0..3).map(|d| here[d].abs_diff(there[d])).sum()
    }
}

/// Dimension-order routing with few operations, on packed coordinates: x in the lowest bits, then y, then z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRouting {
    mesh: Mesh,
    /// The bits that hold each coordinate.
    masks: [u32; 3],
}

impl PackedRouting {
    /// For this mesh.
    ///
    /// # Panics
    /// Panics if the coordinates do not fit into 32 bits. Those of 2^29 nodes do.
    pub fn new(mesh: Mesh) -> PackedRouting {
        let bits = mesh.size.map(|size| size.next_power_of_two().trailing_zeros());
        assert!(bits.iter().sum::<u32>() <= u32::BITS, "a mesh of {:?} nodes", mesh.size);
        let mut shift = 0;
        let masks = bits.map(|bits| {
            let mask = (((1u64 << bits) - 1) << shift) as u32;
            shift += bits;
            mask
        });
        PackedRouting { mesh, masks }
    }

    /// The packed coordinates of a node.
    pub fn place(&self, node: u32) -> u32 {
        let at = self.mesh.coordinates(node);
        // A dimension of size 1 has no bits; its coordinate is 0.
        (0..3).map(|d| at[d].unbounded_shl(self.masks[d].trailing_zeros())).sum()
    }

    /// The same as [`Mesh::direction`], between two packed places.
    #[inline]
    pub fn direction(&self, here: u32, there: u32) -> Option<u32> {
        let differ = here ^ there;
        let dimension = self.masks.iter().position(|mask| differ & mask != 0)?;
        let mask = self.masks[dimension];
        Some(2 * dimension as u32 + u32::from(there & mask > here & mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_reach_their_destination_in_the_shortest_distance() {
        for size in [[4, 4, 4], [8, 8, 1], [5, 3, 2], [1, 1, 1]] {
            let mesh = Mesh { size };
            for from in 0..mesh.nodes() {
                for to in 0..mesh.nodes() {
                    let (mut at, mut steps) = (from, 0);
                    while let Some(direction) = mesh.direction(at, to) {
                        at = mesh.neighbour(at, direction).expect("a route stays in the mesh");
                        steps += 1;
                    }
                    assert_eq!((at, steps), (to, mesh.distance(from, to)));
                }
            }
        }
    }

    #[test]
    fn packed_routing_equals_mesh_routing() {
        for size in [[4, 4, 4], [16, 8, 1], [1, 5, 3], [7, 1, 2], [1, 1, 1]] {
            let mesh = Mesh { size };
            let routing = PackedRouting::new(mesh);
            let places: Vec<_> = (0..mesh.nodes()).map(|node| routing.place(node)).collect();
            for from in 0..mesh.nodes() {
                for to in 0..mesh.nodes() {
                    let direction = routing.direction(places[from as usize], places[to as usize]);
                    assert_eq!(direction, mesh.direction(from, to), "{from} to {to} of {size:?}");
                }
            }
        }
    }
}
