//! The NAS kernel MG: V-cycles over grids of halving size, with an exchange of all faces after nearly every
//! operation.

use super::{DOUBLE, Running, TAG};

impl Running<'_> {
    /// One V-cycle and the residual of the finest grid. The model leaves out grids so coarse that a rank
    /// would have less than one point. Source: `mg.f`, `mg3P`, `comm3`: faces are exchanged after each
    /// restriction, residual and smoothing.
    pub(super) async fn multigrid(&self) {
        let sides = sides(self.rank.size());
        let finest = self.points[0].ilog2();
        let coarsest = sides.iter().map(|side| side.ilog2()).max().unwrap_or(0).max(1);
        let exchanges = 3 * (finest - coarsest) + 2;
        for level in (coarsest..finest).rev() {
            self.faces(sides, level, exchanges).await; // restriction down to it
        }
        self.faces(sides, coarsest, exchanges).await; // smoothing
        for level in coarsest + 1..=finest {
            self.faces(sides, level, exchanges).await; // residual
            self.faces(sides, level, exchanges).await; // smoothing
        }
        self.faces(sides, finest, exchanges).await; // residual
    }

    /// Computes, then exchanges both faces across each divided axis, which is periodic. Later axes also carry
    /// the layers of the earlier ones.
    async fn faces(&self, sides: [u32; 3], level: u32, exchanges: u32) {
        self.work(exchanges);
        let inner = sides.map(|side| u64::from((1_u32 << level) / side));
        let whole = inner.map(|points| points + 2);
        let points = [inner[1] * inner[2], whole[0] * inner[2], whole[0] * whole[1]];
        let mut stride = 1;
        for (axis, &side) in sides.iter().enumerate() {
            let place = self.rank.rank() / stride % side;
            let base = self.rank.rank() - place * stride;
            let [down, up] =
                [(place + side - 1) % side, (place + 1) % side].map(|other| base + other * stride);
            let bytes = DOUBLE * points[axis];
            if side > 1 {
                let receives =
                    [(up, TAG), (down, TAG + 1)].map(|(from, tag)| self.rank.irecv(Some(from), tag, bytes));
                self.rank.send(down, TAG, bytes).await;
                self.rank.send(up, TAG + 1, bytes).await;
                self.rank.wait_all(receives).await;
            }
            stride *= side;
        }
    }
}

/// Ranks along each axis, doubled in turn: 8 ranks are 2 x 2 x 2, 16 are 4 x 2 x 2.
fn sides(ranks: u32) -> [u32; 3] {
    let doublings = ranks.ilog2();
    [0, 1, 2].map(|axis| 1 << ((doublings + 2 - axis) / 3))
}
