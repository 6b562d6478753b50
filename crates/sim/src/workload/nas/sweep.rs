//! The NAS kernel LU: two sweeps over the planes of a grid that is divided into columns. In each plane a rank waits for
//! up to two neighbours and sends to the other two. Then all neighbours exchange layers.

use super::{DOUBLE, Running, TAG, share};

/// Ranks along x, the longer side of the grid of ranks: 8 ranks are 4 x 2. Source: `proc_grid.f`.
pub(super) fn rows(ranks: u32) -> u32 {
    1 << ranks.ilog2().div_ceil(2)
}

/// Neighbours and points of one rank of LU.
struct Place {
    north: Option<u32>,
    south: Option<u32>,
    west: Option<u32>,
    east: Option<u32>,
    /// Points along x and y: all, and those not on the surface of the grid.
    all: [u64; 2],
    inner: [u64; 2],
}

impl Place {
    /// Ranks are numbered along x (north to south) first. Source: `neighbors.f`, `subdomain.f`.
    fn of(rank: u32, ranks: u32, points: [u32; 3]) -> Place {
        let rows = rows(ranks);
        let columns = ranks / rows;
        let (row, column) = (rank % rows, rank / rows);
        let all = [share(points[0], row, rows), share(points[1], column, columns)];
        let edges = |place, places| u64::from(place == 0) + u64::from(place + 1 == places);
        Place {
            north: (row > 0).then(|| rank - 1),
            south: (row + 1 < rows).then(|| rank + 1),
            west: (column > 0).then(|| rank - rows),
            east: (column + 1 < columns).then(|| rank + rows),
            all,
            inner: [all[0] - edges(row, rows), all[1] - edges(column, columns)],
        }
    }
}

impl Running<'_> {
    /// One time step. The lower sweep sends five numbers for each point of an edge south and east, plane by
    /// plane. The upper sweep sends them north and west. Then the right-hand side exchanges two layers with
    /// all four neighbours. Source: `ssor.f`, `exchange_1.f`, `exchange_3.f`.
    pub(super) async fn lu(&self) {
        let place = Place::of(self.rank.rank(), self.rank.size(), self.points);
        let planes = self.points[2] - 2;
        let [row_bytes, column_bytes] = [5 * DOUBLE * place.inner[1], 5 * DOUBLE * place.inner[0]];
        let lower = ([place.north, place.west], [place.south, place.east]);
        let upper = ([place.south, place.east], [place.north, place.west]);
        for (before, after) in [lower, upper] {
            for _ in 0..planes {
                for (neighbour, bytes) in before.into_iter().zip([row_bytes, column_bytes]) {
                    if let Some(neighbour) = neighbour {
                        self.rank.recv(Some(neighbour), TAG, bytes).await;
                    }
                }
                self.work(2 * planes);
                for (neighbour, bytes) in after.into_iter().zip([row_bytes, column_bytes]) {
                    if let Some(neighbour) = neighbour {
                        self.rank.send(neighbour, TAG, bytes).await;
                    }
                }
            }
        }
        let depth = 2 * 5 * DOUBLE * u64::from(self.points[2]);
        self.layers(place.north, place.south, depth * place.all[1]).await;
        self.layers(place.west, place.east, depth * place.all[0]).await;
    }

    /// Exchanges layers forwards, then backwards.
    async fn layers(&self, before: Option<u32>, after: Option<u32>, bytes: u64) {
        for (from, to) in [(before, after), (after, before)] {
            let receive = from.map(|from| self.rank.irecv(Some(from), TAG + 1, bytes));
            if let Some(to) = to {
                self.rank.send(to, TAG + 1, bytes).await;
            }
            if let Some(receive) = receive {
                self.rank.wait(receive).await;
            }
        }
    }
}
