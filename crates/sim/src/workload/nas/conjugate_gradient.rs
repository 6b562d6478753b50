//! The NAS kernel CG: sums along the rows of a grid of ranks, and an exchange with the transposed rank.

use super::{DOUBLE, Running, TAG};

/// Iterations of the inner loop. Source: `cg.f`, `cgitmax`.
const INNER: u32 = 25;

impl Running<'_> {
    /// One outer iteration: 25 steps of the conjugate gradient method, the residual, and the norms. Source:
    /// `cg.f`, `conj_grad`.
    pub(super) async fn conjugate_gradient(&self) {
        let n = self.rank.size();
        let columns = 1 << n.ilog2().div_ceil(2);
        let rows = n / columns;
        let row_points = u64::from(self.points[0].div_ceil(rows));
        // With twice as many columns as rows, a rank sums half of the part of its row.
        let piece_bytes = DOUBLE * if rows == columns { row_points } else { row_points / 2 };
        self.sum_along_row(columns, DOUBLE).await; // the first rho
        for _ in 0..INNER {
            self.work(INNER);
            self.sum_along_row(columns, piece_bytes).await; // q = A p
            self.transpose(columns, rows, piece_bytes).await;
            self.sum_along_row(columns, DOUBLE).await; // p . q
            self.sum_along_row(columns, DOUBLE).await; // rho
        }
        self.sum_along_row(columns, piece_bytes).await; // r = A z
        self.transpose(columns, rows, piece_bytes).await;
        self.sum_along_row(columns, DOUBLE).await; // the norm of r
        self.sum_along_row(columns, 2 * DOUBLE).await; // two norms for zeta
    }

    /// `log2(columns)` exchanges with ranks of the same row. Source: `setup_proc_info`, `reduce_exch_proc`.
    async fn sum_along_row(&self, columns: u32, bytes: u64) {
        let (row, column) = (self.rank.rank() / columns, self.rank.rank() % columns);
        let mut span = columns;
        while span > 1 {
            let partner = row * columns + (column + span / 2) % span + span * (column / span);
            self.exchange(partner, partner, TAG, bytes, bytes).await;
            span /= 2;
        }
    }

    /// Exchanges with the transposed rank. Source: `exch_proc`.
    async fn transpose(&self, columns: u32, rows: u32, bytes: u64) {
        let me = self.rank.rank();
        let partner = match rows == columns {
            true => me % rows * rows + me / rows,
            false => 2 * (me / 2 % rows * rows + me / 2 / rows) + me % 2,
        };
        self.exchange(partner, partner, TAG + 1, bytes, bytes).await;
    }
}
